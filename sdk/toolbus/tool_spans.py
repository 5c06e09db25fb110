"""The span around a tool's run: ours until somebody touches it, then the SDK's.

A tool may do with its span what the SDK lets it: most do nothing. So it begins as a light one, and
the SDK makes the real one, with the same ids and the same start, when anything but its context is
asked for, on whatever thread. Once it has ended nothing is made any more, and nothing is kept.

Imports the OpenTelemetry SDK, so it is itself imported only where one is configured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import SpanContext, SpanKind

from toolbus.full_tracer import FullTracer, below
from toolbus.light_spans import LightSpan, LightTracer

__all__ = ["ToolSpan", "ToolTracer", "tracers_of"]


def tracers_of(
    tracer: trace.Tracer, provider: trace.TracerProvider
) -> tuple[LightTracer | FullTracer, ToolTracer | FullTracer]:
    """Choose who begins the spans of calls, and who those of tools: the SDK where it has to."""
    light = LightTracer.of(tracer, provider)
    if light is None:
        full = FullTracer(tracer)
        return full, full
    return light, ToolTracer(light)


class ToolTracer:
    """Begins the spans of tools in the place of the SDK's tracer.

    Args:
        light: Begins them, and has the SDK make one in the place of another.
    """

    def __init__(self, light: LightTracer) -> None:
        self._light = light
        self._lock = Lock()

    def start_within(
        self,
        outer: trace.Span,
        name: str,
        kind: SpanKind,
        written: Sequence[Mapping[str, Any]],
    ) -> trace.Span:
        """Begin a span below a recorded one, as the SDK's tracer does."""
        span = self._light.start_within(outer, name, kind, written)
        if span is None:
            return self._light.start_span(name, below(outer), kind, written)
        return ToolSpan(span, lambda: self._light.full(span, below(outer)), self._lock)


class ToolSpan(trace.Span):
    """A span that is the SDK's from the first touch on.

    Args:
        light: What it is before.
        full: Makes the SDK's.
        lock: Held while that is made, for all spans of a tracer.
    """

    def __init__(self, light: LightSpan, full: Callable[[], trace.Span], lock: Lock) -> None:
        self._light = light
        self._full = full
        self._lock = lock
        self._made: trace.Span | None = None

    @property
    def untouched(self) -> trace.Span:
        """What stands here now; making nothing of it."""
        return self._made or self._light

    def _touched(self) -> trace.Span:
        with self._lock:
            if self._made is None and self._light.is_recording():
                self._made = self._full()
            return self._made or self._light

    def __getattr__(self, name: str) -> Any:
        """Give whatever else the SDK's span has."""
        return getattr(self._touched(), name)

    def get_span_context(self) -> SpanContext:
        """Give its ids."""
        return self._light.get_span_context()

    def is_recording(self) -> bool:
        """Whether it has not ended."""
        return self.untouched.is_recording()

    def end(self, end_time: int | None = None) -> None:
        """End it, once."""
        self.untouched.end(end_time)

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes."""
        self._touched().set_attributes(attributes)

    def set_attribute(self, key: str, value: Any) -> None:
        """Add one attribute."""
        self._touched().set_attribute(key, value)

    def add_event(self, *args: Any, **kwargs: Any) -> None:
        """Add what happened at a point of time."""
        self._touched().add_event(*args, **kwargs)

    def add_link(self, *args: Any, **kwargs: Any) -> None:
        """Point to another span."""
        self._touched().add_link(*args, **kwargs)

    def update_name(self, name: str) -> None:
        """Name it anew."""
        self._touched().update_name(name)

    def set_status(self, *args: Any, **kwargs: Any) -> None:
        """Say how it went."""
        self._touched().set_status(*args, **kwargs)

    def record_exception(self, *args: Any, **kwargs: Any) -> None:
        """Add an exception as an event."""
        self._touched().record_exception(*args, **kwargs)
