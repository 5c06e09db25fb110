"""A relay between one node and Redis that loses, holds or doubles single messages.

It reads the messages that the node publishes, and those of its inbox. A published message that is
lost here has no subscriber, and Redis reports that; a message lost on the way to the inbox counts
as received for its sender. For latency and lost bytes, use `FaultProxy`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from toolbus.wire import Frame, UnknownFrame, decode_from_server
from toolbus_server.cluster.peer import (
    ADMIN_ACTION,
    CALL_REPORT,
    DISPATCH,
    FRAME,
    RESULT_LOST,
)
from toolbus_server.cluster.peer_link import BATCH_PREFIX, decode_batch

__all__ = [
    "Fate",
    "Interception",
    "RedisRelay",
    "carries",
    "is_admin_action",
    "is_batch",
    "is_delta",
    "is_report",
    "is_result_lost",
    "redis_relay",
]

Match: TypeAlias = Callable[[bytes], bool]
NOWHERE = b"toolbus:nowhere"
_decode = msgspec.msgpack.Decoder().decode


class Fate(Enum):
    """What happens to a message."""

    PASSED = "is only counted"
    LOST = "never arrives"
    TWICE = "arrives twice"
    HELD = "waits, with all behind it, until it is released"


class Interception:
    """Waits for messages.

    Args:
        matches: Selects messages.
        fate: What happens to those.
        times: The number of messages.
    """

    def __init__(self, matches: Match, fate: Fate, times: int) -> None:
        self._matches = matches
        self.fate = fate
        self._left = times
        self.met = asyncio.Event()
        """Set when all have arrived."""
        self._released = asyncio.Event()

    def takes(self, message: bytes) -> bool:
        """Return whether a message is selected, and count it."""
        if not self._left or not self._matches(message):
            return False
        self._left -= 1
        if not self._left:
            self.met.set()
        return True

    def release(self) -> None:
        """Release the messages that are held."""
        self._released.set()

    async def wait(self) -> None:
        """Wait until `release`."""
        await self._released.wait()


class RedisRelay:
    """A relay to Redis for one node, which connects to `url`.

    Args:
        port: Where Redis listens, on loopback.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._coming: list[Interception] = []
        self._going: list[Interception] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._inboxes: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.url = ""

    def intercept_inbox(
        self, matches: Match, fate: Fate = Fate.LOST, times: int = 1
    ) -> Interception:
        """Choose the fate of the next messages to the node's inbox that match."""
        self._coming.append(Interception(matches, fate, times))
        return self._coming[-1]

    def intercept_published(
        self, matches: Match, fate: Fate = Fate.LOST, times: int = 1
    ) -> Interception:
        """Choose the fate of the next messages that the node publishes itself: passed or lost."""
        assert fate in (Fate.PASSED, Fate.LOST)
        self._going.append(Interception(matches, fate, times))
        return self._going[-1]

    def drop_inbox(self) -> None:
        """End the connection of the inbox, on both sides."""
        for writer in self._inboxes:
            writer.transport.abort()

    def cut(self) -> None:
        """End all connections, and accept none until `mend`."""
        self._is_closed = True
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        """Accept connections again."""
        self._is_closed = False

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection, until either side closes it."""
        if self._is_closed:
            writer.transport.abort()
            return
        try:
            redis_reader, redis = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:  # a Redis that is down refuses the node
            writer.transport.abort()
            return
        self._writers |= {writer, redis}
        for work in (self._go(reader, redis, writer), self._come(redis_reader, writer)):
            task = asyncio.create_task(self._lead(work, (writer, redis)))
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
        self, reader: asyncio.StreamReader, redis: asyncio.StreamWriter, node: asyncio.StreamWriter
    ) -> None:
        while True:
            raw, words = await _read_value(reader)
            if words[0] == b"SUBSCRIBE":
                self._inboxes.add(node)
            elif words[0] == b"PUBLISH":
                interception = _first(self._going, words[2])
                if interception is not None and interception.fate is Fate.LOST:
                    raw = _packed([words[0], NOWHERE, words[2]])
            redis.write(raw)
            await redis.drain()

    async def _come(self, reader: asyncio.StreamReader, node: asyncio.StreamWriter) -> None:
        while True:
            raw, value = await _read_value(reader)
            if isinstance(value, list) and value and value[0] == b"message":
                interception = _first(self._coming, value[2])
                if interception is not None and interception.fate is Fate.LOST:
                    continue
                if interception is not None and interception.fate is Fate.HELD:
                    await interception.wait()
                if interception is not None and interception.fate is Fate.TWICE:
                    raw *= 2
            node.write(raw)
            await node.drain()

    async def end(self) -> None:
        """End everything."""
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def redis_relay(port: int) -> AsyncIterator[RedisRelay]:
    """Run a relay on loopback for as long as the block runs."""
    relay = RedisRelay(port)
    listener = await asyncio.start_server(relay.join, "127.0.0.1", 0)
    relay.url = f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}/0"
    try:
        yield relay
    finally:
        listener.close()
        await relay.end()


def _entries_in(message: bytes) -> list[list[Any]]:
    if not message.startswith(BATCH_PREFIX):
        return []
    return [_decode(entry) for entry in decode_batch(message).entries or ()]


def _frames_in(message: bytes) -> list[Frame]:
    """Decode the frames of calls in a message between nodes; a delta of a room has none."""
    packed = [entry[-1] for entry in _entries_in(message) if entry[0] in (DISPATCH, FRAME)]
    frames = [decode_from_server(each) for each in packed]
    return [frame for frame in frames if not isinstance(frame, UnknownFrame)]


def carries(*kinds: type[Frame], tool: str | None = None) -> Match:
    """Match batches with a frame of one of these kinds; of dispatches, those of a tool."""
    return lambda message: any(
        isinstance(frame, kinds) and tool in (None, getattr(frame, "tool", tool))
        for frame in _frames_in(message)
    )


def is_result_lost(message: bytes) -> bool:
    """Match batches which report a lost result."""
    return any(entry[0] == RESULT_LOST for entry in _entries_in(message))


def is_admin_action(message: bytes) -> bool:
    """Match batches with an action of an administrator."""
    return any(entry[0] == ADMIN_ACTION for entry in _entries_in(message))


def is_report(message: bytes) -> bool:
    """Match batches with a report of calls."""
    return any(entry[0] == CALL_REPORT for entry in _entries_in(message))


def is_batch(message: bytes) -> bool:
    """Match batches of other nodes, but not deltas of rooms."""
    return message.startswith(BATCH_PREFIX)


def is_delta(message: bytes) -> bool:
    """Match deltas of rooms."""
    return message.startswith(b"R")


def _first(interceptions: list[Interception], message: bytes) -> Interception | None:
    return next(
        (interception for interception in interceptions if interception.takes(message)), None
    )


def _packed(words: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


async def _read_value(reader: asyncio.StreamReader) -> tuple[bytes, Any]:
    """Read one value of RESP 2, as bytes and decoded."""
    line = await reader.readuntil(b"\r\n")
    kind, text = line[:1], line[1:-2]
    if kind == b"$" and text != b"-1":
        data = await reader.readexactly(int(text) + 2)
        return line + data, data[:-2]
    if kind == b"*":
        parts = [await _read_value(reader) for _ in range(int(text))]
        return line + b"".join(raw for raw, _ in parts), [value for _, value in parts]
    return line, text
