"""A caller that does not go on with its calls: others get places, and its own become free."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.clients.raw_client import raw_participant
from support.clients.raw_requests import call_of, failure_of
from support.processes.flow_process import FlowHost, command, flow_host, number_of
from support.rooms.large_results import sdk_host
from toolbus import ChunkStream, Overloaded, RoomClient, StreamStalled
from toolbus.auth.tokens import KeyRing
from toolbus.hosting.fair_slots import MAX_IN_FLIGHT
from toolbus.wire import pack_body
from toolbus.wire.flow_control import WINDOW_CHUNKS
from toolbus_server import ServerSettings
from toolbus_server.limits import Limits
from toolbus_server.testing import running_server

SHORT = ServerSettings(KeyRing([]), port=0, limits=Limits(stream_unread_ms=1_000))
LONG_S = 10_000.0


@asynccontextmanager
async def unread_streams(
    caller: RoomClient, host: FlowHost, count: int
) -> AsyncIterator[list[ChunkStream]]:
    """Begin streams without an end and read nothing of them."""
    async with AsyncExitStack() as stack:
        begun = [caller.stream("flow.for_ever", stall_timeout_s=None) for _ in range(count)]
        streams = [await stack.enter_async_context(each) for each in begun]
        await host.wrote("began for_ever", count)
        yield streams


async def ping(caller: RoomClient) -> str:
    """Call once, without a retry."""
    return str((await caller.invoke("flow.ping", {}, retry=False)).value)


async def test_a_caller_whose_streams_take_every_place_leaves_places_for_others(
    tmp_path: Path,
) -> None:
    """CALL-19: places belong to an identity, however many connections it has."""
    async with (
        running_server() as server,
        server.room("alice") as alice,
        server.room("alice") as second,
        server.room("bob") as bob,
        flow_host(server, bob, tmp_path) as host,
        unread_streams(alice, host, MAX_IN_FLIGHT),
    ):
        for caller in (alice, second):
            with pytest.raises(Overloaded, match="256 of them yours"):
                await ping(caller)
        assert await asyncio.gather(*(ping(bob) for _ in range(60))) == ["pong"] * 60
        victim = await command(server, "call", "flow.ping", "--no-retry", name="victim")
        assert await victim.wait() == 0
        with pytest.raises(Overloaded):  # the places were taken all the time
            await ping(alice)
        assert host.count("left for_ever") == 0


async def test_streams_that_are_not_read_end_and_free_their_places(tmp_path: Path) -> None:
    """STREAM-7: their caller gets what had arrived, and the error."""
    async with (
        running_server(settings=SHORT) as server,
        server.room("alice") as alice,
        server.room("bob") as bob,
        flow_host(server, bob, tmp_path) as host,
        unread_streams(alice, host, MAX_IN_FLIGHT) as streams,
    ):
        await host.wrote("left for_ever", MAX_IN_FLIGHT)
        assert await asyncio.gather(*(ping(alice) for _ in range(64))) == ["pong"] * 64
        for stream in streams:
            assert [number_of(await anext(stream)) for _ in range(WINDOW_CHUNKS)][-1] == 255
            with pytest.raises(StreamStalled, match="read nothing") as stalled:
                await anext(stream)
            assert (stalled.value.executed, stalled.value.retryable) == ("maybe", False)


async def test_a_large_result_that_is_not_taken_ends() -> None:
    """STREAM-7, STREAM-11."""
    parts = "1&chunks=1&parts=1"
    async with (
        running_server(settings=SHORT) as server,
        sdk_host(server),
        raw_participant(server, "alice", instance=parts) as alice,
    ):
        arguments: dict[str, Any] = {"number": 1, "size": 200_000}
        call = call_of(timeout_ms=int(LONG_S * 1000), arguments=pack_body(arguments))
        alice.send_frame(call)
        failed = await failure_of(alice, call.id)
        assert (failed.code, failed.executed) == ("stream_stalled", "maybe")
