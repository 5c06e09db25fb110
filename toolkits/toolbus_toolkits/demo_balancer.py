"""A balancer for the demo: passes connections on to the server that has fewest of them.

It has a door for each participant, so that it can tell who is at which server. A connection that
its server lost is closed; who comes again through its door gets to another server. Only for the
demo: it knows nothing of TLS, of probes, or of servers that are leaving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urlsplit

__all__ = ["Balancer"]

_PIECE_BYTES = 64 * 1024


class Balancer:
    """Stands between participants and servers, within this process.

    Args:
        servers: The servers' addresses, by their names.
    """

    def __init__(self, servers: Mapping[str, str]) -> None:
        self._servers = dict(servers)
        self._counts = dict.fromkeys(servers, 0)
        self._doors: list[asyncio.Server] = []
        self._passing: set[asyncio.Task[None]] = set()
        self._arrivals: dict[str, asyncio.Event] = {}
        self.at: dict[str, str] = {}
        """At which server the connection of each participant is, or was last."""

    async def open_door(self, name: str) -> str:
        """Give a participant an address of its own to connect to."""
        self._arrivals[name] = asyncio.Event()

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._passing.add(task)
            try:
                await self._take(name, reader, writer)
            finally:
                writer.close()
                self._passing.discard(task)

        door = await asyncio.start_server(take, "127.0.0.1", 0)
        self._doors.append(door)
        return f"ws://127.0.0.1:{door.sockets[0].getsockname()[1]}"

    async def arrival(self, name: str) -> None:
        """Wait until a participant, to whom a door was opened, has come through it once."""
        await self._arrivals[name].wait()

    async def close(self) -> None:
        """Let nobody through any more, and drop who is connected."""
        for door in self._doors:
            door.close()
        left = set(self._passing)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    async def _take(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        for server in sorted(self._servers, key=self._counts.__getitem__):
            place = urlsplit(self._servers[server])
            self._counts[server] += 1  # at once, so that who comes meanwhile goes elsewhere
            try:
                back, forth = await asyncio.open_connection(place.hostname, place.port)
            except OSError:
                continue
            else:
                self.at[name] = server
                self._arrivals[name].set()
                await _join(reader, writer, back, forth)
                return
            finally:
                self._counts[server] -= 1


async def _join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    back: asyncio.StreamReader,
    forth: asyncio.StreamWriter,
) -> None:
    """Pass on what either side says, until one of them has ended."""
    ways = [asyncio.ensure_future(_pass_on(*way)) for way in ((reader, forth), (back, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        forth.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(_PIECE_BYTES):
            writer.write(data)
            await writer.drain()
