"""An ASGI application that receives traces over OTLP/HTTP and passes the spans to a callback.

Needs the extra `otel`. Every request gets one reply in its own media type: 200 with an
ExportTraceServiceResponse, else a Status with the reason. Source of the rules:
https://opentelemetry.io/docs/specs/otlp/#otlphttp
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple, TypeAlias

from toolbus.telemetry.viewer.otlp_decoder import (
    BadRequest,
    MediaType,
    ReadSpans,
    TooLong,
    decompress,
    read_spans,
)
from toolbus.telemetry.viewer.otlp_decoder import write as write_reply

__all__ = ["OtlpApp"]

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
    """A request that is answered with an error status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class _Disconnected(Exception):
    """The client disconnected before its body was complete."""


class _Head(NamedTuple):
    """The relevant headers of a request."""

    media_type: MediaType
    encoding: str


class OtlpApp:
    """The ASGI application.

    Args:
        deliver: Gets the spans of each accepted request, before the reply is sent.
        max_body_bytes: Limit of a body, before and after decompression.
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
        """Answer one request, after its spans are delivered."""
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
        except _Disconnected:
            return
        await _respond(send, status, media_type or "application/json", reply)

    def _check(
        self, scope: _Message, headers: dict[bytes, str], media_type: MediaType | None
    ) -> _Head:
        if scope["path"] != _PATH:
            raise _Refused(404, f"the only path is {_PATH}")
        if scope["method"] != "POST":
            raise _Refused(405, "the only method is POST")
        if media_type is None:
            raise _Refused(415, "the body must be application/x-protobuf or application/json")
        encoding = _ENCODINGS.get(_main_part(headers, b"content-encoding"))
        if encoding is None:
            raise _Refused(415, "the body may be compressed with gzip or deflate")
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
                raise _Disconnected
            body += message.get("body", b"")
            if len(body) > self._max_body_bytes:
                raise self._too_long()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_long(self) -> _Refused:
        return _Refused(413, f"a body may have at most {self._max_body_bytes} bytes")


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
