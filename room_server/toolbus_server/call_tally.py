"""Calls that came and ended: counted for good, and the latest kept until they are told. Pure."""

from __future__ import annotations

from collections import deque
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from toolbus.wire import pack_body

__all__ = ["MAX_CALLS", "CallCounts", "CallTally"]

MAX_CALLS = 200
"""Ended calls that are kept until they are told; the counts go on (PROTOCOL.md, WATCH-3)."""
_CODE = 5
"""Where a call's facts have its error's code."""
_Ended: TypeAlias = tuple[int, list[Any]]
"""A call that has ended: the how manieth it is, and what is told of it."""


class CallCounts(NamedTuple):
    """How many calls of a room there have been while it was watched."""

    started: int
    ended: int
    failed: int
    """Of those that ended, the ones with an error."""

    def since(self, earlier: CallCounts) -> CallCounts:
        """Say how many more these are than earlier."""
        return CallCounts(
            self.started - earlier.started,
            self.ended - earlier.ended,
            self.failed - earlier.failed,
        )


class CallTally:
    """What has become of calls, for one kind of those who are told."""

    def __init__(self) -> None:
        self.started = 0
        """Calls that came."""
        self._ended = 0
        self._failed = 0
        self._told = 0
        """How many had ended when it was told last."""
        self._good: deque[_Ended] = deque()
        self._bad: deque[_Ended] = deque()
        self._packed = b""
        """The calls that are told now, as nearly everybody is told them."""

    @property
    def counts(self) -> CallCounts:
        """What has been counted until now."""
        return CallCounts(self.started, self._ended, self._failed)

    def note(self, facts: list[Any], *, failed: bool) -> None:
        """Count a call that has ended."""
        self._ended += 1
        self._failed += failed
        self._keep(self._ended, facts, failed=failed)

    def add(self, counts: CallCounts, calls: list[list[Any]]) -> None:
        """Add what was counted elsewhere, with those of the ended calls that were kept there."""
        self.started += counts.started
        self._ended += counts.ended
        self._failed += counts.failed
        first = self._ended - len(calls) + 1
        for number, facts in enumerate(calls, first):
            self._keep(number, facts, failed=facts[_CODE] is not None)

    def _keep(self, number: int, facts: list[Any], *, failed: bool) -> None:
        (self._bad if failed else self._good).append((number, facts))
        if len(self._good) + len(self._bad) > MAX_CALLS:
            (self._good or self._bad).popleft()

    def pack(self) -> None:
        """Pack what is to be told now; `forget` it afterwards."""
        self._packed = self._pack(self._told)

    def calls_since(self, ended: int) -> bytes:
        """Give the calls, packed, for who was told last when so many had ended."""
        return self._pack(ended) if ended > self._told else self._packed

    def _pack(self, told: int) -> bytes:
        kept = sorted((*self._good, *self._bad), key=itemgetter(0))
        return pack_body([facts for number, facts in kept if number > told])

    def forget(self) -> None:
        """Keep what was told no longer."""
        self._told = self._ended
        self._good.clear()
        self._bad.clear()
