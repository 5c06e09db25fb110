"""Fault injection: a TCP proxy on loopback between participants and a server.

It forwards bytes with the faults that are set while it runs: late, slowly, in small pieces, not at
all, or with an end that only one side receives. It does not parse websockets. It buffers at most
512 KiB for each direction of a connection: while one side does not read, the proxy does not read
from the other. Faults that TCP repairs, such as lost packets, look like latency here.
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
from typing import Literal, Self, TypeAlias
from urllib.parse import urlsplit

__all__ = ["FaultProxy", "Faults", "Side"]

Side: TypeAlias = Literal["server", "participant"]
"""One side of a connection through the proxy."""

_READ_BYTES = 64 * 1024
"""How much is read from a side at a time."""
_BUFFER_BYTES = 256 * 1024
"""A fault may stop one side for as long as a test runs, while the other one writes."""
_PIECES_PER_S = 20
_CATCH_UP_S = 0.1
# On, for 0 s: a close then sends RST and drops unsent bytes.
_LINGER = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The faults of one direction; none by default. Raises ValueError for invalid values."""

    latency_s: float = 0.0
    """Delay of every byte, in seconds; at most 256 KiB are delayed at a time."""
    jitter_s: float = 0.0
    """Longest random extra delay of each piece that is read, in seconds; the order stays."""
    bytes_per_s: float | None = None
    """Bandwidth of each connection."""
    slice_bytes: int | None = None
    """How many bytes are written at a time, 1 or more."""
    lost: bool = False
    """Bytes and the end of a connection are dropped; to both sides it looks open and silent.

    Bytes are lost for good; an end is delivered when the fault is lifted, and until then the
    connection counts as open.
    """
    stalled: bool = False
    """Nothing is read, so the sender's TCP window closes; all bytes arrive later."""

    def __post_init__(self) -> None:
        for name in ("latency_s", "jitter_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number of seconds, 0 or more")
        if self.bytes_per_s is not None and not 0 < self.bytes_per_s < math.inf:
            raise ValueError("bytes_per_s must be more than 0: `stalled` stops all bytes")
        if self.slice_bytes is not None and self.slice_bytes < 1:
            raise ValueError("slice_bytes must be 1 or more")

    def piece_bytes(self, waiting: int) -> int:
        """Return how many of the waiting bytes are written next."""
        most = self.slice_bytes or waiting
        if self.bytes_per_s is not None:
            most = min(most, max(1, int(self.bytes_per_s / _PIECES_PER_S)))
        return min(most, waiting)


class DirectionFaults:
    """The current faults of one direction, for all connections."""

    def __init__(self) -> None:
        self.faults = Faults()
        self._changed = asyncio.Event()

    def set(self, faults: Faults) -> None:
        """Replace the faults; they also apply to what waits already."""
        self.faults = faults
        self.wake()

    def wake(self) -> None:
        """Make all waiters check again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, due: Callable[[Faults], float]) -> None:
        """Wait until the loop's time that `due` returns for the current faults."""
        now = asyncio.get_running_loop().time
        while (left_s := due(self.faults) - now()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if left_s == math.inf else left_s):
                    await self._changed.wait()


class Endpoint:
    """The connection to one side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def read(self) -> bytes | None:
        """Read available bytes; empty at the end, None after a reset."""
        try:
            return await self.reader.read(_READ_BYTES)
        except OSError:
            return None

    async def write(self, data: memoryview) -> None:
        """Write and wait for buffer space; a closed connection is ignored."""
        if not self.writer.is_closing():
            self.writer.write(bytes(data))
            with contextlib.suppress(OSError):
                await self.writer.drain()

    def send_end(self) -> None:
        """Send the end of the stream."""
        if not self.writer.is_closing() and self.writer.can_write_eof():
            with contextlib.suppress(OSError):
                self.writer.write_eof()

    async def close(self) -> None:
        """Close it, and wait until all written bytes are sent."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    def reset(self) -> None:
        """Close at once, with RST."""
        if not self.writer.is_closing():
            with contextlib.suppress(OSError):
                sock = self.writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
        self.writer.transport.abort()


