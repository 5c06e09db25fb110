"""Schedules the sending of events fairly, and keeps what is packed for several subscribers.

When much happens at once, all subscribers have many events due at the same moment. They are sent in
turn, for a millisecond of each event-loop iteration, so that no call waits until all are sent. The
scheduler does not know what is sent, or to whom.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from time import perf_counter
from typing import Any

from msgspec import Raw
from msgspec.msgpack import Encoder

__all__ = ["SLICE_S", "FairScheduler"]

SLICE_S = 0.001
"""How long all subscribers of a server are served within one event-loop iteration."""
_MAX_KEPT_BYTES = 4 * 1024 * 1024
_OVERHEAD_BYTES = 256  # the objects around a small packed value are larger than it
_pack = Encoder().encode


class FairScheduler:
    """Runs the sending jobs of all subscribers of one server in turn.

    Args:
        loop: Runs the scheduler once in each iteration.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: deque[Iterator[None]] = deque()
        self._packed: dict[Hashable, dict[Hashable, Raw]] = {}
        self._kept_bytes = 0

    def add(self, job: Iterator[None]) -> None:
        """Run a job that sends one event with each step.

        It must not raise: the jobs of the others would never run again.
        """
        self._due.append(job)
        if len(self._due) == 1:
            self._loop.call_soon(self._run)

    def packed(self, subject: Hashable, kind: Hashable, make: Callable[[], dict[str, Any]]) -> Raw:
        """Return the data of an event, packed once for all subscribers that get the same.

        Args:
            subject: What the event is about; when that changes, `forget` it.
            kind: Distinguishes the variants that different subscribers get.
            make: Makes the data if it is not packed yet.
        """
        found = self._packed.get(subject, {}).get(kind)
        return self._keep(subject, kind, _pack(make())) if found is None else found

    def forget(self, subject: Hashable) -> None:
        """Drop what is packed about a subject that has changed."""
        self._packed.pop(subject, None)

    def _keep(self, subject: Hashable, kind: Hashable, packed: bytes) -> Raw:
        self._kept_bytes += len(packed) + _OVERHEAD_BYTES
        if self._kept_bytes > _MAX_KEPT_BYTES:
            self._packed.clear()
            self._kept_bytes = 0
        found = self._packed.setdefault(subject, {})[kind] = Raw(packed)
        return found

    def _run(self) -> None:
        """Run jobs for one time slice; an unfinished job goes on after the others."""
        ends_at = perf_counter() + SLICE_S  # the loop's clock may not advance in an iteration
        while self._due:
            for _ in self._due[0]:
                if perf_counter() >= ends_at:
                    self._due.rotate(-1)
                    self._loop.call_soon(self._run)
                    return
            self._due.popleft()
        self._packed.clear()
        self._kept_bytes = 0
