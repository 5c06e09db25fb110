"""News of a room, as a participant reads them.

Holds what has not been read yet, and no more than that.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from toolbus.toolkit_proxy import ToolkitInfo
from toolbus.wire import Event

__all__ = ["EventQueue", "RoomEvent"]

_MAX_UNREAD = 1_024
_TOOLKIT_EVENTS = frozenset({"toolkit_added", "toolkit_changed", "toolkit_removed"})


@dataclass(frozen=True, slots=True)
class RoomEvent:
    """Something that happened in the room."""

    name: str
    """"toolkit_added", "toolkit_changed", "toolkit_removed"; "reconnected" and "missed" say that
    others may have been missed, so that a list is worth asking for again."""
    toolkit: ToolkitInfo | None = None
    """The toolkit it is about; one that is removed has no more than its name and its owner."""

    @classmethod
    def from_wire(cls, event: Event) -> RoomEvent | None:
        """Read an event; None for one that this release does not know."""
        if event.name not in _TOOLKIT_EVENTS:
            return None
        return cls(event.name, ToolkitInfo.from_wire(event.data["toolkit"]))


class EventQueue:
    """One reader's unread events; a reader that is too far behind loses them, and is told so."""

    def __init__(self) -> None:
        self._unread: asyncio.Queue[RoomEvent | None] = asyncio.Queue()

    def put(self, event: RoomEvent | None) -> None:
        """Add an event; None ends the reading."""
        if event is not None and self._unread.qsize() >= _MAX_UNREAD:
            while not self._unread.empty():
                self._unread.get_nowait()
            event = RoomEvent("missed")
        self._unread.put_nowait(event)

    async def get(self) -> RoomEvent | None:
        """Wait for the next event; None when there will be none."""
        return await self._unread.get()
