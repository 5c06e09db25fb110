"""Parcels: all that waits for another node, in one message, numbered; what is under way is bounded.

A `Parcels` is what goes from here to one other node, with what it hears of the way back. It tells
which entries never arrived, and never sends anything twice. What an entry says it does not know.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from toolbus.transport import Ticket

__all__ = ["MARK", "PARCEL_BYTES", "Arrived", "Entry", "Parcels", "read_parcel"]

PARCEL_BYTES = 256 * 1024
"""An entry more goes into the next parcel when one has so many bytes."""
MARK = b"P"
"""What a parcel begins with in the inbox; news of a room begins otherwise."""
_encode = msgspec.msgpack.Encoder().encode


class Entry(NamedTuple):
    """One thing to tell another node."""

    data: bytes
    """Packed as one value of MessagePack."""
    ticket: Ticket | None = None
    """Told when it is handed over to Redis; one that has `ended` before is not sent."""


class Arrived(Struct, array_like=True):
    """A parcel, as it comes."""

    sender: str
    number: int
    """1, 2, 3, ... ; 0 for one without entries, which only says what came the other way."""
    received: int
    """Of the parcels that went the other way, the number of the last one that has come."""
    missing: tuple[int, int] | None
    """Of those, the first and the last that never came."""
    entries: list[msgspec.Raw]


_decode = msgspec.msgpack.Decoder(Arrived).decode


def read_parcel(data: bytes) -> Arrived:
    """Read what came to the inbox. Raises `msgspec.MsgspecError` for what is no parcel."""
    return _decode(memoryview(data)[1:])


class _Sent(NamedTuple):
    number: int
    size: int
    entries: list[Entry]


class Parcels:
    """What goes to one other node.

    Args:
        me: This node, as the others know it.
        publish: Hands a parcel, by its number, to Redis; returns False where it cannot.
        window: Says how many bytes may be under way.
    """

    def __init__(
        self, me: str, publish: Callable[[int, bytes], bool], window: Callable[[], int]
    ) -> None:
        self._me = me
        self._publish = publish
        self._window = window
        self._waiting: deque[Entry] = deque()
        self._under_way: deque[_Sent] = deque()
        self._under_way_bytes = 0
        self._number = 0
        self.waiting_bytes: int = 0
        """Bytes of entries that have not left."""
        self._received = 0
        self._missing: tuple[int, int] | None = None
        """Of what came, the numbers that did not; the other node is yet to be told."""
        self._unsaid_bytes = 0
        """Bytes that came and of which the other node does not know that they did."""

    @property
    def is_behind(self) -> bool:
        """Whether what is sent now has to wait."""
        return self._under_way_bytes >= self._window()

    def put(self, entry: Entry) -> None:
        """Let an entry wait for `send`."""
        self._waiting.append(entry)
        self.waiting_bytes += len(entry.data)

    def send(self) -> bool:
        """Send one parcel of what waits, if there is room; return whether something left."""
        if not self._waiting or self.is_behind:
            return False
        taken: list[Entry] = []
        size = 0
        while self._waiting and size < PARCEL_BYTES:
            entry = self._waiting.popleft()
            self.waiting_bytes -= len(entry.data)
            if entry.ticket is None or not entry.ticket.ended:
                taken.append(entry)
                size += len(entry.data)
        return not taken or self._hand_over(taken, size)

    def _hand_over(self, taken: list[Entry], size: int) -> bool:
        self._number += 1
        parcel = self._packed(self._number, [entry.data for entry in taken])
        self._under_way.append(_Sent(self._number, size, taken))
        self._under_way_bytes += size
        if not self._publish(self._number, parcel):
            return False
        for entry in taken:
            if entry.ticket is not None:
                entry.ticket.written = True
        return True

    def _packed(self, number: int, entries: list[bytes]) -> bytes:
        missing, self._missing = self._missing, None
        self._unsaid_bytes = 0
        raw: list[Any] = [msgspec.Raw(each) for each in entries]
        return MARK + _encode([self._me, number, self._received, missing, raw])

    # What comes

    def arrive(self, parcel: Arrived, size: int) -> tuple[bool, list[Entry]]:
        """Take note of a parcel.

        Returns:
            Whether its entries are to be read, and those of this side that never arrived.
        """
        lost = self._lost(*parcel.missing) if parcel.missing else []
        self._settle(parcel.received)
        if parcel.number <= self._received:
            return False, lost  # of those without entries, and of what came twice
        if parcel.number > self._received + 1:
            first = self._missing[0] if self._missing else self._received + 1
            self._missing = first, parcel.number - 1
        self._received = parcel.number
        self._unsaid_bytes += size
        return True, lost

    def word(self) -> bytes | None:
        """Make a parcel that only says what came, where the other node may wait for that."""
        is_due = self._missing or self._unsaid_bytes * 4 >= self._window()
        return self._packed(0, []) if is_due else None

    def _settle(self, received: int) -> None:
        while self._under_way and self._under_way[0].number <= received:
            self._under_way_bytes -= self._under_way.popleft().size

    def _lost(self, first: int, last: int) -> list[Entry]:
        return [
            entry
            for sent in self._under_way
            if first <= sent.number <= last
            for entry in sent.entries
        ]

    def give_up(self, number: int) -> list[Entry]:
        """Learn that a parcel reached nobody; return what was in it."""
        for sent in self._under_way:
            if sent.number == number:
                self._under_way.remove(sent)
                self._under_way_bytes -= sent.size
                return sent.entries
        return []

    def give_up_all(self) -> None:
        """Drop what is under way and what waits: there is no way to the other node."""
        self._under_way.clear()
        self._waiting.clear()
        self._under_way_bytes = self.waiting_bytes = 0
