"""Decides which caller may take a place of a host, so that no caller takes every place.

Pure: `Runner` counts the calls. A caller is an identity, issuer and name, however many connections
it has. The callers of a tool with `max_concurrency` share its slots by `ToolSlots`. A call whose
large result waits for its reader takes no place; what a caller may leave waiting is limited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from toolbus.tools.execution import Identity

__all__ = [
    "MAX_IN_FLIGHT",
    "MAX_UNREAD_BYTES",
    "RESERVED_SLOTS",
    "CallsAside",
    "FairSlots",
    "HeldSlots",
    "SlotHolder",
]

MAX_IN_FLIGHT = 256
"""Calls that one host runs and queues before its callers have to share."""
RESERVED_SLOTS = 128
"""Further calls that it runs, of callers that have fewer places than others."""


MAX_UNREAD_BYTES = 64 * 1024 * 1024
"""Bytes of results that may wait for one caller; with more, its calls are `overloaded`."""


class FairSlots(NamedTuple):
    """The places of a host: some for every caller, and a reserve for those that hold few.

    As long as fewer than `common` places are taken every caller gets one, so a caller that is alone
    may hold all of them. Beyond that a caller gets a place only while it holds fewer than are still
    free, the dynamic threshold of Choudhury and Hahne ("Dynamic Queue Length Thresholds for
    Shared-Memory Packet Switches", IEEE/ACM Transactions on Networking 6, 1998). Each caller can
    therefore take at most half of what is left, and a part stays free for the next one: beside one
    caller that holds 256 places, a second one gets 64, a third 32, and six more at least one.
    A caller that holds many gets none until fewer than `common` are taken.
    """

    common: int = MAX_IN_FLIGHT
    reserved: int = RESERVED_SLOTS

    @classmethod
    def of(cls, common: int) -> FairSlots:
        """Return places with a reserve of half as many."""
        return cls(common, (common + 1) // 2)

    @property
    def total(self) -> int:
        """The most calls of all callers."""
        return self.common + self.reserved

    def may_take(self, used: int, held: int) -> bool:
        """Return whether a caller that holds `held` of the `used` places gets one more."""
        return used < self.common or held < self.total - used


class SlotHolder(Protocol):
    """A call that holds a place."""

    @property
    def identity(self) -> Identity:
        """Its caller."""


class HeldSlots:
    """How many calls of each caller run, counted from when the common places are all taken.

    Until then, and once half of them are free, nothing is counted: a call costs a comparison at its
    start and one at its end.
    """

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: Counter[Identity] | None = None
        """By caller; None while nothing is counted."""

    def of(self, caller: Identity, running: Collection[SlotHolder]) -> int:
        """Return how many of the running calls a caller has; from now on they are counted."""
        if self.counts is None:
            self.counts = Counter(call.identity for call in running)
        return self.counts[caller]

    def begin(self, call: SlotHolder) -> None:
        """Count a call that begins while the calls are counted."""
        if self.counts is not None:
            self.counts[call.identity] += 1

    def end(self, call: SlotHolder, *, is_scarce: bool) -> None:
        """Count the end of a call; stop counting if places are not scarce any more."""
        if self.counts is not None and not is_scarce:
            self.counts = None
        elif self.counts is not None:
            self.counts[call.identity] -= 1
            if not self.counts[call.identity]:
                del self.counts[call.identity]


class CallsAside:
    """The calls of one host that take no place: they wait for persons, or results for readers."""

    __slots__ = ("_bytes_of", "_count_of", "count")

    def __init__(self) -> None:
        self._bytes_of: Counter[Identity] = Counter()
        self._count_of: Counter[Identity] = Counter()
        self.count: int = 0
        """How many calls take no place."""

    def is_full(self, caller: Identity) -> bool:
        """Whether a caller has left too many bytes of results waiting."""
        return self._bytes_of[caller] > MAX_UNREAD_BYTES

    def count_of(self, caller: Identity) -> int:
        """Return how many calls of a caller take no place."""
        return self._count_of[caller]

    @contextmanager
    def waiting(self, caller: Identity, size: int = 0) -> Iterator[None]:
        """Count a call, with a result of `size` bytes, until the block ends."""
        self.count += 1
        self._count_of[caller] += 1
        self._bytes_of[caller] += size
        try:
            yield
        finally:
            self.count -= 1
            self._count_of[caller] -= 1
            self._bytes_of[caller] -= size
            if not self._count_of[caller]:
                del self._count_of[caller], self._bytes_of[caller]
