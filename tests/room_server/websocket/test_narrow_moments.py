"""Races: frames that arrive together, and events between two steps of the server."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable

import pytest
import uvloop
from websockets.asyncio.server import ServerConnection

from support.clients.raw_client import (
    CLOSE,
    bearer,
    raw_connection,
    raw_participant,
    websocket_frame,
)
from support.rooms.events import listed
from support.rooms.unharmed_server import connections_of, unharmed_server
from toolbus import KeyRing, Toolkit
from toolbus.wire import Call, CallId, Frame, Register, RequestId, Result, encode, pack_body
from toolbus_server import RoomServer, ServerSettings
from toolbus_server.limits import Limits
from toolbus_server.rooms.hub import Hub
from toolbus_server.testing import running_server
from toolbus_server.websocket.leaving import drain

MANIFEST = pack_body(Toolkit("ghost", []).manifest().model_dump(mode="json"))


def register(number: int) -> Register:
    return Register(RequestId(number), MANIFEST, {"public": True})


@pytest.mark.parametrize(
    "behind",
    [
        register(1),
        Call(RequestId(1), CallId("c"), "echo", "say", 1000, pack_body({"text": "x"}), None),
    ],
)
async def test_frame_between_a_broken_frame_and_a_close_is_not_read(behind: Frame) -> None:
    async with unharmed_server() as server, server.room("watcher") as watcher:
        connections = server.server.hub.rooms["lab"].routed.connections
        dispatched = sum(connection.last_dispatch for connection in connections.values())
        async with raw_participant(server) as mallory:
            pieces = [b"\xc1", encode(behind)]
            close = websocket_frame((1000).to_bytes(2, "big"), opcode=CLOSE)
            mallory.send(b"".join([*map(websocket_frame, pieces), close]))
            await mallory.close_code()
            assert [each.name for each in await listed(watcher)] == ["echo"]
            assert (
                sum(connection.last_dispatch for connection in connections.values()) == dispatched
            )
            assert "mallory" not in connections_of(server)["lab"]


async def test_of_two_connections_admitted_at_once_the_newer_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = RoomServer._handle
    newer_has_joined = asyncio.Event()

    async def keep_order(server: RoomServer, connection: ServerConnection) -> None:
        assert connection.request is not None
        if connection.request.path.endswith("epoch=1"):
            await newer_has_joined.wait()
        await handle(server, connection)

    monkeypatch.setattr(RoomServer, "_handle", keep_order)
    async with running_server() as server, raw_connection(server.url) as older:
        token = server.token("twin")
        head = await older.upgrade("/rooms/lab?instance=i&epoch=1", bearer(token))
        assert head.status == 101
        async with raw_participant(server, "twin", instance="i", epoch=2) as newer:
            newer_has_joined.set()
            assert await older.close_code() == 4409
            newer.send_frame(register(1))
            assert isinstance(await newer.reply_to(1), Result)


async def test_a_toolkit_that_is_registered_again_counts_once() -> None:
    settings = ServerSettings(keys=KeyRing([]), port=0, limits=Limits(max_toolkits=1))
    async with (
        running_server(settings=settings) as server,
        raw_participant(server, "host") as host,
    ):
        for number in (1, 2):
            host.send_frame(register(number))
            assert isinstance(await host.reply_to(number), Result)


@pytest.mark.parametrize(
    "make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
@pytest.mark.parametrize("iterations", range(6))
def test_connection_accepted_while_the_server_stops_is_closed_before_it_has_stopped(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
    iterations: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In every state of the connection within asyncio, no socket stays open."""
    settings = ServerSettings(keys=KeyRing([]), port=0, handshake_timeout_s=0.2)

    async def stop_during_a_connect() -> socket.socket:
        async def drain_and_connect(hub: Hub, drain_s: float) -> None:
            await drain(hub, drain_s)
            late.connect(("127.0.0.1", running.server.port))
            for _ in range(iterations):
                await asyncio.sleep(0)

        late = socket.socket()
        async with running_server(settings=settings) as running:
            monkeypatch.setattr("toolbus_server.websocket.server.drain", drain_and_connect)
        return late

    with (
        asyncio.Runner(loop_factory=make_loop) as runner,
        runner.run(stop_during_a_connect()) as late,
    ):
        late.settimeout(5)  # nothing runs here now that could still close it
        try:
            assert late.recv(1) == b""
        except ConnectionResetError:
            pass
    gc.collect()  # an open socket would warn
