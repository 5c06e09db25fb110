"""Actions of administrators that all nodes carry out: kicks and revocations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import RedisError

from toolbus.bounded_logging import bounded_logger
from toolbus_server.cluster.exchange import LEASES_KEY
from toolbus_server.cluster.redis.client import RedisClient, RedisUnavailable
from toolbus_server.cluster.token_state import revocation_of
from toolbus_server.rooms.administration import AdminActions

__all__ = ["RemoteAdmin"]

_logger = bounded_logger(__name__)


@dataclass(eq=False)
class RemoteAdmin:
    """Sends actions of this node's administrators to all nodes, and carries out theirs."""

    _actions: AdminActions
    _redis: Callable[[], RedisClient]
    """Returns the current connection to Redis."""
    _send: Callable[[str, str, dict[str, Any]], None]
    """Sends an action to one node: node, action, and options."""

    async def kick(self, options: dict[str, Any]) -> None:
        """Send a kick to the nodes that are alive now."""
        try:
            await self._send_to_all("kick", [options])
        except (RedisUnavailable, RedisError) as error:
            text = "the other nodes do not have this kick: Redis is unavailable or refuses it: %s"
            _logger.error(text, error)

    async def revoke(self, revocations: Sequence[dict[str, Any]]) -> None:
        """Send revocations to all other nodes. Raises `RedisUnavailable` and `RedisError`."""
        await self._send_to_all("revoke", revocations)

    async def _send_to_all(self, action: str, several: Sequence[dict[str, Any]]) -> None:
        for node in await self._redis().command("ZRANGE", LEASES_KEY, 0, -1):
            for options in several:
                self._send(node.decode(), action, options)

    def execute_action(self, action: str, options: dict[str, Any]) -> None:
        """Carry out an action of another node."""
        if action == "kick":
            self._actions.kick(options)
        else:
            self._actions.revoke(revocation_of(options))
