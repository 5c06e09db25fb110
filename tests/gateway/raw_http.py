"""HTTP byte by byte, for requests that no client sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import urlsplit


class Response(NamedTuple):
    """A response as it was read."""

    status: int
    headers: dict[str, str]
    body: bytes


class RawConnection:
    """A connection; what is awaited is bounded by the test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def response(self) -> Response:
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").rstrip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        if headers.get("transfer-encoding") == "chunked":
            return Response(int(first.split()[1]), headers, await self._chunks())
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Response(int(first.split()[1]), headers, body)

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()
        return body

    async def is_closed(self) -> bool:
        """Wait for the end of the connection."""
        try:
            while await self.reader.read(65_536):
                pass
        except ConnectionError:
            pass
        return True


@asynccontextmanager
async def raw_connection(url: str) -> AsyncIterator[RawConnection]:
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()
