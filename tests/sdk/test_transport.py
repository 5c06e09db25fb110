"""Our connections on websockets 17: what we take from it, and what we do in its place.

websockets calls `process_event` with each frame it has read and leaves writing to whoever holds the
transport. Neither is in its promises, so it is held here, over real sockets.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.frames import Frame, Opcode
from websockets.protocol import Event
from websockets.typing import Subprotocol
from websockets.utils import accept_key

from support.raw_client import (
    BINARY,
    CLOSE,
    CONT,
    PING,
    PONG,
    TEXT,
    RawClient,
    raw_connection,
    websocket_frame,
)
from toolbus import transport
from toolbus.transport import ClientTransport, ServerTransport, TransportLog
from toolbus.wire import SUBPROTOCOL

KIB = 1024
PROTOCOL = [("Sec-WebSocket-Protocol", SUBPROTOCOL)]


@dataclass
class Letter:
    """A ticket."""

    written: bool = False
    ended: bool = False


class Reader:
    """A receiver that keeps what it is told."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()
        self.closes = 0
        self.closed = asyncio.Event()

    def on_message(self, data: bytes) -> None:
        self.messages.put_nowait(data)

    def on_close(self) -> None:
        self.closes += 1
        self.closed.set()

    async def next(self) -> bytes:
        async with asyncio.timeout(5):
            return await self.messages.get()

    async def gone(self) -> None:
        async with asyncio.timeout(10):
            await self.closed.wait()


class Noting(ServerTransport):
    """A connection that keeps every event, as websockets hands it over."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.events: list[Event] = []

    def process_event(self, event: Event) -> None:
        self.events.append(event)
        super().process_event(event)


class Place:
    """A server, and the server's end of whatever connects to it."""

    def __init__(self, url: str, arrived: asyncio.Queue[tuple[Noting, Reader]]) -> None:
        self.url = url
        self._arrived = arrived

    @asynccontextmanager
    async def raw_pair(self) -> AsyncIterator[tuple[RawClient, Noting, Reader]]:
        """A raw client, and the connection and its reader at the server's end."""
        async with raw_connection(self.url) as client:
            assert (await client.upgrade("/", PROTOCOL)).status == 101
            connection, reader = await self._arrived.get()
            yield client, connection, reader


@asynccontextmanager
async def place(*, deaf: bool = False, ping_s: float | None = None) -> AsyncIterator[Place]:
    arrived: asyncio.Queue[tuple[Noting, Reader]] = asyncio.Queue()

    async def handle(connection: ServerConnection) -> None:
        assert isinstance(connection, Noting)
        reader = Reader()
        connection.receiver = None if deaf else reader
        arrived.put_nowait((connection, reader))
        await connection.wait_closed()

    async with serve(
        handle,
        "127.0.0.1",
        0,
        create_connection=Noting,
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        compression=None,
        ping_interval=ping_s,
        ping_timeout=ping_s,
        close_timeout=0.2,
        write_limit=transport.WRITE_LIMIT_BYTES,
    ) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield Place(f"ws://127.0.0.1:{port}", arrived)


def fill(connection: ServerTransport, size: int = 64 * KIB) -> int:
    """Send until the transport can take no more; return how many messages that took."""
    count = 0
    while not connection.paused:
        connection.send_message(bytes(size))
        count += 1
    return count


# What we take from websockets


def test_websockets_is_of_the_major_version_that_this_holds_for() -> None:
    assert importlib.metadata.version("websockets").startswith("17.")


async def test_process_event_is_called_with_every_frame_as_it_came() -> None:
    async with place() as there, there.raw_pair() as (client, connection, reader):
        client.send(websocket_frame(b"one"))
        client.send(websocket_frame(b"tw", fin=False))
        client.send(websocket_frame(b"ping", opcode=PING))
        client.send(websocket_frame(b"o", opcode=CONT))
        assert [await reader.next(), await reader.next()] == [b"one", b"two"]

        frames = connection.events[1:]  # the first is the request
        assert all(type(frame) is Frame for frame in frames)
        told = [(f.opcode, bytes(f.data), f.fin) for f in frames if isinstance(f, Frame)]
        assert told == [
            (Opcode.BINARY, b"one", True),
            (Opcode.BINARY, b"tw", False),
            (Opcode.PING, b"ping", True),
            (Opcode.CONT, b"o", True),
        ]
        assert await client.read_raw() == (PONG, b"ping")


async def test_message_is_whole_and_written_at_once() -> None:
    async with place() as there, there.raw_pair() as (client, connection, _):
        letter = Letter()

        assert connection.send_message(b"hello", letter) is True
        assert letter.written
        assert await client.read_raw() == (BINARY, b"hello")


