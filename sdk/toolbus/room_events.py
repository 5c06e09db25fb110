"""News of a room, as a participant reads them.

Holds what has not been read yet, and no more than that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolbus.people import Message, ParticipantInfo
from toolbus.toolkit_proxy import ToolkitInfo
from toolbus.wire import BadBody, Event

__all__ = ["EventQueue", "RoomEvent", "granted_topics"]

_logger = logging.getLogger(__name__)
_MAX_UNREAD = 1_024
_TOOLKIT_EVENTS = frozenset({"toolkit_added", "toolkit_changed", "toolkit_removed"})
_PARTICIPANT_EVENTS = frozenset({"participant_joined", "participant_changed", "participant_left"})
_MESSAGE = "message"


def granted_topics(facts: Mapping[str, Any]) -> list[str]:
    """Say what a participant may hear of, by the facts of its welcome."""
    api = facts.get("api", {})
    grants = {
        "toolkits": api.get("agents", {}).get("use_tools"),
        "participants": api.get("presence"),
        "messages": api.get("messaging"),
    }
    return [topic for topic, is_granted in grants.items() if is_granted]


@dataclass(frozen=True, slots=True)
class RoomEvent:
    """Something that happened in the room."""

    name: str
    """"toolkit_added", "toolkit_changed", "toolkit_removed"; "participant_joined",
    "participant_changed", "participant_left"; "message". "reconnected" and "missed" say that
    others may have been missed, so that a list is worth asking for again."""
    toolkit: ToolkitInfo | None = None
    """The toolkit it is about; one that is removed has no more than its name and its owner."""
    participant: ParticipantInfo | None = None
    """The participant it is about; one that has left has no attributes."""
    message: Message | None = None
    """The message, where it is one."""

    @classmethod
    def from_wire(cls, event: Event) -> RoomEvent | None:
        """Read an event; None for one that this release does not know, or cannot read."""
        if event.name in _TOOLKIT_EVENTS:
            return cls(event.name, ToolkitInfo.from_wire(event.data["toolkit"]))
        if event.name in _PARTICIPANT_EVENTS:
            info = ParticipantInfo.from_wire(event.data["participant"])
            return cls(event.name, participant=info)
        if event.name != _MESSAGE:
            return None
        try:
            return cls(event.name, message=Message.from_wire(event.data))
        except BadBody as error:
            # Its body is another participant's, and the server has not looked at it.
            _logger.warning("a message named %s cannot be read: %s", event.data["name"], error)
            return None


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
