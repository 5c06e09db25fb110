"""What several workers say of one event, said once: that Redis is away, that it refuses a script.

Says at first nothing for a moment, as the others may be about to say the same. Knows of processes
only their names, and of time what it is told.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

__all__ = ["OneVoice", "Said"]

_MOMENT_S = 0.5
"""For so long others may join in before it is said."""
_SAME_EVENT_S = 5.0
"""Who says the same within this time means the same event."""


class Said(NamedTuple):
    """What one worker has to say."""

    logger: str
    """The logger it was said to."""
    level: int
    """How bad it is, as `logging` counts."""
    text: str
    """Its words."""
    common: str
    """The same words as said of all workers."""


@dataclass(slots=True)
class _Event:
    """Something that at least one worker has said."""

    said: Said
    began_s: float
    workers: set[str] = field(default_factory=set)
    told: int = 0
    """Of how many workers the log tells: none, one, or 2 for several."""


class OneVoice:
    """Writes to the log what workers say."""

    def __init__(self) -> None:
        self._events: dict[tuple[str, int, str], _Event] = {}

    def take(self, worker: str, said: Said, now_s: float) -> None:
        """Take note of what a worker says; a worker that says it twice means another event."""
        key = (said.logger, said.level, said.common)
        event = self._events.get(key)
        if event is None or worker in event.workers or now_s - event.began_s > _SAME_EVENT_S:
            if event is not None:
                _tell(event)
            event = self._events[key] = _Event(said, now_s)
        event.workers.add(worker)
        if event.told == 1:  # so it was not that one's alone
            _tell(event)

    def tell_due(self, now_s: float) -> None:
        """Write what has waited for long enough."""
        for key, event in list(self._events.items()):
            if not event.told and now_s >= event.began_s + _MOMENT_S:
                _tell(event)
            if now_s - event.began_s > _SAME_EVENT_S:
                del self._events[key]

    def tell_all(self) -> None:
        """Write what has not been written yet."""
        self.tell_due(inf)

    def due_s(self) -> float:
        """Return when something is to be written next; infinity where nothing waits."""
        waiting = (each.began_s + _MOMENT_S for each in self._events.values() if not each.told)
        return min(waiting, default=inf)


def _tell(event: _Event) -> None:
    """Write it, unless it has been written of as many."""
    count = min(len(event.workers), 2)
    if event.told >= count:
        return
    event.told = count
    (worker, *others) = event.workers
    text = event.said.common if others else f"[{worker}] {event.said.text}"
    logging.getLogger(event.said.logger).log(event.said.level, "%s", text)
