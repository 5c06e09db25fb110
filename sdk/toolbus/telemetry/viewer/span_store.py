"""Keeps received spans by trace, within limits. Pure: no clock, no I/O.

When it is full the oldest trace is dropped; dropped spans are counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from toolbus.telemetry.viewer.trace_tree import SpanRecord

__all__ = ["SpanStore", "StoreLimits"]


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """How much is kept."""

    max_traces: int = 1_000
    max_spans_per_trace: int = 2_000
    max_bytes: int = 64 * 1024 * 1024
    """Sizes on the wire; Python values take a few times as much."""


@dataclass(slots=True)
class _Trace:
    spans: dict[str, SpanRecord] = field(default_factory=dict)
    size_bytes: int = 0
    shown: bool = False


class SpanStore:
    """The spans of the latest traces. A span that is received twice counts once."""

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._traces: dict[str, _Trace] = {}
        self._changed: set[str] = set()
        self._size_bytes = 0
        self.dropped: int = 0
        """Spans that were dropped because of the limits."""

    def add(self, spans: Iterable[tuple[SpanRecord, int]]) -> None:
        """Keep spans, each given with its size in bytes."""
        for span, size_bytes in spans:
            self._keep(span, size_bytes)
        while len(self._traces) > self._limits.max_traces or (
            self._size_bytes > self._limits.max_bytes and self._traces
        ):
            self._drop(next(iter(self._traces)))

    def _keep(self, span: SpanRecord, size_bytes: int) -> None:
        trace = self._traces.setdefault(span.trace_id, _Trace())
        if span.span_id in trace.spans:
            return
        if len(trace.spans) >= self._limits.max_spans_per_trace:
            self.dropped += 1
            return
        trace.spans[span.span_id] = span
        trace.size_bytes += size_bytes
        trace.shown = False
        self._size_bytes += size_bytes
        self._changed.add(span.trace_id)

    def _drop(self, trace_id: str) -> None:
        trace = self._traces.pop(trace_id)
        self._size_bytes -= trace.size_bytes
        self._changed.discard(trace_id)
        if not trace.shown:
            self.dropped += len(trace.spans)

    def mark_shown(self, trace_id: str) -> None:
        """Mark a trace as shown in its current state: dropping it is not counted as a loss."""
        if trace_id in self._traces:
            self._traces[trace_id].shown = True

    @property
    def has_changed(self) -> bool:
        """Whether `take_changed` has ids to return."""
        return bool(self._changed)

    def take_changed(self) -> set[str]:
        """Return the ids of the traces that grew since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def trace(self, trace_id: str) -> list[SpanRecord]:
        """Return the spans of one trace in the order of arrival."""
        trace = self._traces.get(trace_id)
        return [] if trace is None else list(trace.spans.values())

    def traces(self) -> dict[str, list[SpanRecord]]:
        """Return all spans by trace id, oldest trace first."""
        return {trace_id: list(trace.spans.values()) for trace_id, trace in self._traces.items()}
