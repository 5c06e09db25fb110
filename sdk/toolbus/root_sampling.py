"""Asks the SDK's own sampler about a call that begins a trace, before a span is made for it.

An unsampled span costs the SDK as much as a recorded one up to the moment it is thrown away.
Where the sampler's answer follows from the trace id alone, it can be had first, and for nearly all
calls nothing else is needed. A sampled call is then begun with the id that the sampler saw.

Imports the OpenTelemetry SDK, so it is itself imported only where one is configured.
"""

from __future__ import annotations

from collections.abc import Callable
from random import getrandbits

from opentelemetry import trace
from opentelemetry.sdk.trace import Tracer
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, TraceIdRatioBased

from toolbus.trace_context import TraceContext

__all__ = ["RootSampling"]

_SPAN_BITS = 2**64 - 1


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
        self._draw = _draw_of(tracer.id_generator)
        self._ids = tracer.id_generator = _Ids(tracer.id_generator)

    @classmethod
    def of(cls, tracer: trace.Tracer) -> RootSampling | None:
        """Make one for a tracer; None where its sampler must see the span itself."""
        if not isinstance(tracer, Tracer):
            return None
        sampler = getattr(tracer.sampler, "_root", tracer.sampler)
        if isinstance(sampler, TraceIdRatioBased):
            return cls(tracer, sampler.bound)
        if sampler is ALWAYS_OFF:
            return cls(tracer, 0)
        return None

    def unsampled(self) -> TraceContext | None:
        """Begin a trace; return its context if it is not sampled, else let the tracer go on."""
        trace_id, span_id = self._draw()
        if trace_id & TraceIdRatioBased.TRACE_ID_LIMIT < self._bound:
            self._ids.drawn = trace_id
            return None
        return TraceContext(f"00-{trace_id:032x}-{span_id:016x}-00")


def _draw_of(generator: IdGenerator) -> Callable[[], tuple[int, int]]:
    """Give what draws the ids of a trace and a span, in one go where they are just random."""
    if type(generator) is RandomIdGenerator:
        return _draw_at_random
    return lambda: (generator.generate_trace_id(), generator.generate_span_id())


def _draw_at_random() -> tuple[int, int]:
    bits = getrandbits(192)
    trace_id, span_id = bits >> 64, bits & _SPAN_BITS
    return (trace_id, span_id) if trace_id and span_id else _draw_at_random()
