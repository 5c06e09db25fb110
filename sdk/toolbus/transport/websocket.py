"""A websocket connection that delivers messages as they arrive and sends without awaiting.

Both ends of the bus use it: the server's sessions and the participant's connection. It subclasses
the asyncio connections of websockets, which do the handshake, keepalive and the closing handshake.
It replaces three things: the parsing of ordinary messages (by `framing`), the queue between socket
and reader (a message goes directly to its receiver) and the awaiting `send` (a message goes
directly to the transport; answers to messages that arrived in a batch are written together, once
per event-loop iteration). Flow control is done here: while the transport is congested, messages
wait in a bounded, ordered queue.

It does not interpret frames of the protocol, calls or rooms.
tests/sdk/transport/test_websocket.py tests the contract with websockets 15, 16 and 17.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import BaseTransport, TimerHandle
from collections import deque
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from math import inf
from time import perf_counter
from typing import Any, ClassVar, Protocol

from msgspec import Struct
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import DATA_OPCODES, CloseCode, Frame, Opcode
from websockets.protocol import Event, Side, State

from toolbus.forked_children import keep_from_children
from toolbus.transport.framing import FrameCutter, masking, unmasked

__all__ = [
    "CLOSE_TIMEOUT_S",
    "NO_QUEUE",
    "PING_INTERVAL_S",
    "PING_TIMEOUT_S",
    "SLOW_CONSUMER",
    "WRITE_LIMIT_BYTES",
    "ClientTransport",
    "DiscardingReceiver",
    "MessageConnection",
    "NotifyingTicket",
    "Receiver",
    "RedactingLogger",
    "SendQueue",
    "ServerTransport",
    "Ticket",
]


class Receiver(Protocol):
    """Receives a connection's messages."""

    def on_message(self, data: bytes) -> None:
        """Handle one whole message. Must not raise."""

    def on_close(self) -> None:
        """React to the end of the connection; called once."""


class DiscardingReceiver:
    """Replaces the receiver of a connection that we have closed."""

    def __init__(self, receiver: Receiver) -> None:
        self.on_close: Callable[[], None] = receiver.on_close

    def on_message(self, data: bytes) -> None:
        """Drop a message that arrived together with the reason for closing."""


class Ticket(Protocol):
    """State of a message that may be refused or withdrawn."""

    written: bool
    """Set when the message is passed to the transport; then the peer may have received it."""
    ended: bool
    """Set by the owner: if the message is still queued then, it is never written."""


class NotifyingTicket(Struct, eq=False):
    """The ticket of a message that has to report when it is written."""

    on_written: Callable[[], None]
    """To be called once the message is passed to the transport."""
    written: bool = False
    ended: bool = False
    on_dropped: Callable[[], None] | None = None
    """To be called if it is dropped, on a connection that stays."""


class SendQueue:
    """The messages for a peer that reads more slowly than we write, with their tickets."""

    __slots__ = ("_waiting", "bytes", "held_bytes")

    def __init__(self) -> None:
        self._waiting: deque[tuple[bytes, Ticket | None, int]] = deque()
        self.bytes: int = 0
        """Size of the messages that count towards the limit."""
        self.held_bytes: int = 0
        """What all messages take in memory."""

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, data: bytes, ticket: Ticket | None, counted: int) -> None:
        """Add a message; `counted` of its bytes count towards the limit."""
        self._waiting.append((data, ticket, counted))
        self.bytes += counted
        self.held_bytes += len(data) + _OVERHEAD_BYTES

    def take(self) -> tuple[bytes, Ticket | None]:
        """Remove and return the oldest message, of which there is at least one."""
        data, ticket, counted = self._waiting.popleft()
        self.bytes -= counted
        self.held_bytes -= len(data) + _OVERHEAD_BYTES
        return data, ticket

    def extend(self, other: SendQueue) -> None:
        """Append the messages of another queue."""
        self._waiting.extend(other._waiting)
        self.bytes += other.bytes
        self.held_bytes += other.held_bytes


