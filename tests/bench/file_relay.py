"""A relay that moves a file on our transport with nothing on top: the yardstick for files.

Frames of 256 KiB from memory. The router decodes each one and encodes it again, as in `relay`. All
the flow control there is: a sender is at most `WINDOW_FRAMES` ahead of what the other end says it
has, so that nobody holds more of the file than that.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from websockets.asyncio.server import ServerConnection, serve

from bench.file_orders import FILE_BYTES, take_orders
from bench.relay import SETTINGS, joined
from bench.role import Where, run_role, serve_until_told
from toolbus.transport import MessageConnection, ServerTransport

ASK, DATA, TAKEN = 1, 2, 3
FRAME_BYTES = 256 * 1024
WINDOW_FRAMES = 8
_FRAMES_PER_WORD = 2
"""Of how many frames at a time a receiver says that it has them."""
pack = msgspec.msgpack.Encoder().encode
unpack = msgspec.msgpack.Decoder(list).decode


class Reader:
    """Decodes each message of a connection and hands it on."""

    def __init__(self, on_frame: Callable[[list[Any]], None]) -> None:
        self._on_frame = on_frame

    def on_message(self, data: bytes) -> None:
        self._on_frame(unpack(data))

    def on_close(self) -> None:
        """A relay has nothing to clear up."""


class End:
    """One end of the way: sends a file, or counts what comes.

    Args:
        connection: Where the router is.
    """

    def __init__(self, connection: MessageConnection) -> None:
        self._connection = connection
        self._block = os.urandom(FRAME_BYTES)
        self._left = self._sent = self._taken = self._came = 0
        self._over: asyncio.Future[int] | None = None

    def ask(self, frames: int) -> Awaitable[int]:
        """Let the other end send a file; gives its bytes when they have come."""
        self._came = 0
        self._connection.send_message(pack([ASK, frames]))
        return self._begin()

    def send(self, frames: int) -> Awaitable[int]:
        """Send a file to the other end; gives its bytes when that has them."""
        self._left, self._sent, self._taken = frames, 0, 0
        over = self._begin()
        self._go_on()
        return over

    def _begin(self) -> Awaitable[int]:
        self._over = asyncio.get_running_loop().create_future()
        return self._over

    def _end(self, frames: int) -> None:
        over, self._over = self._over, None
        if over is not None and not over.done():
            over.set_result(frames * FRAME_BYTES)

    def take(self, frame: list[Any]) -> None:
        """Take what the other end sent."""
        match frame:
            case [1, frames]:
                self._left, self._sent, self._taken = frames, 0, 0
                self._go_on()
            case [2, number, bytes(), is_last]:
                self._came = number
                if is_last or number % _FRAMES_PER_WORD == 0:
                    self._connection.send_message(pack([TAKEN, number]))
                if is_last:
                    self._end(number)
            case [3, number]:
                self._taken = number
                if self._left:
                    self._go_on()
                elif number == self._sent:
                    self._end(number)

    def _go_on(self) -> None:
        while self._left and self._sent < self._taken + WINDOW_FRAMES:
            self._left -= 1
            self._sent += 1
            frame = [DATA, self._sent, self._block, not self._left]
            self._connection.send_message(pack(frame))


async def route(_where: Where) -> None:
    ends: dict[str, MessageConnection] = {}

    def passing_on(to: str) -> Callable[[list[Any]], None]:
        return lambda frame: _ignore(ends[to].send_message(pack(frame)))

    async def on_connection(connection: ServerConnection) -> None:
        assert isinstance(connection, ServerTransport)
        assert connection.request is not None
        own, other = (
            ("host", "caller") if connection.request.path == "/host" else ("caller", "host")
        )
        ends[own] = connection
        connection.receiver = Reader(passing_on(other))
        await connection.wait_closed()

    async with serve(
        on_connection,
        "127.0.0.1",
        0,
        create_connection=ServerTransport,
        **SETTINGS,
    ) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        await serve_until_told(url=f"ws://127.0.0.1:{port}")


def _ignore(_: object) -> None:
    """Drop what a send returns."""


async def host(where: Where) -> None:
    async with joined(where["url"] + "/host") as connection:
        connection.receiver = Reader(End(connection).take)
        await serve_until_told(ready=True)


async def caller(where: Where) -> None:
    async with joined(where["url"] + "/caller") as connection:
        end = End(connection)
        connection.receiver = Reader(end.take)
        frames = FILE_BYTES // FRAME_BYTES
        await take_orders(
            {
                "download": lambda: end.ask(frames),
                "upload": lambda: end.send(frames),
            }
        )


if __name__ == "__main__":
    run_role({"router": route, "host": host, "caller": caller})
