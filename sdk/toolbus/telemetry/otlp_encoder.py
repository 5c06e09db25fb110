"""Writes spans as the bytes of an OTLP request, for a quarter of what the SDK's encoder takes.

The SDK's encoder makes a message for each attribute, and nearly all attributes are the same from
span to span; here their bytes are kept. Only plain spans are encoded here: text attributes, no
events, no links, nothing dropped. Light spans are read directly, for a fifth of what it takes to
convert them to the SDK's first. All others, and the resource, are left to the SDK's encoder. Both
write the same fields.

Pure: spans in, bytes out. Imports the OpenTelemetry SDK and its exporter, so it is itself imported
only where one is configured.
Source: https://protobuf.dev/programming-guides/encoding/ and opentelemetry/proto/trace/v1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import NamedTuple, TypeAlias

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import DEFAULT_TRACE_STATE, SpanKind, Status

from toolbus.bounded_logging import bounded_logger
from toolbus.telemetry.attributes import GEN_AI_TOOL_CALL_ID, MAX_NAME_CHARS, SharedAttributes
from toolbus.telemetry.light_spans import UNSET, LightRecorder, LightSpan, readable

__all__ = ["SpanEncoder"]

_logger = bounded_logger("toolbus.telemetry.tracing")
_MAX_ENVELOPES = 64
"""A process that forks, or makes recorders anew, would hold those of all its past."""
_MAX_CACHED = 1_024
"""Callers and tools come and go: without it all their names would stay in memory."""
_MAX_CACHED_CHARS = 128
"""Longer values are not cached: they are rarely the same."""

# A field's tag is its number times 8, and 2 where its length follows, 1 where 8 bytes do, 5 where
# 4 do, 0 where a varint does. Of a Span: 1 and 2 are the ids, 4 the parent's, 5 the name, 6 the
# kind, 7 and 8 the times, 9 the attributes, 15 the status, 16 the flags.
_TRACE_ID = b"\x0a\x10"
_SPAN_ID = b"\x12\x08"
_PARENT_ID = b"\x22\x08"
_NAME = b"\x2a"
_ATTRIBUTE = b"\x4a"
_STATUS = b"\x7a"
_TIMES = Struct("<BQBQ")
_START, _END = 0x39, 0x41
_FLAGS = {
    False: b"\x85\x01\x00\x01\x00\x00",
    True: b"\x85\x01\x00\x03\x00\x00",
}
"""By whether the parent is in another process: that this is known, and what it is."""
_KINDS = {
    SpanKind.INTERNAL: b"\x30\x01",
    SpanKind.SERVER: b"\x30\x02",
    SpanKind.CLIENT: b"\x30\x03",
    SpanKind.PRODUCER: b"\x30\x04",
    SpanKind.CONSUMER: b"\x30\x05",
}
# The first field of KeyValue, AnyValue and the request; the second of KeyValue, Status,
# ResourceSpans and ScopeSpans; the third of Status.
_FIRST, _SECOND, _CODE = b"\x0a", b"\x12", b"\x18"

_ONE_BYTE = [bytes((number,)) for number in range(0x80)]

_Origin: TypeAlias = LightRecorder | tuple[int, InstrumentationScope | None]
"""What spans of one envelope share: their recorder, or the id of their resource and their scope."""


class _Envelope(NamedTuple):
    """The part of a request around the spans of one origin."""

    resource: bytes
    """A ResourceSpans without ScopeSpans."""
    scope: bytes
    """A ScopeSpans without spans."""
    source: Resource
    """What the resource was encoded from; kept, so that its id stays its own."""

    @classmethod
    def of(cls, span: ReadableSpan) -> _Envelope:
        """Encode it with the SDK's encoder, and remove its span."""
        resource_spans = encode_spans([span]).resource_spans[0]
        scope_spans = resource_spans.scope_spans[0]
        scope_spans.ClearField("spans")
        scope = scope_spans.SerializeToString()
        resource_spans.ClearField("scope_spans")
        return cls(resource_spans.SerializeToString(), scope, span.resource)

    def wrap(self, spans: Sequence[bytes]) -> bytes:
        """Return a request with these encoded spans."""
        scope_spans = self.scope + b"".join([_field(_SECOND, span) for span in spans])
        return _field(_FIRST, self.resource + _field(_SECOND, scope_spans))


class SpanEncoder:
    """Encodes one batch after the other; for one thread at a time."""

    def __init__(self) -> None:
        self._envelopes: dict[_Origin, _Envelope] = {}

    def encode(self, spans: Sequence[ReadableSpan | LightSpan]) -> bytes:
        """Write an ExportTraceServiceRequest; a span that cannot be encoded is left out."""
        plain: defaultdict[_Origin, list[bytes]] = defaultdict(list)
        examples: dict[_Origin, ReadableSpan | LightSpan] = {}
        others: list[ReadableSpan] = []
        origin: _Origin
        for span in spans:
            if isinstance(span, LightSpan):
                encoded, origin = _encode_light(span), span.recorder
            else:
                encoded, origin = _encode(span), (id(span.resource), span.instrumentation_scope)
            if encoded is None:
                others.append(readable(span))
            else:
                examples.setdefault(origin, span)
                plain[origin].append(encoded)
        request = [
            self._envelope_of(origin, examples[origin]).wrap(encoded)
            for origin, encoded in plain.items()
        ]
        if others:
            request.append(_encode_by_sdk(others))
        # Messages that follow each other are one, with the fields of all.
        return b"".join(request)

    def _envelope_of(self, origin: _Origin, span: ReadableSpan | LightSpan) -> _Envelope:
        envelope = self._envelopes.get(origin)
        # A recorder has another resource as soon as its process was forked.
        if envelope is None or envelope.source is not span.resource:
            if len(self._envelopes) >= _MAX_ENVELOPES:
                self._envelopes.clear()
            envelope = self._envelopes[origin] = _Envelope.of(readable(span))
        return envelope


