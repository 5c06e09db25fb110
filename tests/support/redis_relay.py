"""A relay between one node and Redis that loses, holds or doubles single messages.

It reads what passes: what the node publishes, and what comes to its inbox. A published message that
is lost here reaches nobody, and Redis says so; one that is lost before the inbox was heard as far
as the others can tell. For latency, and for bytes that vanish, there is `FaultProxy`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from toolbus.wire import Frame, Unknown, decode_from_server
from toolbus_server.nodes.losses import CALLS, DISPATCH, FRAME, LOST, ORDER
from toolbus_server.nodes.parcels import MARK, read_parcel

__all__ = [
    "Fate",
    "RedisRelay",
    "Snare",
    "carries",
    "is_loss",
    "is_news",
    "is_order",
    "is_parcel",
    "is_report",
    "redis_relay",
]

Match: TypeAlias = Callable[[bytes], bool]
NOWHERE = b"toolbus:nowhere"
_decode = msgspec.msgpack.Decoder().decode


class Fate(Enum):
    """What becomes of a message."""

    PASSED = "is only counted"
    LOST = "never arrives"
    TWICE = "arrives twice"
    HELD = "waits, with all behind it, until it is released"


class Snare:
    """Waits for messages.

    Args:
        matches: Which are meant.
        fate: What becomes of those.
        times: Of how many.
    """

    def __init__(self, matches: Match, fate: Fate, times: int) -> None:
        self._matches = matches
        self.fate = fate
        self._left = times
        self.met = asyncio.Event()
        """Set when so many have come."""
        self._released = asyncio.Event()

    def takes(self, message: bytes) -> bool:
        """Say whether this one is meant, and count it."""
        if not self._left or not self._matches(message):
            return False
        self._left -= 1
        if not self._left:
            self.met.set()
        return True

    def release(self) -> None:
        """Let go what is held."""
        self._released.set()

    async def wait(self) -> None:
        """Wait until what is held may go."""
        await self._released.wait()


class RedisRelay:
    """A way to Redis for one node; `url` is what the node gets.

    Args:
        port: Where Redis listens, on loopback.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._coming: list[Snare] = []
        self._going: list[Snare] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._inboxes: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.url = ""

    def coming(self, matches: Match, fate: Fate = Fate.LOST, times: int = 1) -> Snare:
        """Choose the fate of the next messages to the node's inbox that match."""
        self._coming.append(Snare(matches, fate, times))
        return self._coming[-1]

    def going(self, matches: Match, fate: Fate = Fate.LOST, times: int = 1) -> Snare:
        """Choose the fate of the next messages that the node publishes itself: passed or lost."""
        assert fate in (Fate.PASSED, Fate.LOST)
        self._going.append(Snare(matches, fate, times))
        return self._going[-1]

    def drop_inbox(self) -> None:
        """End the connection that the inbox comes by, to both sides."""
        for writer in self._inboxes:
            writer.transport.abort()

    def cut(self) -> None:
        """End all connections, and let none in until `mend`."""
        self._is_closed = True
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        """Let connections in again."""
        self._is_closed = False

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Lead one connection on, until it ends at either end."""
        if self._is_closed:
            writer.transport.abort()
            return
        far_reader, far = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, far}
        for work in (self._go(reader, far, writer), self._come(far_reader, writer)):
            task = asyncio.create_task(self._lead(work, (writer, far)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _lead(self, work: Any, writers: tuple[asyncio.StreamWriter, ...]) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            await work
        for writer in writers:
            writer.transport.abort()
            self._writers.discard(writer)
            self._inboxes.discard(writer)

    async def _go(
        self, reader: asyncio.StreamReader, far: asyncio.StreamWriter, near: asyncio.StreamWriter
    ) -> None:
        while True:
            raw, words = await _read_value(reader)
            if words[0] == b"SUBSCRIBE":
                self._inboxes.add(near)
            elif words[0] == b"PUBLISH":
                snare = _first(self._going, words[2])
                if snare is not None and snare.fate is Fate.LOST:
                    raw = _packed([words[0], NOWHERE, words[2]])
            far.write(raw)
            await far.drain()

    async def _come(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        while True:
            raw, value = await _read_value(reader)
            if isinstance(value, list) and value and value[0] == b"message":
                snare = _first(self._coming, value[2])
                if snare is not None and snare.fate is Fate.LOST:
                    continue
                if snare is not None and snare.fate is Fate.HELD:
                    await snare.wait()
                if snare is not None and snare.fate is Fate.TWICE:
                    raw *= 2
            near.write(raw)
            await near.drain()

    async def end(self) -> None:
        """End everything."""
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def redis_relay(port: int) -> AsyncIterator[RedisRelay]:
    """Listen on loopback and lead on to Redis for as long as the block runs."""
    relay = RedisRelay(port)
    listener = await asyncio.start_server(relay.join, "127.0.0.1", 0)
    relay.url = f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}/0"
    try:
        yield relay
    finally:
        listener.close()
        await relay.end()


def _entries_in(message: bytes) -> list[list[Any]]:
    if not message.startswith(MARK):
        return []
    return [_decode(entry) for entry in read_parcel(message).entries or ()]


def _frames_in(message: bytes) -> list[Frame]:
    """Read the frames of calls in a message between nodes; news of rooms has none."""
    packed = [entry[-1] for entry in _entries_in(message) if entry[0] in (DISPATCH, FRAME)]
    frames = [decode_from_server(each) for each in packed]
    return [frame for frame in frames if not isinstance(frame, Unknown)]


def carries(*kinds: type[Frame], tool: str | None = None) -> Match:
    """Match parcels with a frame of one of these kinds; of dispatches, those of a tool."""
    return lambda message: any(
        isinstance(frame, kinds) and tool in (None, getattr(frame, "tool", tool))
        for frame in _frames_in(message)
    )


def is_loss(message: bytes) -> bool:
    """Match parcels which say that an answer was lost."""
    return any(entry[0] == LOST for entry in _entries_in(message))


def is_order(message: bytes) -> bool:
    """Match parcels with what an administrator asked for."""
    return any(entry[0] == ORDER for entry in _entries_in(message))


def is_report(message: bytes) -> bool:
    """Match parcels which say what has become of calls."""
    return any(entry[0] == CALLS for entry in _entries_in(message))


def is_parcel(message: bytes) -> bool:
    """Match what nodes send each other, but not news of rooms."""
    return message.startswith(MARK)


def is_news(message: bytes) -> bool:
    """Match news of rooms."""
    return message.startswith(b"R")


def _first(snares: list[Snare], message: bytes) -> Snare | None:
    return next((snare for snare in snares if snare.takes(message)), None)


def _packed(words: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


async def _read_value(reader: asyncio.StreamReader) -> tuple[bytes, Any]:
    """Read one value of RESP 2, as it came and as it is meant."""
    line = await reader.readuntil(b"\r\n")
    kind, text = line[:1], line[1:-2]
    if kind == b"$" and text != b"-1":
        data = await reader.readexactly(int(text) + 2)
        return line + data, data[:-2]
    if kind == b"*":
        parts = [await _read_value(reader) for _ in range(int(text))]
        return line + b"".join(raw for raw, _ in parts), [value for _, value in parts]
    return line, text
