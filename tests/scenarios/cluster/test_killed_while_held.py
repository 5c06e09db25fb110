"""A call waits over three nodes, each a process, and a process is killed: what the others see.

The host, the caller and who approves are processes at a node each. A file tells what ran.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from support.nodes.cluster import until_listed
from support.nodes.processes import SHORT_LEASES, node_processes
from support.processes.approval_parts import WITNESS, program
from support.redis.server import RedisPlace, any_redis
from support.rooms.approvals import person_in
from toolbus.errors import AlreadyExists, Unavailable

pytestmark = pytest.mark.redis
_WROTE = {"value": "wrote f0"}
_LOST = ("host_lost", "no")
_UNKNOWN = ("connection_lost", "maybe")  # whether it was approved before its line was lost


@pytest.fixture
async def redis() -> AsyncIterator[RedisPlace]:
    async with any_redis() as server:
        yield server


@pytest.mark.parametrize(
    ("killed", "whose", "end", "outcome"),
    [
        ("node", "host", _LOST, "lost"),
        ("node", "caller", _UNKNOWN, "denied"),
        ("node", "approver", _WROTE, "approved"),
        ("process", "host", _LOST, "lost"),
        ("process", "caller", None, "denied"),
        ("process", "approver", _WROTE, "approved"),
    ],
)
async def test_others_see_how_a_call_ends_that_waited_when_a_process_was_killed(
    redis: RedisPlace, tmp_path: Path, killed: str, whose: str, end: Any, outcome: str
) -> None:
    """HOLD-10, HOLD-14, HOLD-19: that of a caller that is killed may still be decided."""
    witness = tmp_path / "witness"
    witness.touch()
    async with asyncio.timeout(120), AsyncExitStack() as stack:
        enter = stack.enter_async_context
        running = await enter(node_processes(tmp_path, *[redis.url] * 3, program=SHORT_LEASES))
        nodes = dict(zip(("host", "caller", "approver"), running, strict=True))
        host = await enter(program(nodes["host"], "host", "host", **{WITNESS: str(witness)}))
        for node in running:
            async with node.room("early") as early:
                await until_listed(early, "files")
        stay = [node for name, node in nodes.items() if (killed, whose) != ("node", name)]
        watching = [await enter(person_in(await enter(node.room("ann")))) for node in stay]
        steps = (1, 600, ["approve"])
        approver = await enter(program(nodes["approver"], "ann", "decide", *steps))
        caller = await enter(program(nodes["caller"], "ann", "call", 1, {"retry": False}))
        await approver.next()  # it has read what would run, and thinks
        holds = [await person.added() for person in watching]
        (hold_id,) = {hold.id for hold in holds}

        if killed == "node":
            await nodes[whose].end(signal.SIGKILL)
        else:
            {"host": host, "caller": caller, "approver": approver}[whose].kill()
        if outcome == "approved":
            assert [hold.id for hold in await watching[0].room.holds()] == [hold_id]
            await watching[0].room.approve(hold_id)
        if whose == "caller":
            assert all([(await person.added()).is_away for person in watching])
            await watching[0].room.deny(hold_id)
        if end is not None:
            _, ended, _ = await caller.next()
            assert end in (ended, (ended.get("code"), ended.get("executed")))
        # What became of it knows the node of its host.
        too_late = Unavailable if (killed, whose) == ("node", "host") else AlreadyExists
        for person in watching:
            assert (await person.settled()).outcome == outcome
            assert await person.room.holds() == []
            room = person.room
            with pytest.raises(too_late):
                await (room.approve(hold_id) if outcome == "denied" else room.deny(hold_id))
    assert witness.read_text() == ("f0: a\n" if outcome == "approved" else "")
