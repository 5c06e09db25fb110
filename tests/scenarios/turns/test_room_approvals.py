"""Turns that ask in their room: who is asked, what about, and whose time stands still meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from support.rooms.approvals import Person, person_in
from toolbus import (
    ApprovalDenied,
    DeadlineExceeded,
    HeldCall,
    PermissionDenied,
    Permissions,
    Records,
    RequiredToolkit,
    RoomClient,
    Rule,
    ToolContext,
    ToolFailed,
    Toolkit,
    Turn,
    tool,
)
from toolbus_server.testing import room_of, running_server

SEND = {"text": "hi"}


@dataclass
class Post:
    """Where texts are sent: at a host of its own, or in the process of the agent."""

    sent: list[str] = field(default_factory=list)

    def toolkit(self, name: str = "post", **options: Any) -> Toolkit:
        @tool(approval=options.pop("approval", False))
        async def send(text: str) -> str:
            self.sent.append(text)
            return text

        return Toolkit(name, [send], **options)


@dataclass
class Lab:
    """An agent whose tool `agent.work` runs a turn for each call, and who calls it."""

    host: RoomClient
    agent: RoomClient
    ann: RoomClient
    person: Person
    """Ann, on another connection."""
    post: Post


def working(options: Callable[[], dict[str, Any]]) -> Toolkit:
    @tool
    async def work(context: ToolContext, names: list[str], count: int) -> list[str]:
        async def sends(number: int) -> list[str]:
            async with Turn(context=context, approve="room", **options()) as turn:
                return [await turn.call(name, text=f"{number}") for name in names]

        return [sent for each in await asyncio.gather(*map(sends, range(count))) for sent in each]

    @tool
    async def hang() -> None:
        await asyncio.Event().wait()

    return Toolkit("agent", [work, hang])


@asynccontextmanager
async def lab(toolkit: Toolkit | None = None, **options: Any) -> AsyncIterator[Lab]:
    post = Post()

    def chosen() -> dict[str, Any]:
        return {
            "required": [RequiredToolkit("post")],
            "always": [post.toolkit("own")],
            "permissions": Permissions(),
            "purpose": "to greet",
        } | options

    async with (
        running_server() as server,
        server.room("host") as host,
        host.host(toolkit or post.toolkit(), public=True),
        server.room("agent") as agent,
        agent.host(working(chosen), public=True),
        server.room("ann") as ann,
        server.room("ann") as beside,
        person_in(beside) as person,
    ):
        yield Lab(host, agent, ann, person, post)


def ask(lab: Lab, *names: str, count: int = 1, **options: Any) -> asyncio.Task[Any]:
    arguments = {"names": list(names), "count": count}
    invoked = lab.ann.invoke("agent.work", arguments, **options)
    return asyncio.ensure_future(invoked)


async def test_question_of_an_agent_is_for_its_asker_whose_time_stands_still() -> None:
    held: list[HeldCall] = []
    async with lab() as room:
        asking = ask(room, "post.send", "own.send", timeout_s=0.4, on_held=held.append)
        first = await room.person.asked()
        with pytest.raises(DeadlineExceeded):  # as long as the agent would have had
            await room.ann.invoke("agent.hang", timeout_s=0.5)
        assert (first.is_own, first.tool, first.asked_for) == (True, "post.send", "ann")
        assert first.caller is not None
        assert first.body is not None
        assert (first.caller.name, first.owner, first.purpose) == ("agent", "host", "to greet")
        assert first.body.arguments == {"text": "0"}
        await room.person.room.approve(first)
        assert (await room.person.settled()).outcome == "approved"
        second = await room.person.asked()
        assert (second.tool, second.owner) == ("own.send", "agent")
        await room.person.room.approve(second, {"text": "changed"})
        assert (await asking).value == ["0", "changed"]
    assert room.post.sent == ["0", "changed"]
    assert [(call.id, call.tool, call.may_settle, call.outcome) for call in held] == [
        (first.id, "post.send", True, "open"),
        (first.id, "post.send", False, "approved"),
        (second.id, "own.send", True, "open"),
        (second.id, "own.send", False, "approved"),
    ]


async def test_record_of_the_turn_and_that_of_a_toolkit_of_its_own_say_who_decided() -> None:
    """The policy of that toolkit asks by the turn, which has asked already."""
    records, of_own = Records.memory(), Records.memory()
    own = Post().toolkit("own", approval=True, policy=Permissions(), records=of_own)
    async with lab(records=records, always=[own]) as room:
        asking = ask(room, "post.send", "own.send")
        for _ in range(2):
            await room.person.room.approve(await room.person.asked())
            await room.person.settled()
        assert (await asking).value == ["0", "0"]
    for call in (*records.calls(), *of_own.calls()):
        assert (call.settled, call.settled_by) == ("approved", "ann")
    assert len(records.calls() + of_own.calls()) == 3


async def test_what_was_shown_are_the_very_bytes_that_the_host_is_sent() -> None:
    async with lab(Post().toolkit(approval=True)) as room:
        asking = ask(room, "post.send")
        own = await room.person.asked()
        await room.person.room.approve(own)
        await room.person.settled()
        at_host = await room.person.asked()  # no trusted owner: it might not have asked
        assert (own.is_own, at_host.is_own) == (True, False)
        assert (at_host.digest, at_host.definition) == (own.digest, own.definition)
        await room.person.room.approve(at_host)
        assert (await asking).value == ["0"]


async def test_definition_that_was_not_shown_is_not_called() -> None:
    async with lab() as room:
        asking = ask(room, "post.send")
        hold = await room.person.asked()
        await room.host.replace(room.post.toolkit(version="2"))
        await room.person.room.approve(hold)
        with pytest.raises(ToolFailed) as failed:
            await asking
        assert failed.value.details["cause"] == "DefinitionChanged"
    assert not room.post.sent


async def test_host_of_a_trusted_owner_asks_in_place_of_the_agent() -> None:
    trusting = Permissions(trusted_owners=["host"])
    records = Records.memory()
    kit = Post().toolkit(approval=True)
    async with lab(kit, permissions=trusting, records=records) as room:
        explained = await room.ann.explain("post.send", SEND)
        assert explained.assessment is not None
        assert "a person approves each call" in explained.assessment.asks
        asking = ask(room, "post.send")
        hold = await room.person.asked()
        assert not hold.is_own
        await room.person.room.approve(hold)
        assert (await asking).value == ["0"]
    assert [(call.decision, call.decided_by) for call in records.calls()] == [("allowed", "host")]


async def test_several_turns_in_one_call_ask_at_a_time_and_each_has_its_answer() -> None:
    async with lab() as room:
        asking = ask(room, "post.send", count=3, timeout_s=5)
        holds = [await room.person.asked() for _ in range(3)]
        assert len({hold.id for hold in holds}) == 3
        for hold in reversed(holds):
            assert hold.body
            await room.person.room.approve(
                hold, {"text": f"{hold.body.arguments['text']}, {hold.id}"}
            )
        ids = {hold.body and hold.body.arguments["text"]: hold.id for hold in holds}
        assert (await asking).value == [f"{number}, {ids[number]}" for number in ("0", "1", "2")]


async def test_always_holds_for_the_state_and_a_denial_reaches_the_asker() -> None:
    async with lab() as room:
        async with person_in(room.agent) as itself:  # without a call the agent is the principal
            permissions = Permissions()
            always = [room.post.toolkit("own")]
            async with Turn(
                room.agent, always=always, permissions=permissions, approve="room"
            ) as turn:
                calling = asyncio.ensure_future(turn.call("own.send", SEND))
                hold = await itself.asked()
                assert hold.asked_for == "agent"
                await room.agent.approve(hold, rule=Rule(behavior="allow", tool="own.send"))
                assert await calling == "hi"
                assert await turn.call("own.send", text="again") == "again"
                turn.permissions.take_back(*turn.permissions.granted)  # type: ignore[union-attr]
                await itself.settled()
                calling = asyncio.ensure_future(turn.call("own.send", SEND))
                await room.agent.deny((await itself.asked()).id, "not today")
                with pytest.raises(ApprovalDenied, match="not today") as denied:
                    await calling
                assert denied.value.executed == "no"
                await itself.settled()
                calling = asyncio.ensure_future(turn.call("own.send", text="more"))
                broad = Rule(behavior="allow", tool="own.*")
                await room.agent.approve((await itself.asked()).id, rule=broad)
                with pytest.raises(
                    PermissionDenied, match=r"own\.\*, which is not an allow rule of"
                ):
                    await calling
                assert not turn.permissions.granted  # type: ignore[union-attr]


async def test_question_ends_with_the_call_that_it_is_asked_in() -> None:
    async with lab() as room:
        asking = ask(room, "post.send")
        await room.person.added()
        asking.cancel()
        assert (await room.person.settled()).outcome == "cancelled"
    assert not room.post.sent


async def test_server_that_cannot_ask_is_a_denial_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolbus.client.caller.HOLDS_VERSION", 99)
    always = [Post().toolkit()]
    async with (
        room_of("agent") as (agent,),
        Turn(agent, always=always, permissions=Permissions(), approve="room") as turn,
    ):
        with pytest.raises(PermissionDenied, match="needs version 99") as denied:
            await turn.call("post.send", SEND)
        assert (denied.value.executed, denied.value.retryable) == ("no", False)


async def test_turn_without_a_room_cannot_ask_there() -> None:
    for where in ({"room": None}, {"context": ToolContext()}):
        with pytest.raises(ValueError, match='approve="room" needs Turn'):
            Turn(**where, permissions=Permissions(), approve="room")
