"""The workers of a `toolbus serve --workers N`: their processes, sockets and leases."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import urlsplit

import psutil
from redis.asyncio import Redis

from support.redis.server import RedisServer


def workers_of(parent: int) -> set[int]:
    """Return the process ids of the workers."""
    children = psutil.Process(parent).children()
    return {each.pid for each in children if each.status() != psutil.STATUS_ZOMBIE}


def connections_of(worker: int, url: str) -> int:
    """Count the connections of participants that a worker has."""
    return _sockets(worker, url, psutil.CONN_ESTABLISHED)


async def until_listens_at(process: int, url: str, count: int) -> None:
    """Wait until a process has this many listening sockets of this port."""
    while _sockets(process, url, psutil.CONN_LISTEN) != count:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.01)


def _sockets(process: int, url: str, status: str) -> int:
    port = urlsplit(url).port
    return sum(
        each.laddr.port == port and each.status == status
        for each in psutil.Process(process).net_connections("tcp")
    )


async def leases(redis: RedisServer) -> dict[str, str]:
    """Return the incarnation of each node that has a lease, by the node's name."""
    async with Redis.from_url(redis.url) as client:
        nodes: list[bytes] = await client.zrange("toolbus:nodes:leases", 0, -1)  # type: ignore[assignment]
    return dict(each.decode().split() for each in nodes)


async def lengthen_leases(redis: RedisServer, seconds: float) -> None:
    """Let the lease of each node end this much later, until the node renews it."""
    async with Redis.from_url(redis.url) as client:
        nodes: list[bytes] = await client.zrange("toolbus:nodes:leases", 0, -1)  # type: ignore[assignment]
        for node in nodes:
            await client.zincrby("toolbus:nodes:leases", 1000 * seconds, node)


async def until_others_work(parent: int, gone: Iterable[int], count: int) -> set[int]:
    """Wait until this many other workers run, and return their process ids."""
    before = set(gone)
    while len(now := workers_of(parent) - before) < count:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.01)
    return now


async def until_ended(pids: Iterable[int]) -> None:
    """Wait until processes have ended."""
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            await asyncio.to_thread(psutil.Process(pid).wait)


async def until_killed(pids: Iterable[int]) -> None:
    """Kill processes, and wait until they have ended."""
    left = [pid for pid in pids if psutil.pid_exists(pid)]
    for pid in left:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()
    await until_ended(left)
