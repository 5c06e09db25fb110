"""An HTTP server on loopback whose answers a test writes, and that records the requests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import h11

__all__ = ["Answer", "Seen", "WebServer", "web_server"]


@dataclass(frozen=True)
class Seen:
    """One request, as it came over the socket."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """One response."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class WebServer:
    """A running server."""

    answer: Callable[[Seen], Answer | Awaitable[Answer]]
    port: int = 0
    open_connections: int = 0
    connections: int = 0
    """How many connections were made in all."""
    all_closed: asyncio.Event = field(default_factory=asyncio.Event)
    seen: list[Seen] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Its address, without a final slash."""
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def web_server(
    answer: Callable[[Seen], Answer | Awaitable[Answer]], tls: ssl.SSLContext | None = None
) -> AsyncIterator[WebServer]:
    """Serve on a free port of 127.0.0.1 until the block ends; with TLS by a context for it."""
    running = WebServer(answer)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running.connections += 1
        running.open_connections += 1
        try:
            connection = h11.Connection(h11.SERVER)
            while await _converse(running, connection, reader, writer):
                connection.start_next_cycle()
        except (ConnectionError, h11.RemoteProtocolError, asyncio.CancelledError):
            pass  # the client left, or the test has ended
        finally:
            writer.close()
            running.open_connections -= 1
            if running.open_connections == 0:
                running.all_closed.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    running.port = server.sockets[0].getsockname()[1]
    try:
        yield running
    finally:
        server.close()


async def _converse(
    running: WebServer,
    connection: h11.Connection,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> bool:
    """Answer one request; return whether another one may follow."""
    request: Any = await _next_event(connection, reader)
    if not isinstance(request, h11.Request):
        return False
    body = b""
    while isinstance(event := await _next_event(connection, reader), h11.Data):
        body += event.data
    headers = {name.decode(): value.decode("latin-1") for name, value in request.headers}
    seen = Seen(request.method.decode(), request.target.decode(), headers, body)
    running.seen.append(seen)
    answer = running.answer(seen)
    if not isinstance(answer, Answer):
        answer = await answer
    fields = {"content-length": str(len(answer.body)), **answer.headers}
    writer.write(
        connection.send(h11.Response(status_code=answer.status, headers=list(fields.items())))
        or b""
    )
    if answer.body and seen.method != "HEAD":
        writer.write(connection.send(h11.Data(answer.body)) or b"")
    writer.write(connection.send(h11.EndOfMessage()) or b"")
    await writer.drain()
    return connection.our_state is h11.DONE and connection.their_state is h11.DONE


async def _next_event(connection: h11.Connection, reader: asyncio.StreamReader) -> Any:
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await reader.read(65_536))
    return event
