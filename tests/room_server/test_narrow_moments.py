"""What reaches the server in one piece, or in the moment between two steps of its own."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable

import pytest
import uvloop
from websockets.asyncio.server import ServerConnection

from support.bystanders import seats_of, unharmed_server
from support.raw_client import (
    CLOSE,
    bearer,
    raw_connection,
    raw_participant,
    websocket_frame,
)
from support.room_watch import listed
from toolbus import KeyRing, Toolkit
from toolbus.wire import Call, CallId, Frame, Register, RequestId, Result, encode, pack_body
from toolbus_server import RoomServer, ServerSettings
from toolbus_server.farewell import take_leave
from toolbus_server.hub import Hub
from toolbus_server.limits import Limits
from toolbus_server.testing import running_server

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
async def test_what_stands_between_a_broken_frame_and_a_close_is_not_read(behind: Frame) -> None:
    async with unharmed_server() as server, server.room("watcher") as watcher:
        seats = server.server.hub.rooms["lab"].room.seats
        dispatched = sum(seat.last_dispatch for seat in seats.values())
        async with raw_participant(server) as mallory:
            pieces = [b"\xc1", encode(behind)]
            close = websocket_frame((1000).to_bytes(2, "big"), opcode=CLOSE)
            mallory.send(b"".join([*map(websocket_frame, pieces), close]))
            await mallory.close_code()
            assert [each.name for each in await listed(watcher)] == ["echo"]
            assert sum(seat.last_dispatch for seat in seats.values()) == dispatched
            assert "mallory" not in seats_of(server)["lab"]


async def test_of_two_connections_let_in_at_once_the_newer_keeps_the_seat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = RoomServer._handle
    newer_is_there = asyncio.Event()

    async def keep_order(server: RoomServer, connection: ServerConnection) -> None:
        assert connection.request is not None
        if connection.request.path.endswith("epoch=1"):
            await newer_is_there.wait()
        await handle(server, connection)

    monkeypatch.setattr(RoomServer, "_handle", keep_order)
    async with running_server() as server, raw_connection(server.url) as older:
        token = server.token("twin")
        head = await older.upgrade("/rooms/lab?instance=i&epoch=1", bearer(token))
        assert head.status == 101
        async with raw_participant(server, "twin", instance="i", epoch=2) as newer:
            newer_is_there.set()
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
@pytest.mark.parametrize("turns", range(6))
def test_whoever_comes_in_as_a_server_stops_is_hung_up_on_before_it_has_stopped(
    make_loop: Callable[[], asyncio.AbstractEventLoop], turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever asyncio has made of a connection by then, it has no socket open afterwards."""
    settings = ServerSettings(keys=KeyRing([]), port=0, handshake_timeout_s=0.2)

    async def stop_as_somebody_comes() -> socket.socket:
        async def meet_one_more(hub: Hub, drain_s: float) -> None:
            await take_leave(hub, drain_s)
            late.connect(("127.0.0.1", running.server.port))
            for _ in range(turns):
                await asyncio.sleep(0)

        late = socket.socket()
        async with running_server(settings=settings) as running:
            monkeypatch.setattr("toolbus_server.server.take_leave", meet_one_more)
        return late

    with (
        asyncio.Runner(loop_factory=make_loop) as runner,
        runner.run(stop_as_somebody_comes()) as late,
    ):
        late.settimeout(5)  # nothing runs here meanwhile that could still hang up
        try:
            assert late.recv(1) == b""
        except ConnectionResetError:
            pass
    gc.collect()  # an open socket would complain
