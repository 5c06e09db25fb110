"""A websocket connection that hands over messages as they arrive and writes without a queue.

Both ends of the bus use it: the server's sessions and the participant's link. It subclasses the
connections of websockets' asyncio flavour, which keep the handshake, keepalive and the closing
handshake; what it replaces is the queue between socket and reader (a message goes straight from
`process_event` to its receiver) and the awaiting `send` (a message goes straight to the transport).
What that queue did for flow control is done here: while the transport has more than it can send,
messages wait in a bounded, ordered outbox.

It knows nothing of frames, calls or rooms. tests/sdk/test_transport.py holds the contract with
websockets 17.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection
from websockets.frames import DATA_OPCODES, Frame, Opcode
from websockets.protocol import Event, State

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

_REFUSABLE_BYTES = 4 * 1024 * 1024
_OUTBOX_BYTES = 8 * 1024 * 1024
_MAX_FRAGMENTS = 1_024
_SLOW_CONSUMER = 4430


class Ticket(Protocol):
    """What a message that may be refused or taken back carries with it."""

    written: bool
    """Set once the message is handed to the transport:

    from then on the other side may have seen it.
    """
    ended: bool
    """Set by the owner: a message that is still waiting then is never written."""


class Receiver(Protocol):
    """Who reads a connection's messages."""

    def on_message(self, data: bytes) -> None:
        """Take one whole message. Must not raise."""

    def on_close(self) -> None:
        """Learn, once, that the connection is gone."""


class MessageConnection(Connection):
    """The part that server and client connections share."""

    receiver: Receiver | None = None
    """Must be set before the first message can arrive; on a server, in the handler's first step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._fragments: list[bytes] = []
        self._outbox: deque[tuple[bytes, Ticket | None]] = deque()
        self._outbox_bytes = 0

    # Reading

    def process_event(self, event: Event) -> None:
        """Hand a message over, refuse what is none, and leave the rest to websockets."""
        if type(event) is not Frame or event.opcode not in DATA_OPCODES:
            super().process_event(event)
        elif event.opcode is Opcode.BINARY and event.fin and self.receiver is not None:
            self.receiver.on_message(bytes(event.data))
        else:
            self._process_other(event)

    def _process_other(self, frame: Frame) -> None:
        if self.receiver is None:
            self.close_with(1002, "a message before the handshake ended")
        elif frame.opcode is Opcode.TEXT:
            self.close_with(1003, "only binary messages")
        elif frame.opcode is Opcode.BINARY or self._fragments:
            self._collect(frame, self.receiver)

    def _collect(self, frame: Frame, receiver: Receiver) -> None:
        self._fragments.append(bytes(frame.data))
        if frame.fin:
            message, self._fragments = b"".join(self._fragments), []
            receiver.on_message(message)
        elif len(self._fragments) > _MAX_FRAGMENTS:
            self.close_with(1002, "too many fragments")

    # Writing

    @property
    def is_open(self) -> bool:
        """Whether a message can still be sent."""
        return self.protocol.state is State.OPEN

    def send_message(self, data: bytes, ticket: Ticket | None = None) -> None:
        """Send a message that nobody may refuse; a peer too slow for it is closed with 4430.

        On a connection that is no longer open the message is dropped: `on_close` tells the owner.
        """
        if not self.is_open:
            return
        if self.paused or self._outbox:
            self._outbox.append((data, ticket))
            self._outbox_bytes += len(data)
            if self._outbox_bytes > _OUTBOX_BYTES:
                self.close_with(_SLOW_CONSUMER, "slow consumer")
        else:
            self._write(data, ticket)

    def offer_message(self, data: bytes, ticket: Ticket) -> bool:
        """Send a message, or say no at once if the peer is too far behind."""
        if not self.is_open or self._outbox_bytes + len(data) > _REFUSABLE_BYTES:
            return False
        self.send_message(data, ticket)
        return True

    def _write(self, data: bytes, ticket: Ticket | None) -> None:
        protocol = self.protocol
        protocol.send_binary(data)
        write = self.transport.write
        for part in protocol.data_to_send():
            write(part)
        if ticket is not None:
            ticket.written = True

    def resume_writing(self) -> None:
        """Write what has waited, until the transport is full again."""
        super().resume_writing()
        while self._outbox and not self.paused and self.is_open:
            data, ticket = self._outbox.popleft()
            self._outbox_bytes -= len(data)
            if ticket is None or not ticket.ended:
                self._write(data, ticket)

    # Closing

    def close_with(self, code: int, reason: str) -> None:
        """Say why and close. Nothing that arrives afterwards is read; returns at once."""
        if not self.is_open:
            return
        self.protocol.fail(code, reason)
        self.send_data()
        self.loop.call_later(self.close_timeout or 0, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the receiver, once."""
        super().connection_lost(exc)
        self._outbox.clear()
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.on_close()


class ServerTransport(MessageConnection, ServerConnection):
    """A participant's connection, as the server holds it."""


class ClientTransport(MessageConnection, ClientConnection):
    """The connection to a server, as a participant holds it."""
