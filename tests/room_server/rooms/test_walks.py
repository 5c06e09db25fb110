"""Work that grows with a room is done in slices, in which others' calls go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from support.clients.raw_client import RawClient, raw_participant
from support.clients.raw_requests import (
    answer,
    ask,
    call_of,
    call_through,
    failure_of,
    next_of,
    offer,
    toolkit_of,
)
from support.rooms.unharmed_server import no_logged_errors
from toolbus import AgentsGrant, ApiScope
from toolbus.wire import (
    Describe,
    Frame,
    ListToolkits,
    Refresh,
    RequestId,
    Result,
    Send,
    Subscribe,
    unpack_body,
)
from toolbus_server.rooms import event_feed, scheduling
from toolbus_server.testing import TestServer, running_server

TOOLKITS, TOOLS = 5, 1_000
COSTLY = [f"*.*{number}x*l" for number in range(200)]
"""Patterns that have to be compared with each tool here, since all end so; they cover none."""
BLIND = ApiScope(agents=AgentsGrant(use_tools=True, allow=COSTLY), presence=True)
CALLS = 5


@pytest.fixture(autouse=True)
def _one_step_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "SLICE_S", 0.0)


class Victim:
    """A caller and its host."""

    def __init__(self, caller: RawClient, host: RawClient) -> None:
        self._caller = caller
        self._host = host
        self._calls = 0

    async def call(self) -> None:
        """Make a call, and wait for its result."""
        self._calls += 1
        call = call_of(request_id=self._calls)
        answer(self._host, await call_through(self._caller, self._host, call))
        await next_of(self._caller, Result)


@asynccontextmanager
async def room_with_victim() -> AsyncIterator[tuple[TestServer, Victim]]:
    async with running_server() as server, AsyncExitStack() as stack:
        caller = await stack.enter_async_context(raw_participant(server, "caller"))
        host = await stack.enter_async_context(raw_participant(server, "host"))
        await ask(host, offer())
        yield server, Victim(caller, host)


async def host_many_tools(host: RawClient) -> None:
    for number in range(TOOLKITS):
        tools = [f"tool_{index}_l" for index in range(TOOLS)]
        await ask(host, offer(toolkit_of(f"t{number}", *tools), number + 1))


async def check_calls_go_on_before(end: asyncio.Task[Any], victim: Victim) -> Any:
    """Calls that begin after a request of another are answered before the request is."""
    await asyncio.sleep(0)
    for _ in range(CALLS):
        await victim.call()
    assert not end.done()
    async with asyncio.timeout(60):
        return await end


@pytest.mark.parametrize(
    "walk",
    [
        ListToolkits(RequestId(1), {}),
        Subscribe(RequestId(1), ["toolkits"]),
        Describe(RequestId(1), "t0", {}),
    ],
    ids=lambda walk: type(walk).__name__,
)
async def test_calls_are_answered_while_a_participant_walks_hidden_tools(walk: Frame) -> None:
    """REG-20."""
    async with room_with_victim() as (server, victim), raw_participant(server, "many") as many:
        await host_many_tools(many)
        token = server.token("mallory", api=BLIND)
        async with raw_participant(server, "mallory", token=token) as mallory:
            mallory.send_frame(walk)
            reply = asyncio.create_task(mallory.reply_to(1))
            await check_calls_go_on_before(reply, victim)


async def test_calls_are_answered_while_new_grants_reveal_tools() -> None:
    """REG-20, REFRESH-1: the toolkits that become visible are reported, and no other."""
    async with room_with_victim() as (server, victim), raw_participant(server, "many") as many:
        await host_many_tools(many)
        token = server.token("mallory", api=ApiScope(agents=AgentsGrant(use_tools=True, allow=[])))
        async with raw_participant(server, "mallory", token=token) as mallory:
            await ask(mallory, Subscribe(RequestId(1), ["toolkits"]))
            grants = AgentsGrant(use_tools=True, allow=[*COSTLY, "t4.tool_999_l"])
            newer = server.token("mallory", api=ApiScope(agents=grants))
            await ask(mallory, Refresh(RequestId(2), newer))
            event = asyncio.create_task(mallory.next_event())
            shown = await check_calls_go_on_before(event, victim)
            assert (shown.number, shown.name) == (1, "toolkit_added")
            assert (shown.data["toolkit"]["name"], shown.data["toolkit"]["tools"]) == (
                "t4",
                ["tool_999_l"],
            )


async def test_a_broadcast_is_packed_once_and_sent_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SEND-2."""
    packed: list[Any] = []

    def counted(data: dict[str, Any]) -> Any:
        packed.append(data)
        return scheduling.pack_once(data)

    monkeypatch.setattr(event_feed, "pack_once", counted)
    async with room_with_victim() as (server, victim), AsyncExitStack() as stack:
        join = stack.enter_async_context
        listeners = [await join(raw_participant(server, f"l{number}")) for number in range(60)]
        for listener in listeners:
            await ask(listener, Subscribe(RequestId(1), ["messages"]))
        sender = await join(raw_participant(server, "sender"))
        packed.clear()
        for number in (1, 2):
            sender.send_frame(Send(RequestId(number), None, f"m{number}", bytes(10_000)))
        ends = asyncio.create_task(_results(sender, 2))
        assert await check_calls_go_on_before(ends, victim) == [{"delivered": 60}] * 2
        assert [message["name"] for message in packed] == ["m1", "m2"]
        for listener in listeners:
            events = [await listener.next_event() for _ in range(2)]
            assert [(event.number, event.data["name"]) for event in events] == [
                (1, "m1"),
                (2, "m2"),
            ]


