"""An HTTP server on loopback that speaks the APIs of the providers, with scripted replies."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import h11

from support.models.strict_rules import refusals
from support.models.wire_replies import Says, chat_counts, events_of, whole_reply
from support.models.wire_rules import wrongs

__all__ = ["KEY", "Broken", "ModelServer", "model_server"]

KEY = "sk-stub-0123456789abcdefghij"
_PATHS = {
    "/v1/chat/completions": "openai-chat",
    "/v1/responses": "openai-responses",
    "/v1/messages": "anthropic",
}
BASE_PATHS = {"openai-chat": "/v1", "openai-responses": "/v1", "anthropic": "", "gemini": ""}


@dataclass(frozen=True)
class Broken:
    """A response that is not as it should be."""

    status: int = 200
    body: bytes | Callable[[str, dict[str, str]], bytes] = b""
    """A function gets the API and the headers of the request."""
    headers: dict[str, str] = field(default_factory=dict)
    after: Says | None = None
    """Streamed first, without its end."""
    is_cut: bool = False
    """The connection is closed before the body ends."""
    waits: bool = False
    """Nothing more comes."""


@dataclass(repr=False)  # it keeps the headers, with the key
class ModelServer:
    """A running server."""

    script: list[Says | Broken]
    port: int = 0
    compares: bool = True
    """Whether a request is compared with what the model said here, and nowhere else."""
    said: list[Says] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    wrongs: list[str] = field(default_factory=list)
    """What was wrong with requests."""
    connections: int = 0
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    """A response has come to the point at which it waits."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """A client has left a response that waits."""

    def url(self, api: str) -> str:
        """Return the base URL for an API."""
        return f"http://127.0.0.1:{self.port}{BASE_PATHS[api]}"


@asynccontextmanager
async def model_server(*script: Says | Broken, compares: bool = True) -> AsyncIterator[ModelServer]:
    """Serve on a free port; each request gets the next part of the script."""
    running = ModelServer(list(script), compares=compares)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        running.connections += 1
        try:
            line = _Line(reader, writer)
            while await _answered(running, line):
                line.connection.start_next_cycle()
        except (ConnectionError, h11.RemoteProtocolError, asyncio.CancelledError):
            pass  # the client left, or the test has ended
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    running.port = server.sockets[0].getsockname()[1]
    try:
        yield running
    finally:
        server.close()


class _Line:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection = h11.Connection(h11.SERVER)
        self.reader, self._writer = reader, writer

    async def send(self, *events: Any) -> None:
        for event in events:
            self._writer.write(self.connection.send(event) or b"")
        await self._writer.drain()

    async def next(self) -> Any:
        while (event := self.connection.next_event()) is h11.NEED_DATA:
            self.connection.receive_data(await self.reader.read(65_536))
        return event


async def _answered(server: ModelServer, line: _Line) -> bool:
    request = await line.next()
    if not isinstance(request, h11.Request):
        return False
    data = b""
    while isinstance(event := await line.next(), h11.Data):
        data += event.data
    headers = {name.decode(): value.decode("latin-1") for name, value in request.headers}
    body = json.loads(data)
    server.requests.append(body)
    server.headers.append(headers)
    path = request.target.decode()
    api = _PATHS.get(path, "gemini")
    is_streamed = bool(body.get("stream")) or ":streamGenerateContent" in path
    found = wrongs(api, body, server.said) if server.compares else []
    found += refusals(api, body, server.said)
    if api == "gemini" and not re.match(r"/v1/models/[\w.-]+:\w*enerateContent", path):
        found.append(f"the path {path}")
    server.wrongs += found
    answer = server.script.pop(0) if server.script else Broken(500, b"the script has ended")
    if found:
        answer = Broken(400, json.dumps({"error": {"message": "; ".join(found)}}).encode())
    if isinstance(answer, Broken):
        await _send_broken(server, line, answer, api, headers)
        return False
    server.said.append(answer)
    if not is_streamed:
        await _send_whole(line, 200, json.dumps(whole_reply(api, answer)).encode())
    else:
        await _begin_stream(line)
        for name, event_data in events_of(api, answer):
            await line.send(h11.Data(_event(name, event_data)))
        if body.get("stream_options") == {"include_usage": True}:
            await line.send(h11.Data(_event("", chat_counts(answer))))
        end = b"data: [DONE]\n\n" if api == "openai-chat" else b""
        await line.send(h11.Data(end), h11.EndOfMessage())
    return line.connection.our_state is h11.DONE and line.connection.their_state is h11.DONE


async def _send_whole(
    line: _Line, status: int, body: bytes, headers: dict[str, str] | None = None
) -> None:
    fields = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        **(headers or {}),
    }
    await line.send(h11.Response(status_code=status, headers=list(fields.items())), h11.Data(body))
    if int(fields["content-length"]) == len(body):
        await line.send(h11.EndOfMessage())


async def _begin_stream(line: _Line) -> None:
    fields = [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")]
    await line.send(h11.Response(status_code=200, headers=fields))


def _event(name: str, data: dict[str, Any]) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


async def _send_broken(
    server: ModelServer, line: _Line, answer: Broken, api: str, headers: dict[str, str]
) -> None:
    body = answer.body if isinstance(answer.body, bytes) else answer.body(api, headers)
    if answer.after is not None:
        await _begin_stream(line)
        end = 2 if api == "anthropic" else 1  # the reason to stop is in the event before the last
        events = [_event(*each) for each in events_of(api, answer.after)][:-end]
        await line.send(*map(h11.Data, [*events, body]))
        if not answer.is_cut and not answer.waits:
            await line.send(h11.EndOfMessage())
    elif body or not answer.waits:
        missing = 9 if answer.is_cut or answer.waits else 0
        length = {"content-length": str(len(body) + missing)} if missing else {}
        await _send_whole(line, answer.status, body, {**answer.headers, **length})
    if answer.waits:
        server.waiting.set()
        try:
            while await line.reader.read(65_536):
                pass
        finally:
            server.left.set()
