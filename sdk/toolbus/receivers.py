"""Who reads a connection's messages, and who stands in where nobody does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["NO_QUEUE", "Deaf", "Receiver"]


class Receiver(Protocol):
    """Who reads a connection's messages."""

    def on_message(self, data: bytes) -> None:
        """Take one whole message. Must not raise."""

    def on_close(self) -> None:
        """Learn, once, that the connection is gone."""


class Deaf:
    """Stands in for the receiver of a connection that we have closed."""

    def __init__(self, receiver: Receiver) -> None:
        self.on_close: Callable[[], None] = receiver.on_close

    def on_message(self, data: bytes) -> None:
        """Drop what came in one piece with the reason for closing."""


class _NoQueue:
    """Stands in for the queue of messages that nobody would read."""

    def close(self) -> None:
        """Learn that no more would come."""


NO_QUEUE = _NoQueue()