async def test_message_that_comes_with_the_answer_to_the_handshake_is_not_lost() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = next(
            line.partition(": ")[2]
            for line in request.split("\r\n")
            if line.startswith("Sec-WebSocket-Key")
        )
        head = (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept_key(key)}\r\n\r\n"
        )
        writer.write(head.encode() + websocket_frame(b"welcome", masked=False))
        await reader.read(1)
        writer.close()

    arrived = Reader()

    def with_reader(*args: Any, **kwargs: Any) -> ClientTransport:
        connection = ClientTransport(*args, **kwargs)
        connection.receiver = arrived
        return connection

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with connect(
            f"ws://127.0.0.1:{port}",
            create_connection=with_reader,  # type: ignore[arg-type]  # a factory
            compression=None,
        ):
            assert await arrived.next() == b"welcome"
    await arrived.gone()


async def test_peer_that_answers_no_ping_is_gone() -> None:
    """CONN-7: a lost peer is noticed without anything being sent to it."""
    async with place(ping_s=0.05) as there, there.raw_pair() as (client, _, reader):
        await reader.gone()

        assert await client.close_code() == 1011


# Reading


async def test_fragments_are_joined() -> None:
    """CONN-13."""
    async with place() as there, there.raw_pair() as (client, _, reader):
        client.send(websocket_frame(b"", fin=False))
        for letter in (b"a", b"", b"b"):
            client.send(websocket_frame(letter, opcode=CONT, fin=False))
        client.send(websocket_frame(b"c", opcode=CONT))
        client.send(websocket_frame(b"next"))

        assert [await reader.next(), await reader.next()] == [b"abc", b"next"]


@pytest.mark.row(30)
async def test_message_in_too_many_fragments_is_refused() -> None:
    """CONN-13."""
    async with place() as there, there.raw_pair() as (client, _, reader):
        more = websocket_frame(b"", opcode=CONT, fin=False)
        client.send(websocket_frame(b"", fin=False) + more * 1_022)
        client.send(websocket_frame(b"", opcode=CONT))
        assert await reader.next() == b""

        client.send(websocket_frame(b"", fin=False) + more * 100_000)
        assert await client.close_code() == 1002


@pytest.mark.row(21)
async def test_text_is_refused_whole_or_in_fragments() -> None:
    """FRAME-1."""
    async with place() as there:
        for fin in (True, False):
            async with there.raw_pair() as (client, _, reader):
                client.send(websocket_frame(b"hello", opcode=TEXT, fin=fin))
                client.send(websocket_frame(b"more", opcode=BINARY if fin else CONT))

                assert await client.close_code() == 1003
                assert reader.messages.empty()


async def test_message_that_nobody_waits_for_yet_is_refused() -> None:
    async with place(deaf=True) as there, there.raw_pair() as (client, _, _):
        client.send(websocket_frame(b"hello"))

        assert await client.close_code() == 1002


async def test_nothing_is_read_after_we_closed() -> None:
    class Closing(Reader):
        def on_message(self, data: bytes) -> None:
            super().on_message(data)
            connection.close_with(4429, "enough")

    async with place() as there, there.raw_pair() as (client, connection, _):
        connection.receiver = closing = Closing()
        client.send(b"".join(websocket_frame(text) for text in (b"one", b"two", b"three")))
        client.send(websocket_frame(b"fo", fin=False) + websocket_frame(b"ur", opcode=CONT))

        assert await client.close_code() == 4429
        await closing.gone()
        assert (closing.messages.qsize(), closing.closes) == (1, 1)


# Writing to a peer that is slow


async def test_messages_wait_in_order_while_the_transport_is_full() -> None:
    async with place() as there, there.raw_pair() as (client, connection, _):
        client.stop_reading()
        ahead = fill(connection)
        letters = [Letter() for _ in range(5)]
        for number, letter in enumerate(letters):
            assert connection.send_message(bytes([number]) * 9, letter)
        assert not any(letter.written for letter in letters)

        client.read_again()
        for _ in range(ahead):
            assert len((await client.read_raw()).payload) == 64 * KIB
        assert [(await client.read_raw()).payload[0] for _ in letters] == [0, 1, 2, 3, 4]
        assert all(letter.written for letter in letters)
        assert connection.send_message(b"at once", last := Letter())
        assert last.written


async def test_message_whose_ticket_has_ended_is_never_written() -> None:
    async with place() as there, there.raw_pair() as (client, connection, _):
        client.stop_reading()
        ahead = fill(connection)
        letters = [Letter() for _ in range(4)]
        for number, letter in enumerate(letters):
            assert connection.offer_message(bytes([number]), letter)
        letters[0].ended = letters[2].ended = True

        client.read_again()
        for _ in range(ahead):
            await client.read_raw()
        assert [(await client.read_raw()).payload[0] for _ in range(2)] == [1, 3]
        assert [letter.written for letter in letters] == [False, True, False, True]


async def test_offer_is_refused_long_before_anybody_is_closed() -> None:
    """CONN-14 and CALL-18."""
    async with place() as there, there.raw_pair() as (client, connection, reader):
        client.stop_reading()
        fill(connection)
        taken = 0
        while connection.offer_message(bytes(64 * KIB), Letter()):
            taken += 1
        assert 60 <= taken <= 64
        assert connection.send_message(b"news that nobody may refuse")
        assert (connection.is_open, reader.closes) == (True, 0)

        client.read_again()
        raw = await client.read_raw()
        while raw.payload != b"news that nobody may refuse":
            raw = await client.read_raw()
        assert connection.offer_message(b"again", letter := Letter())
        assert letter.written