class _NoQueue:
    """Replaces the message queue of websockets, which would never be read."""

    def close(self) -> None:
        """Do nothing; websockets calls it at the end."""


NO_QUEUE = _NoQueue()


WRITE_LIMIT_BYTES = 256 * 1024
"""Size of the operating system's send buffer beyond which messages wait in the send queue."""
PING_INTERVAL_S = 5.0
PING_TIMEOUT_S = 9.0
"""A peer that is silent for both times together is lost: within 15 s (PROTOCOL.md, CONN-7)."""
CLOSE_TIMEOUT_S = 2.0
"""How long the peer may take to close a connection after it was asked to."""

_MAX_BATCH, _LARGE_BYTES = 16, 16 * 1024
# Limits of one connection's slice of the event loop: time and bytes read.
_SLICE_S = 0.001
_MIN_SLICE_BYTES, _MAX_SLICE_BYTES = 256, 16 * 1024
# A cheap part is followed by another one until this time has passed.
_MIN_SLICE_S = 0.0002
_OVERHEAD_BYTES = 256
"""What a queued message takes in memory beside its bytes."""
_REFUSABLE_BYTES = 4 * 1024 * 1024
"""Of messages that may be refused, so that the others have as much again (PROTOCOL.md, CALL-18)."""
_MAX_QUEUE_BYTES = 8 * 1024 * 1024
"""Memory that one peer may take by not reading (PROTOCOL.md, CONN-14)."""
_MAX_FRAGMENTS = 1_024
"""Each is an object, also without a byte in it, of which `max_frame_bytes` counts none
(CONN-13)."""
# Pings that a peer may send while it reads nothing, not even our pongs.
_MAX_UNREAD_PONGS = 1_024
# A peer that reads less than this within this time is lost: its pings wait behind the messages.
_STALL_TIMEOUT_S, _STALL_BYTES = 12.0, 192 * 1024
SLOW_CONSUMER = 4430
"""Closes a connection whose peer does not read (PROTOCOL.md, CONN-14)."""
_OPEN = State.OPEN


