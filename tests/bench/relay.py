"""A relay on the library websockets alone: the yardstick for calls and files.

Connections are subclasses given to `create_connection`. A frame is dispatched from `process_event`
and written at once: no queue, no task, no await. Frames are msgpack arrays. The router decodes each
call and result, replaces its id and encodes it again. No grants, validation or deadlines, and
nothing of toolbus is imported.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import msgpack
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection, serve
from websockets.frames import DATA_OPCODES, Frame

from bench.legs import FILE_BYTES
from bench.role import Facts, Role, measured_calls, measured_transfer, run_role, serve_orders

CALL, RESULT, ASK, DATA, TAKEN = 1, 2, 3, 4, 5
FRAME_BYTES = 256 * 1024
FRAMES = FILE_BYTES // FRAME_BYTES
WINDOW_FRAMES = 8
"""The number of frames that a sender may be ahead of what the receiver has confirmed."""
FRAMES_PER_CONFIRMATION = 2

OnFrame: TypeAlias = Callable[[list[Any]], None]
Channel: TypeAlias = Any
"""A connection on either transport: calls its `on_frame` and has a method `post`."""


class RelayConnection(Connection):
    """What both ends share."""

    on_frame: OnFrame

    def process_event(self, event: Any) -> None:
        """Dispatch a data frame; leave the handshake and control frames to websockets."""
        if type(event) is Frame and event.opcode in DATA_OPCODES:
            self.on_frame(msgpack.unpackb(event.data))
        else:
            super().process_event(event)

    def post(self, frame: list[Any]) -> None:
        """Write a frame at once."""
        self.protocol.send_binary(msgpack.packb(frame))
        self.send_data()


class ServerChannel(RelayConnection, ServerConnection):
    """The router's end of a connection."""


class ClientChannel(RelayConnection, ClientConnection):
    """The host's or caller's end of a connection."""


class Router:
    """Passes calls to the host and results to their callers; file frames to the other side."""

    def __init__(self) -> None:
        self._host: Channel
        self._pending: dict[int, tuple[Channel, int]] = {}
        self._caller: Channel
        self._ids = itertools.count(1)

    async def serve(self, connection: Any) -> None:
        """Serve one connection until it is closed."""
        if connection.request.path == "/host":
            self._host = connection
            connection.on_frame = self._to_caller
        else:
            self._caller = connection
            connection.on_frame = partial(self._to_host, connection)
        await connection.wait_closed()

    def _to_host(self, caller: Channel, frame: list[Any]) -> None:
        if frame[0] == CALL:
            own_id = next(self._ids)
            self._pending[own_id] = (caller, frame[1])
            frame = [CALL, own_id, frame[2], frame[3]]
        self._host.post(frame)

    def _to_caller(self, frame: list[Any]) -> None:
        if frame[0] == RESULT:
            caller, caller_id = self._pending.pop(frame[1])
            caller.post([RESULT, caller_id, frame[2]])
        else:
            self._caller.post(frame)


class FileEnd:
    """One end of file transfers: sends frames within a window, or counts and confirms them."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._block = os.urandom(FRAME_BYTES)
        self._sent = self._total = self._confirmed = 0
        self._received_bytes = 0
        self._done: asyncio.Future[int] | None = None

    async def download(self) -> int:
        """Ask the other end for a file; return the bytes that arrived."""
        self._received_bytes = 0
        self._channel.post([ASK, FRAMES])
        return await self._wait()

    async def upload(self) -> int:
        """Send a file; return the bytes that the other end confirmed."""
        self._start(FRAMES)
        return await self._wait()

    async def _wait(self) -> int:
        self._done = asyncio.get_running_loop().create_future()
        return await self._done

    def _start(self, frames: int) -> None:
        self._sent, self._total, self._confirmed = 0, frames, 0
        self._send()

    def _send(self) -> None:
        while self._sent < min(self._total, self._confirmed + WINDOW_FRAMES):
            self._sent += 1
            self._channel.post([DATA, self._sent, self._block, self._sent == self._total])

    def _finish(self, size: int) -> None:
        if self._done is not None:
            self._done.set_result(size)
            self._done = None

    def on_frame(self, frame: list[Any]) -> None:
        """Handle a frame of a transfer."""
        match frame:
            case [3, frames]:
                self._start(frames)
            case [4, number, block, is_last]:
                self._received_bytes += len(block)
                if is_last or number % FRAMES_PER_CONFIRMATION == 0:
                    self._channel.post([TAKEN, number])
                if is_last:
                    self._finish(self._received_bytes)
            case [5, number]:
                self._confirmed = number
                self._send()
                if number == self._total:
                    self._finish(number * FRAME_BYTES)


def roles_on(
    server: type[ServerConnection], client: type[ClientConnection], **settings: Any
) -> dict[str, Role]:
    """Make the three roles of a relay on a transport whose connections are channels."""

    async def route(_facts: Facts) -> None:
        serving = serve(
            Router().serve, "127.0.0.1", 0, create_connection=server, compression=None, **settings
        )
        async with serving as listening:
            port = next(iter(listening.sockets)).getsockname()[1]
            await serve_orders(url=f"ws://127.0.0.1:{port}")

    def joined(url: str) -> Any:
        return connect(url, create_connection=client, compression=None, proxy=None, **settings)

    async def host(facts: Facts) -> None:
        async with joined(facts["url"] + "/host") as connection:
            file_end = FileEnd(connection)

            def on_frame(frame: list[Any]) -> None:
                if frame[0] == CALL:
                    arguments = frame[3]
                    result = {"sum": arguments["a"] + arguments["b"]}
                    connection.post([RESULT, frame[1], result])
                else:
                    file_end.on_frame(frame)

            connection.on_frame = on_frame
            await serve_orders(ready=True)

    async def caller(facts: Facts) -> None:
        async with joined(facts["url"] + "/caller") as connection:
            await _call(connection)

    return {"router": route, "host": host, "caller": caller}


async def _call(channel: Channel) -> None:
    ids = itertools.count(1)
    waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
    loop = asyncio.get_running_loop()
    file_end = FileEnd(channel)

    async def call(a: int, b: int) -> dict[str, Any]:
        call_id = next(ids)
        future: asyncio.Future[dict[str, Any]] = loop.create_future()
        waiting[call_id] = future
        channel.post([CALL, call_id, "demo.add", {"a": a, "b": b}])
        return await future

    def on_frame(frame: list[Any]) -> None:
        if frame[0] == RESULT:
            waiting.pop(frame[1]).set_result(frame[2])
        else:
            file_end.on_frame(frame)

    channel.on_frame = on_frame
    await serve_orders(
        {
            "call": measured_calls(call),
            "download": measured_transfer(file_end.download),
            "upload": measured_transfer(file_end.upload),
        },
        ready=True,
    )


if __name__ == "__main__":
    run_role(roles_on(ServerChannel, ClientChannel))