class _Forwarder:
    """One direction of one connection."""

    def __init__(
        self, direction: DirectionFaults, source: Endpoint, target: Endpoint, random: Random
    ) -> None:
        self.direction = direction
        self.is_cut = False
        """Set when nothing more may reach the target, its end included."""
        self._source = source
        self._target = target
        self._random = random
        self._buffer: deque[tuple[float, float, bytes | None]] = deque()
        self._buffered_bytes = 0
        self._buffer_changed = asyncio.Event()
        self._free_at = 0.0

    async def read(self) -> None:
        """Read from the source while the buffer has room."""
        data: bytes | None = b"start"
        while data:
            data = await self._source.read()
            await self.direction.until(lambda faults: math.inf if faults.stalled else 0)
            now = asyncio.get_running_loop().time()
            self._buffer.append((now, self._random.random(), data))
            self._buffered_bytes += len(data or b"")
            self._buffer_changed.set()
            while self._buffered_bytes >= _BUFFER_BYTES:
                await self._buffer_change()

    async def _buffer_change(self) -> None:
        self._buffer_changed.clear()
        await self._buffer_changed.wait()

    async def write(self) -> None:
        """Write buffered bytes when they are due, then the end of the connection."""
        while True:
            while not self._buffer:
                await self._buffer_change()
            read_at, draw, data = self._buffer.popleft()
            await self.direction.until(
                lambda f, at=read_at, draw=draw: at + f.latency_s + draw * f.jitter_s  # type: ignore[misc]  # bound now
            )
            if not data:
                await self.direction.until(
                    lambda f: math.inf if (f.lost or f.stalled) and not self.is_cut else 0
                )
                break
            await self._write(memoryview(data))
            self._buffered_bytes -= len(data)
            self._buffer_changed.set()
        if self.is_cut:
            return
        if data is None:
            self._target.reset()
        else:
            self._target.send_end()

    async def _write(self, data: memoryview) -> None:
        while data:
            await self.direction.until(lambda faults: math.inf if faults.stalled else 0)
            faults = self.direction.faults
            if faults.lost or self.is_cut:
                return
            size = faults.piece_bytes(len(data))
            await self._target.write(data[:size])
            data = data[size:]
            if faults.bytes_per_s is not None:
                await self._wait_for_bandwidth(size)
            elif data:  # a reader in this loop reads a piece before the next is written
                for _ in range(2):
                    await asyncio.sleep(0)

    async def _wait_for_bandwidth(self, size: int) -> None:
        """Wait for as long as these bytes take. The next wait makes up for a late timer."""
        now = asyncio.get_running_loop().time()
        began = self._free_at if now - self._free_at < _CATCH_UP_S else now

        def free_at(faults: Faults) -> float:
            return 0 if faults.bytes_per_s is None else began + size / faults.bytes_per_s

        self._free_at = free_at(self.direction.faults)
        await self.direction.until(free_at)


class ProxiedConnection:
    """One connection through the proxy."""

    def __init__(self, participant: Endpoint) -> None:
        self.endpoints: dict[Side, Endpoint] = {"participant": participant}
        self.forwarders: list[_Forwarder] = []
        self._closed: Side | None = None

    async def run(
        self,
        connect_to_server: Callable[[], Awaitable[Endpoint]],
        directions: Mapping[Side, DirectionFaults],
        random: Random,
    ) -> None:
        """Forward bytes until both sides have ended; reset at once if the server is unreachable."""
        participant = self.endpoints["participant"]
        try:
            server = self.endpoints["server"] = await connect_to_server()
            to_server, to_participant = directions["server"], directions["participant"]
            self.forwarders = [
                _Forwarder(to_server, participant, server, random),
                _Forwarder(to_participant, server, participant, random),
            ]
            if self._closed is not None:
                self._cut(self._closed)
            async with asyncio.TaskGroup() as tasks:
                for forwarder in self.forwarders:
                    tasks.create_task(forwarder.read())
                    tasks.create_task(forwarder.write())
            for endpoint in self.endpoints.values():
                await endpoint.close()
        except OSError:  # from connecting to the server: endpoints handle errors of their own
            participant.reset()
        finally:
            for endpoint in self.endpoints.values():
                endpoint.writer.close()

    def leave_half_open(self, closed: Side) -> None:
        """Close one side without an end for the other."""
        self._closed = closed
        if self.forwarders:  # otherwise when the server is connected
            self._cut(closed)

    def _cut(self, closed: Side) -> None:
        for forwarder in self.forwarders:
            forwarder.is_cut = True
            forwarder.direction.wake()
        self.endpoints[closed].writer.close()

    def reset(self) -> None:
        """Close both sides with RST."""
        for endpoint in self.endpoints.values():
            endpoint.reset()


_LOOPBACK = "127.0.0.1"
_PORTS = {"ws": 80, "wss": 443}
# Small, so that a sender is blocked soon if the other side does not read.
_SOCKET_BYTES = 64 * 1024