def _encode_by_sdk(spans: Sequence[ReadableSpan]) -> bytes:
    """Encode with the SDK's encoder; a span that it cannot encode is left out."""
    try:
        return encode_spans(spans).SerializePartialToString()
    except Exception:
        if len(spans) > 1:
            return b"".join([_encode_by_sdk([span]) for span in spans])
        _logger.debug("a span cannot be encoded", exc_info=True)
        return b""


def _encode_light(span: LightSpan) -> bytes | None:
    """Encode a light span; None where a limit is met, a key was set twice, or it is not plain."""
    trace_id, span_id, _, _, trace_state, _ = span.context
    parent, end_ns = span.parent, span.end_ns
    if (
        span.links
        or span.events
        or end_ns is None
        or (trace_state is not DEFAULT_TRACE_STATE and trace_state)
    ):
        return None
    try:
        attributes = _light_attributes(span)
        if attributes is None:
            return None
        parts = (
            _TRACE_ID,
            trace_id.to_bytes(16, "big"),
            _SPAN_ID,
            span_id.to_bytes(8, "big"),
            b"" if parent is None else _PARENT_ID + parent[1].to_bytes(8, "big"),
            _cached_name(span.name),
            _KINDS_BY_ID[id(span.kind)],
            _TIMES.pack(_START, span.start_ns, _END, end_ns),
            attributes,
            _NO_STATUS if span.status is UNSET else _status(span.status),
            _FLAGS[parent is not None and parent[2]],
        )
    except UnicodeEncodeError:
        return None
    return b"".join(parts)


def _light_attributes(span: LightSpan) -> bytes | None:
    recorder = span.recorder
    count = sum(map(len, span.written))
    if (
        recorder.max_chars < MAX_NAME_CHARS
        or count > recorder.max_attributes
        or count > len(set().union(*span.written))
    ):
        return None
    written: list[bytes] = []
    for attributes in span.written:
        if type(attributes) is SharedAttributes:
            if attributes.encoded is None:
                attributes.encoded = _attributes(attributes)
            if attributes.encoded is None:
                return None
            written.append(attributes.encoded)
            continue
        for key, value in attributes.items():
            if type(value) is not str or len(value) > _MAX_CACHED_CHARS:
                return None
            if key == GEN_AI_TOOL_CALL_ID and len(value) == _CALL_ID_CHARS and value.isascii():
                written.append(_CALL_ID + value.encode())
            else:
                written.append(_cached_attribute(key, value))
    return b"".join(written)


def _encode(span: ReadableSpan) -> bytes | None:
    """Encode a plain span; None for any other."""
    context, parent = span.get_span_context(), span.parent
    start_ns, end_ns = span.start_time, span.end_time
    if context is None or context.trace_state or not start_ns or not end_ns or _is_not_plain(span):
        return None
    try:
        attributes = _attributes(span.attributes or {})
        if attributes is None:
            return None
        parts = (
            _TRACE_ID + context.trace_id.to_bytes(16, "big"),
            _SPAN_ID + context.span_id.to_bytes(8, "big"),
            b"" if parent is None else _PARENT_ID + parent.span_id.to_bytes(8, "big"),
            _field(_NAME, span.name.encode()),
            _KINDS[span.kind],
            _TIMES.pack(_START, start_ns, _END, end_ns),
            attributes,
            _status(span.status),
            _FLAGS[parent is not None and parent.is_remote],
        )
    except UnicodeEncodeError:
        return None
    return b"".join(parts)


def _is_not_plain(span: ReadableSpan) -> bool:
    return bool(
        span.events
        or span.links
        or span.dropped_attributes
        or span.dropped_events
        or span.dropped_links
    )


def _attributes(attributes: Mapping[str, object]) -> bytes | None:
    """Encode all attributes; None where one is not a text."""
    written: list[bytes] = []
    for key, value in attributes.items():
        if type(value) is not str:
            return None
        is_rare = key == GEN_AI_TOOL_CALL_ID or len(value) > _MAX_CACHED_CHARS
        written.append(_attribute(key, value) if is_rare else _cached_attribute(key, value))
    return b"".join(written)


def _attribute(key: str, value: str) -> bytes:
    text = _field(_SECOND, _field(_FIRST, value.encode()))
    return _field(_ATTRIBUTE, _field(_FIRST, key.encode()) + text)


_cached_attribute = lru_cache(maxsize=_MAX_CACHED)(_attribute)


@lru_cache(maxsize=_MAX_CACHED)
def _cached_name(name: str) -> bytes:
    return _field(_NAME, name.encode())


def _status(status: Status) -> bytes:
    message, code = status.description, status.status_code.value
    described = _field(_SECOND, message.encode()) if message else b""
    return _field(_STATUS, described + _CODE + _varint(code))


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """Encode seven bits per byte, the low ones first; the eighth is set but in the last byte."""
    if number < 0x80:
        return _ONE_BYTE[number]
    low = bytearray()
    while number >= 0x80:
        low.append(number & 0x7F | 0x80)
        number >>= 7
    low.append(number)
    return bytes(low)


_NO_STATUS = _status(UNSET)
_CALL_ID_CHARS = 32
"""As in PROTOCOL.md, CALL-1; an id of another length is encoded like any text."""
_CALL_ID = _attribute(GEN_AI_TOOL_CALL_ID, "0" * _CALL_ID_CHARS)[:-_CALL_ID_CHARS]
# By id, because hashing an enum takes longer than all else that is done with a kind.
_KINDS_BY_ID = {id(kind): written for kind, written in _KINDS.items()}
