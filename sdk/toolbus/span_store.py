"""Holds received spans by trace, within bounds. Pure: no clock, no I/O.

When it is full the trace that came first makes room; what was dropped is counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from toolbus.trace_tree import SpanRecord

__all__ = ["SpanStore", "StoreLimits"]


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """How much is held."""

    max_traces: int = 1_000
    max_spans_per_trace: int = 2_000
    max_bytes: int = 64 * 1024 * 1024
    """Sizes on the wire; as Python values they take a few times as much."""


@dataclass(slots=True)
class _Trace:
    spans: dict[str, SpanRecord] = field(default_factory=dict)
    size_bytes: int = 0
    shown: bool = False


class SpanStore:
    """The spans of the latest traces. A span that comes twice counts once."""

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._traces: dict[str, _Trace] = {}
        self._changed: set[str] = set()
        self._size_bytes = 0
        self.dropped: int = 0
        """Spans that were dropped for lack of room."""

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
        """Say that a trace has been seen as it is now: dropping it is no loss."""
        if trace_id in self._traces:
            self._traces[trace_id].shown = True

    @property
    def has_changed(self) -> bool:
        """Whether `take_changed` has something to give."""
        return bool(self._changed)

    def take_changed(self) -> set[str]:
        """Give the ids of the traces that grew since the last time this was asked."""
        changed, self._changed = self._changed, set()
        return changed

    def trace(self, trace_id: str) -> list[SpanRecord]:
        """Give the spans of one trace in the order in which they came."""
        trace = self._traces.get(trace_id)
        return [] if trace is None else list(trace.spans.values())

    def traces(self) -> dict[str, list[SpanRecord]]:
        """Give all spans by trace id, oldest trace first."""
        return {trace_id: list(trace.spans.values()) for trace_id, trace in self._traces.items()}
