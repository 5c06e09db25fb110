"""The W3C trace context as it travels in a frame's header. Pure: records nothing, reads no clock.

Untrusted input never raises: a malformed `traceparent` counts as absent, a `tracestate` that breaks
its grammar or is longer than 512 bytes is dropped. Neither is ever logged.
Source of the rules: https://www.w3.org/TR/trace-context/, version 00 and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context, attach, get_current
from opentelemetry.trace import SpanContext

__all__ = [
    "CALL_AS_TRACE",
    "CALL_ID",
    "TRACESTATE",
    "Context",
    "RemoteParent",
    "TraceContext",
    "attach",
    "below",
    "current_trace_id",
    "enter_call_as_trace",
    "enter_unsampled",
    "format_traceparent",
    "get_current",
    "is_sampled",
    "is_unsampled",
    "parse_traceparent",
    "read_trace_context",
    "trace_context_of",
    "trace_id_of",
]

TRACESTATE: Final = "tracestate"
CALL_AS_TRACE: Final = ""
"""The `traceparent` of an unrecorded trace that the call begins (PROTOCOL.md, TRACE-4)."""

CALL_ID: Final[ContextVar[str]] = ContextVar("toolbus.call_id", default="")
"""The id of the hosted call that the current code runs for, for its log lines; empty for none."""

# W3C Trace Context, sections 3.2.2 and 3.3.1; of 512 bytes (PROTOCOL.md, TRACE-1) each system has
# to pass on a `tracestate`, and a caller writes it into each frame of a call.
_TRACEPARENT_CHARS = 55
_MAX_TRACESTATE_BYTES = 512
_MAX_TRACESTATE_MEMBERS = 32
_SAMPLED_DIGITS = "13579bdf"
# The key of the current span; `set_span_in_context` for each call would copy two contexts.
(_SPAN_KEY,) = trace.set_span_in_context(trace.INVALID_SPAN, Context())
_IS_VALID = 5  # its index in the tuple that a SpanContext is
_FLAGS = tuple(f"{flags:02x}" for flags in range(256))
_TRACEPARENT = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_TRACESTATE_MEMBER = re.compile(
    r"([a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    r"=([\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e])"
)


class TraceContext(NamedTuple):
    """A trace context as text, of the right shape but not yet parsed."""

    traceparent: str
    tracestate: str | None = None

    @property
    def sampled(self) -> bool:
        """Whether the sender asks for the call to be recorded."""
        return self.traceparent[54] in _SAMPLED_DIGITS


def read_trace_context(
    traceparent: str | None, header: Mapping[str, Any] | None
) -> TraceContext | None:
    """Read the context from a frame; None if there is none, or one of the wrong shape.

    Checks what bounds its size and cost; `parse_traceparent` checks the rest when it is needed.

    Args:
        traceparent: The frame's own field.
        header: The frame's map, which contains the `tracestate` if there is one.
    """
    if (
        traceparent is None
        or len(traceparent) != _TRACEPARENT_CHARS
        or not traceparent.startswith("00-")
    ):
        return None
    tracestate = header.get(TRACESTATE) if header else None
    if tracestate is not None and not _may_travel(tracestate):
        tracestate = None
    return TraceContext(traceparent, tracestate)


def is_unsampled(traceparent: str) -> bool:
    """Whether this is a `traceparent` that asks not to be recorded, as most do."""
    return (
        len(traceparent) == _TRACEPARENT_CHARS
        and traceparent[54] not in _SAMPLED_DIGITS
        and traceparent[:3] == "00-"
    )


def is_sampled(traceparent: str | None) -> bool:
    """Whether a `traceparent` asks to be recorded, by its shape and its flag alone."""
    return (
        isinstance(traceparent, str)
        and len(traceparent) == _TRACEPARENT_CHARS
        and traceparent[:3] == "00-"
        and traceparent[54] in _SAMPLED_DIGITS
    )


def parse_traceparent(traceparent: str | None, tracestate: str | None = None) -> SpanContext | None:
    """Parse a context strictly: lower-case hex, no id of zeros; None if it is not one."""
    if not isinstance(traceparent, str) or not (match := _TRACEPARENT.fullmatch(traceparent)):
        return None
    trace_id, span_id, flags = match.groups()
    trace_state = None if tracestate is None else _parse_tracestate(tracestate)
    set_flags = trace.TraceFlags(int(flags, 16))
    span_context = SpanContext(int(trace_id, 16), int(span_id, 16), True, set_flags, trace_state)
    return span_context if span_context[_IS_VALID] else None


def format_traceparent(span_context: SpanContext) -> str:
    """Write a context as the value of a `traceparent` header."""
    # Every traced call pays for this: twice as fast as formatting the integers and reading the
    # fields by name.
    trace_id, span_id, _, flags, *_ = span_context
    ids = f"{trace_id.to_bytes(16, 'big').hex()}-{span_id.to_bytes(8, 'big').hex()}"
    return f"00-{ids}-{_FLAGS[flags & 0xFF]}"


def trace_context_of(span: trace.Span) -> TraceContext | None:
    """Return a span's context as text; None if it has no valid one."""
    span_context = span.get_span_context()
    *_, trace_state, is_valid = span_context
    if not is_valid:
        return None
    if isinstance(span, RemoteParent):
        return span.received
    traceparent = format_traceparent(span_context)
    if trace_state is trace.DEFAULT_TRACE_STATE or not trace_state:
        return TraceContext(traceparent)
    tracestate = trace_state.to_header()
    return TraceContext(traceparent, tracestate if _may_travel(tracestate) else None)


