"""Faults and bad input of streams, end to end: real processes and sockets."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from support.processes.flow_process import Memory, command, flow_host, number_of
from support.processes.server_process import server_process
from support.rooms.leftovers import forget_ended
from support.rooms.server_state import connection_of
from toolbus import ChunkStream, RoomClient
from toolbus.errors import ConnectionLost, HostLost, StreamStalled
from toolbus.wire.flow_control import WINDOW_BYTES, WINDOW_CHUNKS
from toolbus_server.calls.call_state import CallStreams, StreamDirection
from toolbus_server.testing import FaultProxy, Faults, TestServer, running_server

MIB = 1024 * 1024
ITEM_BYTES = 8_000
SLOW_READER_BYTES = 16 * MIB
"""What the server may hold for one connection with 100 streams: 8 MiB, and 32 KiB and one item for
each (STREAM-4), 12 MiB in all; with the overhead of its allocator.
"""


async def numbers_of(chunks: ChunkStream, count: int) -> list[int]:
    """Read this many items of a stream."""
    return [number_of(await anext(chunks)) for _ in range(count)]


async def read_on(chunks: ChunkStream, read: list[int]) -> None:
    """Add the received numbers to those read before."""
    async for chunk in chunks:
        read.append(number_of(chunk))


async def counts(room: RoomClient) -> dict[str, int]:
    """Ask the host how many items its tools have handled."""
    output: dict[str, int] = await room.call("flow.counts")
    return output


def is_clean(server: TestServer) -> bool:
    """Return whether nothing of any stream is left in a server of this process."""
    connections = server.server.hub.rooms["lab"].routed.connections.values()
    assert all((each.stream_count, each.outstanding_bytes) == (0, 0) for each in connections)
    router = server.server.hub.router
    for deadlines in (router._deadlines, router.streams._stalls):
        forget_ended(deadlines)
    gc.collect()
    left = sum(isinstance(each, CallStreams | StreamDirection) for each in gc.get_objects())
    return (router.in_flight, left) == (0, 0)


# Slow readers


async def test_a_host_waits_for_a_caller_that_reads_an_item_now_and_then(tmp_path: Path) -> None:
    """STREAM-3, STREAM-4: it yields what it has credit for, and the server keeps nothing of it."""
    async with (
        server_process(tmp_path) as server,
        server.room("alice") as alice,
        flow_host(server, alice, tmp_path) as host,
        alice.stream("flow.for_ever", {"size": ITEM_BYTES}) as chunks,
        asyncio.timeout(60),
    ):
        assert await numbers_of(chunks, 1) == [0]
        window = min(WINDOW_CHUNKS, WINDOW_BYTES // ITEM_BYTES)
        while (await counts(alice))["yielded"] < WINDOW_BYTES // ITEM_BYTES // 2:
            pass
        async with Memory(server=server.pid, host=host.pid, caller=os.getpid()) as memory:
            for read in range(1, 2 * window):
                assert await numbers_of(chunks, 1) == [read]
                # One that waits for credit has been yielded, and one may exceed the bytes.
                assert (await counts(alice))["yielded"] <= read + 1 + window + 2
        assert memory.grown("server") < 4 * MIB
        assert memory.grown("host") < 4 * MIB
        assert memory.grown("caller") < 4 * MIB


async def test_a_caller_waits_for_a_tool_that_takes_its_input_slowly(tmp_path: Path) -> None:
    """INPUT-1: its iterable is read as far as the host has room, and all of it arrives."""
    made, many, first = 0, 2_000, 3

    async def rows() -> AsyncIterator[dict[str, Any]]:
        nonlocal made
        for number in range(many):
            made += 1
            yield {"n": number, "x": "x" * ITEM_BYTES}

    async with (
        server_process(tmp_path) as server,
        server.room("alice") as alice,
        flow_host(server, alice, tmp_path) as host,
        Memory(server=server.pid, host=host.pid) as memory,
        alice.stream("flow.hoard", {"first": first}, input=rows()) as chunks,
        asyncio.timeout(60),
    ):
        await host.wrote("began hoard")
        most = WINDOW_BYTES // ITEM_BYTES + first + 2
        while made < WINDOW_BYTES // ITEM_BYTES // 2:
            await counts(alice)
        for _ in range(100):
            assert (await counts(alice))["taken"] <= first
            assert made <= most
        await alice.call("flow.release")
        assert [chunk.value async for chunk in chunks] == [many]
    assert memory.grown("server") < 4 * MIB
    assert memory.grown("host") < 8 * MIB


async def test_closing_a_caller_with_a_full_window_closes_only_it_and_cancels_at_its_hosts(
    tmp_path: Path,
) -> None:
    """CONN-14, STREAM-4, CALL-12: 100 streams arrive; others are served meanwhile."""
    async with (
        server_process(tmp_path) as server,
        FaultProxy(server.url) as proxy,
        server.room("bob") as bob,
        flow_host(server, bob, tmp_path) as host,
        RoomClient(proxy.url, room="lab", token=server.token("slow")) as slow,
        asyncio.timeout(90),
    ):
        assert await slow.call("flow.ping") == "pong"
        tasks = (await counts(bob))["tasks"]
        async with Memory(server=server.pid, host=host.pid) as memory:
            streams: list[list[int]] = [[] for _ in range(100)]
            reading = [asyncio.create_task(read_to_end(slow, read)) for read in streams]
            await host.wrote("began for_ever", 100)
            proxy.to_participant = Faults(stalled=True)
            served = 0
            while host.count("left for_ever") < 100:
                assert await bob.call("flow.ping") == "pong"
                served += 1
        assert served > 1  # one alone may be answered when the caller is closed already
        assert memory.grown("server") < SLOW_READER_BYTES
        assert memory.grown("host") < SLOW_READER_BYTES
        await proxy.heal()
        for ended, read in zip(await asyncio.gather(*reading), streams, strict=True):
            assert read == list(range(len(read)))
            assert (ended.executed, ended.details["chunks"]) == ("maybe", len(read))
        assert await slow.call("flow.ping") == "pong"  # it reconnects by itself
        while (await counts(bob))["tasks"] > tasks:
            pass


async def read_to_end(room: RoomClient, read: list[int]) -> ConnectionLost:
    """Read a stream until its connection is lost; return the error."""
    async with room.stream("flow.for_ever", {"size": ITEM_BYTES}) as chunks:
        with pytest.raises(ConnectionLost) as lost:
            await read_on(chunks, read)
    return lost.value


async def test_a_caller_that_reads_again_in_time_continues(tmp_path: Path) -> None:
    """STREAM-4: nothing is lost, and it was never closed."""
    async with (
        running_server() as server,
        FaultProxy(server.url) as proxy,
        server.room("bob") as bob,
        flow_host(server, bob, tmp_path),
        server.room("slow", via=proxy) as slow,
        asyncio.timeout(60),
    ):
        session = slow.me.id
        readings = [asyncio.create_task(read_all(slow, to=400, size=ITEM_BYTES)) for _ in range(20)]
        connection = connection_of(server, "slow")
        while connection.stream_count < len(readings):
            await bob.call("flow.ping")
        proxy.to_participant = Faults(stalled=True)
        while not connection.port.is_behind:
            await bob.call("flow.ping")
        for _ in range(200):
            await bob.call("flow.ping")
        assert connection.port.is_behind
        assert not any(reading.done() for reading in readings)
        await proxy.heal()
        assert await asyncio.gather(*readings) == [list(range(400))] * len(readings)
        assert slow.me.id == session


async def read_all(room: RoomClient, **arguments: int) -> list[int]:
    """Read a stream of numbers to its end."""
    async with room.stream("flow.numbers", arguments) as chunks:
        return [number_of(chunk) async for chunk in chunks]


# Late or out of order


async def test_chunks_of_a_stream_that_was_left_are_dropped_and_counted(tmp_path: Path) -> None:
    """STREAM-6."""
    async with (
        running_server() as server,
        server.room("alice") as alice,
        flow_host(server, alice, tmp_path) as host,
        asyncio.timeout(60),
    ):
        streams = server.server.hub.router.streams
        left = 0
        while not streams.dropped or left < 5:
            async with alice.stream("flow.for_ever", {"size": 500}) as chunks:
                assert await numbers_of(chunks, 300) == list(range(300))
            left += 1
            await host.wrote("left for_ever", left)
        assert await read_all(alice, to=1_000) == list(range(1_000))
        assert is_clean(server)


# Hosts that die or stall


async def test_the_loss_of_a_host_is_reported_after_the_received_chunks(tmp_path: Path) -> None:
    """CALL-13: by SIGKILL in mid-stream; `chunks` is the number of these."""
    async with (
        running_server() as server,
        server.room("alice") as alice,
        flow_host(server, alice, tmp_path) as host,
        asyncio.timeout(60),
    ):
        async with alice.stream("flow.for_ever", {"size": 100}) as chunks:
            read = await numbers_of(chunks, 1)
            await host.child.kill()
            with pytest.raises(HostLost) as lost:
                await read_on(chunks, read)
        assert read == list(range(len(read)))
        assert lost.value.details["chunks"] == len(read)
        assert (lost.value.executed, lost.value.retryable) == ("maybe", False)
        del chunks
        assert is_clean(server)


@pytest.mark.parametrize("progress_reports", [0, 8])
async def test_a_silent_host_has_stalled_and_progress_keeps_it_alive(
    tmp_path: Path, progress_reports: int
) -> None:
    """STREAM-7: progress arrives every 0.2 s, for longer in all than the stall limit."""
    received: list[int] = []
    async with (
        running_server() as server,
        server.room("alice") as alice,
        flow_host(server, alice, tmp_path) as host,
        asyncio.timeout(60),
    ):
        stream = alice.stream(
            "flow.pause",
            {"progress_reports": progress_reports},
            stall_timeout_s=1.0,
            on_progress=received.append,
        )
        async with stream as chunks:
            assert [(await anext(chunks)).value for _ in range(2)] == [1, 2]
            began = perf_counter()
            with pytest.raises(StreamStalled) as stalled:
                await anext(chunks)
            assert perf_counter() - began > 0.9
        assert stalled.value.executed == "maybe"
        assert stalled.value.details["chunks"] == 2
        assert received == sorted(received)
        assert bool(received) == bool(progress_reports)
        await host.wrote("left pause")


# Callers that leave


@pytest.mark.parametrize("how", ["leaves", "is cancelled", "is killed"])
async def test_a_tool_is_cancelled_when_its_caller_leaves_and_no_state_remains(
    tmp_path: Path, how: str
) -> None:
    """CALL-10, CALL-12: the generator is closed, and its `finally` runs."""
    async with (
        running_server() as server,
        server.room("bob") as bob,
        flow_host(server, bob, tmp_path) as host,
        asyncio.timeout(60),
    ):
        await counts(bob)  # a call may be faster than the start of the host's own tasks
        tasks = (await counts(bob))["tasks"]
        if how == "is killed":
            caller = await command(server, "call", "flow.for_ever", stdout=asyncio.subprocess.PIPE)
            assert caller.stdout is not None
            await caller.stdout.readline()
            caller.kill()
            await caller.wait()
        else:
            async with server.room("alice") as alice:
                reading = asyncio.create_task(read_or_leave(alice, leaves=how == "leaves"))
                await host.wrote("began for_ever")
                if how == "is cancelled":
                    reading.cancel()
                await asyncio.wait([reading])
                await host.wrote("left for_ever")
        await host.wrote("left for_ever")
        while (await counts(bob))["tasks"] > tasks:
            pass
        assert host.count("left for_ever") == host.count("began for_ever") == 1
        assert is_clean(server)


async def read_or_leave(room: RoomClient, *, leaves: bool) -> None:
    async with room.stream("flow.for_ever") as chunks:
        async for chunk in chunks:
            if leaves and number_of(chunk) > 100:
                return
