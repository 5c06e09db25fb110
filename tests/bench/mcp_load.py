"""Calls of an MCP tool as bytes of HTTP, so that the caller costs little beside the door.

Standard library only, because it also runs in the environments of rivals.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from bench.role import Facts, keep_calling, serve_orders

MODERN, LEGACY = "2026-07-28", "2025-11-25"
_META = "io.modelcontextprotocol/"


class Connection(asyncio.Protocol):
    """A connection that is kept open, with one request at a time."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: Any = None
        self._body_at = 0
        """Where the body of the answer begins; 0 before its headers have come."""
        self._length: int | None = None
        """That of the body; None for one in chunks."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._body_at:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            self._body_at = end + 4
            self._length = _length(bytes(self._received[:end]))
        length = self._length
        is_whole = (
            self._received.endswith(b"0\r\n\r\n")
            if length is None
            else len(self._received) >= self._body_at + length
        )
        if is_whole and self._answer is not None:
            answer, self._answer = self._answer, None
            answer.set_result(bytes(self._received))
            self._received.clear()
            self._body_at = 0

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"the door closed: {exc}"))

    def ask(self, request: bytes) -> asyncio.Future[bytes]:
        """Send a request; the future gets its answer, headers and all."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer


def _length(headers: bytes) -> int | None:
    for line in headers.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return None


def request(
    url: str, message: Mapping[str, Any], headers: Mapping[str, str], *, method: str = "POST"
) -> bytes:
    """Return a request as it is sent."""
    parts = urlsplit(url)
    body = json.dumps(message, separators=(",", ":")).encode()
    lines = [
        f"{method} {parts.path} HTTP/1.1",
        f"Host: {parts.netloc}",
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def call_of(revision: str, tool: str, identifier: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the message of a call, and the headers of its revision."""
    arguments = {"a": 35, "b": 7}
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    headers = {"MCP-Protocol-Version": revision}
    if revision == MODERN:
        params["_meta"] = {
            f"{_META}protocolVersion": revision,
            f"{_META}clientCapabilities": {},
            f"{_META}clientInfo": {"name": "bench", "version": "1"},
        }
        headers |= {"Mcp-Method": "tools/call", "Mcp-Name": tool}
    message = {"jsonrpc": "2.0", "id": identifier, "method": "tools/call", "params": params}
    return message, headers


async def caller(facts: Facts) -> None:
    """Be a caller of the tool `facts["tool"]` at `facts["door"]`."""
    url, tool, own = facts["door"], facts["tool"], facts.get("headers", {})
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    free: list[tuple[Connection, bytes]] = []
    count = 0

    async def opened(revision: str) -> tuple[Connection, bytes]:
        nonlocal count
        count += 1
        assert parts.hostname is not None
        assert parts.port is not None
        _, connection = await loop.create_connection(Connection, parts.hostname, parts.port)
        session = {} if revision == MODERN else await _session(connection, url, own)
        message, headers = call_of(revision, tool, count)
        return connection, request(url, message, {**own, **headers, **session})

    async def order(revision: str, seconds: float, in_flight: int) -> Facts:
        free.clear()
        free.extend([await opened(revision) for _ in range(in_flight)])

        async def call(_a: int, _b: int) -> dict[str, Any]:
            connection, sent = free.pop()
            answer = await connection.ask(sent)
            if b'"sum":42' not in answer and b'\\"sum\\": 42' not in answer:
                raise AssertionError(answer[:2_000])
            free.append((connection, sent))
            return {}

        return await keep_calling(call, seconds, in_flight)

    await serve_orders({"call": order}, ready=True)


async def _session(connection: Connection, url: str, own: Mapping[str, str]) -> dict[str, str]:
    """Begin a session of 2025-11-25, and return the header that its requests have."""
    params = {
        "protocolVersion": LEGACY,
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    }
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    answer = await connection.ask(request(url, hello, own))
    for line in answer.split(b"\r\n\r\n")[0].split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"mcp-session-id":
            return {"Mcp-Session-Id": value.strip().decode()}
    return {}
