"""Numbered batches: all entries that wait for one other node, in one message, within a window.

A `PeerLink` is the link from this node to one other node, with what it learns about the way back.
It reports which entries were lost, and never sends anything twice. It does not read the entries.

Numbers count within a session of each side. A side whose connection broke starts another session;
messages of earlier sessions are void, even when they arrive later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from toolbus.transport.websocket import NotifyingTicket, Ticket

__all__ = [
    "BATCH_BYTES",
    "BATCH_PREFIX",
    "Batch",
    "Entry",
    "PeerLink",
    "ReceivedBatch",
    "SentBatch",
    "decode_batch",
]

BATCH_BYTES = 256 * 1024
"""A batch of this size takes no further entry."""
BATCH_PREFIX = b"P"
"""The first byte of a batch in the inbox; deltas of rooms begin with another one."""
_encode = msgspec.msgpack.Encoder().encode


class Entry(NamedTuple):
    """One message to another node."""

    data: bytes
    """Packed as one value of MessagePack."""
    ticket: Ticket | None = None
    """Marked as written when the entry is passed to Redis; if it has `ended`, nothing is sent."""


class Batch(Struct, array_like=True):
    """A batch, or an acknowledgement: a batch without entries."""

    sender: str
    session: int
    """The sender's session; a later one has a higher number."""
    receiver_session: int
    """The receiver's, as the sender knows it; 0 if unknown, which asks for an acknowledgement."""
    number: int
    """Of a batch 1, 2, 3, ... in a session; of an acknowledgement that of the last batch."""
    received: int
    """The number of the last batch that arrived in the other direction."""
    missing: list[tuple[int, int]]
    """Batches up to `received` that did not arrive, as first and last number of each run.

    None of them is read later. They are repeated until the receiver has acknowledged them.
    """
    missing_acked: int
    """The sender has received reports of missing batches up to this number."""
    entries: list[msgspec.Raw] | None
    last_session: tuple[int, int] | None = None
    """The last session in which the sender read a batch, and the last number that it read.

    In every message: any of them may be the first of a new session that the receiver gets.
    """


_decode = msgspec.msgpack.Decoder(Batch).decode


def decode_batch(data: bytes) -> Batch:
    """Decode a batch from the inbox. Raises `msgspec.MsgspecError` for anything else."""
    return _decode(memoryview(data)[1:])


class SentBatch(NamedTuple):
    """A batch that was passed to Redis."""

    number: int
    size: int
    entries: list[Entry]


class ReceivedBatch(NamedTuple):
    """The result of receiving a batch."""

    entries: Sequence[msgspec.Raw] = ()
    """The entries to read."""
    lost: Sequence[Entry] = ()
    """Entries of this side that were lost: none was or will be read."""
    was_reset: bool = False
    """Whether the other side started a new session: it has ended all that was in flight."""


