"""A websocket connection that hands over messages as they arrive and writes without a queue.

Both ends of the bus use it: the server's sessions and the participant's link. It subclasses the
connections of websockets' asyncio flavour, which keep the handshake, keepalive and the closing
handshake. What it replaces: the reading of ordinary messages (`message_frames` cuts them out of
what arrived), the queue between socket and reader (a message goes straight to its receiver) and the
awaiting `send` (a message goes straight to the transport; where messages come in batches they leave
in batches, one write for each turn of the loop). What that queue did for flow control is done here:
while the transport has more than it can send, messages wait in a bounded, ordered outbox.

It knows nothing of the protocol's own frames, of calls or rooms. tests/sdk/test_transport.py holds
the contract with websockets 17.
"""

from __future__ import annotations

from asyncio import BaseTransport, TimerHandle
from collections.abc import Callable
from contextlib import suppress
from math import inf
from time import perf_counter
from typing import Any, ClassVar

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection
from websockets.frames import DATA_OPCODES, Frame, Opcode
from websockets.protocol import Event, Side, State

from toolbus.message_frames import FrameCutter, masking, unmasked
from toolbus.outbox import Outbox, Ticket
from toolbus.receivers import NO_QUEUE, Deaf, Receiver

__all__ = [
    "CLOSE_TIMEOUT_S",
    "PING_INTERVAL_S",
    "PING_TIMEOUT_S",
    "WRITE_LIMIT_BYTES",
    "ClientTransport",
    "MessageConnection",
    "Receiver",
    "ServerTransport",
    "Ticket",
]

WRITE_LIMIT_BYTES = 256 * 1024
"""How much the operating system's buffer may be behind before messages wait in the outbox."""
PING_INTERVAL_S = 5.0
PING_TIMEOUT_S = 9.0
"""A peer that is silent for both together is gone: within 15 s (PROTOCOL.md, CONN-7)."""
CLOSE_TIMEOUT_S = 2.0
"""How long the other side may take to close a connection after it was told to."""

_MAX_BATCH, _LARGE_BYTES = 16, 16 * 1024
# One connection's turn: so long it may hold up all others, and so much may be read in it.
_TURN_S = 0.001
_MIN_TURN_BYTES, _MAX_TURN_BYTES = 256, 16 * 1024
# What is so cheap that less of a turn has passed goes on.
_PART_OF_TURN_S = 0.0002
_REFUSABLE_BYTES = 4 * 1024 * 1024
_OUTBOX_BYTES = 8 * 1024 * 1024
_MAX_FRAGMENTS = 1_024
# How many pings a peer may send while it reads nothing of what it is sent, their pongs among that.
_MAX_UNREAD_PONGS = 1_024
# A peer that reads nothing for so long is as good as gone: its pings wait behind the rest.
_STALL_TIMEOUT_S = 12.0
_SLOW_CONSUMER = 4430
_OPEN = State.OPEN


