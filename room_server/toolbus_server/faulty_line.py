"""One connection through a fault proxy: two ways for bytes, and what is wrong with each now.

Nothing is kept that cannot be passed on soon: where a target does not read, its source is not read
either. Which connections there are is `fault_proxy`'s matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal, TypeAlias

__all__ = ["READ_BYTES", "Course", "End", "Faults", "Line", "Side"]

Side: TypeAlias = Literal["server", "participant"]
"""One end of what passes the proxy."""

READ_BYTES = 64 * 1024
"""How much is read from a side at a time."""
_HELD_BYTES = 256 * 1024
_PIECES_PER_S = 20
_CATCH_UP_S = 0.1
# On, for 0 s: what is closed then sends RST, and nothing that still waits.
_LINGER = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What is wrong with one direction; nothing unless said. ValueError for what cannot be."""

    latency_s: float = 0.0
    """Seconds that every byte comes later; as many as 256 KiB are then on their way."""
    jitter_s: float = 0.0
    """Seconds of further latency, at most, drawn for each piece that is read; the order stays."""
    bytes_per_s: float | None = None
    """How many bytes a second pass, for each connection."""
    slice_bytes: int | None = None
    """How many bytes are written at a time, down to one."""
    lost: bool = False
    """Bytes, and the end of a connection, are swallowed; to both sides it looks open and silent.

    The bytes do not come later; an end does, and until then the connection counts as open.
    """
    stalled: bool = False
    """Nothing is read, so that the sender's TCP window closes; all of it comes later."""

    def __post_init__(self) -> None:
        for name in ("latency_s", "jitter_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is a number of seconds, 0 or more")
        if self.bytes_per_s is not None and not 0 < self.bytes_per_s < math.inf:
            raise ValueError("bytes_per_s is more than 0: `stalled` lets nothing pass")
        if self.slice_bytes is not None and self.slice_bytes < 1:
            raise ValueError("slice_bytes is 1 or more")

    def piece_bytes(self, waiting: int) -> int:
        """Tell how many bytes are written at a time where so many wait."""
        most = waiting if self.slice_bytes is None else self.slice_bytes
        if self.bytes_per_s is not None:
            most = min(most, max(1, int(self.bytes_per_s / _PIECES_PER_S)))
        return min(most, waiting)


class Course:
    """What is wrong with one direction now, for all connections."""

    def __init__(self) -> None:
        self.faults = Faults()
        self._changed = asyncio.Event()

    def set(self, faults: Faults) -> None:
        """Let these count from now on, in the place of all that counted before."""
        self.faults = faults
        self.wake()

    def wake(self) -> None:
        """Let all who wait look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, due: Callable[[Faults], float]) -> None:
        """Wait until the loop's clock says what is due by the faults as they then are."""
        now = asyncio.get_running_loop().time
        while (left_s := due(self.faults) - now()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if left_s == math.inf else left_s):
                    await self._changed.wait()


class End:
    """A connection to one side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def read(self) -> bytes | None:
        """Read what came; empty at the end, None after a reset."""
        try:
            return await self.reader.read(READ_BYTES)
        except OSError:
            return None

    async def write(self, data: memoryview) -> None:
        """Write, and wait for room; to whom is gone nothing is written."""
        if not self.writer.is_closing():
            self.writer.write(bytes(data))
            with contextlib.suppress(OSError):
                await self.writer.drain()

    def end(self) -> None:
        """Say that nothing more comes."""
        if not self.writer.is_closing() and self.writer.can_write_eof():
            with contextlib.suppress(OSError):
                self.writer.write_eof()

    async def close(self) -> None:
        """Close it, and wait until what was written is gone."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    def reset(self) -> None:
        """End at once, with RST."""
        if not self.writer.is_closing():
            with contextlib.suppress(OSError):
                sock = self.writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
        self.writer.transport.abort()