class PeerLink:
    """The link to one other node.

    Entries are sent once the session of the other node is known; the first entry asks for it,
    which costs one round trip.

    Args:
        node_id: The id of this node.
        sessions: Numbers for sessions, in ascending order.
        publish: Passes a batch to Redis, or an acknowledgement (None); returns False if it cannot.
        window: Returns how many bytes may be in flight.
    """

    def __init__(
        self,
        node_id: str,
        sessions: Iterator[int],
        publish: Callable[[SentBatch | None, bytes], bool],
        window: Callable[[], int],
    ) -> None:
        self._node_id = node_id
        self._sessions = sessions
        self._publish = publish
        self._window = window
        self._session = next(sessions)
        self._peer_session = 0
        self._is_established = False
        """Whether the peer sent its session since this side's session began."""
        self._has_probed = False
        self._last_session: tuple[int, int] | None = None
        self._waiting: deque[Entry] = deque()
        self.waiting_bytes: int = 0
        """Bytes of entries that wait to be sent."""
        self._in_flight: deque[SentBatch] = deque()
        self._in_flight_bytes = 0
        self._number = 0
        self._received = 0
        self._missing: list[tuple[int, int]] = []
        """Runs of numbers that did not arrive, and whose report is not acknowledged."""
        self._missing_acked = 0
        self._unacked_bytes = 0
        """Bytes that arrived and are not acknowledged."""
        self.ack_due: bool = False
        """Whether the peer asked for an acknowledgement and waits for it."""

    @property
    def is_behind(self) -> bool:
        """Whether the window is full, so that new entries wait."""
        return self._in_flight_bytes >= self._window()

    def put(self, entry: Entry) -> None:
        """Queue an entry for `send`."""
        self._waiting.append(entry)
        self.waiting_bytes += len(entry.data)

    def send(self) -> bool:
        """Send one batch of waiting entries within the window; return whether one was sent."""
        if not self._waiting or self.is_behind:
            return False
        if not self._is_established:
            if not self._has_probed:
                self._has_probed = self._publish(None, self._pack_ack())
            return False
        taken: list[Entry] = []
        size = 0
        while self._waiting and size < BATCH_BYTES:
            entry = self._waiting.popleft()
            self.waiting_bytes -= len(entry.data)
            if entry.ticket is None or not entry.ticket.ended:
                taken.append(entry)
                size += len(entry.data)
        return not taken or self._send_batch(taken, size)

    def _send_batch(self, taken: list[Entry], size: int) -> bool:
        sent = SentBatch(self._number + 1, size, taken)
        raw: list[Any] = [msgspec.Raw(entry.data) for entry in taken]
        if not self._publish(sent, self._pack(sent.number, raw)):
            return False
        self._number += 1
        self._in_flight.append(sent)
        self._in_flight_bytes += size
        for entry in taken:
            if entry.ticket is not None:
                entry.ticket.written = True
                if isinstance(entry.ticket, NotifyingTicket):
                    entry.ticket.on_written()
        return True

    def _pack(self, number: int, entries: list[Any] | None) -> bytes:
        self._unacked_bytes = 0
        self.ack_due = False
        batch = [
            self._node_id,
            self._session,
            self._peer_session if self._is_established else 0,
            number,
            self._received,
            self._missing,
            self._missing_acked,
            entries,
            self._last_session,
        ]
        return BATCH_PREFIX + _encode(batch)

    def _pack_ack(self) -> bytes:
        return self._pack(self._number, None)

    # Receiving

    def receive(self, batch: Batch, size: int) -> ReceivedBatch:
        """Receive a batch; return which of its entries to read, and what was lost."""
        if batch.session < self._peer_session:
            return ReceivedBatch()  # of a session that has ended
        unread: list[Entry] = []
        was_reset = self._is_established and batch.session > self._peer_session
        if was_reset:  # what the peer had not read when it started its new session is lost
            session, last_read = batch.last_session or (0, 0)
            if session < self._peer_session:
                last_read = 0  # it read nothing in this session
            if session <= self._peer_session:
                unread = self._between(last_read + 1, self._number)
            self._clear()
        self._peer_session, self._is_established = batch.session, True
        if batch.receiver_session != self._session:
            self.ack_due = True
            return ReceivedBatch((), unread, was_reset)
        lost = unread + [entry for run in batch.missing for entry in self._between(*run)]
        while self._in_flight and self._in_flight[0].number <= batch.received:
            self._in_flight_bytes -= self._in_flight.popleft().size
        self._missing = [run for run in self._missing if run[1] > batch.missing_acked]
        entries = self._new_entries(batch, size)
        if batch.missing and batch.missing[-1][1] > self._missing_acked:
            self._missing_acked, self.ack_due = batch.missing[-1][1], True
        return ReceivedBatch(entries, lost, was_reset)

    def _new_entries(self, batch: Batch, size: int) -> Sequence[msgspec.Raw]:
        """Record gaps in the numbers; return the entries unless the batch came before."""
        last_before = batch.number - (batch.entries is not None)
        if last_before > self._received:
            self._missing.append((self._received + 1, last_before))
            self._received = last_before
        if batch.entries is None:
            self.ack_due |= self._unacked_bytes > 0
            return ()
        if batch.number <= self._received:
            return ()  # a duplicate, or already reported as missing
        self._received = batch.number
        self._unacked_bytes += size
        return batch.entries

    def _between(self, first: int, last: int) -> list[Entry]:
        return [
            entry
            for sent in self._in_flight
            if first <= sent.number <= last
            for entry in sent.entries
        ]

    # Acknowledgements

    def ack(self) -> bytes | None:
        """Build an acknowledgement, if the peer may wait for one."""
        is_due = self.ack_due or self._missing or self._unacked_bytes * 4 >= self._window()
        return self._pack_ack() if is_due else None

    def probe(self) -> bytes | None:
        """Build a request for the peer's session and an acknowledgement, if either is in doubt."""
        in_doubt: Any = self._in_flight or self._missing
        if not self._is_established:
            in_doubt = self._waiting or self._peer_session
        return self._pack_ack() if in_doubt else None

    # Failures

    def undelivered(self, sent: SentBatch | None) -> list[Entry]:
        """Remove a batch, or a probe (None), without a subscriber; return the lost entries."""
        if sent is None and not self._is_established:
            return self._drop_waiting()
        for batch in self._in_flight:
            if batch is sent:
                self._in_flight.remove(batch)
                self._in_flight_bytes -= batch.size
                return batch.entries
        return []

    def _drop_waiting(self) -> list[Entry]:
        dropped = list(self._waiting)
        for entry in dropped:
            if isinstance(entry.ticket, NotifyingTicket) and entry.ticket.on_dropped is not None:
                entry.ticket.on_dropped()
        self._waiting.clear()
        self.waiting_bytes = 0
        self._has_probed = False
        return dropped

    def reset(self) -> None:
        """Start a new session: the connection to the peer has broken."""
        if self._is_established:
            self._last_session = (self._session, self._received)
        self._session = next(self._sessions)
        self._is_established = False
        self._clear()

    def _clear(self) -> None:
        """Drop what is in flight or waiting: it is void in the new session."""
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._drop_waiting()
        self._number = self._received = self._missing_acked = self._unacked_bytes = 0
        self._missing = []
        self.ack_due = False
