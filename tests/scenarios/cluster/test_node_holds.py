"""A call waits for a person where host, caller and approver are at different nodes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from support.nodes.cluster import nodes, until_listed, until_present
from support.nodes.processes import SHORT_LEASES, node_processes
from support.patience import PATIENCE_S
from support.redis.server import RedisPlace, any_redis
from support.rooms.approvals import Person, person_in
from toolbus import (
    ApiScope,
    ExternalTool,
    HeldCall,
    Permissions,
    RoomClient,
    ToolContext,
    Toolkit,
    Turn,
    WaitingCall,
    tool,
)
from toolbus.errors import (
    AlreadyExists,
    ApprovalDenied,
    ApprovalExpired,
    HostLost,
    NotFound,
    Overloaded,
    RoomException,
    Unavailable,
)
from toolbus_server.cluster import peer as peer_module
from toolbus_server.cluster.peer import Peer
from toolbus_server.rooms import hold_requests
from toolbus_server.testing import TestServer

pytestmark = pytest.mark.redis
APPROVER = replace(ApiScope.full(), approve_all=("*",))
ARGUMENTS = {"path": "a", "text": "b"}


@dataclass
class Stage:
    """One node each for the host, the caller and who approves."""

    servers: list[TestServer]
    host: RoomClient
    ann: RoomClient
    carol: Person
    wrote: list[str]

    def calling(self, tool: str = "files.write", **options: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(self.ann.invoke(tool, ARGUMENTS, returns=str, **options))


@pytest.fixture
async def redis() -> AsyncIterator[RedisPlace]:
    async with any_redis() as server:
        yield server


@asynccontextmanager
async def staged(redis: RedisPlace, drain_s: float = 1.0, **limits: Any) -> AsyncIterator[Stage]:
    wrote: list[str] = []

    @tool(approval=True, **limits)
    async def write(path: str, text: str) -> str:
        wrote.append(text)
        return path

    @tool
    async def outer(context: ToolContext, path: str, text: str) -> str:
        chunk = await context.room.invoke("files.write", {"path": path, "text": text})
        return f"outer {chunk.value}"

    async with asyncio.timeout(60), nodes(redis, 3, drain_s) as servers:
        first, second, third = servers
        async with (
            first.room("host") as host,
            host.host(Toolkit("files", [write, ExternalTool("review", {})])),
            second.room("ann") as ann,
            third.room("carol", api=APPROVER) as carol,
            third.room("between") as between,
            between.host(Toolkit("between", [outer])),
        ):
            for room in (ann, between, carol):
                await until_listed(room, "files")
            await until_listed(ann, "between")
            await until_present(host, "ann", "carol", "between")
            await until_present(carol, "ann", "host")
            async with person_in(carol) as person:
                yield Stage(servers, host, ann, person, wrote)


@pytest.fixture
async def stage(redis: RedisPlace) -> AsyncIterator[Stage]:
    async with staged(redis) as made:
        yield made


async def error_of(call: asyncio.Task[Any], kind: type[RoomException]) -> RoomException:
    with pytest.raises(kind) as caught:
        await call
    return caught.value


async def test_monitor_at_a_third_node_sees_the_wait_and_how_it_ended(stage: Stage) -> None:
    """WATCH-2."""
    async with stage.servers[2].room("eve") as eve, eve.watch_calls() as reports:
        call = stage.calling()
        hold = await stage.carol.asked()
        while not (report := await anext(reports)).held:
            pass
        (waiting,) = report.waiting
        assert (waiting.hold_id, waiting.call_id, waiting.is_open) == (hold.id, hold.call_id, True)
        assert (waiting.caller, waiting.host) == ("ann", "host")
        await stage.carol.room.deny(hold, "no")
        await asyncio.wait([call])
        settled = list[WaitingCall]()
        while not report.calls:
            report = await anext(reports)
            settled += [wait for wait in report.waiting if not wait.is_open]
        assert [(wait.hold_id, wait.outcome) for wait in settled] == [(hold.id, "denied")]
        (ended,) = report.calls
        assert (ended.code, ended.outcome, report.held) == ("approval_denied", "denied", 0)
        assert 0 < ended.held_s <= ended.duration_s
        await error_of(call, ApprovalDenied)


async def test_approver_elsewhere_sees_what_would_run_and_changes_it(stage: Stage) -> None:
    held: list[HeldCall] = []
    call = stage.calling(purpose="the report", on_held=held.append)
    hold = await stage.carol.asked()
    room = stage.carol.room
    assert hold.body is not None
    assert (hold.tool, hold.owner, hold.asked_for) == ("files.write", "host", "ann")
    assert (hold.purpose, hold.body.arguments) == ("the report", ARGUMENTS)
    assert [listed.id for listed in await room.holds()] == [hold.id]
    await room.approve(hold, {"path": "a", "text": "changed"})
    assert await call == "a"
    assert stage.wrote == ["changed"]
    settled = await stage.carol.settled()
    assert settled.by is not None
    assert (settled.outcome, settled.by.name) == ("approved", "carol")
    assert [(each.tool, each.outcome, each.changed) for each in held] == [
        ("files.write", "open", False),
        ("files.write", "approved", True),
    ]
    await room.approve(hold, {"path": "a", "text": "changed"})  # as after a lost connection
    with pytest.raises(AlreadyExists) as refused:
        await room.deny(hold)
    assert refused.value.details["outcome"] == "approved"


async def test_call_that_is_denied_elsewhere_does_not_run(stage: Stage) -> None:
    call = stage.calling()
    await stage.carol.room.deny(await stage.carol.asked(), "too early")
    error = await error_of(call, ApprovalDenied)
    assert "too early" in error.message
    assert (error.executed, stage.wrote) == ("no", [])


@pytest.mark.parametrize("who", ["caller", "host"])
async def test_call_waits_as_long_as_caller_and_host_allow(redis: RedisPlace, who: str) -> None:
    limits: dict[str, Any] = {"approval_timeout_s": 0.5}
    async with staged(redis, **(limits if who == "host" else {})) as stage:
        call = stage.calling(**(limits if who == "caller" else {}))
        hold = await stage.carol.asked()
        assert (await error_of(call, ApprovalExpired)).executed == "no"
        assert (await stage.carol.settled()).id == hold.id


async def test_call_without_code_is_answered_elsewhere(stage: Stage) -> None:
    call = stage.calling("files.review")
    hold = await stage.carol.asked()
    assert hold.body is not None
    assert (hold.kind, hold.body.arguments) == ("answer", ARGUMENTS)
    for _ in range(2):  # as after a lost connection
        await stage.carol.room.answer(hold, "good")
    assert await call == "good"
    assert (await stage.carol.settled()).outcome == "answered"


@pytest.mark.parametrize(
    ("is_read", "gone", "executed"),
    [(False, "host", "no"), (True, "host", "maybe"), (True, "its node", "maybe")],
)
async def test_call_that_was_read_elsewhere_may_have_been_carried_out(
    stage: Stage, is_read: bool, gone: str, executed: str
) -> None:
    """HOLD-17."""
    call = stage.calling("files.review", retry=False)
    await (stage.carol.asked() if is_read else stage.carol.added())
    await (stage.host.aclose() if gone == "host" else stage.servers[0].server.stop())
    error = await error_of(call, RoomException if gone == "its node" else HostLost)
    assert error.executed == executed


async def test_caller_knows_of_no_reader_once_the_node_of_the_host_was_killed(
    redis: RedisPlace, tmp_path: Path
) -> None:
    """HOLD-17: so the call may have been carried out, whoever has read it."""
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        running = node_processes(tmp_path, redis.url, redis.url, program=SHORT_LEASES)
        here, there = await stack.enter_async_context(running)
        ann = await stack.enter_async_context(here.room("ann"))
        host = await stack.enter_async_context(there.room("host"))
        await stack.enter_async_context(host.host(Toolkit("files", [ExternalTool("review", {})])))
        beside = await stack.enter_async_context(there.room("ann"))
        await until_listed(ann, "files")
        person = await stack.enter_async_context(person_in(beside))
        call = asyncio.create_task(ann.invoke("files.review", retry=False))
        await person.asked()
        await there.end(signal.SIGKILL)
        assert (await error_of(call, RoomException)).executed == "maybe"


async def test_clocks_of_all_calls_around_stand_still_at_every_node(stage: Stage) -> None:
    """The caller at the second node, a tool at the third, the tool that waits at the first."""
    call = stage.calling("between.outer", timeout_s=0.4)
    hold = await stage.carol.asked()
    assert hold.caller is not None
    assert (hold.caller.name, hold.asked_for) == ("between", "ann")
    await asyncio.wait([call], timeout=0.6)
    assert not call.done()
    await stage.carol.room.approve(hold)
    assert await call == "outer a"


async def test_call_that_comes_back_to_the_node_of_its_caller_stops_both_there(
    stage: Stage,
) -> None:
    """The caller and the host that asks are at the first node, the tool between them elsewhere."""
    async with stage.servers[0].room("near") as near:
        await until_listed(near, "between")
        call = asyncio.create_task(near.invoke("between.outer", ARGUMENTS, timeout_s=0.4))
        hold = await stage.carol.asked()
        await asyncio.wait([call], timeout=0.6)
        assert not call.done()
        await stage.carol.room.approve(hold)
        assert (await call).value == "outer a"
        call = asyncio.create_task(near.invoke("between.outer", ARGUMENTS))
        await stage.carol.settled()
        await stage.carol.asked()
        call.cancel()
        assert (await stage.carol.settled()).outcome == "cancelled"


async def test_call_that_its_caller_cancels_is_listed_nowhere(stage: Stage) -> None:
    call = stage.calling()
    hold = await stage.carol.asked()
    call.cancel()
    assert (await stage.carol.settled()).outcome == "cancelled"
    assert await stage.carol.room.holds() == []
    with pytest.raises(AlreadyExists):
        await stage.carol.room.approve(hold)
    assert stage.wrote == []


async def test_participant_without_the_grant_finds_nothing_elsewhere(stage: Stage) -> None:
    call = stage.calling()
    hold = await stage.carol.asked()
    async with stage.servers[2].room("mallory", api=ApiScope(approve=("*",))) as mallory:
        assert await mallory.holds() == []
        with pytest.raises(NotFound):
            await mallory.approve(hold)
    await stage.carol.room.approve(hold)
    assert await call == "a"


async def test_first_participant_of_a_node_finds_what_is_open_and_what_was_settled(
    redis: RedisPlace,
) -> None:
    """It asks as soon as it has joined, and a repeated decision is answered there too."""

    @tool(approval=True)
    async def write(path: str, text: str) -> str:
        return path

    async with asyncio.timeout(60), nodes(redis) as (here, there):
        async with here.room("host") as host, host.host(Toolkit("files", [write])):
            async with here.room("ann") as ann, here.room("carol", api=APPROVER) as carol:
                async with person_in(carol) as person:
                    calls = [asyncio.create_task(ann.invoke("files.write", ARGUMENTS))]
                    settled = await person.asked()
                    await carol.approve(settled)
                    await person.settled()
                    await asyncio.wait(calls)
                    calls.append(asyncio.create_task(ann.invoke("files.write", ARGUMENTS)))
                    held = await person.asked()
                    for _ in range(5):
                        async with there.room("carol", api=APPROVER) as elsewhere:
                            listed = await elsewhere.holds(settled=True)
                        assert [hold.id for hold in listed] == [settled.id, held.id]
                        assert [hold.outcome for hold in listed] == ["approved", "open"]
                    async with there.room("carol", api=APPROVER) as elsewhere:
                        await elsewhere.approve(listed[0])  # it was this identity
                    async with there.room("carol", api=APPROVER) as elsewhere:
                        await elsewhere.deny(held.id, "no")
                    await error_of(calls[1], ApprovalDenied)


async def test_node_that_enters_the_room_later_lists_what_is_open(stage: Stage) -> None:
    call = stage.calling()
    await stage.carol.asked()
    second = stage.servers[1]
    async with second.room("dan", api=APPROVER) as dan:
        (hold,) = await dan.holds()
        await dan.approve(hold.id)
    assert await call == "a"


async def test_rule_that_is_granted_is_listed_and_taken_back_elsewhere(stage: Stage) -> None:
    call = stage.calling()
    room = stage.carol.room
    await room.approve(await stage.carol.asked(), rule=True)
    assert await call == "a"
    assert await stage.calling() == "a"  # not asked any more
    async with asyncio.timeout(PATIENCE_S):
        while not (rules := await room.granted_rules()):
            pass  # there are no events of granted rules
    assert (rules[0].tool, rules[0].asked_for) == ("files.write", "ann")
    await room.take_back(rules[0])
    with pytest.raises(ApprovalExpired):
        await stage.calling(approval_timeout_s=0)


async def test_question_of_an_agent_stops_the_time_of_its_asker_elsewhere(stage: Stage) -> None:
    """HOLD-12: the agent is at the third node, its asker at the second."""

    @tool
    async def say(text: str) -> str:
        return text

    @tool
    async def think(context: ToolContext) -> str:
        own = [Toolkit("own", [say])]
        async with Turn(
            context=context, always=own, permissions=Permissions(), approve="room"
        ) as turn:
            return str(await turn.call("own.say", text="hi"))

    async with stage.servers[2].room("agent") as agent, agent.host(Toolkit("agent", [think])):
        await until_listed(stage.ann, "agent")
        call = asyncio.create_task(stage.ann.invoke("agent.think", timeout_s=0.4))
        hold = await stage.carol.asked()
        assert (hold.is_own, hold.asked_for, hold.owner) == (True, "ann", "agent")
        await asyncio.wait([call], timeout=0.6)
        await stage.carol.room.approve(hold)
        assert (await call).value == "hi"


@pytest.mark.parametrize("gone", [0, 1])
async def test_host_does_not_enter_before_the_node_of_the_caller_knows(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, gone: int
) -> None:
    """HOLD-14: that node says "no" of the call until then. With `gone` the caller ends it first."""
    monkeypatch.setattr(hold_requests, "_ACKNOWLEDGED_S", 0.3)
    approved = asyncio.Event()
    monkeypatch.setattr(Peer, "_on_wait", lambda *_: approved.set())
    call = stage.calling(retry=False)
    hold = await stage.carol.asked()
    approved.clear()
    approving = asyncio.create_task(stage.carol.room.approve(hold))
    async with asyncio.timeout(PATIENCE_S):
        await approved.wait()
    if gone:
        call.cancel()
        with pytest.raises(AlreadyExists):
            await approving
    else:
        assert (await error_of(call, Unavailable)).executed == "no"
        with pytest.raises(Unavailable, match="does not answer"):
            await approving
    assert (await stage.carol.settled()).outcome == "cancelled"
    assert stage.wrote == []


async def test_approver_whose_reply_is_lost_knows_that_the_call_may_have_run(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = stage.calling()
    hold = await stage.carol.asked()
    monkeypatch.setattr(peer_module, "_REPLY_S", 0.3)
    monkeypatch.setattr(Peer, "send_reply", lambda *_: None)
    with pytest.raises(Unavailable) as lost:
        await stage.carol.room.approve(hold)
    assert await call == "a"
    assert (lost.value.executed, lost.value.retryable) == ("maybe", False)


async def test_approver_who_reads_more_than_fits_is_refused_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = stage.calling()
    hold = await stage.carol.asked()
    monkeypatch.setattr(peer_module, "_MAX_WAITING_BYTES", 500)
    reads = [stage.carol.room.hold(hold.id) for _ in range(100)]
    found = await asyncio.gather(*reads, return_exceptions=True)
    assert {type(read) for read in found} == {type(hold), Overloaded}
    monkeypatch.undo()
    await stage.carol.room.approve(hold)
    assert await call == "a"


@pytest.mark.parametrize("is_read", [False, True])
async def test_node_of_a_caller_that_drains_waits_for_answers_only_if_they_were_read(
    redis: RedisPlace, *, is_read: bool
) -> None:
    """HOLD-17, HOLD-18."""
    async with staged(redis, drain_s=600) as stage:
        call = stage.calling("files.review", retry=False)
        hold = await (stage.carol.asked() if is_read else stage.carol.added())
        leaving = stage.servers[1].server
        stopping = asyncio.create_task(leaving.stop())
        if is_read:
            while not leaving.hub.router.is_draining:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0)
            await stage.carol.room.answer(hold, "good")
            assert await call == "good"
        else:
            assert (await stage.carol.settled()).outcome == "lost"
            error = await error_of(call, Unavailable)
            assert (error.executed, error.retryable) == ("no", True)
        await stopping


@pytest.mark.parametrize("gone", ["host", "caller", "approver"])
async def test_node_that_ends_while_a_call_waits_ends_what_needs_it(
    stage: Stage, gone: str
) -> None:
    call = stage.calling(retry=False)
    hold = await stage.carol.asked()
    place = {"host": 0, "caller": 1, "approver": 2}[gone]
    await stage.servers[place].server.stop()
    if gone != "approver":
        assert (await stage.carol.settled()).outcome == "lost"
        error = await error_of(call, RoomException)
        assert (error.executed, error.retryable) == ("no", True)
    else:
        async with stage.servers[1].room("dan", api=APPROVER) as dan:
            await dan.approve(hold.id)
        assert await call == "a"
    assert stage.wrote == (["b"] if gone == "approver" else [])
