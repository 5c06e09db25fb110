"""An ASGI application that receives traces over OTLP/HTTP and passes the spans to a callback.

Needs the extra `otel`. Every request gets one reply in its own media type: 200 with an
ExportTraceServiceResponse, else a Status with the reason. A span without valid ids is left out and
counted. Long values are truncated, so that memory is bounded. Source of the rules:
https://opentelemetry.io/docs/specs/otlp/#otlphttp
"""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # it has no stubs
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from toolbus.telemetry.viewer.trace_tree import SpanKindName, SpanLink, SpanRecord

__all__ = [
    "BadRequest",
    "MediaType",
    "OtlpApp",
    "ReadSpans",
    "decompress",
    "read_spans",
]

MediaType = Literal["application/x-protobuf", "application/json"]

# Any program of this machine may send spans, and thousands of them are in memory.
_MAX_NAME_CHARS = 1_024
_MAX_VALUE_CHARS = 4_096
_MAX_ATTRIBUTES = 128
_MAX_LINKS = 32
_MAX_DEPTH = 8
_KINDS: dict[int, SpanKindName] = dict(enumerate(get_args(SpanKindName)))
_STATUSES: dict[int, Literal["OK", "ERROR"]] = {1: "OK", 2: "ERROR"}
_HEX_KEYS = frozenset(("traceId", "spanId", "parentSpanId"))
# The parser of protobuf passes any number to `int`, also an infinite one.
_NOT_JSON_SPANS = (
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    json_format.ParseError,
)


class BadRequest(Exception):
    """A request that is answered with an error status."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


class ReadSpans(NamedTuple):
    """The spans of one request."""

    spans: list[tuple[SpanRecord, int]]
    """Each span with its size on the wire, including its resource."""
    rejected: int
    """How many spans had no valid ids."""


def decompress(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Decompress a body; `encoding` is `gzip`, `deflate` or empty. Stops once it is too long."""
    if not encoding:
        return body
    # 47: accept a gzip or a zlib header.
    decompressor = zlib.decompressobj(47)
    try:
        unpacked = decompressor.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise BadRequest("the body cannot be decompressed") from error
    if len(unpacked) > max_bytes:
        raise _too_long(max_bytes)
    if not decompressor.eof:
        raise BadRequest("the body is incomplete")
    return unpacked


def read_spans(body: bytes, media_type: MediaType) -> ReadSpans:
    """Read the spans of one body. Raises BadRequest if it does not have the form of OTLP."""
    request = _READERS[media_type](body)
    spans: list[tuple[SpanRecord, int]] = []
    rejected = 0
    for resource_spans in request.resource_spans:
        resource = _mapping(resource_spans.resource.attributes)
        resource_bytes = resource_spans.resource.ByteSize()
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                if len(span.trace_id) == 16 and len(span.span_id) == 8:
                    spans.append((_record(span, resource), span.ByteSize() + resource_bytes))
                else:
                    rejected += 1
    return ReadSpans(spans, rejected)


def _read_protobuf(body: bytes) -> ExportTraceServiceRequest:
    try:
        return ExportTraceServiceRequest.FromString(body)
    except DecodeError as error:
        raise BadRequest("the body is not an ExportTraceServiceRequest") from error


def _read_json(body: bytes) -> ExportTraceServiceRequest:
    try:
        values = json.loads(body, object_pairs_hook=_object_with_base64_ids)
        if not isinstance(values, dict):
            raise BadRequest("the body is not a JSON object")
        request = ExportTraceServiceRequest()
        json_format.ParseDict(values, request, ignore_unknown_fields=True, max_recursion_depth=64)
    except _NOT_JSON_SPANS as error:
        raise BadRequest("the body is not an ExportTraceServiceRequest in JSON") from error
    return request


