"""News of toolkits for one subscriber: numbered, coalesced, and only of what it can see.

Changes that come within a few milliseconds are told as one, so that a host that flaps costs its
watchers no more than one that does not. The numbers count what this connection was sent; they have
no holes that would betray what is hidden.
"""

from __future__ import annotations

import asyncio
from typing import Any

from toolbus.wire import Event, encode
from toolbus_server.room_state import Change, Toolkit
from toolbus_server.routing import Seat

__all__ = ["Feed", "toolkit_summary"]

COALESCE_S = 0.02
"""How long news is held back to be told together (PROTOCOL.md, EVENT-3)."""
# Names have up to 64 bytes, and an event is all header, which has at most 64 KiB.
_MAX_TOOLS = 512


def toolkit_summary(toolkit: Toolkit, seat: Seat) -> dict[str, Any]:
    """Tell what lists and events say of a toolkit: everything but its schemas."""
    manifest = toolkit.serving.definition.manifest
    return {
        "name": toolkit.name,
        "title": manifest.title,
        "description": manifest.description[:500],
        "version": manifest.version,
        "digest": toolkit.serving.definition.digest,
        "public": toolkit.public,
        "owner": {"name": toolkit.owner.name, "issuer": toolkit.owner.issuer},
        "hosts": len(toolkit.serving.hosts),
        "tools": [tool.name for tool in toolkit.tools_seen_by(seat.member)],
    }


class Feed:
    """What one subscriber is yet to be told."""

    __slots__ = ("_loop", "_number", "_pending", "_seat", "_shown", "_timer")

    def __init__(self, seat: Seat, loop: asyncio.AbstractEventLoop) -> None:
        self._seat = seat
        self._loop = loop
        self._number = 0
        self._pending: dict[Toolkit, None] = {}
        self._shown: set[Toolkit] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, visible: list[Toolkit]) -> None:
        """Take note of what the subscriber can list already."""
        self._shown = set(visible)

    def tell(self, change: Change) -> None:
        """Note a change; it is told within 20 ms, together with others."""
        self._pending[change.toolkit] = None
        if self._timer is None:
            self._timer = self._loop.call_later(COALESCE_S, self._flush)

    def close(self) -> None:
        """Stop telling."""
        if self._timer is not None:
            self._timer.cancel()

    def _flush(self) -> None:
        self._timer = None
        pending, self._pending = self._pending, {}
        for toolkit in pending:
            is_there = bool(toolkit.serving.hosts) and toolkit.is_listed_for(self._seat.member)
            was_there = toolkit in self._shown
            if is_there:
                self._shown.add(toolkit)
                self._send("toolkit_changed" if was_there else "toolkit_added", toolkit)
            elif was_there:
                self._shown.discard(toolkit)
                self._send("toolkit_removed", toolkit)

    def _send(self, name: str, toolkit: Toolkit) -> None:
        self._number += 1
        summary = toolkit_summary(toolkit, self._seat)
        summary["tools"] = summary["tools"][:_MAX_TOOLS]
        if name == "toolkit_removed":
            # What it said of itself last may be others' alone, and whether it goes on for them too.
            summary |= {"title": "", "description": "", "version": "", "digest": "", "tools": []}
            summary["hosts"] = 0
        event = Event(self._number, name, {"toolkit": summary})
        self._seat.port.send_message(encode(event))
