"""The rooms of all nodes, page by page, as Redis stores them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from toolbus_server.cluster.redis.client import RedisUnavailable
from toolbus_server.rooms.administration import RoomsElsewhere

__all__ = ["ROOMS_KEY", "rooms_elsewhere"]

ROOMS_KEY = "toolbus:rooms"
"""All rooms that a node holds, sorted by name."""
_MAX_FACTS = 20_000
"""Facts that one page reads, plus those of one room: Redis is busy for about 10 ms."""


class Script(Protocol):
    """Runs a script."""

    def __call__(self, name: str, keys: list[str], *arguments: Any) -> Awaitable[Any]:
        """Return its answer. Raises `RedisUnavailable`."""


async def rooms_elsewhere(script: Script, after: str, limit: int) -> RoomsElsewhere:
    """Read the rooms, with the number of participants and toolkits in each.

    Args:
        script: Runs a script in Redis.
        after: The name after which the page begins.
        limit: The maximum number of rooms.

    Returns:
        A page of rooms; an empty one if Redis is unavailable.
    """
    try:
        has_more, found = await script("rooms", [ROOMS_KEY], after, limit, _MAX_FACTS)
    except RedisUnavailable:
        return RoomsElsewhere({}, is_all=True)
    values = iter(found)
    each_room = zip(values, values, values, strict=True)
    rooms = {name.decode(): (participants, toolkits) for name, participants, toolkits in each_room}
    return RoomsElsewhere(rooms, not has_more)
