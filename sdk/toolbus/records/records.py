"""`Records`: the calls of toolkits and turns, and the store that keeps them in memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol, Self

from toolbus.bounded_logging import bounded_logger
from toolbus.records.call_record import CallFilter, CallRecord
from toolbus.records.recording import Identified, Recording

__all__ = ["Records"]


_logger = bounded_logger(__name__)
_FLUSH_S = 1.0


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
    """Keeps the last `size` records in memory."""

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


class Records:
    """Records of calls: who, for whom, what, decided how, how long, and how it ended.

    Give one to `Toolkit(records=)`, `RemoteToolkit(records=)` or `Turn(records=)`; several may
    share one. It is made by `memory` or `sqlite`. Recording never makes a call fail or wait.

    Args:
        store: Where the records are kept.
        arguments: Whether the arguments of calls are recorded too, cut to 2,000 characters.
    """

    def __init__(self, store: RecordStore, *, arguments: bool = False) -> None:
        if isinstance(store, str | os.PathLike):
            raise TypeError("records are made by Records.memory() or Records.sqlite(PATH)")
        if not isinstance(arguments, bool):
            raise TypeError(f"arguments must be True or False, not {type(arguments).__name__}")
        self._store = store
        self._keeps_arguments = arguments
        self._has_failed = False

    @classmethod
    def memory(cls, size: int = 1_000, *, arguments: bool = False) -> Self:
        """Keep the last `size` calls in memory. Raises `ValueError` unless that is 1 or more."""
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"size must be a number of calls, 1 or more, not {size!r}")
        return cls(MemoryStore(size), arguments=arguments)

    @classmethod
    def sqlite(
        cls, path: str | os.PathLike[str], days: float = 30, *, arguments: bool = False
    ) -> Self:
        """Keep calls in a SQLite file, which several processes may share.

        Records are written by a thread, about 50 ms after their calls. While the file cannot be
        written (locked, disk full), up to 10,000 records wait, further ones are lost, and the log
        has a warning, at most one a minute; calls go on.

        Args:
            path: The file; a new one has mode 0600. Its folder must exist.
            days: How long records are kept; older ones are deleted.
            arguments: Whether the arguments of calls are recorded too, cut to 2,000 characters.

        Raises:
            ValueError: `days` is not a number above 0, or the path is ":memory:".
            RecordsUnavailable: The file cannot be opened and written; `details` has `path`.
        """
        is_number = isinstance(days, int | float) and not isinstance(days, bool)
        if not is_number or not 0 < days < 100_000:
            raise ValueError(f"days must be a number of days above 0, not {days!r}")
        if path == ":memory:":
            raise ValueError("path must be a file: Records.memory() keeps calls in memory")
        from toolbus.records.sqlite_file import SqliteStore  # few programs need SQLite

        return cls(SqliteStore(path, days * 86_400), arguments=arguments)

    def record(self, record: CallRecord) -> None:
        """Keep the record of a call that has ended. Cheap, from any thread; it never raises."""
        try:
            self._store.add(record)
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                _logger.exception("a call could not be recorded; further errors are not logged")

    def recording(
        self,
        tool: str,
        *,
        caller: Identified | None = None,
        principal: Identified | None = None,
        call_id: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> Recording:
        """Begin the record of a call: a context manager around it.

        Args:
            tool: `toolkit.tool`.
            caller: Who calls, such as `context.caller`.
            principal: For whom, if not for itself.
            call_id: The id of the call.
            arguments: Its arguments; kept only if these records keep arguments.
        """
        begun = Recording(
            self.record,
            tool,
            caller=caller,
            principal=principal,
            call_id=call_id,
            keeps_arguments=self._keeps_arguments,
        )
        if arguments is not None:
            begun.keep_arguments(arguments)
        return begun

    def calls(
        self,
        *,
        tool: str | None = None,
        who: str | None = None,
        outcome: str | None = None,
        since: float | datetime | None = None,
        limit: int = 1_000,
    ) -> list[CallRecord]:
        """Return recorded calls, the newest first.

        It first waits, at most one second, for records that are not written yet. With a file it
        reads the disk: in an event loop, call it by `asyncio.to_thread`.

        Args:
            tool: A pattern as in grants: `toolkit.tool`, `toolkit`, with `*` as the wildcard.
            who: The caller's name.
            outcome: "ok", or the code of an error.
            since: The earliest start: seconds since the epoch, or a datetime.
            limit: How many at most.

        Raises:
            ValueError: A value is invalid.
            RecordsUnavailable: The file cannot be read.
        """
        chosen = CallFilter.of(tool, who, outcome, since)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError(f"limit must be a number of calls, 1 or more, not {limit!r}")
        self._store.flush(_FLUSH_S)
        return self._store.select(chosen, limit)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until the recorded calls are stored; return whether they are."""
        return self._store.flush(timeout_s)

    def close(self) -> None:
        """Store what is recorded and stop the thread. Idempotent; also done at the program's end.

        Later calls are not recorded.
        """
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
