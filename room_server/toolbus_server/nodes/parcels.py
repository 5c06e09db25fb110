"""Parcels: all that waits for another node, in one message, numbered; what is under way is bounded.

A `Parcels` is what goes from here to one other node, with what it hears of the way back. It tells
which entries never arrived, and never sends anything twice. What an entry says it does not know.

Numbers count within a session of each side. A side whose way broke begins another session; what
either of them sent before that counts no more, wherever it still is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from toolbus.transport import Ticket

__all__ = ["MARK", "PARCEL_BYTES", "Arrival", "Arrived", "Entry", "Parcels", "Sent", "read_parcel"]

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
    """A parcel, or a word, which has no entries and only says what has come and gone."""

    sender: str
    session: int
    """The sender's; a later one has a higher number."""
    yours: int
    """The receiver's, as the sender knows it; 0 where it does not: then it asks for a word."""
    number: int
    """Of a parcel 1, 2, 3, ... in a session; of a word that of the last parcel before it."""
    received: int
    """Of the parcels that went the other way, the number of the last one that has come."""
    missing: list[tuple[int, int]]
    """Of those before it that never came, the first and the last of each run; none is read later.

    It is said until it was heard.
    """
    heard: int
    """What is missing of the other way is known to the sender up to this number."""
    entries: list[msgspec.Raw] | None
    former: tuple[int, int] | None = None
    """Of the last session in which the sender read anything: which, and its last number there."""


_decode = msgspec.msgpack.Decoder(Arrived).decode


def read_parcel(data: bytes) -> Arrived:
    """Read what came to the inbox. Raises `msgspec.MsgspecError` for what is no parcel."""
    return _decode(memoryview(data)[1:])


class Sent(NamedTuple):
    """A parcel that was handed over to Redis."""

    number: int
    size: int
    entries: list[Entry]


class Arrival(NamedTuple):
    """What came of a parcel."""

    entries: Sequence[msgspec.Raw] = ()
    """To be read."""
    lost: Sequence[Entry] = ()
    """Of this side, never arrived: nothing of it was or will be read."""
    has_broken: bool = False
    """Whether the other side has begun anew: what was under way between the two has ended there."""


