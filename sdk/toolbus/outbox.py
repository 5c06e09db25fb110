"""What waits for a peer that reads more slowly than we write: in order, and counted.

Values only: who is closed for how much of it is decided in `transport`.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

__all__ = ["Outbox", "Ticket"]


class Ticket(Protocol):
    """What a message that may be refused or taken back carries with it."""

    written: bool
    """Set once the message is handed to the transport:

    from then on the other side may have seen it.
    """
    ended: bool
    """Set by the owner: a message that is still waiting then is never written."""


class Outbox:
    """Messages that wait, with their tickets."""

    __slots__ = ("_waiting", "bytes")

    def __init__(self) -> None:
        self._waiting: deque[tuple[bytes, Ticket | None, int]] = deque()
        self.bytes: int = 0
        """Of those that count."""

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, data: bytes, ticket: Ticket | None, counted: int) -> None:
        """Add a message, of which so many bytes count."""
        self._waiting.append((data, ticket, counted))
        self.bytes += counted

    def take(self) -> tuple[bytes, Ticket | None]:
        """Remove the oldest message."""
        data, ticket, counted = self._waiting.popleft()
        self.bytes -= counted
        return data, ticket

    def join(self, later: Outbox) -> None:
        """Take over what waits in another one, behind what waits here."""
        self._waiting.extend(later._waiting)
        self.bytes += later.bytes
