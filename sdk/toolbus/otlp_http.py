"""Answers OTLP/HTTP requests for traces as an ASGI application; what is read goes to a callback.

Needs the extra `otel`. Every request gets one reply in the media type it spoke: 200 with an
ExportTraceServiceResponse, else a Status that says why. Source of the rules:
https://opentelemetry.io/docs/specs/otlp/#otlphttp
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple, TypeAlias

from toolbus.otlp_spans import BadRequest, MediaType, ReadSpans, TooLong, decompress, read_spans
from toolbus.otlp_spans import write as write_reply

__all__ = ["SpanIntake"]

_Message: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[_Message]]
_Send: TypeAlias = Callable[[_Message], Awaitable[None]]

_PATH = "/v1/traces"
_MEDIA_TYPES: dict[str, MediaType] = {
    "application/x-protobuf": "application/x-protobuf",
    "application/json": "application/json",
}
_ENCODINGS = {"": "", "identity": "", "gzip": "gzip", "deflate": "deflate"}


class _Refused(Exception):
    """A request that gets no 200."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class _Gone(Exception):
    """The client left before its body was complete."""


class _Head(NamedTuple):
    """What a request's headers come to."""

    media_type: MediaType
    encoding: str


class SpanIntake:
    """The ASGI application.

    Args:
        deliver: Gets the spans of each accepted request, before the reply is sent.
        max_body_bytes: Limit of a body, before and after unpacking.
        body_timeout_s: How long a body may take to arrive.
    """

    def __init__(
        self,
        deliver: Callable[[ReadSpans], None],
        *,
        max_body_bytes: int,
        body_timeout_s: float,
    ) -> None:
        self._deliver = deliver
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Answer one request."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        media_type = _MEDIA_TYPES.get(_main_part(headers, b"content-type"))
        try:
            head = self._check(scope, headers, media_type)
            read = await self._read(head, receive)
            self._deliver(read)
            status, reply = 200, write_reply(head.media_type, rejected=read.rejected)
        except _Refused as refusal:
            media_type = media_type or "application/json"
            status, reply = refusal.status, write_reply(media_type, error=refusal.reason)
        except _Gone:
            return
        await _respond(send, status, media_type or "application/json", reply)

    def _check(
        self, scope: _Message, headers: dict[bytes, str], media_type: MediaType | None
    ) -> _Head:
        if scope["path"] != _PATH:
            raise _Refused(404, f"only {_PATH} is here")
        if scope["method"] != "POST":
            raise _Refused(405, "only POST is answered")
        if media_type is None:
            raise _Refused(415, "the body must be application/x-protobuf or application/json")
        encoding = _ENCODINGS.get(_main_part(headers, b"content-encoding"))
        if encoding is None:
            raise _Refused(415, "the body may be packed with gzip or deflate")
        length = headers.get(b"content-length", "0")
        if not length.isdecimal() or int(length) > self._max_body_bytes:
            raise self._too_long()
        return _Head(media_type, encoding)

    async def _read(self, head: _Head, receive: _Receive) -> ReadSpans:
        try:
            async with asyncio.timeout(self._body_timeout_s):
                body = await self._read_body(receive)
        except TimeoutError as error:
            raise _Refused(408, "the body took too long") from error
        try:
            unpacked = decompress(body, head.encoding, self._max_body_bytes)
            return read_spans(unpacked, head.media_type)
        except TooLong as error:
            raise self._too_long() from error
        except BadRequest as error:
            raise _Refused(400, str(error)) from error

    async def _read_body(self, receive: _Receive) -> bytes:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            body += message.get("body", b"")
            if len(body) > self._max_body_bytes:
                raise self._too_long()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_long(self) -> _Refused:
        return _Refused(413, f"a body may have {self._max_body_bytes} bytes")


def _main_part(headers: dict[bytes, str], name: bytes) -> str:
    return headers.get(name, "").partition(";")[0].strip().lower()


async def _respond(send: _Send, status: int, media_type: MediaType, reply: bytes) -> None:
    headers = [
        (b"content-type", media_type.encode()),
        (b"content-length", str(len(reply)).encode()),
    ]
    if status == 405:
        headers.append((b"allow", b"POST"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reply})