class Parcels:
    """What goes to one other node.

    Nothing leaves before the other one has said which session it is in; that is asked for with the
    first entry, and costs one round trip.

    Args:
        me: This node, as the others know it.
        sessions: Numbers for sessions, each higher than the one before.
        publish: Hands a parcel to Redis, or a word (None); returns False where it cannot.
        window: Says how many bytes may be under way.
    """

    def __init__(
        self,
        me: str,
        sessions: Iterator[int],
        publish: Callable[[Sent | None, bytes], bool],
        window: Callable[[], int],
    ) -> None:
        self._me = me
        self._sessions = sessions
        self._publish = publish
        self._window = window
        self._session = next(sessions)
        self._theirs = 0
        self._is_agreed = False
        """Whether their session was heard since this side's began."""
        self._has_asked = False
        self._former: tuple[int, int] | None = None
        self._waiting: deque[Entry] = deque()
        self.waiting_bytes: int = 0
        """Bytes of entries that have not left."""
        self._under_way: deque[Sent] = deque()
        self._under_way_bytes = 0
        self._number = 0
        self._received = 0
        self._missing: list[tuple[int, int]] = []
        """Of what came, the numbers that did not; the other node may not know yet."""
        self._heard = 0
        self._unsaid_bytes = 0
        """Bytes that came and of which the other node does not know that they did."""
        self._owes_word = False

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
        if not self._is_agreed:
            if not self._has_asked:
                self._has_asked = self._publish(None, self._packed_word())
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
        sent = Sent(self._number + 1, size, taken)
        raw: list[Any] = [msgspec.Raw(entry.data) for entry in taken]
        if not self._publish(sent, self._packed([sent.number, *self._said(), raw])):
            return False
        self._number += 1
        self._under_way.append(sent)
        self._under_way_bytes += size
        for entry in taken:
            if entry.ticket is not None:
                entry.ticket.written = True
        return True

    def _said(self) -> tuple[int, list[tuple[int, int]], int]:
        self._unsaid_bytes = 0
        self._owes_word = False
        return self._received, self._missing, self._heard

    def _packed(self, what: list[Any]) -> bytes:
        yours = self._theirs if self._is_agreed else 0
        return MARK + _encode([self._me, self._session, yours, *what])

    def _packed_word(self) -> bytes:
        return self._packed([self._number, *self._said(), None, self._former])

    # What comes

    def arrive(self, parcel: Arrived, size: int) -> Arrival:
        """Take note of a parcel, which says what of it is to be read."""
        if parcel.session < self._theirs:
            return Arrival()  # of a session that has ended
        unread: list[Entry] = []
        has_broken = self._is_agreed and parcel.session > self._theirs
        if has_broken:
            unread = self._unread(parcel.former)
            self._forget()
        self._theirs, self._is_agreed = parcel.session, True
        if parcel.yours != self._session:
            self._owes_word = True
            return Arrival((), unread, has_broken)
        lost = unread + [each for run in parcel.missing for each in self._within(*run)]
        self._settle(parcel.received)
        self._missing = [run for run in self._missing if run[1] > parcel.heard]
        news = self._take(parcel, size)
        if parcel.missing and parcel.missing[-1][1] > self._heard:
            self._heard, self._owes_word = parcel.missing[-1][1], True
        return Arrival(news, lost, has_broken)

    def _take(self, parcel: Arrived, size: int) -> Sequence[msgspec.Raw]:
        """Look for holes in the numbers; give what is new."""
        last_before = parcel.number - (parcel.entries is not None)
        if last_before > self._received:
            self._missing.append((self._received + 1, last_before))
            self._received = last_before
        if parcel.entries is None:
            self._owes_word |= self._unsaid_bytes > 0
            return ()
        if parcel.number <= self._received:
            return ()  # it came twice, or behind a word that it never did
        self._received = parcel.number
        self._unsaid_bytes += size
        return parcel.entries

    def _settle(self, received: int) -> None:
        while self._under_way and self._under_way[0].number <= received:
            self._under_way_bytes -= self._under_way.popleft().size

    def _within(self, first: int, last: int) -> list[Entry]:
        return [
            entry
            for sent in self._under_way
            if first <= sent.number <= last
            for entry in sent.entries
        ]

    def _unread(self, former: tuple[int, int] | None) -> list[Entry]:
        """Find what the other side had not read when it began anew."""
        if former is None or former[0] < self._theirs:  # it never knew where this side was, since
            return self._within(1, self._number)
        return self._within(former[1] + 1, self._number) if former[0] == self._theirs else []

    # Words

    @property
    def owes_word(self) -> bool:
        """Whether the other node asked for a word, and waits for it."""
        return self._owes_word

    def word(self) -> bytes | None:
        """Say what came, where the other node may wait for that."""
        is_due = self._owes_word or self._missing or self._unsaid_bytes * 4 >= self._window()
        return self._packed_word() if is_due else None

    def question(self) -> bytes | None:
        """Ask whether the other side is where it was, and has got what was sent, if in doubt."""
        in_doubt: Any = self._under_way or self._missing
        if not self._is_agreed:
            in_doubt = self._waiting or self._theirs
        return self._packed_word() if in_doubt else None

    # Ends

    def give_up(self, sent: Sent | None) -> list[Entry]:
        """Learn that a parcel, or a question, reached nobody; return what did not get there."""
        if sent is None:
            return [] if self._is_agreed else self._give_up_waiting()
        for each in self._under_way:
            if each is sent:
                self._under_way.remove(each)
                self._under_way_bytes -= each.size
                return each.entries
        return []

    def _give_up_waiting(self) -> list[Entry]:
        given_up = list(self._waiting)
        self._waiting.clear()
        self.waiting_bytes = 0
        self._has_asked = False
        return given_up

    def begin_anew(self) -> None:
        """Begin another session: the way to the other node has broken."""
        if self._is_agreed:
            self._former = (self._session, self._received)
        self._session = next(self._sessions)
        self._is_agreed = False
        self._forget()

    def _forget(self) -> None:
        """Drop what is under way and what waits: it has no meaning for the other side any more."""
        self._under_way.clear()
        self._under_way_bytes = 0
        self._give_up_waiting()
        self._number = self._received = self._heard = self._unsaid_bytes = 0
        self._missing = []
        self._owes_word = False
