"""What each caller has seen of each file: a version, and lines of it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from toolbus import ToolContext
from toolbus_toolkits.callers import MAX_ASKERS, Asker, LastUsed, asker_of

__all__ = ["Lines", "Seen", "SeenFiles", "Span"]

_MAX_FILES = 256
"""Of each asker, those that were used last. What is forgotten has to be read again."""
_MAX_RANGES = 64
"""Of each file; with them a state of an agent has at most some 300 KB of this."""
_KEY = "seen"

Lines = tuple[int, int]
"""The first and the last one of some lines, from 1 on."""


class Span(NamedTuple):
    """Lines that were replaced by others, each with its number from 1 on."""

    first: int
    """The first line that is replaced, or that follows the place of an insertion."""
    removed: int
    """How many lines are replaced."""
    added: int
    """How many are there instead."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a caller has seen of one version of a file."""

    token: str
    """The version."""
    count: int = 0
    """How many lines it has; 0 for what is no text."""
    lines: tuple[Lines, ...] = ()
    """Those that were seen, ascending, and apart from each other."""

    @classmethod
    def whole(cls, token: str, count: int = 0) -> Seen:
        """Return what a caller has seen that has seen all."""
        return cls(token, count, ((1, count),) if count else ())

    @property
    def is_whole(self) -> bool:
        """Whether all of the file was seen."""
        return self.count == 0 or self.lines == ((1, self.count),)

    def has(self, first: int, last: int) -> bool:
        """Whether all of these lines were seen."""
        return first > last or any(a <= first and last <= b for a, b in self.lines)

    def added(self, lines: Iterable[Lines]) -> Seen:
        """Return the same with further lines."""
        return Seen(self.token, self.count, _merged((*self.lines, *lines)))

    def changed(self, token: str, count: int, spans: Iterable[Span]) -> Seen:
        """Return what was seen of the next version, by whom it was made.

        The lines that were put in are seen; those before and behind keep their state.

        Args:
            token: The next version.
            count: How many lines it has.
            spans: What was replaced, ascending.
        """
        moved: list[Lines] = []
        left = list(reversed(self.lines))
        shift = 0
        for span in spans:
            end = span.first - 1
            moved += _moved(_taken(left, end), shift)
            _taken(left, end + span.removed)
            if span.added:
                moved.append((span.first + shift, span.first + shift + span.added - 1))
            shift += span.added - span.removed
        moved += _moved(_taken(left, self.count), shift)
        return Seen(token, count, _merged((a, min(b, count)) for a, b in moved if a <= count))


def _taken(left: list[Lines], end: int) -> list[Lines]:
    """Take lines up to an end from a list whose first lines stand last."""
    taken = []
    while left and left[-1][0] <= end:
        first, last = left.pop()
        taken.append((first, min(last, end)))
        if last > end:
            left.append((end + 1, last))
            break
    return taken


def _moved(lines: Iterable[Lines], shift: int) -> list[Lines]:
    return [(first + shift, last + shift) for first, last in lines]


def _merged(lines: Iterable[Lines]) -> tuple[Lines, ...]:
    merged: list[Lines] = []
    for first, last in sorted(lines):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged[-_MAX_RANGES:])


class SeenFiles:
    """What callers have seen. Used on several threads.

    For a call in the process of an agent it is in the state of that agent: so it outlives the turn,
    and a toolkit that is built for one turn. For others it is in the memory of this object.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_asker = LastUsed[Asker, dict[str, Any]](MAX_ASKERS)

    def prepare(self, context: ToolContext) -> None:
        """Make room in the state of an agent, on its event loop.

        On a thread only the value changes: the state may be written as JSON at the same time.
        """
        if context.state is not None:
            context.state.setdefault(_KEY, {})

    def of(self, context: ToolContext, path: str) -> Seen | None:
        """Return what the caller of a call has seen of a file, by its real path."""
        with self._lock:
            return _seen_of(self._files_of(context).get(_key_of(path)))

    def add(self, context: ToolContext, path: str, seen: Seen) -> None:
        """Remember what a caller has seen; lines of the same version are added to the others."""
        with self._lock:
            files = self._files_of(context)
            before = _seen_of(files.get(_key_of(path)))
            if before is not None and before.token == seen.token and not seen.is_whole:
                # One that was sent as a whole has no number of lines.
                seen = before if before.is_whole else seen.added(before.lines)
            self._keep(context, files, path, seen)

    def replace(self, context: ToolContext, path: str, seen: Seen) -> None:
        """Remember what a caller has seen, in place of all that it has seen of the file."""
        with self._lock:
            self._keep(context, self._files_of(context), path, seen)

    def _files_of(self, context: ToolContext) -> Mapping[str, Any]:
        if context.state is not None:
            files = context.state.get(_KEY)
            # A program may store the state anywhere, and give back what it likes.
            return files if isinstance(files, dict) else {}
        return self._by_asker.get(asker_of(context), {})

    def _keep(self, context: ToolContext, files: Mapping[str, Any], path: str, seen: Seen) -> None:
        # A new dict: another thread may make JSON of the state meanwhile.
        key = _key_of(path)
        updated = {name: facts for name, facts in files.items() if name != key}
        for name in list(updated)[: max(0, len(updated) - _MAX_FILES + 1)]:
            del updated[name]
        updated[key] = [seen.token, seen.count, *map(list, seen.lines)]
        if context.state is not None:
            context.state[_KEY] = updated
        else:
            self._by_asker[asker_of(context)] = updated


def _key_of(path: str) -> str:
    """Return a path as text that JSON can hold: names of files need be no UTF-8."""
    return path.encode("utf-8", "backslashreplace").decode()


def _seen_of(facts: Any) -> Seen | None:
    """Read what `_keep` has stored; None for anything else, as of a state changed by hand."""
    try:
        token, count, *lines = facts
        found = tuple((first, last) for first, last in lines)
    except (TypeError, ValueError):
        return None
    bounds = [number for span in found for number in span]
    if not isinstance(token, str) or not all(type(number) is int for number in (count, *bounds)):
        return None
    is_ascending = all(first <= last for first, last in found)
    is_apart = all(before[1] < after[0] for before, after in pairwise(found))
    if not is_ascending or not is_apart or (bounds and not 1 <= bounds[0] <= bounds[-1] <= count):
        return None
    return Seen(token, count, found)
