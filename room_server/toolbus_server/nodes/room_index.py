"""Which rooms there are at all nodes, page by page, as Redis has them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from toolbus_server.administration import RoomsElsewhere
from toolbus_server.nodes.redis_line import RedisAway

__all__ = ["ROOMS", "rooms_elsewhere"]

ROOMS = "toolbus:rooms"
"""All rooms that some node holds, in the order of their names."""
_MOST_FACTS = 20_000
"""How much of rooms one page looks at, and one room more: it is some 10 ms that Redis works."""


class Script(Protocol):
    """Runs one of the scripts."""

    def __call__(self, name: str, keys: list[str], *arguments: Any) -> Awaitable[Any]:
        """Give its answer. Raises `RedisAway`."""


async def rooms_elsewhere(script: Script, after: str, most: int) -> RoomsElsewhere:
    """Read which rooms there are, and how much is in each.

    Args:
        script: The way to Redis.
        after: Behind which name to begin.
        most: How many rooms at most.

    Returns:
        A page of them; none where Redis is away.
    """
    try:
        has_more, found = await script("rooms", [ROOMS], after, most, _MOST_FACTS)
    except RedisAway:
        return RoomsElsewhere({}, is_all=True)
    facts = iter(found)
    each_room = zip(facts, facts, facts, strict=True)
    rooms = {name.decode(): (people, toolkits) for name, people, toolkits in each_room}
    return RoomsElsewhere(rooms, not has_more)
