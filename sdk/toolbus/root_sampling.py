"""Asks the SDK's own sampler about a call that begins a trace, before a span is made for it.

An unsampled span costs the SDK as much as a recorded one up to the moment it is thrown away.
Where the sampler's answer follows from the trace id alone, it can be had first, and for nearly all
calls nothing else is needed. A sampled call is then begun with the id that the sampler saw.

Imports the OpenTelemetry SDK, so it is itself imported only where one is configured.
"""

from __future__ import annotations

from typing import NamedTuple

from opentelemetry import trace
from opentelemetry.sdk.trace import Tracer
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_OFF,
    DEFAULT_ON,
    ParentBasedTraceIdRatio,
    Sampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import SpanContext, TraceFlags

from toolbus.trace_context import OF_THE_CALL

__all__ = ["TRACE_ID_LIMIT", "RootSampling", "Rule", "root_bound"]

TRACE_ID_LIMIT: int = TraceIdRatioBased.TRACE_ID_LIMIT
"""The part of a trace id that samplers look at, as a mask."""


def root_bound(sampler: Sampler) -> int | None:
    """Say below which part of its id a root is sampled; None if that does not follow from the id.

    0 is never, and one more than `TRACE_ID_LIMIT` is always.
    """
    root = getattr(sampler, "_root", sampler)
    if isinstance(root, TraceIdRatioBased):
        return root.bound
    if root is ALWAYS_ON:
        return TRACE_ID_LIMIT + 1
    return 0 if root is ALWAYS_OFF else None


class _Ids(IdGenerator):
    """Draws ids as before, but hands out a trace id that was drawn already."""

    def __init__(self, inner: IdGenerator) -> None:
        self.inner = inner
        self.drawn: int | None = None

    def generate_span_id(self) -> int:
        return self.inner.generate_span_id()

    def generate_trace_id(self) -> int:
        drawn, self.drawn = self.drawn, None
        return self.inner.generate_trace_id() if drawn is None else drawn


class RootSampling:
    """The sampler of one tracer, asked about roots.

    Args:
        tracer: Our own tracer of the SDK's; it takes its ids from here afterwards.
        bound: A trace is sampled if the part of its id that samplers look at is below this.
    """

    def __init__(self, tracer: Tracer, bound: int) -> None:
        self._bound = bound
        ids = tracer.id_generator
        # All participants of a process share the tracer: it is wrapped once.
        self._ids = ids if isinstance(ids, _Ids) else _Ids(ids)
        self._is_random = type(self._ids.inner) is RandomIdGenerator
        tracer.id_generator = self._ids

    @classmethod
    def of(cls, tracer: trace.Tracer) -> RootSampling | None:
        """Make one for a tracer; None where its sampler must see the span itself."""
        if not isinstance(tracer, Tracer):
            return None
        bound = root_bound(tracer.sampler)
        return None if bound is None or bound > TRACE_ID_LIMIT else cls(tracer, bound)

    def unsampled(self, call_id: str, drawn: int) -> str | None:
        """Begin a trace; return its `traceparent` if it is not sampled.

        Else return None: the tracer has to go on, and takes the id that the sampler saw. That is
        the call's own id, unless the tracer has ids of its own kind.

        Args:
            call_id: 128 random bits in hex.
            drawn: The lower 64 of them, which is what `TRACE_ID_LIMIT` leaves of an id.
        """
        if self._is_random:
            if drawn & TRACE_ID_LIMIT >= self._bound:
                return OF_THE_CALL
            self._ids.drawn = int(call_id, 16)
            return None
        trace_id = self._ids.inner.generate_trace_id()
        if trace_id & TRACE_ID_LIMIT >= self._bound:
            return f"00-{trace_id:032x}-{self._ids.inner.generate_span_id():016x}-00"
        self._ids.drawn = trace_id
        return None


class Rule(NamedTuple):
    """How a sampler decides, where that follows from parent and trace id alone."""

    asks_parent: bool
    """Whether a child is what its parent is."""
    bound: int
    """A trace is sampled if the part of its id that samplers look at is below this."""

    @classmethod
    def of(cls, sampler: Sampler) -> Rule | None:
        """Give the rule of a sampler that the variables can name; None for others."""
        bound = root_bound(sampler)
        if sampler is ALWAYS_ON or type(sampler) is TraceIdRatioBased:
            asks_parent = False
        elif sampler in (DEFAULT_ON, DEFAULT_OFF) or type(sampler) is ParentBasedTraceIdRatio:
            asks_parent = True
        else:
            return None
        return None if bound is None else cls(asks_parent, bound)

    def samples(self, parent: SpanContext | None, trace_id: int) -> bool:
        """Decide on one span."""
        if self.asks_parent and parent is not None:
            return bool(parent.trace_flags & TraceFlags.SAMPLED)
        return trace_id & TRACE_ID_LIMIT < self.bound
