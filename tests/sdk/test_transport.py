"""Our connections on websockets 17: what we take from it, and what we do in its place.

websockets calls `process_event` with each frame it has read and leaves writing to whoever holds the
transport. Neither is in its promises, so it is held here, over real sockets.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.frames import Frame, Opcode
from websockets.utils import accept_key

from support.raw_client import (
    BINARY,
    CLOSE,
    CONT,
    PING,
    PONG,
    TEXT,
    websocket_frame,
)
from support.transport_pair import Letter, Reader, place
from toolbus.transport import ClientTransport, TransportLog

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