def current_trace_id() -> str:
    """Return the id of the current trace as 32 hex digits; empty if there is none."""
    span_context = trace.get_current_span().get_span_context()
    return f"{span_context.trace_id:032x}" if span_context[_IS_VALID] else ""


def trace_id_of(traceparent: str | None, call_id: str) -> str:
    """Return the id of the trace that a frame names, for a call of this id; empty if none."""
    if traceparent == CALL_AS_TRACE:
        traceparent = _call_as_trace(call_id)
    span_context = parse_traceparent(traceparent)
    return "" if span_context is None else f"{span_context.trace_id:032x}"


class RemoteParent(trace.NonRecordingSpan):
    """Stands for a span of another process; its context is parsed at first use.

    Args:
        traceparent: Of the right shape, as `is_unsampled` or `read_trace_context` found.
        tracestate: What was received with it, of any type.
    """

    def __init__(self, traceparent: str, tracestate: object = None) -> None:
        self._traceparent = traceparent
        self._tracestate = tracestate
        self._parsed: SpanContext | None = None

    @property
    def received(self) -> TraceContext:
        """The context as it was received; it is sent on unchanged."""
        tracestate = self._tracestate
        if isinstance(tracestate, str) and _may_travel(tracestate):
            return TraceContext(self._traceparent, tracestate)
        return TraceContext(self._traceparent)

    def get_span_context(self) -> SpanContext:
        """Parse at first use; a malformed context is the invalid one, which has no children."""
        if self._parsed is None:
            self._parsed = parse_traceparent(*self.received) or trace.INVALID_SPAN_CONTEXT
        return self._parsed

    def __repr__(self) -> str:
        return f"RemoteParent({self.received!r})"


class _CallAsTrace(RemoteParent):
    """An unrecorded trace whose id is that of the call that began it; formatted at first use."""

    _parsed = None

    def __init__(self, call_id: str) -> None:
        self._call_id = call_id

    @property
    def received(self) -> TraceContext:
        return TraceContext(_call_as_trace(self._call_id))


def _call_as_trace(call_id: str) -> str:
    return f"00-{call_id}-{call_id[16:]}-00"


def below(span: trace.Span) -> Context:
    """Return a context that contains this span and nothing else."""
    return Context({_SPAN_KEY: span})


def enter_unsampled(traceparent: str, header: Mapping[str, Any]) -> None:
    """Make a call's unrecorded trace current, for the rest of this task."""
    attach(below(RemoteParent(traceparent, header.get(TRACESTATE))))


def enter_call_as_trace(call_id: str) -> None:
    """Make the unrecorded trace that a call began current, for the rest of this task.

    A call id that is not a valid trace id leaves the task without a trace.
    """
    attach(below(_CallAsTrace(call_id)))


def _may_travel(tracestate: object) -> bool:
    return (
        isinstance(tracestate, str)
        and 0 < len(tracestate) <= _MAX_TRACESTATE_BYTES
        and tracestate.isascii()
        and tracestate.isprintable()
    )


def _parse_tracestate(tracestate: str | None) -> trace.TraceState | None:
    """Parse without the API's own reader, which logs untrusted input."""
    if tracestate is None or not _may_travel(tracestate):
        return None
    members: dict[str, str] = {}
    for text in filter(None, (part.strip(" ") for part in tracestate.split(","))):
        match = _TRACESTATE_MEMBER.fullmatch(text)
        if match is None or match[1] in members:
            return None
        members[match[1]] = match[2]
    if len(members) > _MAX_TRACESTATE_MEMBERS:
        return None
    return trace.TraceState(list(members.items()))
