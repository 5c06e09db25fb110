"""One end of a websocket connection in memory: ours, and websockets' own reader as its oracle.

Both answer each whole message with itself. What they send, and how they end, is an `Outcome`, which
tests compare.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from websockets.client import ClientProtocol
from websockets.frames import DATA_OPCODES, Close, Frame, Opcode
from websockets.protocol import Protocol, Side, State
from websockets.server import ServerProtocol
from websockets.streams import StreamReader
from websockets.uri import parse_uri
from websockets.utils import accept_key

from support.clients.raw_client import upgrade_request
from toolbus.transport.websocket import ClientTransport, MessageConnection, ServerTransport

TEXT_REFUSED = (1003, "only binary messages")


@dataclass
class Outcome:
    """What one end of a connection received and sent, and how it ended."""

    messages: list[bytes]
    sent: list[tuple[int, bytes]]
    """Opcode and payload of every frame that was written."""
    has_ended_writing: bool
    state: State
    close_sent: Close | None
    close_rcvd: Close | None
    error: str
    """The error that the reader reported."""


def outcome_of(protocol: Protocol, messages: list[bytes], written: bytes) -> Outcome:
    return Outcome(
        messages,
        frames_in(written, masked=protocol.side is Side.CLIENT),
        protocol.eof_sent,
        protocol.state,
        protocol.close_sent,
        protocol.close_rcvd,
        repr(protocol.parser_exc),
    )


def frames_in(data: bytes, *, masked: bool) -> list[tuple[int, bytes]]:
    """Read frames with websockets' reader of single frames, which goes on after a close frame."""
    reader = StreamReader()
    reader.feed_data(data)
    frames: list[Frame] = []

    def read_all() -> Generator[None]:
        while reader.buffer:
            frames.append((yield from Frame.parse(reader.read_exact, mask=masked)))

    for _ in read_all():
        raise AssertionError("it ends within a frame")
    assert all(frame.fin for frame in frames)
    return [(int(frame.opcode), bytes(frame.data)) for frame in frames]


def by_websockets(side: Side, frames: Iterable[bytes], max_bytes: int | None) -> Outcome:
    """Let plain websockets read frames one by one, and refuse text as we do."""
    protocol = Protocol(side, max_size=max_bytes)
    messages: list[bytes] = []
    fragments: list[bytes] = []
    written = b""
    for data in frames:
        protocol.receive_data(data)
        for event in protocol.events_received():
            assert isinstance(event, Frame)
            if event.opcode is Opcode.TEXT:
                protocol.fail(*TEXT_REFUSED)
            elif event.opcode in DATA_OPCODES:
                fragments.append(bytes(event.data))
                if event.fin:
                    messages.append(b"".join(fragments))
                    fragments = []
                    protocol.send_binary(messages[-1])
        written += b"".join(protocol.data_to_send())
    return outcome_of(protocol, messages, written)


class MemoryTransport(asyncio.Transport):
    """A transport that keeps what is written, and is never full."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.writes = 0
        self.reading = asyncio.Event()
        self.reading.set()

    def write(self, data: Any) -> None:
        self.written += data
        self.writes += 1

    def forget(self) -> None:
        """Forget what was written."""
        self.written.clear()
        self.writes = 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Do nothing: later writes would show in `written`."""

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.reading.clear()

    def resume_reading(self) -> None:
        self.reading.set()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: it has no limits."""

    def abort(self) -> None:
        """Do nothing: there is nothing to drop."""


class Echo:
    """A receiver that keeps each message and sends it back."""

    def __init__(self, connection: MessageConnection) -> None:
        self.messages: list[bytes] = []
        self._connection = connection

    def on_message(self, data: bytes) -> None:
        self.messages.append(data)
        self._connection.send_message(data)

    def on_close(self) -> None:
        """Do nothing: nothing waits for the end."""


class MemoryEndpoint:
    """Our end of a connection after the handshake."""

    def __init__(self, connection: MessageConnection, *, batches: bool) -> None:
        self.wire = MemoryTransport()
        self.connection = connection
        connection.connection_made(self.wire)
        connection.batches = batches
        connection.receiver = self.echo = Echo(connection)

    @classmethod
    async def server(cls, max_bytes: int | None, *, batches: bool = False) -> MemoryEndpoint:
        async def handler(_: object) -> None:
            """Wait: the test reads."""

        protocol = ServerProtocol(max_size=max_bytes)
        door: Any = SimpleNamespace(
            handler=handler,
            handler_tasks=set(),
            start_connection_handler=id,  # before websockets 17, in place of both
        )
        end = cls(ServerTransport(protocol, door, close_timeout=60), batches=batches)
        await end.read(upgrade_request("/"))
        request = end.connection.request
        assert request is not None
        protocol.send_response(protocol.accept(request))
        end.connection.send_data()
        end.wire.forget()
        return end

    @classmethod
    async def client(cls, max_bytes: int | None, *, batches: bool = False) -> MemoryEndpoint:
        protocol = ClientProtocol(parse_uri("ws://localhost/"), max_size=max_bytes)
        end = cls(ClientTransport(protocol, close_timeout=60), batches=batches)
        request = protocol.connect()
        protocol.send_request(request)
        end.connection.send_data()
        end.wire.forget()
        await end.read(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: "
            + accept_key(request.headers["Sec-WebSocket-Key"]).encode()
            + b"\r\n\r\n"
        )
        return end

    async def read(self, data: bytes) -> None:
        """Feed it bytes in one piece, and let it handle all of them."""
        self.connection.data_received(data)
        async with asyncio.timeout(60):
            await self.wire.reading.wait()

    async def outcome(self) -> Outcome:
        """Return its state, once it has written what it holds until the end of a turn."""
        turn = self.connection.loop.create_future()
        self.connection.loop.call_soon(turn.set_result, None)
        await turn
        return outcome_of(self.connection.protocol, self.echo.messages, bytes(self.wire.written))
