"""A bad line on purpose: a TCP proxy on loopback between participants and a server.

It passes bytes on and hurts them as it is told, while it runs: late, slowly, in crumbs, not at all,
or with an end that only one side hears of. It knows nothing of websockets, and keeps no more than
512 KiB for each direction of a connection: where one side does not read, the other is not read
either. What TCP itself repairs, such as packets lost on the way, looks like latency up here.
"""

from __future__ import annotations

import asyncio
import socket
from random import Random
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from toolbus_server.faulty_line import READ_BYTES, Course, End, Faults, Line, Side

__all__ = ["FaultProxy", "Faults", "Side"]

_LOOPBACK = "127.0.0.1"
# Small, so that a sender feels soon that nobody reads.
_SOCKET_BYTES = 64 * 1024


class FaultProxy:
    """A line that can be hurt: `async with FaultProxy(server.url) as proxy:` runs it.

    Participants connect to `proxy.url` in the place of the server's. Faults are set for a direction
    and count at once, for the connections there are and for those to come:
    `proxy.to_participant = Faults(latency_s=0.2)`, until another value, such as `Faults()`, takes
    their place. Leaving the block ends all connections through it.

    Args:
        url: The server's, as `ws://HOST:PORT` or `wss://HOST:PORT`. TLS passes through unread, so
            that a certificate has to name 127.0.0.1.
        seed: Makes the draws of `jitter_s` repeat themselves.

    Raises:
        ValueError: The URL names no server.
    """

    def __init__(self, url: str, *, seed: int | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            raise ValueError(f"{url!r} is no server address: write ws://HOST:PORT")
        self._scheme = parts.scheme
        self._server = (parts.hostname, parts.port or (443 if parts.scheme == "wss" else 80))
        self._random = Random(seed)
        self._courses: dict[Side, Course] = {}
        self._lines: dict[asyncio.Task[None], Line] = {}
        self._listening: asyncio.Server | None = None
        self._place: socket.socket | None = None

    async def __aenter__(self) -> Self:
        if self._place is not None:
            raise RuntimeError("this proxy is entered already")
        self._courses = {"server": Course(), "participant": Course()}
        # Bound and never listening, it keeps the port while new connections are refused.
        self._place = _bound(0)
        await self.accept()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.refuse()
        lines = dict(self._lines)
        for task, line in lines.items():
            task.cancel()
            for end in line.ends.values():
                end.writer.transport.abort()
        if lines:
            await asyncio.wait(lines)
        if self._place is not None:
            self._place.close()
            self._place = None

    @property
    def url(self) -> str:
        """Where participants connect to. RuntimeError unless the proxy runs."""
        if self._place is None:
            raise RuntimeError("the proxy does not run")
        return f"{self._scheme}://{_LOOPBACK}:{self._place.getsockname()[1]}"

    @property
    def connections(self) -> int:
        """How many there are now, with those that are half open."""
        return len(self._lines)

    @property
    def to_server(self) -> Faults:
        """What is wrong with the way to the server; set it to change it."""
        return self._courses["server"].faults

    @to_server.setter
    def to_server(self, faults: Faults) -> None:
        self._courses["server"].set(faults)

    @property
    def to_participant(self) -> Faults:
        """What is wrong with the way to participants; set it to change it."""
        return self._courses["participant"].faults

    @to_participant.setter
    def to_participant(self, faults: Faults) -> None:
        self._courses["participant"].set(faults)

    async def heal(self) -> None:
        """Lift all faults of both directions, and let new connections in again.

        What was reset or is half open stays so.
        """
        self.to_server = self.to_participant = Faults()
        await self.accept()

    def reset(self) -> None:
        """End all connections with RST, to both sides."""
        for task, line in self._lines.items():
            line.reset()
            task.cancel()

    def leave_half_open(self, *, closed: Side) -> None:
        """Close all connections towards one side; the other side never hears of it.

        What that one still sends is swallowed, until it gives up by itself.

        Args:
            closed: The side that is told.
        """
        for line in list(self._lines.values()):
            line.leave_half_open(closed)

    async def refuse(self) -> None:
        """Let nobody connect any more, as where nothing listens; who is connected stays."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.close()

    async def accept(self) -> None:
        """Let new connections in again. Where the server takes none, they are reset."""
        if self._place is None:
            raise RuntimeError("the proxy does not run")
        if self._listening is None:
            sock = _bound(self._place.getsockname()[1])
            self._listening = await asyncio.start_server(
                self._begin_line, sock=sock, limit=READ_BYTES
            )

    def _begin_line(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(End(reader, writer))
        task = asyncio.get_running_loop().create_task(
            line.run(self._reach_server, self._courses, self._random)
        )
        self._lines[task] = line
        task.add_done_callback(self._end_line)

    def _end_line(self, task: asyncio.Task[None]) -> None:
        del self._lines[task]
        if not task.cancelled():
            task.result()

    async def _reach_server(self) -> End:
        reader, writer = await asyncio.open_connection(*self._server, limit=READ_BYTES)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
        return End(reader, writer)


def _bound(port: int) -> socket.socket:
    """Bind a socket to a port that another of ours may have too."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # What a socket that listens has, those that it accepts have too.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
        sock.bind((_LOOPBACK, port))
    except OSError:
        sock.close()
        raise
    return sock