@pytest.mark.row(69)
async def test_only_the_slow_one_is_closed_when_too_much_waits_for_it() -> None:
    """CONN-14."""
    async with (
        place() as there,
        there.raw_pair() as (slow, to_slow, slow_reader),
        there.raw_pair() as (quick, to_quick, _),
    ):
        slow.stop_reading()
        fill(to_slow)
        waiting = 0
        while to_slow.send_message(bytes(64 * KIB)):
            waiting += 1
            assert to_quick.send_message(b"on time")
        assert 120 <= waiting <= 128  # 8 MiB
        assert not to_slow.send_message(b"late")
        await slow_reader.gone()

        slow.read_again()
        assert await slow.close_code() in {4430, 1006}  # cut short if it reads too late
        for _ in range(waiting):
            assert (await quick.read_raw()).payload == b"on time"
        assert to_quick.is_open


async def test_slow_one_that_reads_in_time_is_told_why() -> None:
    async with place() as there, there.raw_pair() as (client, connection, reader):
        client.stop_reading()
        fill(connection)
        while connection.send_message(bytes(64 * KIB)):
            pass

        client.read_again()
        assert await client.close_code() == 4430
        await reader.gone()


async def test_peer_that_reads_nothing_for_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its pings would wait behind the rest: websockets' keepalive alone never ends."""
    monkeypatch.setattr(transport, "_STALL_TIMEOUT_S", 0.05)
    async with place() as there, there.raw_pair() as (client, connection, reader):
        client.stop_reading()
        fill(connection)

        await reader.gone()


async def test_peer_that_reads_again_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_STALL_TIMEOUT_S", 3_600.0)
    async with place() as there, there.raw_pair() as (client, connection, reader):
        client.stop_reading()
        ahead = fill(connection)
        client.read_again()
        for _ in range(ahead):
            await client.read_raw()

        assert connection._stall is None
        assert (connection.is_open, reader.closes) == (True, 0)


async def test_closing_does_not_wait_for_who_does_not_read() -> None:
    async with place() as there, there.raw_pair() as (client, connection, reader):
        client.stop_reading()
        fill(connection)
        async with asyncio.timeout(5):
            await connection.close()
        await reader.gone()


async def test_pings_of_who_reads_nothing_are_not_answered_for_ever() -> None:
    async with place() as there, there.raw_pair() as (client, connection, reader):
        client.stop_reading()
        fill(connection)
        for _ in range(1_000):
            client.send(websocket_frame(bytes(125), opcode=PING) * 1_000)  # 125 MB of pongs
            if reader.closes:
                break
            with suppress(ConnectionError):
                await client.flush()
            assert connection.transport.get_write_buffer_size() < 2 * KIB * KIB
        assert reader.closes or not connection.is_open
        await reader.gone()


# Closing


async def test_close_with_says_why_and_returns_at_once() -> None:
    async with place() as there, there.raw_pair() as (client, connection, reader):
        connection.close_with(4440, "revoked")
        assert not connection.is_open
        connection.close_with(4401, "again")
        assert connection.send_message(b"late", letter := Letter()) is False
        assert connection.offer_message(b"late", letter) is False
        assert not letter.written

        assert await client.read_raw() == (CLOSE, b"\x11\x58revoked")
        await reader.gone()  # though the client does not close its side
        assert reader.closes == 1


async def test_owner_learns_once_that_the_connection_is_gone() -> None:
    async with place() as there:
        for end in ("close", "abort", "eof"):
            async with there.raw_pair() as (client, connection, reader):
                if end == "close":
                    client.send(websocket_frame(b"\x03\xe8", opcode=CLOSE))
                elif end == "eof":
                    client.writer.write_eof()
                if end != "close":
                    client.abort()
                await reader.gone()
                assert reader.closes == 1
                assert connection.send_message(b"late") is False


@pytest.mark.row(33)
async def test_peer_that_broke_a_rule_and_stays_is_dropped() -> None:
    async with place() as there, there.raw_pair() as (client, _, reader):
        client.send(websocket_frame(b"hello", masked=False))

        assert await client.close_code() == 1002
        await reader.gone()


async def test_what_came_before_the_peer_closed_is_read() -> None:
    async with place() as there, there.raw_pair() as (client, _, reader):
        client.send(websocket_frame(b"last words") + websocket_frame(b"\x03\xe8", opcode=CLOSE))

        assert await reader.next() == b"last words"
        await reader.gone()


def test_log_for_websockets_hides_what_travels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    log = TransportLog(logging.getLogger("websockets.server"))
    inner = logging.LoggerAdapter(log, {"websocket": "connection"})

    assert not inner.isEnabledFor(logging.DEBUG)
    inner.debug("< Authorization: %s", "token")
    inner.info("connection open")
    assert [record.getMessage() for record in caplog.records] == ["connection open"]
    assert not hasattr(caplog.records[0], "websocket")