def _object_with_base64_ids(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Convert ids from hex, as in OTLP, to base64, as protobuf's JSON reader requires."""
    made = dict(pairs)
    for key in _HEX_KEYS & made.keys():
        if isinstance(made[key], str):
            made[key] = base64.b64encode(bytes.fromhex(made[key])).decode("ascii")
    return made


_READERS: dict[MediaType, Callable[[bytes], ExportTraceServiceRequest]] = {
    "application/x-protobuf": _read_protobuf,
    "application/json": _read_json,
}


def _record(span: Span, resource: dict[str, Any]) -> SpanRecord:
    return SpanRecord(
        name=span.name[:_MAX_NAME_CHARS],
        kind=_KINDS.get(span.kind, "?"),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex() if any(span.parent_span_id) else None,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_mapping(span.attributes),
        resource=resource,
        status=_STATUSES.get(span.status.code, "UNSET"),
        status_message=span.status.message[:_MAX_VALUE_CHARS],
        links=tuple(
            SpanLink(link.trace_id[:16].hex(), link.span_id[:8].hex())
            for link in span.links[:_MAX_LINKS]
        ),
    )


def _mapping(pairs: Iterable[KeyValue], depth: int = 0) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for pair in pairs:
        if len(mapping) >= _MAX_ATTRIBUTES:
            break
        mapping[pair.key[:_MAX_NAME_CHARS]] = _plain(pair.value, depth + 1)
    return mapping


def _plain(value: AnyValue, depth: int = 0) -> Any:
    if depth > _MAX_DEPTH:
        return "…"
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value[:_MAX_VALUE_CHARS]
        case "bytes_value":
            return value.bytes_value[:_MAX_VALUE_CHARS].hex()
        case "array_value":
            return [_plain(item, depth + 1) for item in value.array_value.values[:_MAX_ATTRIBUTES]]
        case "kvlist_value":
            return _mapping(value.kvlist_value.values, depth)
        case None:
            return None
        case name:
            return getattr(value, name)


def _reply(media_type: MediaType, *, rejected: int = 0, error: str | None = None) -> bytes:
    """Encode the reply: an ExportTraceServiceResponse, or a Status with the reason of a refusal."""
    reply: Message
    if error is not None:
        reply = Status(message=error)
    else:
        reply = ExportTraceServiceResponse()
        if rejected:
            reply.partial_success.rejected_spans = rejected
            reply.partial_success.error_message = "spans without valid ids"
    if media_type == "application/json":
        return json_format.MessageToJson(reply, indent=None).encode()
    return reply.SerializeToString()


_Message: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[_Message]]
_Send: TypeAlias = Callable[[_Message], Awaitable[None]]

_PATH = "/v1/traces"
_MEDIA_TYPES: dict[str, MediaType] = {
    "application/x-protobuf": "application/x-protobuf",
    "application/json": "application/json",
}
_ENCODINGS = {"": "", "identity": "", "gzip": "gzip", "deflate": "deflate"}


class _Disconnected(Exception):
    """The client disconnected before its body was complete."""


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
            if scope["path"] != _PATH:
                raise BadRequest(f"the only path is {_PATH}", 404)
            if scope["method"] != "POST":
                raise BadRequest("the only method is POST", 405)
            if media_type is None:
                text = "the body must be application/x-protobuf or application/json"
                raise BadRequest(text, 415)
            read = await self._read(headers, media_type, receive)
            self._deliver(read)
            status, reply = 200, _reply(media_type, rejected=read.rejected)
        except BadRequest as error:
            media_type = media_type or "application/json"
            status, reply = error.status, _reply(media_type, error=str(error))
        except _Disconnected:
            return
        answered = [
            (b"content-type", media_type.encode()),
            (b"content-length", str(len(reply)).encode()),
        ]
        if status == 405:
            answered.append((b"allow", b"POST"))
        await send({"type": "http.response.start", "status": status, "headers": answered})
        await send({"type": "http.response.body", "body": reply})

    async def _read(
        self, headers: dict[bytes, str], media_type: MediaType, receive: _Receive
    ) -> ReadSpans:
        encoding = _ENCODINGS.get(_main_part(headers, b"content-encoding"))
        if encoding is None:
            raise BadRequest("the body may be compressed with gzip or deflate", 415)
        length = headers.get(b"content-length", "0")
        if not length.isdecimal() or int(length) > self._max_body_bytes:
            raise _too_long(self._max_body_bytes)
        try:
            async with asyncio.timeout(self._body_timeout_s):
                body = await self._read_body(receive)
        except TimeoutError as error:
            raise BadRequest("the body took too long", 408) from error
        return read_spans(decompress(body, encoding, self._max_body_bytes), media_type)

    async def _read_body(self, receive: _Receive) -> bytes:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Disconnected
            body += message.get("body", b"")
            if len(body) > self._max_body_bytes:
                raise _too_long(self._max_body_bytes)
            if not message.get("more_body", False):
                return bytes(body)


def _too_long(max_bytes: int) -> BadRequest:
    return BadRequest(f"a body may have at most {max_bytes} bytes", 413)


def _main_part(headers: dict[bytes, str], name: bytes) -> str:
    return headers.get(name, "").partition(";")[0].strip().lower()
