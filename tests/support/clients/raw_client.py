"""A client that sends raw bytes, also those that no library would send.

It implements just enough HTTP and RFC 6455 to be understood, packs frames by hand, and never
corrects what it is told to send. It answers pings only while it reads frames.
"""

from __future__ import annotations

import asyncio
import base64
import os
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import msgpack

from toolbus import ApiScope
from toolbus.wire import (
    SUBPROTOCOL,
    BadFrame,
    Event,
    Failed,
    Frame,
    Result,
    UnknownFrame,
    Welcome,
    decode_from_server,
    encode,
    unpack_body,
)
from toolbus_server.testing import TestServer

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
ABNORMAL = 1006
"""Instead of a close code: the server ended the connection without one."""
_MASK = b"\x01\x02\x03\x04"


class Raw(NamedTuple):
    """One websocket frame that the server sent."""

    opcode: int
    payload: bytes


class Head(NamedTuple):
    """The server's answer to the handshake."""

    status: int
    headers: dict[str, str]
    body: str


def websocket_frame(
    payload: bytes,
    *,
    opcode: int = BINARY,
    fin: bool = True,
    rsv: int = 0,
    masked: bool = True,
) -> bytes:
    """Pack one websocket frame, valid or not."""
    head = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
    mask_bit = 0x80 if masked else 0
    size = len(payload)
    if size < 126:
        head += bytes([mask_bit | size])
    elif size < 65_536:
        head += bytes([mask_bit | 126]) + struct.pack("!H", size)
    else:
        head += bytes([mask_bit | 127]) + struct.pack("!Q", size)
    return head + (_MASK + _masked(payload) if masked else payload)


