"""The requests of handshakes: what is one, what is none, and what is too large."""

from __future__ import annotations

import pytest

from support.clients.handshakes import rest_of
from support.clients.raw_client import bearer, raw_connection, upgrade_request
from support.rooms.unharmed_server import unharmed_server
from toolbus_server.websocket.request_reader import (
    InvalidRequest,
    ReceivedRequest,
    RequestReader,
    RequestTooLarge,
)

LINE = b"GET /rooms/lab?a=1 HTTP/1.1\r\n"


def read(data: bytes, size: int = 1) -> tuple[ReceivedRequest, bytes] | None:
    """Read pieces of this size; return the request with all that was not read."""
    reader = RequestReader()
    for start in range(0, len(data), size):
        complete = reader.read(data[start : start + size])
        if complete is not None:
            return complete[0], complete[1] + data[start + size :]
    return None


@pytest.mark.parametrize("size", [1, 2, 7, 256, 100_000])
def test_request_is_read_from_pieces_of_any_size(size: int) -> None:
    lines = LINE + b"Host: a\r\nx-TWO:\t 1  \r\nX-Two: \xe9\r\nEmpty:\r\nContent-Length: 0\r\n\r\n"
    complete = read(lines + b"\r\n\r\nrest", size)

    assert complete is not None
    request, rest = complete
    assert (request.method, request.path, request.protocol) == ("GET", "/rooms/lab?a=1", "HTTP/1.1")
    assert list(request.headers.raw_items()) == [
        ("Host", "a"),
        ("x-TWO", "1"),
        ("X-Two", "\xe9"),
        ("Empty", ""),
        ("Content-Length", "0"),
    ]
    assert rest == b"\r\n\r\nrest"


@pytest.mark.parametrize(
    "lines",
    [
        b"\r\n",
        b"GET / HTTP/1.1\n\r\n",
        b"GET /\r\n\r\n",
        b"GET  / HTTP/1.1\r\n\r\n",
        b"GET /\xe9 HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1 \r\n\r\n",
        b"GET / HTTP/2\r\n\r\n",
        b"G(T / HTTP/1.1\r\n\r\n",
        b" / HTTP/1.1\r\n\r\n",
        LINE + b"no colon\r\n\r\n",
        LINE + b"Host : a\r\n\r\n",
        LINE + b": a\r\n\r\n",
        LINE + b"A: b\r\n folded\r\n\r\n",
        LINE + b"A: b\rc\r\n\r\n",
        LINE + b"A: \x00\r\n\r\n",
        LINE + b"A: b\n\r\n",
        LINE + b"Content-Length: 1\r\n\r\n",
        LINE + b"Content-Length: 0\r\nContent-Length: 5\r\n\r\n",
        LINE + b"Transfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_other_bytes_are_no_request(lines: bytes) -> None:
    for size in (1, len(lines)):
        with pytest.raises(InvalidRequest):
            read(lines, size)


@pytest.mark.parametrize(
    ("fits", "too_large", "status"),
    [
        (b"GET /%s HTTP/1.1\r\n\r\n" % (b"a" * 8_176), b"GET /" + b"a" * 8_188, 414),
        (LINE + b"A: %s\r\n\r\n" % (b"b" * 8_187), LINE + b"A: " + b"b" * 8_190, 431),
        (LINE + b"A: b\r\n" * 64 + b"\r\n", LINE + b"A: b\r\n" * 65 + b"\r\n", 431),
        (
            LINE + b"A: %s\r\n" % (b"b" * 5_455) * 3 + b"\r\n",
            LINE + b"A:%s\r\n" % (b"b" * 5_458) * 3,
            431,
        ),
        (LINE + b"\r\n", LINE + b"A: b\r\n" * 1_000_000, 431),
    ],
    ids=["first line", "header", "number", "in all", "endless"],
)
def test_request_beyond_a_limit_is_refused_before_it_is_complete(
    fits: bytes, too_large: bytes, status: int
) -> None:
    """CONN-5."""
    for size in (1, 1_000, len(too_large)):
        assert read(fits, size) is not None
        with pytest.raises(RequestTooLarge) as refused:
            read(too_large, size)
        assert refused.value.status == status


@pytest.mark.parametrize(
    ("path", "status"), [("/readyz", b"200 OK"), ("/rooms/lab", b"505 HTTP Version Not Supported")]
)
async def test_probe_in_http_1_0_is_answered_and_no_websocket_opened(
    path: str, status: bytes
) -> None:
    """Balancers probe so by default."""
    async with unharmed_server() as server, raw_connection(server.url) as client:
        request = upgrade_request(path, bearer(server.token("bob")))
        client.send(request.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        assert (await rest_of(client)).startswith(b"HTTP/1.1 " + status)
