"""Schedules the work that grows with a room fairly, and keeps what is packed for several receivers.

When much happens at once, all subscribers have many events due at the same moment, and a request
may have to look at thousands of toolkits. All of that is done in turn, for a millisecond of each
event-loop iteration, so that no call waits for its end. The scheduler does not know what is done,
or for whom.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from time import perf_counter
from typing import Any

from msgspec import Raw
from msgspec.msgpack import Encoder

from toolbus.bounded_logging import bounded_logger

__all__ = ["SLICE_S", "FairScheduler", "pack_once"]

_logger = bounded_logger(__name__)
# What a busy room adds to the time of each call. A much shorter slice would spend more on its clock
# and its callback than on the work.
SLICE_S = 0.001
"""How long all events, walks and registrations of a server are worked on in one iteration."""
# For the time of one burst only: all is dropped when no job is left. Above it packing starts anew,
# which costs time and nothing else.
_MAX_PACKED_BYTES = 4 * 1024 * 1024
_OVERHEAD_BYTES = 256  # the objects around a small packed value are larger than it
_pack = Encoder().encode


def pack_once(data: dict[str, Any]) -> Raw:
    """Pack the data of an event for all its receivers."""
    return Raw(_pack(data))


class FairScheduler:
    """Runs the jobs of all participants of one server in turn.

    Args:
        loop: Runs the scheduler once in each iteration.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: deque[Iterator[None]] = deque()
        self._shared: dict[Hashable, deque[Iterator[None]]] = {}
        """The jobs of each owner, of which one step of one job is done at a time."""
        self._packed: dict[Hashable, dict[Hashable, Raw]] = {}
        self._packed_bytes = 0

    @property
    def is_busy(self) -> bool:
        """Whether a job has not ended."""
        return bool(self._due)

    def add(self, job: Iterator[None], owner: Hashable = None) -> None:
        """Run a job that sends one event, or does as little, with each step.

        A job that raises is logged and dropped; the others go on.

        Args:
            job: The job.
            owner: All jobs of one owner share one turn. None for a turn of its own.
        """
        # By owner and not by job: an identity with a thousand connections would otherwise get a
        # thousand turns for each one of another identity.
        if owner is not None:
            if owner in self._shared:
                self._shared[owner].append(job)
                return
            self._shared[owner] = deque([job])
            job = self._run_shared(owner)
        self._due.append(job)
        # With more, `_run` is scheduled already, or it runs now and will see this job.
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
        return self._keep(subject, kind, pack_once(make())) if found is None else found

    def forget(self, subject: Hashable) -> None:
        """Drop what is packed about a subject that has changed."""
        self._packed.pop(subject, None)

    def _keep(self, subject: Hashable, kind: Hashable, packed: Raw) -> Raw:
        self._packed_bytes += len(memoryview(packed)) + _OVERHEAD_BYTES
        # As a whole: `forget` does not subtract, so the count is an upper bound, and there is no
        # order of use to keep.
        if self._packed_bytes > _MAX_PACKED_BYTES:
            self._packed.clear()
            self._packed_bytes = 0
        self._packed.setdefault(subject, {})[kind] = packed
        return packed

    def _run_shared(self, owner: Hashable) -> Iterator[None]:
        """Run the jobs of one owner, a step of each in turn."""
        jobs = self._shared[owner]
        while jobs:
            try:
                next(jobs[0])
            except StopIteration:
                jobs.popleft()
            except Exception:
                _logger.exception("a job failed with a bug; the others go on")
                jobs.popleft()
            else:
                jobs.rotate(-1)
            yield
        del self._shared[owner]

    def _run(self) -> None:
        """Run jobs for one time slice; an unfinished job goes on after the others."""
        ends_at = perf_counter() + SLICE_S  # the loop's clock may not advance in an iteration
        while self._due:
            try:
                for _ in self._due[0]:
                    if perf_counter() >= ends_at:
                        self._due.rotate(-1)
                        self._loop.call_soon(self._run)
                        return
            except Exception:
                _logger.exception("a job failed with a bug; the others go on")
            self._due.popleft()
        # The burst is over. Kept longer, a packed value would outlive what it was made of.
        self._packed.clear()
        self._packed_bytes = 0