class MessageConnection(Connection):
    """What server and client connections share."""

    __slots__ = (
        "_cutter",
        "_flush_is_due",
        "_fragments",
        "_is_busy",
        "_is_closing",
        "_is_cutting",
        "_is_heard",
        "_received",
        "_send_queue",
        "_stall_timer",
        "_unread_pongs",
        "batches",
        "is_behind",
        "receiver",
    )

    _frame_of: Callable[[bytes], bytes]
    batches: bool
    """Whether the answers to messages that arrived in one batch are written together in the next
    event-loop iteration; for a receiver with many concurrent calls."""
    is_behind: bool
    """Whether a message has to wait now because the peer reads more slowly than we write."""
    most_waiting_bytes: ClassVar[float] = _MAX_QUEUE_BYTES
    """Limit of queued messages that cannot be refused; a peer that needs more is disconnected."""
    receiver: Receiver | None
    """Set it before the first message can arrive; on a server, in the handler's first step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches = False
        self.is_behind = False
        self.receiver = None
        before_16 = getattr(self.protocol, "max_size", None)
        self._cutter = FrameCutter(
            from_client=self.protocol.side is Side.SERVER,
            max_bytes=getattr(self.protocol, "max_message_size", before_16),
        )
        self._is_closing = False
        self._is_cutting = False
        self._is_heard = False
        self._fragments: list[bytes] = []
        self._received = 0
        self._is_busy = False
        self._flush_is_due = False
        self._send_queue: SendQueue | None = None
        self._unread_pongs = 0
        self._stall_timer: TimerHandle | None = None

    # Reading

    def connection_made(self, transport: BaseTransport) -> None:
        """Start without the queue that websockets keeps for its own readers."""
        super().connection_made(transport)
        self.recv_messages = NO_QUEUE  # type: ignore[assignment]
        keep_from_children(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        """Read data, and record whether it held more than one message."""
        self._is_heard = True
        self._received = 0
        if self.receiver is not None and (self._is_cutting or self._start_cutting()):
            for part in self._cutter.cut(data):
                if isinstance(part, bytes):
                    self._received += 1
                    self.receiver.on_message(part)
                else:
                    super().data_received(part.data)
                    if not self._is_cutting:  # websockets drops the rest
                        break
        else:
            held = self._cutter.release()
            self._cutter.skip(data)
            if early := self.take_early(data):
                super().data_received(held + early)
        self._is_busy = self._received > 1

    def take_early(self, data: bytes) -> bytes:
        """Return what websockets reads of data before the first message or after the last one."""
        return data

    def _start_cutting(self) -> bool:
        # Not if the handshake failed: after a refusal its body follows, not frames.
        self._is_cutting = self.protocol.state is State.OPEN
        return self._is_cutting

    def process_event(self, event: Event) -> None:
        """Handle a message, or a part of one, that websockets parsed; pass on all other events."""
        if type(event) is Frame and event.opcode in DATA_OPCODES:
            self._take_data(event)
        else:
            super().process_event(event)
            if self.paused:
                # websockets sends pongs without the send queue, so only this limits them.
                self._unread_pongs += 1
                if self._unread_pongs > _MAX_UNREAD_PONGS:
                    self.close_with(SLOW_CONSUMER, "slow consumer")

    def _take_data(self, frame: Frame) -> None:
        if self.protocol.state is State.CONNECTING:
            self.transport.abort()
        elif self.receiver is None:
            self.close_with(1002, "a message before the handshake ended")
        elif frame.opcode is Opcode.TEXT:
            self.close_with(1003, "only binary messages")
        elif frame.opcode is Opcode.BINARY or self._fragments:
            self._fragments.append(bytes(frame.data))
            if frame.fin:
                message, self._fragments = b"".join(self._fragments), []
                self._received += 1
                self.receiver.on_message(message)
            elif len(self._fragments) > _MAX_FRAGMENTS:
                self.close_with(1002, "too many fragments")

    async def keepalive(self) -> None:
        """Send a ping at intervals, and close where the peer then is silent.

        A peer that sends more than is read at once is not silent: its pong waits behind that.
        """
        assert self.ping_interval is not None
        with suppress(ConnectionClosed):
            while True:
                await asyncio.sleep(self.ping_interval)
                pong = asyncio.ensure_future(await self.ping())
                patience_s = self.ping_timeout
                while not pong.done():
                    self._is_heard = False
                    await asyncio.wait([pong], timeout=patience_s)
                    if not (pong.done() or self._is_heard):
                        self.close_with(CloseCode.INTERNAL_ERROR, "keepalive ping timeout")
                        return
                    # Both times together limit a silence, also one that began with the wait above.
                    patience_s = self.ping_interval

    # Writing

    @property
    def is_open(self) -> bool:
        """Whether a message can still be sent."""
        return self.protocol.state is _OPEN

    def send_message(self, data: bytes, ticket: Ticket | None = None) -> bool:
        """Send a message that cannot be refused; a peer too slow for it is closed with 4430.

        If the connection is no longer open, the message is dropped; `on_close` reports that end
        too.

        Returns:
            Whether the connection accepted it.
        """
        protocol = self.protocol
        if protocol.state is not _OPEN:
            return False
        if self.is_behind:
            return self._enqueue(data, ticket)
        if ticket is not None:
            ticket.written = True
        if not self._flush_is_due and not (self.batches and (self._is_busy or self._received > 1)):
            self.transport.write(self._frame_of(data))
            return True
        protocol.writes.append(self._frame_of(data))
        self.gather()
        if len(protocol.writes) >= _MAX_BATCH or len(data) >= _LARGE_BYTES:
            # The peer can start with the first of many messages while this side makes the rest.
            self._write_gathered()
        return True

    def gather(self) -> None:
        """Write small messages of this event-loop iteration together, in the next one."""
        if self.batches and not self._flush_is_due:
            self._flush_is_due = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        self._write_gathered()

    def _write_gathered(self) -> None:
        """Write the collected messages of one event-loop iteration at once."""
        parts = self.protocol.data_to_send()
        if parts:
            self.transport.write(b"".join(parts))

    async def drained(self) -> None:
        """Wait until the send queue is empty or the connection is closed."""
        while self.is_behind and self.is_open:
            with suppress(OSError):
                await self.drain()

    def send_bounded(self, data: bytes, ticket: NotifyingTicket) -> None:
        """Send a message within its receiver's credit: its size never closes a slow peer."""
        if not self.is_behind:
            if self.send_message(data, ticket):
                ticket.on_written()
        elif self.is_open:
            self._ensure_queue().put(data, ticket, 0)
            self._report_unread()

    def _enqueue(self, data: bytes, ticket: Ticket | None) -> bool:
        waiting = self._ensure_queue()
        waiting.put(data, ticket, len(data))
        if waiting.bytes > self.most_waiting_bytes:
            self.close_with(SLOW_CONSUMER, "slow consumer")
            return False
        self._report_unread()
        return True

    def unread_changed(self, size: int) -> None:
        """React to a change of the bytes that wait for the peer while it is behind.

        Args:
            size: The bytes in the send queue and in the write buffer; 0 if it is not behind.
        """

    def _report_unread(self) -> None:
        size = 0
        if self._is_closing:
            self._send_queue = None  # it is never written
            self.is_behind = self.paused
        else:
            if self.paused:
                size = self.transport.get_write_buffer_size()
            if self._send_queue is not None:
                size += self._send_queue.held_bytes
        self.unread_changed(size)

    def _ensure_queue(self) -> SendQueue:
        if self._send_queue is None:
            self._send_queue = SendQueue()
        return self._send_queue

    def offer_message(self, data: bytes, ticket: Ticket) -> bool:
        """Send a message, or refuse it at once if the peer is too far behind."""
        if self.is_behind:
            queue = self._send_queue
            if queue is not None and queue.bytes + len(data) > _REFUSABLE_BYTES:
                return False
            if not self.may_wait(len(data)):
                return False
        return self.send_message(data, ticket)

    def may_wait(self, size: int) -> bool:
        """Whether so many bytes of another participant may be added to what waits for this peer."""
        return True

    def pause_writing(self) -> None:
        """Queue messages from now on; a peer that reads too little is disconnected."""
        super().pause_writing()
        self.is_behind = True
        self._watch_drain()
        self._report_unread()

    def _watch_drain(self) -> None:
        waiting = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(_STALL_TIMEOUT_S, self._check_drain, waiting)

    def _check_drain(self, waiting: int) -> None:
        """Disconnect the peer unless it read enough: a large message may take several rounds."""
        if waiting - self.transport.get_write_buffer_size() < _STALL_BYTES:
            self.close_with(SLOW_CONSUMER, "slow consumer")
        else:
            self._watch_drain()

    def _cancel_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        self._unread_pongs = 0

    def resume_writing(self) -> None:
        """Write queued messages until the transport is congested again."""
        super().resume_writing()
        self.is_behind = False
        self._cancel_stall_timer()
        waiting, self._send_queue = self._send_queue, None
        while waiting and not self.paused and self.is_open:
            data, ticket = waiting.take()
            if ticket is None or not ticket.ended:
                self.send_message(data, ticket)
                if isinstance(ticket, NotifyingTicket):
                    ticket.on_written()
        if waiting and self._send_queue:  # messages that were sent to this peer meanwhile
            waiting.extend(self._send_queue)
        self._send_queue = waiting or self._send_queue
        self.is_behind = self.paused or bool(self._send_queue)
        self._report_unread()

    # Closing

    def send_data(self) -> None:
        """Write what websockets has to send; limit the time of a closing handshake that begins."""
        if not self._is_closing and self.protocol.close_expected():
            # websockets limits it only in its own `close` and `send`: a peer that broke a rule and
            # then keeps its socket would stay connected.
            self._is_closing = True
            self._is_cutting = False  # from here on websockets decides what is still read
            self._report_unread()
            self.loop.call_later(self.close_timeout or 0, self.transport.abort)
            self.closing()
        super().send_data()

    def closing(self) -> None:
        """React to the start of the closing handshake: the connection ends soon. Called once."""

    def close_with(self, code: int, reason: str) -> None:
        """Close with a code and a reason. Later messages are dropped; returns at once."""
        # Also if we are closing already: messages arrive until the peer has closed too.
        if self.receiver is not None and type(self.receiver) is not DiscardingReceiver:
            self.receiver = DiscardingReceiver(self.receiver)
        if not self.is_open:
            return
        self.protocol.fail(code, reason)
        self.send_data()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the receiver, once."""
        super().connection_lost(exc)
        self.protocol.data_to_send()  # dropped: a flush may be due
        self._is_closing = True
        self._report_unread()
        self._cancel_stall_timer()
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.on_close()


class ServerTransport(MessageConnection, ServerConnection):
    """A participant's connection on the server.

    Connections take turns: a long read is processed in slices, so that thousands of small messages
    from one peer do not delay others for long. The size of a slice depends on the measured cost per
    byte: large messages are cheap, tiny fragments expensive. Bytes of an unfinished large message
    cost nothing until it is complete and do not count.
    """

    __slots__ = ("_backlog", "_slice_bytes")

    _frame_of = staticmethod(unmasked)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._backlog = memoryview(b"")
        self._slice_bytes = _MIN_SLICE_BYTES

    def data_received(self, data: bytes) -> None:
        """Process data, at once if it is short."""
        if self._backlog:
            self._backlog = memoryview(bytes(self._backlog) + data)
        elif len(data) <= _MIN_SLICE_BYTES or len(data) <= self._cutter.wanted:
            super().data_received(data)
        else:
            self._backlog = memoryview(data)
            self._process_slice()
            if self._backlog:
                self.transport.pause_reading()

    def _process_slice(self) -> None:
        if self.transport.is_closing():
            self._backlog = memoryview(b"")
            return
        began = perf_counter()  # uvloop's own clock does not advance within an iteration
        while self._backlog and perf_counter() - began < _MIN_SLICE_S:
            wanted = self._cutter.wanted
            size = wanted or self._slice_bytes
            part, self._backlog = self._backlog[:size], self._backlog[size:]
            part_began = perf_counter()
            super().data_received(bytes(part))
            if not wanted:
                fit = len(part) * _SLICE_S / max(perf_counter() - part_began, 1e-6)
                self._slice_bytes = int(min(max(fit, _MIN_SLICE_BYTES), 2 * size, _MAX_SLICE_BYTES))
        if self._backlog:
            self.loop.call_soon(self._process_slice)
        elif not self.transport.is_closing():
            self.transport.resume_reading()


class ClientTransport(MessageConnection, ClientConnection):
    """A participant's connection to a server.

    It may have many large calls or results to send at once, so its queue has no limit.
    """

    most_waiting_bytes = inf

    __slots__ = ("_frame_of",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._frame_of = masking()


class RedactingLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger for websockets that never logs content.

    At DEBUG websockets logs every header and payload, including tokens and arguments.
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name))  # noqa: TID251 - websockets writes to it

    def isEnabledFor(self, level: int) -> bool:  # logging's own name
        """Refuse DEBUG at any level of the logger."""
        return level > logging.DEBUG and super().isEnabledFor(level)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Remove the connection from the record: its request contains the token."""
        kwargs.pop("extra", None)
        return msg, kwargs
