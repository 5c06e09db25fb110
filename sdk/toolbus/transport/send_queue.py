"""The queue of messages for a peer that reads more slowly than we write.

It only stores them; `websocket` decides at which size a connection is closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

__all__ = ["NotifyingTicket", "SendQueue", "Ticket"]

_OVERHEAD_BYTES = 256
"""What a queued message takes in memory beside its bytes."""


class Ticket(Protocol):
    """State of a message that may be refused or withdrawn."""

    written: bool
    """Set when the message is passed to the transport; then the peer may have received it."""
    ended: bool
    """Set by the owner: if the message is still queued then, it is never written."""


class NotifyingTicket(Struct, eq=False):
    """The ticket of a message that has to report when it is written."""

    on_written: Callable[[], None]
    """To be called once the message is passed to the transport."""
    written: bool = False
    ended: bool = False
    on_dropped: Callable[[], None] | None = None
    """To be called if it is dropped, on a connection that stays."""


class SendQueue:
    """Queued messages with their tickets."""

    __slots__ = ("_waiting", "bytes", "held_bytes")

    def __init__(self) -> None:
        self._waiting: deque[tuple[bytes, Ticket | None, int]] = deque()
        self.bytes: int = 0
        """Size of the messages that count towards the limit."""
        self.held_bytes: int = 0
        """What all messages take in memory."""

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, data: bytes, ticket: Ticket | None, counted: int) -> None:
        """Add a message; `counted` of its bytes count towards the limit."""
        self._waiting.append((data, ticket, counted))
        self.bytes += counted
        self.held_bytes += len(data) + _OVERHEAD_BYTES

    def take(self) -> tuple[bytes, Ticket | None]:
        """Remove and return the oldest message, of which there is at least one."""
        data, ticket, counted = self._waiting.popleft()
        self.bytes -= counted
        self.held_bytes -= len(data) + _OVERHEAD_BYTES
        return data, ticket

    def extend(self, other: SendQueue) -> None:
        """Append the messages of another queue."""
        self._waiting.extend(other._waiting)
        self.bytes += other.bytes
        self.held_bytes += other.held_bytes
