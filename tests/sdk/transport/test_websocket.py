"""Our connections on websockets 15, 16 and 17: what we use of it, and what we replace.

websockets parses what `data_received` gets, calls `process_event` with each parsed frame, and
leaves writing to the owner of the transport. None of this is part of its documented interface, so
it is tested here, over real sockets; test_framing.py tests the frames that we parse and build
ourselves.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from socket import IPPROTO_TCP, TCP_NODELAY
from typing import Any

import pytest
import uvloop
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.utils import accept_key

from support.clients.raw_client import (
    BINARY,
    CLOSE,
    CONT,
    PING,
    PONG,
    TEXT,
    websocket_frame,
)
from support.parts.transport_pair import PlainTicket, RecordingReceiver, transport_server
from toolbus.transport.websocket import ClientTransport, RedactingLogger

# What we use of websockets


def test_websockets_has_a_tested_major_version() -> None:
    assert importlib.metadata.version("websockets").partition(".")[0] in {"15", "16", "17"}


async def test_process_event_is_called_with_every_other_frame() -> None:
    async with transport_server() as there, there.raw_pair() as (client, connection, reader):
        client.send(websocket_frame(b"one"))
        client.send(websocket_frame(b"tw", fin=False))
        client.send(websocket_frame(b"ping", opcode=PING))
        client.send(websocket_frame(b"o", opcode=CONT))
        client.send(websocket_frame(bytes(2**16)))
        assert [await reader.next() for _ in range(3)] == [b"one", b"two", bytes(2**16)]

        frames = connection.events[1:]  # the first is the request
        assert all(type(frame) is Frame for frame in frames)
        received = [(f.opcode, bytes(f.data), f.fin) for f in frames if isinstance(f, Frame)]
        assert received == [
            (Opcode.BINARY, b"tw", False),
            (Opcode.PING, b"ping", True),
            (Opcode.CONT, b"o", True),
        ]
        assert await client.read_raw() == (PONG, b"ping")


async def test_message_is_whole_and_written_at_once() -> None:
    async with transport_server() as there, there.raw_pair() as (client, connection, _):
        letter = PlainTicket()

        assert connection.send_message(b"hello", letter) is True
        assert letter.written
        assert await client.read_raw() == (BINARY, b"hello")


@asynccontextmanager
async def answering(answer: Callable[[str], list[bytes]]) -> AsyncIterator[str]:
    """A server that replies to every handshake with these pieces, made from its key."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = next(
            line.partition(": ")[2]
            for line in request.split("\r\n")
            if line.startswith("Sec-WebSocket-Key")
        )
        writer.transport.get_extra_info("socket").setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        for piece in answer(key):
            writer.write(piece)
            await writer.drain()
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def accepted(key: str) -> bytes:
    head = (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept_key(key)}\r\n\r\n"
    )
    return head.encode()


def client_with(reader: RecordingReceiver) -> Any:
    """Make a factory of connections with this receiver from their first moment."""

    def made(*args: Any, **kwargs: Any) -> ClientTransport:
        connection = ClientTransport(*args, **kwargs)
        connection.receiver = reader
        return connection

    return made


async def test_messages_received_with_the_handshake_response_are_not_lost() -> None:
    welcome = websocket_frame(b"welcome", masked=False)
    half, rest = welcome[:4], welcome[4:]

    def in_one_piece(key: str) -> list[bytes]:
        return [accepted(key) + welcome * 2]

    def with_half_a_message(key: str) -> list[bytes]:
        return [accepted(key) + welcome + half, rest]

    def byte_by_byte(key: str) -> list[bytes]:
        return [bytes([byte]) for byte in accepted(key) + welcome * 2]

    for answer in (in_one_piece, with_half_a_message, byte_by_byte):
        arrived = RecordingReceiver()
        async with (
            answering(answer) as url,
            connect(url, create_connection=client_with(arrived), compression=None) as connection,
        ):
            assert [await arrived.next(), await arrived.next()] == [b"welcome", b"welcome"]
            await connection.close()
        await arrived.gone()


