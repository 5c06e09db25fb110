"""What a caller knows of a call of its own that waits for a person."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from toolbus.bounded_logging import bounded_logger

__all__ = ["HeldCall", "report_held"]

_logger = bounded_logger(__name__)


@dataclass(frozen=True, slots=True)
class HeldCall:
    """That a call waits for a person, or goes on; `on_held=` of `Room.invoke` and `stream` gets it.

    What waits may be a call that the called tool makes in turn.
    """

    id: str
    """The id, as `RoomClient.approve` and `answer` take it; empty for the question of a turn
    itself, `Turn(approve="room")`, whose id only others get."""
    tool: str = ""
    """The tool that waits, `toolkit.tool`; empty if this participant may not know it."""
    may_settle: bool = False
    """Whether it waits and this participant may settle it."""
    nobody: bool = False
    """Whether it waits and nobody who is in the room now may settle it."""
    left_s: float | None = None
    """Seconds until it expires; None if it does not, or does not wait any more."""
    outcome: str = "open"
    """"open" while it waits; then "approved", "answered", "denied", "expired", "cancelled" or
    "lost"."""
    changed: bool = False
    """Whether the person who approved it has changed its arguments."""
    kind: str = ""
    """What it waits for: "approve" or "answer"; empty once it does not wait any more."""

    @property
    def is_open(self) -> bool:
        """Whether the call waits."""
        return self.outcome == "open"

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> HeldCall | None:
        """Read what the server sends; None if the call only waits with the one around it."""
        hold_id = data.get("hold")
        if not isinstance(hold_id, str):
            return None
        left_ms, tool, outcome = data.get("left_ms"), data.get("tool", ""), data.get("outcome")
        kind = data.get("kind")
        return cls(
            hold_id,
            tool if isinstance(tool, str) else "",
            data.get("may_settle") is True,
            data.get("nobody") is True,
            left_ms / 1000 if isinstance(left_ms, int) else None,
            outcome if isinstance(outcome, str) else "open",
            data.get("changed") is True,
            kind if isinstance(kind, str) else "",
        )


def report_held(on_held: Callable[[HeldCall], None] | None, held: HeldCall) -> None:
    """Call `on_held`; its errors are logged and have no effect on the call."""
    if on_held is None:
        return
    try:
        on_held(held)
    except (Exception, asyncio.CancelledError):  # the latter from a future that it reads
        _logger.exception("on_held raised")
