"""Streams between our SDK and a client in Node that was written from PROTOCOL.md alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.processes.node_js_client import installed_client, node_program
from toolbus import ChunkStream, InputStream, RoomClient, Toolkit, tool
from toolbus.errors import HostLost, ToolFailed
from toolbus_server.testing import running_server

MANY = 5_000


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the client; where there is no Node, its tests are not verified."""
    return installed_client(tmp_path_factory.mktemp("node"))


def streams(left: asyncio.Event) -> Toolkit:
    """A toolkit hosted by the SDK."""

    @tool
    async def doubled(numbers: InputStream[int]) -> AsyncIterator[int]:
        async for number in numbers:
            yield 2 * number

    @tool
    async def count(to: int, size: int) -> AsyncIterator[dict[str, object]]:
        for number in range(to):
            yield {"n": number, "x": "x" * size}

    @tool
    async def break_off() -> AsyncIterator[int]:
        yield 1
        yield 2
        raise ToolFailed("no more than two")

    @tool
    async def for_ever() -> AsyncIterator[int]:
        try:
            while True:
                yield 7
        finally:
            left.set()

    @tool
    async def zeros(size: int) -> bytes:
        return bytes(size)

    return Toolkit("streams", [doubled, count, break_off, for_ever, zeros])


async def test_it_calls_streams_and_uploads_of_sdk_hosts(client: Path) -> None:
    """STREAM-1 to STREAM-4, STREAM-8, STREAM-9, INPUT-1, INPUT-2, CALL-10."""
    left = asyncio.Event()
    async with (
        running_server() as server,
        server.room("host") as host,
        host.host(streams(left)),
        node_program(client, "demo_caller.mjs", server.url, server.token("node")) as caller,
        asyncio.timeout(90),
    ):
        await caller.wait_for(joined="node")
        doubling = caller.send_order("stream", name="streams.doubled", input={"to": MANY})
        args = {"to": 600, "size": 5_000}
        window = {"chunks": 10, "bytes": 20_000}
        counted = await caller.ask("stream", name="streams.count", args=args, window=window)
        assert counted["values"] == [{"n": n, "x": "x" * args["size"]} for n in range(args["to"])]
        assert (await caller.answer(doubling))["values"] == [*range(2, 2 * MANY + 1, 2)]
        broken = await caller.ask("stream", name="streams.break_off")
        assert (broken["values"], broken["error"]["code"]) == ([1, 2], "tool_failed")
        got = await caller.ask("call", name="streams.zeros", args={"size": 3_000_001})
        assert got["value"]["size"] == 3_000_001
        some = await caller.ask("stream", name="streams.for_ever", take=3)
        assert some["values"] == [7, 7, 7]
        await left.wait()
        assert server.server.hub.router.in_flight == 0


async def test_the_sdk_calls_its_streams_and_uploads(client: Path) -> None:
    """STREAM-1 to STREAM-4, STREAM-8, STREAM-9, INPUT-1, INPUT-2, PROGRESS-1, CALL-10, CALL-13."""
    async with (
        running_server() as server,
        node_program(client, "demo_host.mjs", server.url, server.token("node-host")) as host,
        server.room("alice") as alice,
        asyncio.timeout(90),
    ):
        await host.wait_for(hosting="lines")
        counted, doubled = await asyncio.gather(
            read(alice, "count", {"to": MANY}), read(alice, "doubled", rows=range(MANY))
        )
        assert counted == [{"n": number} for number in range(1, MANY + 1)]
        assert doubled == [*range(0, 2 * MANY, 2)]
        sums: list[dict[str, int]] = []
        total = alice.stream("lines.total", input=range(MANY), on_progress=sums.append)
        async with total as chunks:
            assert [chunk.value async for chunk in chunks] == [sum(range(MANY))]
        assert sums  # some may be lost, but their order is kept
        assert [each["sum"] for each in sums] == sorted(each["sum"] for each in sums)
        async with alice.stream("lines.break_off") as chunks:
            assert [(await anext(chunks)).value for _ in range(3)] == [1, 2, 3]
            with pytest.raises(ToolFailed, match="no more than three") as failed:
                await anext(chunks)
        assert failed.value.details["chunks"] == 3
        file = await alice.invoke("lines.zeros", {"size": 3_000_001})
        assert await file.read() == bytes(3_000_001)
        async with alice.stream("lines.for_ever") as chunks:
            assert [(await anext(chunks)).value for _ in range(3)] == [1, 2, 3]
        assert "cancelled" in (await host.wait_for(stopped="for_ever"))["why"]
        async with alice.stream("lines.for_ever") as chunks:
            assert (await anext(chunks)).value == 1
            host.kill()
            more: list[object] = []
            with pytest.raises(HostLost) as lost:
                await read_on(chunks, more)
        assert lost.value.details["chunks"] == 1 + len(more)
        assert server.server.hub.router.in_flight == 0


async def read_on(chunks: ChunkStream, values: list[object]) -> None:
    async for chunk in chunks:
        values.append(chunk.value)


async def read(
    room: RoomClient, name: str, arguments: dict[str, int] | None = None, rows: object = None
) -> list[object]:
    """Read a stream of the host's to its end."""
    async with room.stream(f"lines.{name}", arguments, input=rows) as chunks:
        return [chunk.value async for chunk in chunks]
