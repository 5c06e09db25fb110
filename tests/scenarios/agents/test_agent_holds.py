"""What an agent says of its calls that wait for a person, and of what it asks itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from support.models.prepared_model import PreparedModel, Reply, uses
from support.rooms.approvals import person_in
from toolbus import Agent, HeldCall, Permissions, RequiredToolkit, RoomClient, Toolkit, tool
from toolbus_server.testing import room_of

INNER = RequiredToolkit("inner", participant="inner")
DROP = uses("vault.drop", name="all")


@tool(approval=True)
async def drop(name: str) -> str:
    return f"dropped {name}"


def agent_in(room: RoomClient, name: str, *replies: Reply, **options: Any) -> Agent:
    return Agent(room, PreparedModel(*replies), name=name, **options)


async def answer(room: RoomClient, name: str, held: list[HeldCall]) -> list[dict[str, Any]]:
    stream = room.stream(f"{name}.ask", {"text": "go"}, participant=name, on_held=held.append)
    async with stream as chunks:
        return [cast("dict[str, Any]", chunk.value) async for chunk in chunks]


def waits(events: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return what events tell of waits, inside those of other agents too."""
    kinds = ("held", "resumed")
    inner = [event["value"] for event in events if event["type"] == "progress"]
    return [
        (event["type"], event["id"], event["tool"], event["hold"], event.get("outcome"))
        for event in [*events, *inner]
        if event["type"] in kinds
    ]


async def test_agent_tells_of_its_own_question_and_of_a_call_that_waits_at_its_host() -> None:
    options: dict[str, Any] = {"permissions": Permissions(), "approve": "room"}
    async with room_of("host", "helper", "ann", "ann") as (host, helper, ann, beside):
        async with (
            host.host(Toolkit("vault", [drop])),
            agent_in(helper, "helper", DROP, "done", **options),
            person_in(beside) as person,
        ):
            told: list[HeldCall] = []
            asking = asyncio.ensure_future(answer(ann, "helper", told))
            own = await person.asked()
            await beside.approve(own, {"name": "some"})
            await person.settled()
            at_host = await person.asked()
            await beside.deny(at_host, "no")
            events = await asking
    assert (own.is_own, at_host.is_own) == (True, False)
    changed = [event["changed"] for event in events if event["type"] == "resumed"]
    assert changed == [call.changed for call in told if not call.is_open] == [True, False]
    named = ("use-1", "vault.drop")
    assert waits(events) == [
        ("held", *named, None, None),  # its id is for those who are asked
        ("resumed", *named, None, "approved"),
        ("held", *named, at_host.id, None),
        ("resumed", *named, at_host.id, "denied"),
    ]
    ids = [(call.id, call.outcome) for call in told]
    assert ids == [
        (own.id, "open"),
        (own.id, "approved"),
        (at_host.id, "open"),
        (at_host.id, "denied"),
    ]


async def test_wait_behind_another_agent_is_told_once() -> None:
    async with room_of("host", "inner", "outer", "ann", "ann") as (host, inner, outer, ann, beside):
        asks = uses("inner.ask", text="drop it")
        async with (
            host.host(Toolkit("vault", [drop])),
            agent_in(inner, "inner", DROP, "dropped"),
            agent_in(outer, "outer", asks, "done", required=[INNER]),
            person_in(beside) as person,
        ):
            asking = asyncio.ensure_future(answer(ann, "outer", []))
            hold = await person.asked()
            assert (hold.asked_for, hold.caller and hold.caller.name) == ("ann", "inner")
            await beside.approve(hold)
            events = await asking
    named = ("use-1", "inner.ask", hold.id)
    assert waits(events) == [("held", *named, None), ("resumed", *named, "approved")]
    (held,) = [event for event in events if event["type"] == "held"]
    assert held["waits_for"] == "vault.drop"