class MessageConnection(Connection):
    """The part that server and client connections share."""

    __slots__ = (
        "_arrived",
        "_cutter",
        "_flush_is_due",
        "_fragments",
        "_is_busy",
        "_is_cutting",
        "_outbox",
        "_stall",
        "_unread_pongs",
        "batches",
        "receiver",
    )

    _frame_of: Callable[[bytes], bytes]
    batches: bool
    """Whether answers to messages that came in one batch leave in one write, a turn of the loop
    later; for a reader that has many calls under way at a time."""
    most_waiting_bytes: ClassVar[float] = _OUTBOX_BYTES
    """So much may wait of what nobody may refuse; a peer for whom there is more is closed."""
    receiver: Receiver | None
    """Must be set before the first message can arrive; on a server, in the handler's first step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches = False
        self.receiver = None
        limits = (self.protocol.max_message_size, self.protocol.max_fragment_size)
        self._cutter = FrameCutter(
            from_client=self.protocol.side is Side.SERVER,
            max_bytes=min((limit for limit in limits if limit is not None), default=None),
        )
        self._is_cutting = False
        self._fragments: list[bytes] = []
        self._arrived = 0
        self._is_busy = False
        self._flush_is_due = False
        self._outbox: Outbox | None = None
        self._unread_pongs = 0
        self._stall: TimerHandle | None = None

    # Reading

    def connection_made(self, transport: BaseTransport) -> None:
        """Begin, without the queue that websockets keeps for readers of its own."""
        super().connection_made(transport)
        self.recv_messages = NO_QUEUE  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Read what came, and take note of whether it was more than one message."""
        self._arrived = 0
        if self.receiver is not None and (self._is_cutting or self._begin_to_cut()):
            for part in self._cutter.cut(data):
                if isinstance(part, bytes):
                    self._arrived += 1
                    self.receiver.on_message(part)
                else:
                    super().data_received(part.data)
                    if not self._is_cutting:  # websockets would drop the rest
                        break
        else:
            held = self._cutter.release()
            self._cutter.skip(data)
            super().data_received(held + data if held else data)
        self._is_busy = self._arrived > 1

    def _begin_to_cut(self) -> bool:
        # Not in what the handshake ends in: behind a refusal its body follows, and no frames.
        self._is_cutting = self.protocol.state is State.OPEN
        return self._is_cutting

    def process_event(self, event: Event) -> None:
        """Take a message, or a part of one, that was left to websockets, and all else back."""
        if type(event) is Frame and event.opcode in DATA_OPCODES:
            self._take_data(event)
        else:
            super().process_event(event)
            if self.paused:
                self._count_pong()

    def _take_data(self, frame: Frame) -> None:
        if self.protocol.state is State.CONNECTING:
            self.transport.abort()
        elif self.receiver is None:
            self.close_with(1002, "a message before the handshake ended")
        elif frame.opcode is Opcode.TEXT:
            self.close_with(1003, "only binary messages")
        elif frame.opcode is Opcode.BINARY or self._fragments:
            self._collect(frame, self.receiver)

    def _collect(self, frame: Frame, receiver: Receiver) -> None:
        self._fragments.append(bytes(frame.data))
        if frame.fin:
            message, self._fragments = b"".join(self._fragments), []
            self._arrived += 1
            receiver.on_message(message)
        elif len(self._fragments) > _MAX_FRAGMENTS:
            self.close_with(1002, "too many fragments")

    def _count_pong(self) -> None:
        # websockets answers pings past the outbox, so that nothing else bounds their answers.
        self._unread_pongs += 1
        if self._unread_pongs > _MAX_UNREAD_PONGS:
            self.close_with(_SLOW_CONSUMER, "slow consumer")

    # Writing

    @property
    def is_open(self) -> bool:
        """Whether a message can still be sent."""
        return self.protocol.state is _OPEN

    def send_message(self, data: bytes, ticket: Ticket | None = None) -> bool:
        """Send a message that nobody may refuse; a peer too slow for it is closed with 4430.

        On a connection that is no longer open the message is dropped, which `on_close` tells too.

        Returns:
            Whether the connection took it.
        """
        protocol = self.protocol
        if protocol.state is not _OPEN:
            return False
        if self.paused or self._outbox:
            return self._hold(data, ticket)
        if ticket is not None:
            ticket.written = True
        if not self._flush_is_due and not (self.batches and (self._is_busy or self._arrived > 1)):
            self.transport.write(self._frame_of(data))
            return True
        protocol.writes.append(self._frame_of(data))
        self.gather()
        if len(protocol.writes) >= _MAX_BATCH or len(data) >= _LARGE_BYTES:
            # The next hop shall work on the first of many while this one works on the rest.
            self._write_gathered()
        return True

    def gather(self) -> None:
        """Let small messages that are sent in this turn of the loop leave in one write, later."""
        if self.batches and not self._flush_is_due:
            self._flush_is_due = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        self._write_gathered()

    def _write_gathered(self) -> None:
        """Write in one piece what a busy connection was given in one turn of the loop."""
        parts = self.protocol.data_to_send()
        if parts:
            self.transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    @property
    def is_behind(self) -> bool:
        """Whether what is sent now has to wait, since the peer reads more slowly than we write."""
        return self.paused or bool(self._outbox)

    async def caught_up(self) -> None:
        """Wait until nothing has to wait any more, or the connection is gone."""
        while self.is_behind and self.is_open:
            with suppress(OSError):
                await self.drain()

    def send_bounded(self, data: bytes, ticket: Ticket) -> None:
        """Send what its senders were given credit for: by its size it never closes a slow peer."""
        if not self.is_behind:
            self.send_message(data, ticket)
        elif self.is_open:
            self._waiting().put(data, ticket, 0)

    def _hold(self, data: bytes, ticket: Ticket | None) -> bool:
        waiting = self._waiting()
        waiting.put(data, ticket, len(data))
        if waiting.bytes > self.most_waiting_bytes:
            self.close_with(_SLOW_CONSUMER, "slow consumer")
            return False
        return True

    def _waiting(self) -> Outbox:
        if self._outbox is None:
            self._outbox = Outbox()
        return self._outbox

    def offer_message(self, data: bytes, ticket: Ticket) -> bool:
        """Send a message, or say no at once if the peer is too far behind."""
        outbox = self._outbox
        if outbox is not None and outbox.bytes + len(data) > _REFUSABLE_BYTES:
            return False
        return self.send_message(data, ticket)

    def pause_writing(self) -> None:
        """Let messages wait; a peer that then reads nothing for long is given up."""
        super().pause_writing()
        self._stall = self.loop.call_later(
            _STALL_TIMEOUT_S, self.close_with, _SLOW_CONSUMER, "slow consumer"
        )

    def _end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        self._unread_pongs = 0

    def resume_writing(self) -> None:
        """Write what has waited, until the transport is full again."""
        super().resume_writing()
        self._end_stall()
        waiting, self._outbox = self._outbox, None
        while waiting and not self.paused and self.is_open:
            data, ticket = waiting.take()
            if ticket is None or not ticket.ended:
                self.send_message(data, ticket)
        if waiting and self._outbox:  # what was sent to this very peer on the way
            waiting.join(self._outbox)
        self._outbox = waiting or self._outbox

    # Closing

    @property
    def close_deadline(self) -> float | None:
        """When a closing handshake that has begun must have ended, by the loop's clock."""
        return self._close_deadline

    @close_deadline.setter
    def close_deadline(self, deadline: float | None) -> None:
        # websockets sets it for every reason to close, and acts on it only in its own `close` and
        # `send`: a peer that broke a rule and then keeps its socket would stay.
        self._close_deadline = deadline
        if deadline is not None:
            self._is_cutting = False  # whether it still reads, websockets alone knows
            self.loop.call_at(deadline, self.transport.abort)
            self.closing()

    def closing(self) -> None:
        """Learn that the connection will end soon, whatever the other side does."""

    def close_with(self, code: int, reason: str) -> None:
        """Say why and close. Nothing that arrives afterwards is read; returns at once."""
        # Also where we are closing already: until the other side has closed too, messages come.
        if self.receiver is not None and type(self.receiver) is not Deaf:
            self.receiver = Deaf(self.receiver)
        if not self.is_open:
            return
        self.protocol.fail(code, reason)
        self.send_data()
        self.close_deadline = self.loop.time() + (self.close_timeout or 0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the receiver, once."""
        super().connection_lost(exc)
        self.protocol.data_to_send()  # dropped: a flush may be due, and nobody takes it any more
        self._outbox = None
        self._end_stall()
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.on_close()


class ServerTransport(MessageConnection, ServerConnection):
    """A participant's connection, as the server holds it.

    It takes turns with the others: of a long read only a part is worked on before they have
    theirs, so that thousands of small messages from one delay nobody else for long. How much that
    is depends on what its bytes have cost so far: a large message is cheap, a tiny fragment dear.
    What is still to come of a large message costs nothing until all of it is there, and counts for
    no turn.
    """

    __slots__ = ("_backlog", "_turn_bytes")

    _frame_of = staticmethod(unmasked)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._backlog = memoryview(b"")
        self._turn_bytes = _MIN_TURN_BYTES

    def data_received(self, data: bytes) -> None:
        """Work on what came, at once if it is little."""
        if self._backlog:
            self._backlog = memoryview(bytes(self._backlog) + data)
        elif len(data) <= max(_MIN_TURN_BYTES, self._cutter.wanted):
            super().data_received(data)
        else:
            self._backlog = memoryview(data)
            self._take_turn()
            if self._backlog:
                self.transport.pause_reading()

    def _take_turn(self) -> None:
        if self.transport.is_closing():
            self._backlog = memoryview(b"")
            return
        began = perf_counter()  # uvloop's own clock stands still for a turn
        while self._backlog and perf_counter() - began < _PART_OF_TURN_S:
            self._take_part()
        if self._backlog:
            self.loop.call_soon(self._take_turn)
        elif not self.transport.is_closing():
            self.transport.resume_reading()

    def _take_part(self) -> None:
        wanted = self._cutter.wanted
        size = wanted or self._turn_bytes
        part, self._backlog = self._backlog[:size], self._backlog[size:]
        began = perf_counter()
        super().data_received(bytes(part))
        if not wanted:
            fits = len(part) * _TURN_S / max(perf_counter() - began, 1e-6)
            self._turn_bytes = int(min(max(fits, _MIN_TURN_BYTES), 2 * size, _MAX_TURN_BYTES))


class ClientTransport(MessageConnection, ClientConnection):
    """The connection to a server, as a participant holds it.

    What it has to say at once, many large calls or answers, is no fault of the server's: it waits.
    """

    most_waiting_bytes = inf

    __slots__ = ("_frame_of",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._frame_of = masking()
