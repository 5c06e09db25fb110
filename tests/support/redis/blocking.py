"""A test's own Redis for tests that are not async, as those that run commands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from redis.asyncio import Redis

from support.redis.server import redis_server


@contextmanager
def blocking_redis(password: str = "") -> Iterator[str]:
    """Run one until the block ends, and yield its address, as `127.0.0.1:6379`.

    Args:
        password: The password that it requires; none by default.
    """
    context = redis_server()
    with asyncio.Runner() as runner:
        redis = runner.run(context.__aenter__())
        try:
            if password:
                runner.run(_protect(redis.url, password))
            yield urlsplit(redis.url).netloc
        finally:
            runner.run(context.__aexit__(None, None, None))


async def _protect(url: str, password: str) -> None:
    async with Redis.from_url(url) as client:
        await client.config_set("requirepass", password)