async def _turns() -> None:
    """Let a reader in this loop read one piece before the next is written: that takes two."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


class _Way:
    """One direction of one connection."""

    def __init__(self, course: Course, source: End, target: End, random: Random) -> None:
        self.course = course
        self.is_cut = False
        """Set when the other side shall never hear of it again."""
        self._source = source
        self._target = target
        self._random = random
        self._held: deque[tuple[float, float, bytes | None]] = deque()
        self._held_bytes = 0
        self._moved = asyncio.Event()
        self._free_at = 0.0

    async def take(self) -> None:
        """Read as long as there is room for it."""
        data: bytes | None = b"begin"
        while data:
            data = await self._source.read()
            await self.course.until(lambda faults: math.inf if faults.stalled else 0)
            self._hold(data)
            while self._held_bytes >= _HELD_BYTES:
                await self._movement()

    def _hold(self, data: bytes | None) -> None:
        now = asyncio.get_running_loop().time()
        self._held.append((now, self._random.random(), data))
        self._held_bytes += len(data or b"")
        self._moved.set()

    async def _movement(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    async def give(self) -> None:
        """Write what was read when it is due, and how the connection ended."""
        while True:
            while not self._held:
                await self._movement()
            came_at, draw, data = self._held.popleft()
            await self.course.until(
                lambda f, at=came_at, draw=draw: at + f.latency_s + draw * f.jitter_s  # type: ignore[misc]  # bound now
            )
            if not data:
                await self.course.until(lambda f: math.inf if self._hides_end(f) else 0)
                break
            await self._write(memoryview(data))
            self._held_bytes -= len(data)
            self._moved.set()
        if self.is_cut:
            return
        if data is None:
            self._target.reset()
        else:
            self._target.end()

    def _hides_end(self, faults: Faults) -> bool:
        return (faults.lost or faults.stalled) and not self.is_cut

    async def _write(self, data: memoryview) -> None:
        while data:
            await self.course.until(lambda faults: math.inf if faults.stalled else 0)
            faults = self.course.faults
            if faults.lost or self.is_cut:
                return
            size = faults.piece_bytes(len(data))
            await self._target.write(data[:size])
            data = data[size:]
            if faults.bytes_per_s is not None:
                await self._pay(size)
            elif data:
                await _turns()

    async def _pay(self, size: int) -> None:
        """Wait as long as these bytes take. A timer that came late is made good with the next."""
        now = asyncio.get_running_loop().time()
        began = self._free_at if now - self._free_at < _CATCH_UP_S else now

        def paid_at(faults: Faults) -> float:
            return 0 if faults.bytes_per_s is None else began + size / faults.bytes_per_s

        self._free_at = paid_at(self.course.faults)
        await self.course.until(paid_at)


class Line:
    """One connection through the proxy."""

    def __init__(self, participant: End) -> None:
        self.ends: dict[Side, End] = {"participant": participant}
        self.ways: list[_Way] = []
        self._closed: Side | None = None

    async def run(
        self,
        reach_server: Callable[[], Awaitable[End]],
        courses: Mapping[Side, Course],
        random: Random,
    ) -> None:
        """Pass bytes on until both sides have ended; without a server, reset at once."""
        participant = self.ends["participant"]
        try:
            server = self.ends["server"] = await reach_server()
            there, back = courses["server"], courses["participant"]
            self.ways = [
                _Way(there, participant, server, random),
                _Way(back, server, participant, random),
            ]
            if self._closed is not None:
                self._cut(self._closed)
            async with asyncio.TaskGroup() as tasks:
                for way in self.ways:
                    tasks.create_task(way.take())
                    tasks.create_task(way.give())
            for end in self.ends.values():
                await end.close()
        except OSError:  # only the server could not be reached: a line takes all else as it comes
            participant.reset()
        finally:
            for end in self.ends.values():
                end.writer.close()

    def leave_half_open(self, closed: Side) -> None:
        """Close one side, and let the other hear nothing of it."""
        self._closed = closed
        if self.ways:  # else as soon as the server is reached
            self._cut(closed)

    def _cut(self, closed: Side) -> None:
        for way in self.ways:
            way.is_cut = True
            way.course.wake()
        self.ends[closed].writer.close()

    def reset(self) -> None:
        """End both sides with RST."""
        for end in self.ends.values():
            end.reset()
