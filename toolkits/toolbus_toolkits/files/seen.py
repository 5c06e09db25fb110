"""What each caller has seen of each file: a version, and lines of it."""

from __future__ import annotations

import threading

from toolbus import ToolContext
from toolbus_toolkits.callers import Asker, asker_of

__all__ = ["Seen", "SeenFiles"]


class Seen:
    """What a caller has seen of one version of a file.

    Args:
        token: The version.
        lines: Ranges of lines that were seen, each from its first to its last one, from 1 on.
        is_whole: Whether all of the file was seen.
    """

    def __init__(
        self, token: str, lines: tuple[tuple[int, int], ...] = (), *, is_whole: bool = False
    ) -> None:
        self.token = token
        self.lines = lines
        self.is_whole = is_whole


class SeenFiles:
    """What callers have seen. Used on several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_asker: dict[Asker, dict[str, Seen]] = {}

    def of(self, context: ToolContext, path: str) -> Seen | None:
        """Return what the caller of a call has seen of a file, by its real path."""
        with self._lock:
            return self._by_asker.get(asker_of(context), {}).get(path)

    def add(self, context: ToolContext, path: str, seen: Seen) -> None:
        """Remember what a caller has seen; lines of the same version are added to the others."""
        with self._lock:
            self._by_asker.setdefault(asker_of(context), {})[path] = seen