async def test_body_of_a_refused_handshake_is_not_taken_for_messages() -> None:
    body = websocket_frame(b"no message", masked=False) * 2
    head = f"HTTP/1.1 401 Unauthorized\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for pieces in ([head + body], [head, body], [head[:9], head[9:] + body[:5], body[5:]]):
        arrived = RecordingReceiver()
        async with answering(lambda _, pieces=pieces: pieces) as url:  # type: ignore[misc]
            with pytest.raises(InvalidStatus) as refused:
                await connect(url, create_connection=client_with(arrived), compression=None)
        assert refused.value.response.status_code == 401
        assert refused.value.response.body == body
        await arrived.gone()
        assert arrived.messages.empty()


async def test_peer_that_answers_no_ping_is_disconnected() -> None:
    """CONN-7: a lost peer is detected although nothing is sent to it."""
    async with transport_server(ping_s=0.05) as there, there.raw_pair() as (client, _, reader):
        await reader.gone()

        assert await client.close_code() == 1011


# Reading


async def test_fragments_are_joined() -> None:
    """CONN-13."""
    async with transport_server() as there, there.raw_pair() as (client, _, reader):
        client.send(websocket_frame(b"", fin=False))
        for letter in (b"a", b"", b"b"):
            client.send(websocket_frame(letter, opcode=CONT, fin=False))
        client.send(websocket_frame(b"c", opcode=CONT))
        client.send(websocket_frame(b"next"))

        assert [await reader.next(), await reader.next()] == [b"abc", b"next"]


async def test_message_in_too_many_fragments_is_refused() -> None:
    """CONN-13."""
    async with transport_server() as there, there.raw_pair() as (client, _, reader):
        more = websocket_frame(b"", opcode=CONT, fin=False)
        client.send(websocket_frame(b"", fin=False) + more * 1_022)
        client.send(websocket_frame(b"", opcode=CONT))
        assert await reader.next() == b""

        client.send(websocket_frame(b"", fin=False) + more * 100_000)
        assert await client.close_code() == 1002


async def test_text_is_refused_whole_or_in_fragments() -> None:
    """FRAME-1."""
    async with transport_server() as there:
        for fin in (True, False):
            async with there.raw_pair() as (client, _, reader):
                client.send(websocket_frame(b"hello", opcode=TEXT, fin=fin))
                client.send(websocket_frame(b"more", opcode=BINARY if fin else CONT))

                assert await client.close_code() == 1003
                assert reader.messages.empty()


async def test_message_without_a_receiver_is_refused() -> None:
    async with transport_server(deaf=True) as there, there.raw_pair() as (client, _, _):
        client.send(websocket_frame(b"hello"))

        assert await client.close_code() == 1002


async def test_nothing_is_read_after_we_closed() -> None:
    class Closing(RecordingReceiver):
        def on_message(self, data: bytes) -> None:
            super().on_message(data)
            connection.close_with(4429, "enough")

    async with transport_server() as there, there.raw_pair() as (client, connection, _):
        connection.receiver = closing = Closing()
        client.send(b"".join(websocket_frame(text) for text in (b"one", b"two", b"three")))
        client.send(websocket_frame(b"fo", fin=False) + websocket_frame(b"ur", opcode=CONT))

        assert await client.close_code() == 4429
        await closing.gone()
        assert (closing.messages.qsize(), closing.closes) == (1, 1)


# Closing


async def test_close_with_sends_the_reason_and_returns_at_once() -> None:
    async with transport_server() as there, there.raw_pair() as (client, connection, reader):
        connection.close_with(4440, "revoked")
        assert not connection.is_open
        connection.close_with(4401, "again")
        assert connection.send_message(b"late", letter := PlainTicket()) is False
        assert connection.offer_message(b"late", letter) is False
        assert not letter.written

        assert await client.read_raw() == (CLOSE, b"\x11\x58revoked")
        await reader.gone()  # although the client does not close its side
        assert reader.closes == 1


async def test_receiver_is_notified_once_of_the_end() -> None:
    async with transport_server() as there:
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


