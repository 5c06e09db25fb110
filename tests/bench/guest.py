"""A participant of bare bytes, of whom one process can hold thousands.

To the server it is like any other: it joins with a token, is answered, and answers pings. Only
what it costs its own process is less, so that many of them measure the server and not themselves.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Self, cast
from urllib.parse import urlsplit

from support.raw_client import BINARY, CLOSE, PING, PONG, bearer, upgrade_request, websocket_frame
from toolbus.wire import (
    Failed,
    Frame,
    Register,
    Result,
    Welcome,
    decode_from_server,
    encode,
    pack_body,
)


class Invitation(NamedTuple):
    """Where a guest goes, and the request that it shows at the door."""

    host: str
    port: int
    request: bytes

    @classmethod
    def to(cls, url: str, room: str, token: str, instance: str = "") -> Self:
        place = urlsplit(url)
        path = f"/rooms/{room}?instance={instance}&epoch=1"
        return cls(
            str(place.hostname), place.port or 80, upgrade_request(path, list(bearer(token)))
        )


class Guest(asyncio.Protocol):
    """One connection. Whatever goes wrong with it ends what waits for it."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._unread = b""
        self._is_upgraded = False
        self._waiting: deque[asyncio.Future[Frame]] = deque()
        self._transport: asyncio.Transport
        self._first = self._next_frame()
        self.pings = 0
        """How many it has answered."""
        self.is_lost = False

    @classmethod
    async def join(cls, invitation: Invitation, timeout_s: float = 30.0) -> Self:
        """Connect and read the welcome; ConnectionError where there is none."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            _, guest = await loop.create_connection(
                lambda: cls(invitation.request), invitation.host, invitation.port
            )
            welcome = await guest._first
        if not isinstance(welcome, Welcome):
            raise ConnectionError(f"no welcome but {type(welcome).__name__}")
        return guest

    def leave(self) -> None:
        self._transport.abort()

    async def register(self, manifests: Sequence[dict[str, object]], timeout_s: float) -> None:
        """Host toolkits that nobody will ever call; ConnectionError if one is refused."""
        answers = [self._next_frame() for _ in manifests]
        for number, manifest in enumerate(manifests, 1):
            frame = encode(Register(number, pack_body(manifest), {}))
            self._transport.write(websocket_frame(frame))
        async with asyncio.timeout(timeout_s):
            for answer in await asyncio.gather(*answers):
                if not isinstance(answer, Result):
                    words = answer.message if isinstance(answer, Failed) else answer
                    raise ConnectionError(f"a toolkit was refused: {words}")

    def _next_frame(self) -> asyncio.Future[Frame]:
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if not self._is_upgraded:
            head, end, rest = self._unread.partition(b"\r\n\r\n")
            if not end:
                return
            if b" 101 " not in head.partition(b"\r\n")[0]:
                self._lose(ConnectionError(head.decode("latin-1") + rest.decode("latin-1")))
                return
            self._is_upgraded, self._unread = True, rest
        while (taken := take_frame(self._unread)) is not None:
            opcode, payload, self._unread = taken
            self._take(opcode, payload)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(ConnectionError("the server ended the connection"))

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self.pings += 1
            self._transport.write(websocket_frame(payload, opcode=PONG))
        elif opcode == CLOSE:
            self._lose(ConnectionError(f"closed: {payload[2:].decode()}"))
        elif opcode == BINARY and self._waiting:
            frame = decode_from_server(payload)
            self._waiting.popleft().set_result(frame)  # type: ignore[arg-type]  # a server's own

    def _lose(self, error: ConnectionError) -> None:
        self.is_lost = True
        self._transport.abort()
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)


def take_frame(data: bytes) -> tuple[int, bytes, bytes] | None:
    """Split the first websocket frame off: opcode, payload, rest; None while it is incomplete."""
    if len(data) < 2:
        return None
    size, start = data[1] & 0x7F, 2
    if size == 126:
        start = 4
    elif size == 127:
        start = 10
    if len(data) < start:
        return None
    if start > 2:
        (size,) = struct.unpack("!H" if start == 4 else "!Q", data[2:start])
    if len(data) < start + size:
        return None
    return data[0] & 0x0F, data[start : start + size], data[start + size :]
