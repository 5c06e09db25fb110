"""Requests that no client sends: too large, too slow, too many, and shapes for smuggling."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp_types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY

from gateway.conftest import Door, running_gateway
from gateway.raw_http import raw_connection
from toolbus import FileChunk, Toolkit, tool
from toolbus_gateway import http_protocol
from toolbus_gateway.http_access import AccessSettings
from toolbus_gateway.limits import MAX_BODY_PARTS, MAX_HEADER_BYTES, MAX_HEADERS, MAX_PIPELINED

MIB = 1024 * 1024
HOST = b"Host: localhost\r\n"
GET = b"GET /healthz HTTP/1.1\r\n" + HOST
POST = b"POST /rooms/lab/mcp HTTP/1.1\r\n" + HOST
CHUNKED = b"Transfer-Encoding: chunked\r\n"
END = b"\r\n"
MODERN = b"Mcp-Protocol-Version: 2026-07-28\r\n"


def pings(door: Door, body: bytes, *headers: bytes, name: str = "alice") -> bytes:
    """A request of MCP with these bytes as its body, whose length the headers say."""
    token = door.server.token(name).encode()
    accept = b"Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n"
    bearer = b"Authorization: Bearer " + token + END
    return POST + accept + bearer + b"".join(headers) + END + body


PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'

MALFORMED = {
    "length beside chunks": POST + CHUNKED + b"Content-Length: 3\r\n\r\n0\r\n\r\n",
    "two equal lengths": POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "list of lengths": POST + b"Content-Length: 3, 3\r\n\r\nabc",
    "signed length": POST + b"Content-Length: +3\r\n\r\nabc",
    "length beyond 64 bits": POST + b"Content-Length: 99999999999999999999\r\n\r\n",
    "unknown coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked not last": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "two codings": POST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n",
    "folded header": GET + b"A: b\r\n c\r\n\r\n",
    "space before the colon": GET + b"A : b\r\n\r\n",
    "bare line feeds": GET.replace(b"\r\n", b"\n") + b"\n",
    "bare carriage return": GET + b"A: b\rC: d\r\n\r\n",
    "a zero byte": GET + b"A: b\x00c\r\n\r\n",
    "no hexadecimal size": POST + CHUNKED + b"\r\nzz\r\n",
    "chunk longer than its size": POST + CHUNKED + b"\r\n3\r\nabcdef\r\n0\r\n\r\n",
    "chunk size beyond 64 bits": POST + CHUNKED + b"\r\nfffffffffffffffff\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "version 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "tunnel": b"CONNECT evil.example:80 HTTP/1.1\r\n" + HOST + END,
    "target without a path": b"GET http://localhost HTTP/1.1\r\n" + HOST + END,
    "upgrade with a body": POST + b"Upgrade: h2c\r\nConnection: Upgrade\r\n"
    b"Content-Length: 3\r\n\r\nabc",
}


async def answer(door: Door, request: bytes) -> int:
    """Send what the server refuses; return the status, after it has closed the connection."""
    async with asyncio.timeout(60), raw_connection(door.service.url) as connection:
        await connection.send(request)
        response = await connection.response()
        assert await connection.is_closed()
        return response.status


async def test_malformed_requests_end_their_connection(door: Door) -> None:
    found = {name: await answer(door, request) for name, request in MALFORMED.items()}
    assert found == dict.fromkeys(MALFORMED, 400)


ODD = {
    "no host": (b"POST /rooms/lab/mcp HTTP/1.1\r\n\r\n", 400),
    "two hosts": (POST + HOST + END, 400),
    "version 1.0": (b"POST /rooms/lab/mcp HTTP/1.0\r\n" + HOST + END, 505),
    "probe by version 1.0": (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
    "absolute target": (b"POST http://localhost:1/rooms/lab/mcp HTTP/1.1\r\n" + HOST + END, 401),
    "absolute target of another host": (
        b"POST http://evil.example:80/rooms/lab/mcp HTTP/1.1\r\n" + HOST + END,
        421,
    ),
    "absolute target by address": (
        b"POST http://[::1]:1/rooms/lab/mcp HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        401,
    ),
    "asterisk": (b"OPTIONS * HTTP/1.1\r\n" + HOST + END, 404),
    "token in a trailer": (
        POST + CHUNKED + b"\r\n0\r\nAuthorization: Bearer abc\r\nOrigin: null\r\n\r\n",
        401,
    ),
    "unknown method": (b"DELETE /healthz HTTP/1.1\r\n" + HOST + END, 405),
}


async def test_odd_requests_are_read_as_the_standard_says(door: Door) -> None:
    for name, (request, expected) in ODD.items():
        async with asyncio.timeout(60), raw_connection(door.service.url) as connection:
            await connection.send(request)
            response = await connection.response()
            assert (name, response.status) == (name, expected)


LARGE = {
    "one header": GET + b"A: " + b"a" * MAX_HEADER_BYTES + b"\r\n\r\n",
    "a header without an end": GET + b"A: " + b"a" * MIB,
    "a header name without an end": GET + b"a" * MIB,
    "many headers": GET + b"A: b\r\n" * MAX_HEADERS + END,
    "a target": b"GET /" + b"a" * MAX_HEADER_BYTES + b" HTTP/1.1\r\n" + HOST + END,
    "a target without an end": b"GET /" + b"a" * MIB,
    "a trailer without an end": POST + CHUNKED + b"\r\n0\r\nA: " + b"a" * MIB,
    "many trailers": POST + CHUNKED + b"\r\n0\r\n" + b"A: b\r\n" * MAX_HEADER_BYTES,
    "an extension of a chunk without an end": POST + CHUNKED + b"\r\n3;" + b"a" * MIB,
}


async def test_a_head_or_trailer_that_is_too_large_ends_its_connection(door: Door) -> None:
    for name, request in LARGE.items():
        statuses = []
        async with asyncio.timeout(60), raw_connection(door.service.url) as connection:
            try:
                await connection.send(request)
                while not connection.reader.at_eof():
                    statuses.append((await connection.response()).status)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass  # what the server had not read is gone
        # A request that was refused before its trailers came has its response.
        assert set(statuses) <= {401, 431}, (name, statuses)
    async with asyncio.timeout(60), raw_connection(door.service.url) as connection:
        await connection.send(GET + END)
        assert (await connection.response()).status == 200


def large_bodies(door: Door) -> list[tuple[bytes, int]]:
    """Requests with large bodies, and the status of each."""
    body = b"[" + b" " * 4 * MIB + b"]"
    length = b"Content-Length: %d\r\n" % len(body)
    in_chunks = b"%x\r\n%b\r\n" % (len(body), body)  # refused before its end, which may not come
    many = b"[" * (MAX_BODY_PARTS + 1)
    text = PING.replace(b"}", b',"params":{"\\"":"%b"}}' % many)
    long = b"Content-Length: %d\r\n" % len(many)
    listens = b"Mcp-Method: subscriptions/listen\r\nContent-Length: %d\r\n" % len(text)
    return [
        (pings(door, body, length), 413),
        (pings(door, body, length, MODERN), 413),
        (pings(door, b"", length), 413),  # refused by its length, before it comes
        (pings(door, in_chunks, CHUNKED), 413),
        (pings(door, in_chunks, CHUNKED, MODERN), 413),
        (pings(door, many, long), 413),
        (pings(door, many, long, MODERN), 413),
        (pings(door, text, listens, MODERN), 413),
        (pings(door, text, b"Content-Length: %d\r\n" % len(text)), 200),
    ]


async def test_a_body_that_is_too_large_is_refused(door: Door) -> None:
    for request, status in large_bodies(door):
        async with asyncio.timeout(60), raw_connection(door.service.url) as connection:
            await connection.send(request)
            assert (await connection.response()).status == status


async def test_a_call_whose_body_was_cut_is_not_made(door: Door) -> None:
    """Not even where what has come is a request as a whole."""
    calls = list[str]()

    @tool
    async def call() -> None:
        calls.append("call")

    params: dict[str, Any] = {"name": "words__call", "arguments": {}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    length = b"Content-Length: %d\r\n" % (len(body) + 1)
    async with (
        door.server.room("host") as host,
        host.host(Toolkit("words", [call])),
        asyncio.timeout(60),
    ):
        async with raw_connection(door.service.url) as connection:
            await connection.send(pings(door, body.encode(), length))
        ended = b""
        while b'code="closed"' not in ended:
            async with raw_connection(door.service.url) as connection:
                await connection.send(b"GET /metrics HTTP/1.1\r\n" + HOST + END)
                ended = (await connection.response()).body
    assert calls == []


@pytest.fixture
async def impatient(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    """A gateway for which everything is too slow."""
    for name in ("MAX_HEADERS_S", "MAX_BODY_S"):
        monkeypatch.setattr(http_protocol, name, 0.05)
    async with running_gateway() as opened:
        yield opened


async def test_requests_that_arrive_slowly_end_their_connection(
    impatient: Door, caplog: pytest.LogCaptureFixture
) -> None:
    length = b"Content-Length: 9\r\n"
    beginnings = {
        "a part of a body of 2026-07-28": pings(impatient, b"ab", length, MODERN),
        "nothing": b"",
        "line ends": b"\r\n\r\n",
        "a part of the head": GET,
        "a part of the body": POST + b"Content-Length: 9\r\n\r\nab",
        "a part of a body that is wanted": pings(impatient, b"ab", b"Content-Length: 9\r\n"),
        "a part of the second request": GET + END + b"GET /hea",
    }
    for name, beginning in beginnings.items():
        async with asyncio.timeout(60), raw_connection(impatient.service.url) as connection:
            await connection.send(beginning)
            statuses = []
            try:
                while True:
                    statuses.append((await connection.response()).status)
            except asyncio.IncompleteReadError:
                pass
            assert statuses[-1] in (401, 408), (name, statuses)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("beginning", "rest"),
    [(GET + END, END), (POST + b"Content-Length: 4\r\n\r\n", b"late")],
    ids=["line ends", "the body of a request that was refused"],
)
async def test_what_comes_after_a_response_does_not_hold_its_connection(
    impatient: Door, beginning: bytes, rest: bytes
) -> None:
    async with asyncio.timeout(60), raw_connection(impatient.service.url) as connection:
        await connection.send(beginning)
        await connection.response()
        await connection.send(rest)
        assert await connection.is_closed()


async def test_pipelined_requests_are_answered_in_their_order(door: Door) -> None:
    length = b"Content-Length: %d\r\n" % len(PING)
    request = pings(door, PING, length)
    async with asyncio.timeout(60), raw_connection(door.service.url) as connection:
        await connection.send(GET + END + request + POST + END + GET + END)
        statuses = [(await connection.response()).status for _ in range(4)]
        assert statuses == [200, 200, 401, 200]


async def test_a_flood_of_pipelined_requests_ends_the_connection(door: Door) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    params: dict[str, Any] = {"name": "words__wait", "arguments": {}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    request = pings(door, body.encode(), b"Content-Length: %d\r\n" % len(body))
    async with (
        door.server.room("host") as host,
        host.host(Toolkit("words", [wait])),
        asyncio.timeout(60),
        raw_connection(door.service.url) as connection,
    ):
        await connection.send(request)
        await started.wait()
        await connection.send((GET + END) * (MAX_PIPELINED + 2))
        assert await connection.is_closed()
        await ended.wait()  # the call was that of the closed connection


async def test_a_response_that_is_not_read_is_a_request_that_has_not_ended() -> None:
    @tool
    async def large() -> FileChunk:
        return FileChunk(b"x" * 7 * MIB, "a.txt", "text/plain")

    meta = {PROTOCOL_VERSION_META_KEY: "2026-07-28", CLIENT_CAPABILITIES_META_KEY: {}}
    params: dict[str, Any] = {"name": "words__large", "arguments": {}, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    headers = (
        b"Mcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: words__large"
    )
    length = b"\r\nContent-Length: %d\r\n" % len(body)
    async with (
        running_gateway(access=AccessSettings(max_per_address=1)) as door,
        door.server.room("host") as host,
        host.host(Toolkit("words", [large])),
        asyncio.timeout(60),
        raw_connection(door.service.url) as first,
        raw_connection(door.service.url) as second,
    ):
        await first.send(pings(door, body.encode(), headers, length))
        await first.reader.readuntil(END + END)
        await second.send(pings(door, PING, b"Content-Length: %d\r\n" % len(PING)))
        assert (await second.response()).status == 429


async def test_connections_of_one_address_beyond_its_requests_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_protocol, "_REFUSED_CONNECTIONS", 1)
    async with (
        running_gateway(access=AccessSettings(max_per_address=1)) as door,
        asyncio.timeout(60),
        raw_connection(door.service.url) as first,
        raw_connection(door.service.url) as second,
    ):
        for connection in (first, second):
            await connection.send(GET + END)
            assert (await connection.response()).status == 200
        async with raw_connection(door.service.url) as third:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await third.response()
        await first.send(b"no HTTP\r\n\r\n")
        assert await first.is_closed()
        async with raw_connection(door.service.url) as fourth:
            await fourth.send(GET + END)
            assert (await fourth.response()).status == 200