async def _results(client: RawClient, count: int) -> list[Any]:
    replies = [await client.reply_to(number + 1) for number in range(count)]
    return [unpack_body(reply.body) for reply in replies if isinstance(reply, Result)]


async def test_walks_of_one_participant_end_in_the_order_of_their_requests() -> None:
    """REG-20: one that needs no walk waits for those before it."""
    async with running_server() as server, raw_participant(server, "many") as many:
        await host_many_tools(many)
        async with raw_participant(server, "mallory") as mallory:
            mallory.send_frame(ListToolkits(RequestId(1), {}))
            mallory.send_frame(Subscribe(RequestId(2), ["toolkits"]))
            mallory.send_frame(Subscribe(RequestId(3), []))
            mallory.send_frame(ListToolkits(RequestId(4), {"limit": 1}))
            replies = [await next_of(mallory, Result) for _ in range(4)]
            assert [reply.id for reply in replies] == [1, 2, 3, 4]


async def test_a_walk_that_begins_as_the_last_one_has_ended_runs_once() -> None:
    scheduler = scheduling.FairScheduler(asyncio.get_running_loop())
    queue = scheduling.Lane(scheduler)
    steps, ends = list[str](), list[str]()

    def walk(name: str) -> scheduling.Walk:
        for _ in range(3):
            steps.append(name)
            yield
        return name

    queue.run(walk("a"), lambda end: ends.append(end.result()))
    async with asyncio.timeout(60):
        while not ends:  # noqa: ASYNC110 - a plain list
            await asyncio.sleep(0)
        queue.run(walk("b"), lambda end: ends.append(end.result()))
        while scheduler.is_busy:  # noqa: ASYNC110 - a plain queue
            await asyncio.sleep(0)
    assert steps == ["a"] * 3 + ["b"] * 3
    assert ends == ["a", "b"]


async def test_a_job_that_raises_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = scheduling.FairScheduler(asyncio.get_running_loop())
    done: list[int] = []

    def job(number: int) -> Iterator[None]:
        yield
        done.append(1 // number)

    for number in (0, 1):
        scheduler.add(job(number))
    async with asyncio.timeout(60):
        while scheduler.is_busy:  # noqa: ASYNC110 - a plain queue
            await asyncio.sleep(0)
    assert done == [1]
    assert [record.message for record in caplog.records] == [
        "a job failed with a bug; the others go on"
    ]


async def test_a_request_too_many_is_refused_while_a_walk_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """REG-20."""
    monkeypatch.setattr(scheduling, "MAX_WAITING_WALKS", 2)
    async with running_server() as server, raw_participant(server, "many") as many:
        await host_many_tools(many)
        async with raw_participant(server, "mallory") as mallory:
            for number in (1, 2, 3):
                mallory.send_frame(ListToolkits(RequestId(number), {}))
            refused = await failure_of(mallory, 3)
            assert (refused.code, refused.executed) == ("quota_exceeded", "no")
            assert isinstance(await mallory.reply_to(1), Result)
            assert isinstance(await mallory.reply_to(2), Result)


async def test_a_participant_that_leaves_during_a_walk_leaves_nothing_behind() -> None:
    async with running_server() as server, raw_participant(server, "many") as many:
        await host_many_tools(many)
        with no_logged_errors():
            async with raw_participant(server, "mallory") as mallory:
                mallory.send_frame(Subscribe(RequestId(1), ["toolkits"]))
                mallory.send_frame(ListToolkits(RequestId(2), {}))
                room = server.server.hub.rooms["lab"]
                async with asyncio.timeout(60):
                    while not room.feeds._starting:  # noqa: ASYNC110 - a plain set
                        await asyncio.sleep(0)
            async with asyncio.timeout(60):
                while room.feeds._starting or server.server.hub.scheduler.is_busy:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            assert room.feeds._feeds == {}
