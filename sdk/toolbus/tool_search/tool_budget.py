"""Whether the tools of a room are in a turn themselves, or the toolkit that searches them is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from toolbus.bounded_logging import bounded_logger
from toolbus.room.room_client import RoomClient
from toolbus.tool_search.tool_search import ToolSearch
from toolbus.tools.toolkit import Toolkit
from toolbus.turns.turn_toolkits import LocalToolkit, RequiredToolkit

__all__ = ["ToolBudget"]

_logger = bounded_logger(__name__)


class ToolBudget:
    """Decides for each turn of an agent how it has the public toolkits of its room.

    Only these count, and of them only those that are not required: what an agent has anyway is no
    reason to hide the rest, and is not hidden itself.

    Args:
        tokens: What the definitions of the room's toolkits may take, in tokens.
        local: The agent's own toolkits.
        required: The toolkits of others that it has in each turn.
    """

    def __init__(
        self,
        tokens: int,
        local: Iterable[Toolkit | LocalToolkit],
        required: Iterable[RequiredToolkit],
    ) -> None:
        self._tokens = tokens
        self._tools = ToolSearch()
        needed = tuple(required)
        self._required = {toolkit.name for toolkit in needed}
        taken = {toolkit.name for toolkit in local}
        taken |= {toolkit.alias or toolkit.name for toolkit in needed}
        self._toolkit = self._named(taken)

    @asynccontextmanager
    async def following(self, room: RoomClient) -> AsyncIterator[None]:
        """Follow the room while the block runs. Raises as `ToolSearch.start`."""
        await self._tools.start(room)
        try:
            yield
        finally:
            await self._tools.stop()

    def choices(self, always: Iterable[Toolkit | LocalToolkit]) -> dict[str, Any]:
        """Return `available` and `always` for a turn that begins now.

        Args:
            always: The toolkits that it always has.
        """
        if self._tools.tokens_beside(self._required) <= self._tokens:
            return {"available": True, "always": [*always]}
        return {"available": False, "always": [*always, self._toolkit]}

    def _named(self, taken: set[str]) -> LocalToolkit:
        """Return the toolkit that searches, by a name that is free."""
        toolkit = self._tools.toolkit
        name = toolkit.name
        if name in taken:
            others = (f"room_{toolkit.name}{number or ''}" for number in count())
            name = next(other for other in others if other not in taken)
            _logger.warning(
                "the agent has another toolkit %s: the one that searches the room is %s",
                *(toolkit.name, name),
            )
        return LocalToolkit(toolkit, name)
