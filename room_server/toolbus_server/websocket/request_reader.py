"""Reads the HTTP request of a handshake, within limits.

websockets could read it too. But before version 17 it drops, without an answer, every request that
is not `GET` or not HTTP/1.1, as haproxy's checks are, and those with a line that is too long. And
its limits would let a client make the server keep a mebibyte for each handshake that it begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

from websockets.datastructures import Headers
from websockets.http11 import Request

__all__ = [
    "MAX_HEADERS",
    "MAX_HEADERS_BYTES",
    "MAX_LINE_BYTES",
    "InvalidRequest",
    "ReceivedRequest",
    "RequestReader",
    "RequestTooLarge",
]

MAX_LINE_BYTES = 8 * 1024
"""The first line, and each header, with its end: anyone may send them (PROTOCOL.md, CONN-5)."""
MAX_HEADERS = 64
"""Headers of a request."""
MAX_HEADERS_BYTES = 16 * 1024
"""The lines of these headers together."""
_TOO_LARGE = "The request has more than 64 headers, or one over 8 KiB, or over 16 KiB in all.\n"
_TOO_LONG = "The first line of the request is over 8 KiB.\n"
_END_OF_LINE = b"\r\n"
_PROTOCOLS = (b"HTTP/1.1", b"HTTP/1.0")
_is_token = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+").fullmatch
_is_value = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch


@dataclass
class ReceivedRequest(Request):
    """A request with its method and version, which websockets has only since version 17."""

    method: str = "GET"
    protocol: str = "HTTP/1.1"


class InvalidRequest(Exception):
    """What arrived is not an HTTP request, or has a body."""


class RequestTooLarge(Exception):
    """A request is beyond the limits."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class RequestReader:
    """Assembles one request from the pieces in which it arrives."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._headers_bytes = 0
        self._partial_line = bytearray()

    def read(self, data: bytes) -> tuple[ReceivedRequest, bytes] | None:
        """Read bytes that arrived.

        Returns:
            The request and the bytes after it, once it is complete.

        Raises:
            InvalidRequest: It is not a request.
            RequestTooLarge: It is beyond the limits, complete or not.
        """
        begin = 0
        # A line ends in the new bytes if at all, so that each byte is searched once.
        while (end := data.find(b"\n", begin) + 1) > 0:
            line = bytes(self._partial_line) + data[begin:end]
            self._partial_line.clear()
            begin = end
            self._check_size(len(line))
            if not line.endswith(_END_OF_LINE):
                raise InvalidRequest
            if line == _END_OF_LINE:
                return self._parse(), data[end:]
            if self._lines:
                self._headers_bytes += len(line)
            self._lines.append(line.removesuffix(_END_OF_LINE))
        self._partial_line += data[begin:]
        self._check_size(len(self._partial_line))
        return None

    def _check_size(self, line_bytes: int) -> None:
        """Check the limits with one more line of this size, which may not have ended yet."""
        if not self._lines:
            if line_bytes > MAX_LINE_BYTES:
                raise RequestTooLarge(HTTPStatus.REQUEST_URI_TOO_LONG, _TOO_LONG)
        elif (
            line_bytes > MAX_LINE_BYTES
            or len(self._lines) - 1 > MAX_HEADERS
            or self._headers_bytes + line_bytes > MAX_HEADERS_BYTES
        ):
            raise RequestTooLarge(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _TOO_LARGE)

    def _parse(self) -> ReceivedRequest:
        if not self._lines:
            raise InvalidRequest
        method, _, target = self._lines[0].partition(b" ")
        path, _, protocol = target.partition(b" ")
        if not _is_token(method) or protocol not in _PROTOCOLS or not path.isascii():
            raise InvalidRequest
        headers = Headers()
        for line in self._lines[1:]:
            name, colon, value = line.partition(b":")
            value = value.strip(b" \t")
            if not colon or not _is_token(name) or not _is_value(value):
                raise InvalidRequest
            headers[name.decode()] = value.decode("latin-1")
        # What follows the request is read as frames, so it may have no body.
        if "Transfer-Encoding" in headers or set(headers.get_all("Content-Length")) - {"0"}:
            raise InvalidRequest
        return ReceivedRequest(
            path.decode(), headers, method=method.decode(), protocol=protocol.decode()
        )