def _masked(payload: bytes) -> bytes:
    mask = int.from_bytes((_MASK * (len(payload) // 4 + 1))[: len(payload)], "big")
    return (int.from_bytes(payload, "big") ^ mask).to_bytes(len(payload), "big")


def upgrade_request(path: str, headers: Sequence[tuple[str, str]] = ()) -> bytes:
    """Write the request for a websocket; `headers` are added to the required ones."""
    lines = [
        f"GET {path} HTTP/1.1",
        "Host: localhost",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
        "Sec-WebSocket-Version: 13",
        *(f"{name}: {value}" for name, value in headers),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def bearer(token: str) -> list[tuple[str, str]]:
    """Offer a token as a program does."""
    return [("Sec-WebSocket-Protocol", SUBPROTOCOL), ("Authorization", f"Bearer {token}")]


def browser_bearer(token: str) -> list[tuple[str, str]]:
    """Offer a token as a browser must."""
    return [("Sec-WebSocket-Protocol", f"{SUBPROTOCOL}, bearer.{token}")]


class RawClient:
    """One TCP connection to a server.

    Args:
        reader: What the server sends.
        writer: What it receives.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.welcome: Welcome | None = None

    @classmethod
    async def connect(cls, url: str) -> Self:
        """Open the TCP connection and send nothing."""
        place = urlsplit(url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=2**22)
        return cls(reader, writer)

    def abort(self) -> None:
        """Drop the connection and what it has not sent."""
        self.writer.transport.abort()

    def stop_reading(self) -> None:
        """Stop reading, so that buffers on the way fill."""
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's

    def read_again(self) -> None:
        """Read again."""
        self.writer.transport.resume_reading()  # type: ignore[attr-defined]  # a socket's

    async def flush(self) -> None:
        """Wait until the system has accepted nearly all that was written."""
        async with asyncio.timeout(60):
            await self.writer.drain()

    # The handshake

    async def upgrade(self, path: str, headers: Sequence[tuple[str, str]] = ()) -> Head:
        """Request a websocket and return the answer."""
        self.writer.write(upgrade_request(path, headers))
        return await self.read_head()

    async def read_head(self) -> Head:
        """Read an HTTP answer, with its body if one is announced."""
        async with asyncio.timeout(60):
            text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status, *lines = text.strip().split("\r\n")
            headers = {
                name.strip().lower(): value.strip()
                for name, _, value in (line.partition(":") for line in lines)
            }
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Head(int(status.split(" ")[1]), headers, body.decode())

    # Sending

    def send(self, data: bytes) -> None:
        """Send bytes unchanged."""
        self.writer.write(data)

    def send_message(self, data: bytes) -> None:
        """Send one binary message."""
        self.writer.write(websocket_frame(data))

    def send_packed(self, *fields: Any) -> None:
        """Send fields as one frame of our protocol."""
        self.send_message(msgpack.packb(fields))

    def send_frame(self, frame: Frame) -> None:
        """Send a well-formed frame of our protocol."""
        self.send_message(encode(frame))

    # Reading

    async def read_raw(self) -> Raw:
        """Read one websocket frame.

        Raises:
            IncompleteReadError: There are no more.
        """
        async with asyncio.timeout(60):
            first, second = await self.reader.readexactly(2)
            size = second & 0x7F
            if size == 126:
                (size,) = struct.unpack("!H", await self.reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
            return Raw(first & 0x0F, await self.reader.readexactly(size))

    async def read_frame(self) -> Frame:
        """Read the next frame of our protocol; a ping before it is answered, so that the server
        does not end a connection whose test takes long.
        """
        while True:
            raw = await self.read_raw()
            if raw.opcode == PING:
                self.send(websocket_frame(raw.payload, opcode=PONG))
            if raw.opcode == CLOSE:
                raise AssertionError(f"closed with {_code_of(raw.payload)} instead")
            if raw.opcode == BINARY:
                frame = decode_from_server(raw.payload)
                assert not isinstance(frame, UnknownFrame | BadFrame)
                return frame

    async def reply_to(self, request_id: int) -> Result | Failed:
        """Read on until the reply with this id."""
        while True:
            frame = await self.read_frame()
            if isinstance(frame, Result | Failed) and frame.id == request_id:
                return frame

    async def next_event(self) -> Event:
        """Read on until the next event."""
        while True:
            frame = await self.read_frame()
            if isinstance(frame, Event):
                return frame

    async def close_code(self) -> int:
        """Read to the end and return the close code that the server sent."""
        try:
            while (raw := await self.read_raw()).opcode != CLOSE:
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            return ABNORMAL
        return _code_of(raw.payload)

    async def closed_by_both(self) -> int:
        """Read to the end, close too, and return the close code that the server sent.

        A server whose peer keeps its socket open waits for a while before it drops the connection.
        """
        code = await self.close_code()
        self.writer.close()
        return code


def _code_of(payload: bytes) -> int:
    return int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 1005


def details_of(failed: Failed) -> Any:
    """Return the details of a failure reply."""
    return None if failed.details is None else unpack_body(failed.details)


@asynccontextmanager
async def raw_connection(url: str) -> AsyncIterator[RawClient]:
    """Open a TCP connection; it is dropped when the block ends."""
    client = await RawClient.connect(url)
    try:
        yield client
    finally:
        client.abort()


@asynccontextmanager
async def raw_participant(  # noqa: PLR0913 - what a connection chooses
    server: TestServer,
    name: str = "mallory",
    *,
    token: str | None = None,
    instance: str = "",
    epoch: int = 1,
    room: str = "lab",
    query: str = "",
) -> AsyncIterator[RawClient]:
    """Join a room with all grants, or with a token's, and read the welcome.

    `query` is added to that of the URL, such as "&assess=1".
    """
    path = f"/rooms/{room}?instance={instance}&epoch={epoch}{query}"
    async with raw_connection(server.url) as client:
        head = await client.upgrade(path, bearer(token or server.token(name, room=room)))
        assert head.status == 101, head
        welcome = await client.read_frame()
        assert isinstance(welcome, Welcome)
        client.welcome = welcome
        yield client


def with_grants(server: TestServer, name: str, **grants: Any) -> Any:
    """Join the room "lab" with these grants only."""
    return raw_participant(server, token=server.token(name, api=ApiScope(**grants)))
