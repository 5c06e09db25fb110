"""Actions of administrators that every node carries out: kicks, and revocations.

A kick is sent to the nodes that are alive now. Revocations are also stored in Redis, for nodes that
start later, and each node keeps those that it knows, for a Redis that loses them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgpack
from redis.exceptions import RedisError

from toolbus.bounded_logging import bounded_logger
from toolbus_server.cluster.exchange import LEASES_KEY
from toolbus_server.cluster.redis.client import RedisClient, RedisUnavailable
from toolbus_server.rooms.administration import AdminActions

__all__ = ["RemoteAdmin"]

_logger = bounded_logger(__name__)
_REVOKED_KEY = "toolbus:revocations"
"""A sorted set of revocations, by when each may be forgotten."""
_MAX_REVOKED = 100_000
"""In memory for a Redis that loses them: administrators may revoke any number of tokens."""
_UNCONFIRMED_S = 60.0
"""Seconds in which a revocation is sent again to all nodes after each reconnect to Redis."""


@dataclass(eq=False)
class RemoteAdmin:
    """Sends actions of this node's administrators to all nodes, and carries out theirs."""

    _actions: AdminActions
    _redis: Callable[[], RedisClient]
    """Returns the current connection to Redis."""
    _send: Callable[[str, str, dict[str, Any]], None]
    """Sends an action to one node: node, action, and options."""
    _start: Callable[[Coroutine[Any, Any, None]], Any]
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _revoked: dict[bytes, float] = field(default_factory=dict)
    """By the packed options, when each may be forgotten."""
    _unconfirmed: dict[bytes, float] = field(default_factory=dict)
    """Recent revocations of this node: which nodes received them is unknown."""

    async def broadcast(self, action: str, options: dict[str, Any]) -> None:
        """Send an action to all other nodes; store a revocation for nodes that start later."""
        try:
            if action == "revoke":
                self._remember(revocation := msgpack.packb(options), options["ends_at"])
                self._unconfirmed.setdefault(revocation, self._loop.time())
                ends_at = options["ends_at"]
                await self._redis().command("ZADD", _REVOKED_KEY, "GT", ends_at, revocation)
            # In this order: a node that joined since then has read the revocations.
            for node in await self._redis().command("ZRANGE", LEASES_KEY, 0, -1):
                self._send(node.decode(), action, options)
        except (RedisUnavailable, RedisError) as error:
            until = " until this node reconnects" if action == "revoke" else ""
            message = (
                "the other nodes do not have this %s%s: Redis is unavailable or refuses it: %s"
            )
            _logger.error(message, action, until, error)

    def execute_action(self, action: str, options: dict[str, Any]) -> None:
        """Carry out an action of another node; a revocation only once."""
        if action == "kick" or self._remember(msgpack.packb(options), options["ends_at"]):
            self._actions.execute(action, options)

    def _remember(self, revocation: bytes, ends_at: float) -> bool:
        """Keep a revocation for a Redis that loses it; return whether it is new."""
        is_new = revocation not in self._revoked
        self._revoked[revocation] = ends_at
        if len(self._revoked) > _MAX_REVOKED:
            del self._revoked[next(iter(self._revoked))]
        return is_new

    async def synchronize(self) -> None:
        """Read the revocations in Redis, and add missing ones. Raises `RedisUnavailable`."""
        now = time.time()
        await self._redis().command("ZREMRANGEBYSCORE", _REVOKED_KEY, "-inf", now)
        stored = await self._redis().command("ZRANGE", _REVOKED_KEY, 0, -1)
        self._revoked = {packed: ends for packed, ends in self._revoked.items() if ends > now}
        since = self._loop.time() - _UNCONFIRMED_S
        self._unconfirmed = {
            revocation: at for revocation, at in self._unconfirmed.items() if at > since
        }
        for revocation in (self._revoked.keys() - set(stored)) | self._unconfirmed.keys():
            self._start(self.broadcast("revoke", msgpack.unpackb(revocation)))
        for revocation in stored:
            options = _decode(revocation)
            if options is None:
                _logger.error("a revocation in Redis cannot be read: %r", revocation[:100])
            elif self._remember(revocation, options["ends_at"]):
                self._actions.execute("revoke", options)


def _decode(revocation: bytes) -> dict[str, Any] | None:
    """Decode a revocation; return None for anything else."""
    try:
        options: Any = msgpack.unpackb(revocation)
    except (ValueError, TypeError):
        return None
    match options:
        case {"jti": str(), "at": float(), "ends_at": float()}:
            return dict(options)
        case {"issuer": str(), "name": str(), "at": float(), "ends_at": float()} if (
            "jti" not in options
        ):
            return dict(options)
    return None
