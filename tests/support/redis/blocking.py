"""A Redis of a test's own for tests that are not async, as commands are run from them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from redis.asyncio import Redis

from support.redis.server import redis_server


@contextmanager
def blocking_redis(password: str = "") -> Iterator[str]:
    """Run one for as long as the block runs, and give its address, as `127.0.0.1:6379`.

    Args:
        password: What it asks for; nothing unless said.
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