async def test_peer_that_broke_a_rule_and_stays_is_dropped() -> None:
    async with transport_server() as there, there.raw_pair() as (client, _, reader):
        client.send(websocket_frame(b"hello", masked=False))

        assert await client.close_code() == 1002
        await reader.gone()


async def test_nothing_is_read_after_the_peer_closed() -> None:
    async with transport_server() as there, there.raw_pair() as (client, _, reader):
        late = websocket_frame(b"late") + websocket_frame(b"late ping", opcode=PING)
        client.send(websocket_frame(b"\x03\xe8", opcode=CLOSE) + late)
        client.send(late)

        assert await client.read_raw() == (CLOSE, b"\x03\xe8")
        await reader.gone()
        assert await client.reader.read() == b""
        assert reader.messages.empty()


async def test_messages_are_read_until_the_peer_has_answered_our_close() -> None:
    async with transport_server() as there, there.raw_pair() as (client, connection, reader):
        client.send(websocket_frame(b"before"))
        assert await reader.next() == b"before"
        closing = asyncio.ensure_future(connection.close())
        assert (await client.read_raw()).opcode == CLOSE
        client.send(websocket_frame(b"meanwhile") + websocket_frame(b"\x03\xe8", opcode=CLOSE))

        assert await reader.next() == b"meanwhile"
        await closing
        await reader.gone()


async def test_message_that_arrives_while_we_close_is_read() -> None:
    """The part received before goes to websockets then, and the rest after it."""
    large = websocket_frame(bytes(2**17))
    async with transport_server() as there, there.raw_pair() as (client, connection, reader):
        client.send(websocket_frame(b"before") + large[: 2**16])
        assert await reader.next() == b"before"
        closing = asyncio.ensure_future(connection.close())
        assert (await client.read_raw()).opcode == CLOSE
        client.send(large[2**16 :] + websocket_frame(b"\x03\xe8", opcode=CLOSE))

        assert await reader.next() == bytes(2**17)
        await closing
        await reader.gone()


async def test_nothing_is_read_after_websockets_failed_the_connection() -> None:
    """CONN-7: its keepalive fails the connection without our `close_with`."""
    async with (
        transport_server(ping_s=0.05) as there,
        there.raw_pair() as (client, connection, reader),
    ):
        client.send(websocket_frame(b"in time"))
        assert await reader.next() == b"in time"
        assert await client.close_code() == 1011
        assert not connection.is_open
        client.send(websocket_frame(b"late") * 2)

        await reader.gone()
        assert reader.messages.empty()


def test_replies_on_a_lost_connection_are_dropped_silently() -> None:
    """On uvloop a write to a closed transport would raise."""

    async def lose_it() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, received: faults.append(received)
        )
        async with transport_server() as there, there.raw_pair() as (_, connection, _reader):
            connection.batches = True
            received = asyncio.Event()

            class Losing(RecordingReceiver):
                def on_message(self, data: bytes) -> None:
                    connection.transport.abort()
                    connection.send_message(data)
                    received.set()

            connection.receiver = losing = Losing()
            connection.data_received(websocket_frame(b"one") + websocket_frame(b"two"))
            assert received.is_set()
            await losing.gone()
            turn = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(turn.set_result, None)
            await turn

    for make_loop in (uvloop.new_event_loop, asyncio.new_event_loop):
        faults: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(lose_it())
        assert faults == []


async def test_message_received_before_the_peer_closed_is_read() -> None:
    async with transport_server() as there, there.raw_pair() as (client, _, reader):
        client.send(websocket_frame(b"last words") + websocket_frame(b"\x03\xe8", opcode=CLOSE))

        assert await reader.next() == b"last words"
        await reader.gone()


def test_log_for_websockets_hides_the_content(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "websockets")  # commands in this process have set another one
    log = RedactingLogger("websockets.server")
    inner = logging.LoggerAdapter(log, {"websocket": "connection"})

    assert not inner.isEnabledFor(logging.DEBUG)
    inner.debug("< Authorization: %s", "token")
    inner.info("connection open")
    assert [record.getMessage() for record in caplog.records] == ["connection open"]
    assert not hasattr(caplog.records[0], "websocket")
