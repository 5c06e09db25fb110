"""Where records are kept: what a store provides, and the one in memory."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from toolbus.records.call_record import CallFilter, CallRecord

__all__ = ["MemoryStore", "RecordStore"]


class RecordStore(Protocol):
    """Keeps records. Each method may be called from any thread."""

    def add(self, record: CallRecord) -> None:
        """Keep a record, at once and without waiting."""

    def select(self, chosen: CallFilter, limit: int) -> list[CallRecord]:
        """Return the chosen records, the newest first."""

    def flush(self, timeout_s: float) -> bool:
        """Wait until what was added is stored; return whether it is."""

    def close(self) -> None:
        """Store what was added, and release files and threads. Idempotent."""


class MemoryStore:
    """Keeps the last records in memory.

    Args:
        size: How many.
    """

    def __init__(self, size: int) -> None:
        self._records: deque[CallRecord] = deque(maxlen=size)

    def add(self, record: CallRecord) -> None:
        """Keep a record; the oldest one is dropped if there are too many."""
        self._records.append(record)

    def select(self, chosen: CallFilter, limit: int) -> list[CallRecord]:
        """Return the chosen records, the newest first."""
        found = [record for record in self._records.copy() if chosen.matches(record)]
        found.reverse()
        found.sort(key=lambda record: record.started_at, reverse=True)
        return found[:limit]

    def flush(self, timeout_s: float) -> bool:
        """Return True: there is nothing to wait for."""
        return True

    def close(self) -> None:
        """Do nothing: the records stay readable."""
