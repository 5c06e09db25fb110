"""Many streams over one connection: large and small, fast and slow, and byte by byte."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from support.processes.flow_process import flow_host, number_of
from toolbus import RoomClient
from toolbus_server.testing import FaultProxy, Faults, running_server

STREAMS = 100
SIZES = (0, 10, 1_000, 30_000, 200_000)
"""Of an item; a stream of large items is shorter."""


def plan_of(number: int) -> dict[str, int]:
    """Choose how many items of what size a stream has."""
    size = SIZES[number % len(SIZES)]
    return {"to": max(8, min(400, 1_000_000 // (size + 1))), "size": size}


async def read_all(room: RoomClient, plan: dict[str, int], *, pauses: bool = False) -> int:
    """Read a stream, and check that it is complete and in order; return its length."""
    expected = 0
    async with room.stream("flow.numbers", plan) as chunks:
        async for chunk in chunks:
            assert chunk.value == {"n": expected, "x": "x" * plan["size"]}
            expected += 1
            if pauses:
                await room.call("flow.ping")
    assert expected == plan["to"]
    return expected


async def test_a_hundred_streams_over_one_connection_are_complete_and_in_order(
    tmp_path: Path,
) -> None:
    """STREAM-2 to STREAM-4: and no connection is closed."""
    async with (
        running_server() as server,
        server.room("alice") as alice,
        flow_host(server, alice, tmp_path),
        asyncio.timeout(90),
    ):
        session = alice.me.id
        plans = [plan_of(number) for number in range(STREAMS)]
        ended = await asyncio.gather(*(read_all(alice, plan) for plan in plans))
        assert ended == [plan["to"] for plan in plans]
        assert alice.me.id == session
        assert {each.name for each in await alice.participants()} == {"alice", "host"}


async def test_a_stream_that_is_read_slowly_holds_up_none_beside_it(tmp_path: Path) -> None:
    """STREAM-4: not even while its window is full."""
    async with (
        running_server() as server,
        server.room("alice") as alice,
        flow_host(server, alice, tmp_path),
        asyncio.timeout(90),
        alice.stream("flow.for_ever", {"size": 30_000}) as unread,
    ):
        session = alice.me.id
        slow = {"to": 300, "size": 5_000}
        reading = asyncio.create_task(read_all(alice, slow, pauses=True))
        for _ in range(5):
            fast = (read_all(alice, plan_of(number)) for number in range(8))
            assert len(await asyncio.gather(*fast)) == 8
        assert await reading == slow["to"]
        assert [number_of(await anext(unread)) for _ in range(50)] == list(range(50))
        assert alice.me.id == session


async def test_items_go_in_and_come_out_at_once_in_order(tmp_path: Path) -> None:
    """INPUT-1: the output equals the input, while both windows are smaller than the whole."""
    rows = [{"n": number, "x": "x" * (number % 7_000)} for number in range(1_500)]
    async with (
        running_server() as server,
        server.room("alice") as alice,
        flow_host(server, alice, tmp_path),
        asyncio.timeout(60),
    ):

        async def echoed() -> list[object]:
            async with alice.stream("flow.echo", input=rows) as chunks:
                return [chunk.value async for chunk in chunks]

        for back in await asyncio.gather(echoed(), echoed(), echoed()):
            assert back == rows


@pytest.mark.parametrize("side", ["caller", "host"])
async def test_streams_survive_a_connection_that_delivers_single_bytes(
    tmp_path: Path, side: str
) -> None:
    """STREAM-2, INPUT-2."""
    draws = random.Random(4)
    rows = [{"n": number, "x": "x" * draws.randrange(200)} for number in range(60)]
    async with (
        running_server() as server,
        FaultProxy(server.url) as proxy,
        server.room("alice", via=proxy if side == "caller" else None) as alice,
        flow_host(server, alice, tmp_path, url=proxy.url if side == "host" else None),
        asyncio.timeout(90),
    ):
        proxy.to_server = proxy.to_participant = Faults(slice_bytes=1)
        async with alice.stream("flow.echo", input=rows) as chunks:
            assert [chunk.value async for chunk in chunks] == rows
        file = await alice.invoke("flow.keep", attachment=b"\x07" * 4_000)
        assert file.value["size"] == 4_000
