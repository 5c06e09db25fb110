"""A person's own Redis, in tests: one empty database of it, which is empty again afterwards.

Nothing is flushed, and no setting of the server is changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from redis.asyncio import Redis

from toolbus_server.cluster.redis.url import pool_of

__all__ = ["URL_VARIABLE", "ExternalRedis", "external_redis"]

URL_VARIABLE = "TOOLBUS_TEST_REDIS_URL"


class ExternalRedis(NamedTuple):
    """The address of that Redis."""

    url: str


@asynccontextmanager
async def external_redis(url: str) -> AsyncIterator[ExternalRedis]:
    """Use the database that a URL names, one test at a time; delete what the test leaves there.

    A database that is not empty fails the test: it might be in use, by nodes too.
    """
    with _turn(url):
        client = Redis(connection_pool=pool_of(url))
        try:
            if await client.dbsize():
                pytest.fail(_NOT_EMPTY, pytrace=False)
            yield ExternalRedis(url)
            async for key in client.scan_iter(match="toolbus:*", count=1000):
                await client.unlink(key)
        finally:
            await client.aclose()
            await client.connection_pool.disconnect()


_NOT_EMPTY = (
    f"the database that {URL_VARIABLE} names is not empty: tests use one that is, such as /9, and "
    "delete `toolbus:*` there after each; if these keys are of tests that were cut off, delete them"
)


@contextmanager
def _turn(url: str) -> Iterator[None]:
    """Wait until no other process tests with this database."""
    name = f"toolbus-test-redis-{hashlib.sha256(url.encode()).hexdigest()[:16]}.lock"
    with (Path(tempfile.gettempdir()) / name).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
