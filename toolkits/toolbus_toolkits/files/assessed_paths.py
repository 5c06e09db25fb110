"""Where the paths of assessed calls led: the file that was assessed is the file that is used.

A symlink that is swapped between an assessment and its call would lead the call to a file that
nobody has assessed. An assessment and the call that follows it are two requests, and nothing ties
them together but the caller and the path. So each assessment is remembered until a call takes it.
While those of one path differ, as where it was assessed again meanwhile, nobody can tell which of
them a call belongs to: each call is refused, until those that led elsewhere are taken or too old.
The file is reached by the path where the link leads now, which is assessed on its own.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from toolbus import ToolContext
from toolbus.tools.context import run_of
from toolbus.tools.tool_run import ToolRun
from toolbus_toolkits.callers import Asker, LastUsed, asker_of

__all__ = ["AssessedPaths"]

_MAX_AGE_S = 600.0
"""A person has 300 s to answer by default, and a turn assesses a call again after the answer. So
one assessment is left over, and is in the way so long if the path leads elsewhere then."""
# Of one asker, those that were assessed last; of all askers they take some 80 MB at most.
_MAX_ASKERS = 256
_MAX_PATHS = 1024
_MAX_TARGETS = 8
"""Of one path: a link may lead elsewhere each time that it is assessed."""
_MANY = "?"
"""In place of further targets; no path is equal to it."""


@dataclass(slots=True)
class _Open:
    """Assessments of one path with one target, that no call has taken."""

    count: int
    ends_at: float


class AssessedPaths:
    """What the paths of assessments led to. Used on several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_asker = LastUsed[Asker, LastUsed[str, dict[str, _Open]]](_MAX_ASKERS)
        # The policy of a host assesses within the call: there it is certain what belongs to it.
        self._by_run = WeakKeyDictionary[ToolRun, Counter[tuple[str, str]]]()

    def note(self, context: ToolContext, path: str, target: str) -> None:
        """Remember the assessment of a call: where its path leads; "" if that is nowhere."""
        asker = asker_of(context)
        with self._lock:
            paths = self._by_asker[asker] = self._by_asker.get(asker) or LastUsed(_MAX_PATHS)
            targets = paths[path] = paths.get(path) or {}
            now = time.monotonic()
            _drop_old(targets, now)
            if target not in targets and len(targets) >= _MAX_TARGETS:
                target = _MANY
            noted = targets.setdefault(target, _Open(0, 0))
            noted.count += 1
            noted.ends_at = now + _MAX_AGE_S
            self._by_run.setdefault(run_of(context), Counter())[path, target] += 1

    def take(self, context: ToolContext, path: str, target: str) -> bool:
        """Take the assessments of a call, whose path leads to a target now.

        Returns:
            Whether it leads where its assessment found it; also if there was no assessment.
        """
        with self._lock:
            own = self._by_run.pop(run_of(context), Counter())
            paths: dict[str, dict[str, _Open]] = self._by_asker.get(asker_of(context), {})
            targets = paths.get(path, {})
            found = {noted_target for noted_path, noted_target in own if noted_path == path}
            for noted_target in found:
                _take(targets, noted_target, own[path, noted_target])
            _drop_old(targets, time.monotonic())
            found.update(targets)
            if targets:  # that of the caller's half; where it differs, the oldest
                _take(targets, target if target in targets else next(iter(targets)), 1)
            if not targets:
                paths.pop(path, None)
            return found <= {target}


def _take(targets: dict[str, _Open], target: str, count: int) -> None:
    if target in targets:
        targets[target].count -= count
        if targets[target].count <= 0:
            del targets[target]


def _drop_old(targets: dict[str, _Open], now: float) -> None:
    for target in [target for target in targets if targets[target].ends_at < now]:
        del targets[target]