class FaultProxy:
    """A proxy with faults: `async with FaultProxy(server.url) as proxy:` runs it.

    Participants connect to `proxy.url` instead of the server's. Faults are set for a direction and
    apply at once, to open and to new connections: `proxy.to_participant = Faults(latency_s=0.2)`,
    until another value, such as `Faults()`, replaces them. Leaving the block closes all
    connections through it.

    Args:
        url: The server's, as `ws://HOST:PORT` or `wss://HOST:PORT`. TLS is forwarded unread, so a
            certificate must name 127.0.0.1.
        seed: Makes the random numbers of `jitter_s` repeatable.

    Raises:
        ValueError: The URL is not a server's.
    """

    def __init__(self, url: str, *, seed: int | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError(f"{url!r} is not a server address: write ws://HOST:PORT")
        self._scheme = parts.scheme
        self._server = (parts.hostname, parts.port or _PORTS[parts.scheme])
        self._random = Random(seed)
        self._directions: dict[Side, DirectionFaults] = {}
        self._connections: dict[asyncio.Task[None], ProxiedConnection] = {}
        self._listening: asyncio.Server | None = None
        self._reserved: socket.socket | None = None

    async def __aenter__(self) -> Self:
        if self._reserved is not None:
            raise RuntimeError("the proxy is already running")
        self._directions = {"server": DirectionFaults(), "participant": DirectionFaults()}
        # Bound but not listening: it keeps the port while new connections are refused.
        self._reserved = _bind(0)
        await self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()
        connections = dict(self._connections)
        for task, connection in connections.items():
            task.cancel()
            for endpoint in connection.endpoints.values():
                endpoint.writer.transport.abort()
        if connections:
            await asyncio.wait(connections)
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    @property
    def url(self) -> str:
        """The URL for participants. Raises RuntimeError unless the proxy runs."""
        if self._reserved is None:
            raise RuntimeError("the proxy does not run")
        return f"{self._scheme}://{_LOOPBACK}:{self._reserved.getsockname()[1]}"

    @property
    def connections(self) -> int:
        """The number of connections, with those that are half open."""
        return len(self._connections)

    @property
    def to_server(self) -> Faults:
        """The faults of the direction to the server; assign to change them."""
        return self._directions["server"].faults

    @to_server.setter
    def to_server(self, faults: Faults) -> None:
        self._directions["server"].set(faults)

    @property
    def to_participant(self) -> Faults:
        """The faults of the direction to participants; assign to change them."""
        return self._directions["participant"].faults

    @to_participant.setter
    def to_participant(self, faults: Faults) -> None:
        self._directions["participant"].set(faults)

    async def heal(self) -> None:
        """Lift all faults of both directions, and accept new connections again.

        Connections that were reset or are half open stay so.
        """
        self.to_server = self.to_participant = Faults()
        await self.accept()

    def reset(self) -> None:
        """Close all connections with RST, to both sides."""
        for task, connection in self._connections.items():
            connection.reset()
            task.cancel()

    def leave_half_open(self, *, closed: Side) -> None:
        """Close all connections to one side; the other side receives no end.

        Bytes that the other side still sends are dropped, until it gives up by itself.

        Args:
            closed: The side whose connections close.
        """
        for connection in list(self._connections.values()):
            connection.leave_half_open(closed)

    async def refuse(self) -> None:
        """Refuse new connections, as if nothing listened; open ones stay."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.close()

    async def accept(self) -> None:
        """Accept new connections again; they are reset if the server is unreachable."""
        if self._reserved is None:
            raise RuntimeError("the proxy does not run")
        if self._listening is None:
            sock = _bind(self._reserved.getsockname()[1])
            self._listening = await asyncio.start_server(
                self._start_connection, sock=sock, limit=_READ_BYTES
            )

    def _start_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = ProxiedConnection(Endpoint(reader, writer))
        task = asyncio.get_running_loop().create_task(
            connection.run(self._connect_to_server, self._directions, self._random)
        )
        self._connections[task] = connection
        task.add_done_callback(self._end_connection)

    def _end_connection(self, task: asyncio.Task[None]) -> None:
        del self._connections[task]
        if not task.cancelled():
            task.result()

    async def _connect_to_server(self) -> Endpoint:
        reader, writer = await asyncio.open_connection(*self._server, limit=_READ_BYTES)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
        return Endpoint(reader, writer)


def _bind(port: int) -> socket.socket:
    """Bind a socket to a port that other sockets of this proxy may share."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Accepted sockets inherit it from the listening socket.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
        sock.bind((_LOOPBACK, port))
    except OSError:
        sock.close()
        raise
    return sock
