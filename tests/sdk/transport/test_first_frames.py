"""Frames that arrive together with the welcome are handled like all others."""

from __future__ import annotations

import asyncio
import base64
import hashlib

from support.clients.raw_client import BINARY, websocket_frame
from toolbus import RoomClient
from toolbus.wire import (
    CallId,
    Dispatch,
    Failed,
    ParticipantId,
    RequestId,
    Welcome,
    decode_from_client,
    encode,
    pack_body,
)

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    """Read one short masked frame."""
    first, second = await reader.readexactly(2)
    assert first & 0x0F == BINARY
    size = second & 0x7F
    if size == 126:
        size = int.from_bytes(await reader.readexactly(2), "big")
    mask = await reader.readexactly(4)
    data = await reader.readexactly(size)
    return bytes(byte ^ mask[place % 4] for place, byte in enumerate(data))


async def test_call_in_one_packet_with_the_handshake_is_answered() -> None:
    answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        lines = dict(line.split(b": ", 1) for line in request.split(b"\r\n")[1:] if b": " in line)
        accept = base64.b64encode(hashlib.sha1(lines[b"Sec-WebSocket-Key"] + _GUID).digest())
        facts = {"name": "bob", "issuer": "acme", "role": "user", "api": {}}
        welcome = Welcome(1, ParticipantId("p"), "lab", "s", facts)
        header = {"caller": ["p", "alice", "user", "acme"]}
        call = Dispatch(RequestId(5), CallId("c"), "t", "run", 1_000, pack_body({}), header)
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: "
            + accept
            + b"\r\nSec-WebSocket-Protocol: toolbus.v1\r\n\r\n"
            + websocket_frame(encode(welcome), masked=False)
            + websocket_frame(encode(call), masked=False)
        )
        answered.set_result(await _read_message(reader))
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        port = server.sockets[0].getsockname()[1]
        async with RoomClient(f"ws://127.0.0.1:{port}", room="lab", token="e30.e30.t"):
            reply = decode_from_client(await answered)
        assert isinstance(reply, Failed)
        assert (reply.id, reply.code, reply.executed) == (5, "no_host", "no")
