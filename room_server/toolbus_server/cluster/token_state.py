"""What the nodes of a bus share about tokens: further lives, and revocations.

Both are sorted sets in Redis, by the time at which each entry may be forgotten. All nodes compute
the same ends of lives, so a write keeps the later of two. Each node writes what it knows again into
a Redis that has lost it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgpack
from redis.exceptions import RedisError

from toolbus.auth.tokens import LEEWAY_S
from toolbus.bounded_logging import bounded_logger
from toolbus_server.access.extensions import StateUnavailable, TokenKey
from toolbus_server.access.revocations import MAX_REVOCATIONS, Revocation
from toolbus_server.access.state_writer import StateBatch, StateWriter
from toolbus_server.cluster.redis.client import RedisClient, RedisUnavailable, safe_message
from toolbus_server.registry.models import Identity
from toolbus_server.rooms.administration import AdminActions

__all__ = ["RedisTokenState", "revocation_of"]

_LIVES_KEY = "toolbus:tokens:extended"
_REVOCATIONS_KEY = "toolbus:revocations"
_SINCE_KEY = "toolbus:tokens:since"
"""It has one member, by the time since which this Redis has had the state of tokens."""
_SINCE = "since"
_AT_ONCE = 1_000
"""Members of one command: Redis answers no other one meanwhile."""
_RESTORED_S = 5.0
"""Seconds in which all nodes have written again what a Redis has lost: they notice it within 3."""
_UNCONFIRMED_S = 60.0
"""Seconds in which a revocation is sent again to all nodes after each reconnect to Redis."""
_logger = bounded_logger(__name__)


class RedisTokenState:
    """The state of tokens that the nodes of a bus share.

    Args:
        redis: Returns the current connection to Redis.
        actions: Carries revocations out at this node.
        send: Sends revocations, as `revocation_of` reads them, to all other nodes.
    """

    def __init__(
        self,
        redis: Callable[[], RedisClient],
        actions: AdminActions,
        send: Callable[[Sequence[dict[str, Any]]], Awaitable[None]],
    ) -> None:
        self._redis = redis
        self._actions = actions
        self._send = send
        self.writer: StateWriter = StateWriter(self._write, "Redis")
        """Writes further lives and revocations of this node."""
        self.known: Callable[[], Iterable[tuple[TokenKey, float]]] = tuple
        """Returns the lives that this node knows, for a Redis that lost them."""

    async def read(self, key: TokenKey) -> float | None:
        """Return the end of the last life of a token. Raises `StateUnavailable`."""
        try:
            found = await self._redis().command("ZSCORE", _LIVES_KEY, _member(key))
            if found is not None:
                return float(found)
            since = await self._redis().command("ZSCORE", _SINCE_KEY, _SINCE)
        except (RedisUnavailable, RedisError) as error:
            raise StateUnavailable(safe_message(error)) from error
        if since is None or time.time() - float(since) < _RESTORED_S:
            raise StateUnavailable("Redis has lost the state of tokens")
        return None

    async def synchronize(self) -> None:
        """Learn the revocations in Redis, and write there what it lacks.

        Raises `RedisUnavailable`.
        """
        known = list(self._actions.revocations)
        lacking = {_packed(revocation): revocation for revocation in known}
        for first in range(0, MAX_REVOCATIONS, _AT_ONCE):
            last = first + _AT_ONCE - 1
            page = await self._redis().command("ZRANGE", _REVOCATIONS_KEY, first, last, "REV")
            for packed in page:
                if lacking.pop(packed, None) is None:
                    self._learn(packed)
            if len(page) < _AT_ONCE:
                break
        await self._store(list(lacking.values()))
        await self._redis().command("ZADD", _SINCE_KEY, "NX", time.time(), _SINCE)
        recent = time.time() - _UNCONFIRMED_S
        for revocation in known:
            if revocation.at > recent:  # it may have been lost on its way to other nodes
                self.writer.add_revocation(revocation)
        self.writer.add_ends(dict(self.known()))

    def _learn(self, packed: bytes) -> None:
        try:
            revocation = revocation_of(msgpack.unpackb(packed))
        except (ValueError, TypeError):
            _logger.error("a revocation in Redis cannot be read: %r", packed[:100])
        else:
            self._actions.revoke(revocation)

    async def _write(self, batch: StateBatch) -> None:
        members = [(end, _member(key)) for key, end in batch.ends.items()]
        expired = time.time() - LEEWAY_S
        try:
            await self._add(_LIVES_KEY, members)
            await self._redis().command("ZREMRANGEBYSCORE", _LIVES_KEY, "-inf", expired)
            if batch.revocations:
                await self._store(batch.revocations)
                # In this order: a node that has joined since then has read them.
                await self._send(list(map(_options_of, batch.revocations)))
        except (RedisUnavailable, RedisError) as error:
            raise StateUnavailable(safe_message(error)) from error

    async def _store(self, revocations: Sequence[Revocation]) -> None:
        members = [(revocation.ends_at, _packed(revocation)) for revocation in revocations]
        await self._add(_REVOCATIONS_KEY, members)
        redis = self._redis()
        await redis.command("ZREMRANGEBYSCORE", _REVOCATIONS_KEY, "-inf", time.time())
        dropped = await redis.command("ZREMRANGEBYRANK", _REVOCATIONS_KEY, 0, -1 - MAX_REVOCATIONS)
        if dropped:
            text = "over %d revocations are in Redis: it has dropped %d that were to end first"
            _logger.warning(text, MAX_REVOCATIONS, dropped)

    async def _add(self, key: str, members: Sequence[tuple[float, str | bytes]]) -> None:
        for first in range(0, len(members), _AT_ONCE):
            words = [word for member in members[first : first + _AT_ONCE] for word in member]
            await self._redis().command("ZADD", key, "GT", *words)


def _member(key: TokenKey) -> str:
    issuer, jti = key  # both are printable, so that no NUL is in them
    return f"{jti}\0{issuer}"


def _options_of(revocation: Revocation) -> dict[str, Any]:
    target, at, ends_at = revocation
    named = {"jti": target} if isinstance(target, str) else target._asdict()
    return named | {"at": at, "ends_at": ends_at}


def _packed(revocation: Revocation) -> bytes:
    packed: bytes = msgpack.packb(_options_of(revocation))
    return packed


def revocation_of(options: Any) -> Revocation:
    """Read a revocation of another node, or of Redis. Raises ValueError for anything else."""
    match options:
        case {"jti": str(target), "at": float(at), "ends_at": float(ends_at)}:
            return Revocation(target, at, ends_at)
        case {"issuer": str(issuer), "name": str(name), "at": float(at), "ends_at": float(ends_at)}:
            return Revocation(Identity(issuer, name), at, ends_at)
    raise ValueError("not a revocation")
