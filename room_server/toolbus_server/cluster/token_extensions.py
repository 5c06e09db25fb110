"""The further lives of tokens in Redis, where all nodes of a bus find them.

They are one sorted set: the id and the issuer of each token, by the end of its last life. All nodes
compute the same ends, so a write keeps the later of two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from redis.exceptions import RedisError

from toolbus.auth.tokens import LEEWAY_S
from toolbus_server.access.extensions import StateUnavailable, TokenKey
from toolbus_server.access.state_writer import StateBatch, StateWriter
from toolbus_server.cluster.redis.client import RedisClient, RedisUnavailable, safe_message

__all__ = ["RedisExtensions"]

_KEY = "toolbus:tokens:extended"
_WRITTEN_AT_ONCE = 1_000
"""Members of one command: Redis answers no other one meanwhile."""


class RedisExtensions:
    """The further lives that the nodes of a bus share.

    Args:
        redis: Returns the current connection to Redis.
    """

    def __init__(self, redis: Callable[[], RedisClient]) -> None:
        self._redis = redis
        self.writer: StateWriter = StateWriter(self._write, "Redis")
        """Writes to it."""
        self.known: Callable[[], Iterable[tuple[TokenKey, float]]] = tuple
        """Returns what this node knows, for a Redis that lost it."""

    async def read(self, key: TokenKey) -> float | None:
        """Return the end of the last life of a token. Raises `StateUnavailable`."""
        try:
            found = await self._redis().command("ZSCORE", _KEY, _member(key))
        except (RedisUnavailable, RedisError) as error:
            raise StateUnavailable(safe_message(error)) from error
        return None if found is None else float(found)

    def restore(self) -> None:
        """Write again what this node knows: Redis may have lost it."""
        self.writer.add_ends(dict(self.known()))

    async def _write(self, batch: StateBatch) -> None:
        members = [word for key, end in batch.ends.items() for word in (end, _member(key))]
        expired = time.time() - LEEWAY_S
        try:
            for first in range(0, len(members), 2 * _WRITTEN_AT_ONCE):
                some = members[first : first + 2 * _WRITTEN_AT_ONCE]
                await self._redis().command("ZADD", _KEY, "GT", *some)
            await self._redis().command("ZREMRANGEBYSCORE", _KEY, "-inf", expired)
        except (RedisUnavailable, RedisError) as error:
            raise StateUnavailable(safe_message(error)) from error


def _member(key: TokenKey) -> str:
    issuer, jti = key  # both are printable, so that no NUL is in them
    return f"{jti}\0{issuer}"
