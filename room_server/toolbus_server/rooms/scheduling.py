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
from dataclasses import dataclass, field
from time import perf_counter, thread_time
from typing import Any, NamedTuple, TypeAlias

from msgspec import Raw
from msgspec.msgpack import Encoder

from toolbus.bounded_logging import bounded_logger
from toolbus.errors import QuotaExceeded
from toolbus_server.identity_usage import IdentityUsage
from toolbus_server.registry.tool_visibility import Steps

__all__ = [
    "MAX_WAITING_BYTES",
    "MAX_WAITING_WALKS",
    "SLICE_S",
    "Ended",
    "FairScheduler",
    "Lane",
    "Walk",
    "pack_once",
    "pack_reply",
]

_logger = bounded_logger(__name__)
# What a busy room adds to the time of each call. A much shorter slice would spend more on its clock
# and its callback than on the work.
SLICE_S = 0.001
"""How long all events, walks and registrations of a server are worked on in one iteration."""
# For the time of one burst only: all is dropped when no job is left. Above it packing starts anew,
# which costs time and nothing else.
_MAX_PACKED_BYTES = 4 * 1024 * 1024
_OVERHEAD_BYTES = 256  # the objects around a small packed value are larger than it
# What a program asks for at once after a reconnect fits. Each waiting walk keeps a generator and
# its request in memory, and the next walk of the lane waits for all before it.
MAX_WAITING_WALKS = 1_024
"""Walks of one lane that have not ended; one more is refused."""
# 1,024 small requests, or 4 of the size of a frame: without it, 1,024 large ones would be 1 GiB.
MAX_WAITING_BYTES = 4 * 1024 * 1024
"""Bytes of their requests together, unless the lane has a limit of its own."""
Walk: TypeAlias = Steps[Any]
"""A request in steps; it returns the body of its reply or raises the error of the reply."""
pack_reply: Callable[[dict[str, Any]], bytes] = Encoder().encode
"""Packs the body of a reply, parts of which may be packed already."""


def pack_once(data: dict[str, Any]) -> Raw:
    """Pack the data of an event for all its receivers."""
    return Raw(pack_reply(data))


class FairScheduler:
    """Runs the jobs of all participants of one server in turn."""

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

        A job that raises is logged and dropped; the others go on. All jobs of one owner share one
        turn; None is for a turn of its own.
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
        packed = self._packed.get(subject, {}).get(kind)
        if packed is not None:
            return packed
        packed = pack_once(make())
        self._packed_bytes += len(memoryview(packed)) + _OVERHEAD_BYTES
        # As a whole: `forget` does not subtract, so the count is an upper bound, and there is no
        # order of use to keep.
        if self._packed_bytes > _MAX_PACKED_BYTES:
            self._packed.clear()
            self._packed_bytes = 0
        self._packed.setdefault(subject, {})[kind] = packed
        return packed

    def forget(self, subject: Hashable) -> None:
        """Drop what is packed about a subject that has changed."""
        self._packed.pop(subject, None)

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


class Ended(NamedTuple):
    """The end of a walk."""

    body: Any
    error: Exception | None = None

    def result(self) -> Any:
        """Return the result of the walk, or raise its error."""
        if self.error is not None:
            raise self.error
        return self.body


class _WaitingWalk(NamedTuple):
    walk: Walk
    done: Callable[[Ended], None]
    size: int


@dataclass(slots=True, eq=False)
class Lane:
    """Walks that run one after another: of one participant, or for another server's messages.

    A walk that ends within its first slice is answered at once. Any other continues in slices, in
    turn with the walks of others and with events. A participant has two lanes, one for its
    registrations; the walks of all participants of one identity share one turn.
    """

    _scheduler: FairScheduler
    """Runs them in turn with the work for other participants."""
    _owner: Hashable = None
    """Whose turn they share; None for a turn of their own."""
    _usage: IdentityUsage | None = None
    """That of the owner: counts the walks that wait, and the time that later slices take.

    None if they are free.
    """
    _max_bytes: int = MAX_WAITING_BYTES
    """How many bytes of requests may wait."""
    _waiting: deque[_WaitingWalk] = field(default_factory=deque)
    """The first of them has begun."""
    _waiting_bytes: int = 0
    _is_scheduled: bool = False

    def accepts(self, size: int) -> bool:
        """Whether one more request of this size may wait."""
        return (
            len(self._waiting) < MAX_WAITING_WALKS
            and self._waiting_bytes + size <= self._max_bytes
            and (self._usage is None or self._usage.can_wait(size))
        )

    def run(self, walk: Walk, done: Callable[[Ended], None], size: int = 0) -> None:
        """Run a walk for which `accepts` was true; `done` gets its end, and must not raise."""
        # Most walks end here, without a turn of the scheduler. Only if no other waits: the walks of
        # a lane end in the order of their requests.
        if not self._waiting:
            ends_at = perf_counter() + SLICE_S
            while (ended := _step(walk)) is None:
                if perf_counter() >= ends_at:
                    break
            else:
                done(ended)
                return
        self._waiting.append(_WaitingWalk(walk, done, size))
        self._count(1, size)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._scheduler.add(self._run_waiting(), self._owner)

    def drop_waiting(self) -> None:
        """Drop the walks that have not begun; they are not answered."""
        # The first has begun: `_run_waiting` is in the middle of it, and takes it out itself.
        while len(self._waiting) > 1:
            self._count(-1, -self._waiting.pop().size)

    def _count(self, walks: int, size: int) -> None:
        self._waiting_bytes += size
        if self._usage is not None:
            self._usage.add_waiting(walks, size)

    def _run_waiting(self) -> Iterator[None]:
        # The first slice of the first walk was run by `run`, and charged by who called it.
        has_begun = True
        while self._waiting:
            first = self._waiting[0]
            # Checked again when its turn comes: when it was accepted, those before it had not used
            # their time yet.
            ended: Ended | None = None
            if self._usage is not None and not has_begun:
                try:
                    self._usage.check_work()
                except QuotaExceeded as error:
                    ended = Ended(None, error)
            while ended is None and (ended := self._step(first.walk)) is None:
                yield
            self._waiting.popleft()
            self._count(-1, -first.size)
            first.done(ended)
            has_begun = False
            yield  # a lane of many short walks must not keep the turn
        self._is_scheduled = False

    def _step(self, walk: Walk) -> Ended | None:
        if self._usage is None:
            return _step(walk)
        began = thread_time()  # of this thread alone: other load of the machine is not counted
        try:
            return _step(walk)
        finally:
            self._usage.charge(thread_time() - began)


def _step(walk: Walk) -> Ended | None:
    try:
        next(walk)
    except StopIteration as end:
        return Ended(end.value)
    except Exception as error:  # its owner answers or logs it
        return Ended(None, error)
    return None
