"""Receives spans over OTLP/HTTP and lets a program wait for them; used by `toolbus trace`.

A viewer for one machine, not a collector: memory is bounded, nothing is written to disk, nothing
is forwarded. Needs the extra `otel`, and raises `MissingExtra` without it. Runs on uvicorn.

    async with SpanReceiver(port=0) as receiver:
        ...  # a process with OTEL_EXPORTER_OTLP_ENDPOINT set to receiver.endpoint
        spans = await receiver.wait_for(lambda spans: len(spans) >= 5, timeout_s=10)
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from toolbus.telemetry.viewer.trace_tree import SpanRecord

__all__ = ["MissingExtra", "ReceiverLimits", "SpanReceiver", "SpanStore", "StoreLimits"]


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
            trace_id = next(iter(self._traces))
            trace = self._traces.pop(trace_id)
            self._size_bytes -= trace.size_bytes
            self._changed.discard(trace_id)
            if not trace.shown:
                self.dropped += len(trace.spans)

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
        return list(self._traces.get(trace_id, _Trace()).spans.values())

    def traces(self) -> dict[str, list[SpanRecord]]:
        """Return all spans by trace id, oldest trace first."""
        return {trace_id: list(trace.spans.values()) for trace_id, trace in self._traces.items()}


if TYPE_CHECKING:
    import uvicorn

    from toolbus.telemetry.viewer.otlp_app import OtlpApp, ReadSpans


_CLOSE_S = 1


class MissingExtra(ImportError):
    """A package of the extra `otel` is not installed."""


@dataclass(frozen=True, slots=True)
class ReceiverLimits:
    """The limits of one receiver."""

    max_body_bytes: int = 4 * 1024 * 1024
    """Before and after decompression."""
    body_timeout_s: float = 10.0
    """How long a body may take to arrive."""
    max_connections: int = 64
    """Beyond that, requests get a 503."""
    store: StoreLimits = field(default_factory=StoreLimits)
    """How many spans are kept."""


class SpanReceiver(SpanStore):
    """An OTLP/HTTP endpoint that keeps received spans; an async context manager.

    Args:
        host: Address to listen on; every process that reaches it may send spans.
        port: Port to listen on, 0 for a free one.
        limits: What is accepted and kept.

    Entering raises `MissingExtra`, or `OSError` if the address is not available.
    """

    def __init__(
        self, *, host: str = "127.0.0.1", port: int = 4318, limits: ReceiverLimits | None = None
    ) -> None:
        self._host = host
        self._port = port
        self._accepts = limits or ReceiverLimits()
        super().__init__(self._accepts.store)
        self._has_grown = asyncio.Event()
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def endpoint(self) -> str:
        """The value for `OTEL_EXPORTER_OTLP_ENDPOINT`; the port is known once entered."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def spans(self) -> list[SpanRecord]:
        """Return all kept spans, trace by trace, in the order of arrival."""
        return [span for spans in self.traces().values() for span in spans]

    async def wait_for_change(self) -> None:
        """Wait until `take_changed` has ids to return."""
        while not self.has_changed:
            await self._has_grown.wait()

    async def wait_for(
        self, predicate: Callable[[Sequence[SpanRecord]], bool], *, timeout_s: float
    ) -> list[SpanRecord]:
        """Wait until the kept spans satisfy a predicate, and return them.

        Raises:
            TimeoutError: They did not in time; the message names the kept spans.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not predicate(spans := self.spans()):
                    await self._has_grown.wait()
        except TimeoutError:
            names = sorted(f"{span.kind} {span.name}" for span in self.spans())
            raise TimeoutError(f"waited {timeout_s} s for spans, have {names}") from None
        return spans

    async def __aenter__(self) -> SpanReceiver:
        build_server = _server_builder()
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.create_server((self._host, self._port), family=family)
        self._port = listener.getsockname()[1]
        self._server = build_server(self._accept, self._accepts)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        await self._serving

    def _accept(self, read: ReadSpans) -> None:
        self.add(read.spans)
        grown, self._has_grown = self._has_grown, asyncio.Event()
        grown.set()


def _server_builder() -> Callable[[Callable[[ReadSpans], None], ReceiverLimits], uvicorn.Server]:
    try:
        import uvicorn

        from toolbus.telemetry.viewer.otlp_app import OtlpApp
    except ImportError as error:
        raise MissingExtra(
            f"receiving spans needs {error.name}: pip install 'toolbus[otel]'", name=error.name
        ) from error

    class QuietServer(uvicorn.Server):
        """Does not handle signals, which belong to the program."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    def build(deliver: Callable[[ReadSpans], None], limits: ReceiverLimits) -> uvicorn.Server:
        app: OtlpApp = OtlpApp(
            deliver, max_body_bytes=limits.max_body_bytes, body_timeout_s=limits.body_timeout_s
        )
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level=None,
            access_log=False,
            server_header=False,
            limit_concurrency=limits.max_connections,
            timeout_graceful_shutdown=_CLOSE_S,
        )
        return QuietServer(config)

    return build
