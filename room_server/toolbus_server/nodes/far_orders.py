"""What an administrator asks for at one node and all others do: kicks, and revocations.

A kick reaches the nodes that live now. Revocations stand in Redis too, for nodes that come later,
and each node keeps those that it knows, for a Redis that loses them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import msgpack
from redis.exceptions import RedisError

from toolbus.tokens import MAX_TOKEN_LIFE_S
from toolbus_server.administration import Administration
from toolbus_server.nodes.redis_line import RedisAway, RedisLine

__all__ = ["FarOrders"]

_logger = logging.getLogger(__name__)
_REVOKED = "toolbus:revoked"
_REVOKED_S = 2 * MAX_TOKEN_LIFE_S
_MOST_REVOKED = 100_000
_OWED_S = 60.0
"""For so long a revocation is told once more to all whenever the line was down meanwhile."""


class FarOrders:
    """Has others do what was asked for here, and does what was asked for there.

    Args:
        administration: Does it here.
        line: Gives the line to Redis that there is now.
        nodes_key: Where Redis has the nodes that live.
        tell: Tells one node: which, what, and whom it is about.
        start: Runs what has to be waited for.
    """

    def __init__(
        self,
        administration: Administration,
        line: Callable[[], RedisLine],
        nodes_key: str,
        tell: Callable[[str, str, dict[str, Any]], None],
        start: Callable[[Coroutine[Any, Any, None]], Any],
    ) -> None:
        self._administration = administration
        self._line = line
        self._nodes_key = nodes_key
        self._tell = tell
        self._start = start
        self._loop = asyncio.get_running_loop()
        self._revoked: dict[bytes, None] = {}
        self._owed: dict[bytes, float] = {}
        """Revocations that were asked for here a moment ago: who has heard of them is not known."""
        administration.elsewhere = self.give

    def give(self, action: str, options: dict[str, Any]) -> None:
        """Have something done at all other nodes; a revocation also at those that come later."""
        self._start(self._give(action, options))

    async def _give(self, action: str, options: dict[str, Any]) -> None:
        try:
            if action == "revoke":
                self._remember(revocation := msgpack.packb(options))
                self._owed.setdefault(revocation, self._loop.time())
                await self._line().command("SADD", _REVOKED, revocation)
                await self._line().command("EXPIRE", _REVOKED, _REVOKED_S)
            # In this order: who has joined since then has read what is revoked.
            for name in await self._line().command("ZRANGE", self._nodes_key, 0, -1):
                self._tell(name.decode(), action, options)
        except (RedisAway, RedisError) as error:
            until = " until this node joins them anew" if action == "revoke" else ""
            words = "the others do not know of this %s%s: Redis is away, or refuses it: %s"
            _logger.error(words, action, until, error)

    def obey(self, action: str, options: dict[str, Any]) -> None:
        """Do what an administrator asked for at another node; a revocation counts once."""
        if action == "kick" or self._remember(msgpack.packb(options)):
            self._administration.carry_out(action, options)

    def _remember(self, revocation: bytes) -> bool:
        """Keep a revocation for a Redis that loses it; return whether it is news."""
        is_news = revocation not in self._revoked
        self._revoked[revocation] = None
        if len(self._revoked) > _MOST_REVOKED:
            del self._revoked[next(iter(self._revoked))]
        return is_news

    async def agree(self) -> None:
        """Learn what is revoked, and tell what Redis does not know. Raises `RedisAway`."""
        told = await self._line().command("SMEMBERS", _REVOKED)
        since = self._loop.time() - _OWED_S
        self._owed = {each: at for each, at in self._owed.items() if at > since}
        for revocation in (self._revoked.keys() - set(told)) | self._owed.keys():
            self.give("revoke", msgpack.unpackb(revocation))
        for revocation in told:
            options = _read(revocation)
            if options is None:
                _logger.error("a revocation in Redis cannot be read: %r", revocation[:100])
            elif self._remember(revocation):
                self._administration.carry_out("revoke", options)


def _read(revocation: bytes) -> dict[str, Any] | None:
    """Read what is revoked; None where that is no revocation."""
    try:
        options: Any = msgpack.unpackb(revocation)
    except (ValueError, TypeError):
        return None
    match options:
        case {"jti": str(), "at": int() | float()}:
            return dict(options)
        case {"issuer": str(), "name": str(), "at": int() | float()} if "jti" not in options:
            return dict(options)
    return None
