"""The W3C trace context as it travels in a frame's header. Pure: records nothing, reads no clock.

What a stranger sends never raises: a malformed `traceparent` is an absent one, a `tracestate` that
breaks its grammar or is longer than 512 bytes is dropped. Its words are never logged.
Source of the rules: https://www.w3.org/TR/trace-context/, version 00 and nothing else.
"""

from __future__ import annotations

import contextvars
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import SpanContext

__all__ = [
    "OF_THE_CALL",
    "TRACESTATE",
    "RemoteParent",
    "TraceContext",
    "current_context",
    "enter_calls_own",
    "enter_span",
    "enter_unsampled",
    "format_traceparent",
    "is_sampled",
    "leave",
    "parse_traceparent",
    "read_trace_context",
    "trace_context_of",
]

TRACESTATE: Final = "tracestate"
OF_THE_CALL: Final = ""
"""The `traceparent` of a trace that a call begins and nobody records (PROTOCOL.md, TRACE-4)."""

_TRACEPARENT_CHARS = 55
_MAX_TRACESTATE_BYTES = 512
_MAX_TRACESTATE_MEMBERS = 32
_SAMPLED_DIGITS = "13579bdf"
# Under which the API keeps the current span, as it says itself.
(_SPAN_KEY,) = trace.set_span_in_context(trace.INVALID_SPAN, Context())


def _variable() -> contextvars.ContextVar[Context] | None:
    """Find where the API keeps the current context; None where that is no such variable."""
    mark = Context({"toolbus": "here"})

    def variables() -> contextvars.Context:
        attach(mark)
        return contextvars.copy_context()

    inside = contextvars.copy_context().run(variables)
    return next((variable for variable, value in inside.items() if value is mark), None)


# Each call asks once and enters once; the API's own functions do the same, in four steps more.
_current = _variable()
current_context: Callable[[], Context] = get_current if _current is None else _current.get
"""Gives the API's current context."""
_enter: Callable[[Context], Any] = attach if _current is None else _current.set
_leave: Callable[[Any], None] = detach if _current is None else _current.reset
_IS_VALID = 5  # its place in the tuple that a span's context is
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
        """Whether the context wants to be recorded."""
        return self.traceparent[54] in _SAMPLED_DIGITS


def read_trace_context(
    traceparent: str | None, header: Mapping[str, Any] | None
) -> TraceContext | None:
    """Take the context out of a frame; None if there is none, or none that can be one.

    Checks what bounds its size and cost; `parse_traceparent` checks the rest when it is needed.

    Args:
        traceparent: The frame's own field.
        header: The frame's map, where a `tracestate` stands if there is one.
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
    """Say whether this is a `traceparent` that asks not to be recorded, as most do."""
    return (
        len(traceparent) == _TRACEPARENT_CHARS
        and traceparent[54] not in _SAMPLED_DIGITS
        and traceparent[:3] == "00-"
    )


def is_sampled(traceparent: str | None) -> bool:
    """Say whether a `traceparent` asks to be recorded, from its shape and its flag alone."""
    return (
        _has_shape(traceparent) and traceparent is not None and traceparent[54] in _SAMPLED_DIGITS
    )


def parse_traceparent(traceparent: str | None, tracestate: str | None = None) -> SpanContext | None:
    """Parse a context strictly: lower-case hex, no id of zeros; None if it is not one."""
    match = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    if match is None:
        return None
    trace_id, span_id, flags = match.groups()
    trace_state = None if tracestate is None else _parse_tracestate(tracestate)
    set_flags = trace.TraceFlags(int(flags, 16))
    span_context = SpanContext(int(trace_id, 16), int(span_id, 16), True, set_flags, trace_state)
    return span_context if span_context[_IS_VALID] else None


def format_traceparent(span_context: SpanContext) -> str:
    """Write a context as the value of a `traceparent` header."""
    # Every traced call pays for this: twice as fast as formatting the integers, and as asking the
    # tuple that a context is for its parts by name.
    trace_id, span_id, _, flags, *_ = span_context
    ids = f"{trace_id.to_bytes(16, 'big').hex()}-{span_id.to_bytes(8, 'big').hex()}"
    return f"00-{ids}-{_FLAGS[flags & 0xFF]}"


def trace_context_of(span: trace.Span) -> TraceContext | None:
    """Give a span's context as text, None if it has no valid one."""
    span_context = span.get_span_context()
    *_, trace_state, is_valid = span_context
    if not is_valid:
        return None
    if type(span) in _REMOTE:  # of an abstract class it takes longer than all the rest
        return cast(RemoteParent, span).received
    traceparent = format_traceparent(span_context)
    if trace_state is trace.DEFAULT_TRACE_STATE or not trace_state:
        return TraceContext(traceparent)
    tracestate = trace_state.to_header()
    return TraceContext(traceparent, tracestate if _may_travel(tracestate) else None)


class RemoteParent(trace.NonRecordingSpan):
    """A context from another process in the place of a span, read only if somebody asks.

    Args:
        traceparent: Of the right shape, as `is_unsampled` or `read_trace_context` found.
        tracestate: What came with it, of any shape.
    """

    def __init__(self, traceparent: str, tracestate: object = None) -> None:
        self._traceparent = traceparent
        self._tracestate = tracestate
        self._parsed: SpanContext | None = None

    @property
    def received(self) -> TraceContext:
        """What is sent on, as it came."""
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


class _CallsOwn(RemoteParent):
    """The trace that a call itself began: its id is the call's, spelled out if somebody asks."""

    _parsed = None

    def __init__(self, call_id: str) -> None:
        self._call_id = call_id

    @property
    def received(self) -> TraceContext:
        return TraceContext(f"00-{self._call_id}-{self._call_id[16:]}-00")


_REMOTE = frozenset({RemoteParent, _CallsOwn})


def enter_unsampled(traceparent: str, header: Mapping[str, Any]) -> None:
    """Put what runs in this context into a call's trace, which nobody records."""
    _enter(Context({_SPAN_KEY: RemoteParent(traceparent, header.get(TRACESTATE))}))


def enter_calls_own(call_id: str) -> None:
    """Put what runs in this context into the trace that a call began, which nobody records.

    An id that is none of a trace's leaves what runs there without one.
    """
    _enter(Context({_SPAN_KEY: _CallsOwn(call_id)}))


def enter_span(span: trace.Span) -> object:
    """Make a span the current one, and the only thing in its context; return what `leave` needs."""
    return _enter(Context({_SPAN_KEY: span}))


def leave(token: object) -> None:
    """Go back to what was current before; where that is another context's, nothing is to do."""
    with suppress(ValueError):  # a coroutine that is thrown away ends wherever that happens
        _leave(token)


def _has_shape(traceparent: object) -> bool:
    return (
        isinstance(traceparent, str)
        and len(traceparent) == _TRACEPARENT_CHARS
        and traceparent[:3] == "00-"
    )


def _may_travel(tracestate: object) -> bool:
    return (
        isinstance(tracestate, str)
        and 0 < len(tracestate) <= _MAX_TRACESTATE_BYTES
        and tracestate.isascii()
        and tracestate.isprintable()
    )


def _parse_tracestate(tracestate: str | None) -> trace.TraceState | None:
    """Parse without the API's own reader, which logs what a stranger wrote."""
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
