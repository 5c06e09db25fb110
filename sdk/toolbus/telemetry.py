"""Spans of a call, and the trace context that ties them together over three processes.

::

    caller CLIENT  weather.forecast                Tracing.start_client
      node SERVER  weather.forecast                Tracing.start_server, forwarded; each of two
        host SERVER  weather.forecast              Tracing.start_host
          host INTERNAL  execute_tool forecast     HostCall.executing
            the tool's own spans

Needs `opentelemetry-api` alone: without a configured SDK nothing is recorded, and a context that
came in is passed on as it came. Where `configure` set the SDK up, CLIENT and SERVER spans are those
of `light_spans.py`. It runs on every call, so a parent that is not sampled is final for these
spans; only roots and sampled parents ask the local sampler.

Arguments and results are not recorded here; the names of all attributes stand in `semantics.py`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextvars import Token
from types import TracebackType
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind

from toolbus.errors import Executed, RoomException
from toolbus.semantics import (
    GEN_AI_TOOL_CALL_ID,
    SCOPE,
    Described,
    call_attributes,
    record_outcome,
    recorded_method,
    toolbus_version,
)
from toolbus.trace_context import (
    TRACESTATE,
    RemoteParent,
    TraceContext,
    enter_span,
    enter_unsampled,
    format_traceparent,
    is_sampled,
    is_unsampled,
    leave,
    parse_traceparent,
    read_trace_context,
    trace_context_of,
)

if TYPE_CHECKING:
    from toolbus.full_tracer import FullTracer
    from toolbus.light_spans import LightTracer
    from toolbus.root_sampling import RootSampling

__all__ = [
    "TRACESTATE",
    "CallSpan",
    "HostCall",
    "TraceContext",
    "Tracing",
    "call_attributes",
    "configure",
    "enter_unsampled",
    "format_traceparent",
    "forwarded",
    "is_sampled",
    "is_unsampled",
    "parse_traceparent",
    "read_trace_context",
    "recorded_method",
    "toolbus_version",
]

_LOOK_AGAIN_S = 1.0
_MAX_METHODS_KEPT = 256
_NO_CONTEXT = Context()
_logger = logging.getLogger(__name__)


def forwarded(
    span: CallSpan | None, received: TraceContext | None, *, trusted: bool
) -> TraceContext | None:
    """Choose the context a node sends on: its own span's, else what it received, unchanged.

    What a sender without the `trace` grant sent goes no further.
    """
    if span is not None:
        return span.context
    return received if trusted else None


class CallSpan:
    """One hop's span of one call; `context` goes to the next hop.

    A caller that only passes on the context it runs in has one that records nothing.
    """

    __slots__ = ("_span", "context")

    def __init__(self, span: trace.Span, context: TraceContext) -> None:
        self._span = span
        self.context: TraceContext = context

    @property
    def recording(self) -> bool:
        """Whether `describe` is worth calling."""
        return self._span.is_recording()

    def describe(self, attributes: Mapping[str, str]) -> None:
        """Add attributes that were not known at the start."""
        self._span.set_attributes(attributes)

    def end(self, error: RoomException | None = None, *, executed: Executed | None = None) -> None:
        """End the span with the call's outcome; `executed` is the error's, or "yes", unless given.

        The status is ERROR for every error but `cancelled`. Words are recorded only if the tool
        chose them by raising `ToolFailed(words)`: other texts may quote arguments.
        """
        if self._span.is_recording():
            record_outcome(self._span, error, executed)
            self._span.end()


class HostCall:
    """A call as its host sees it; this one records nothing, and keeps the context for the tool."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._token: Token[Context] | None = None

    @property
    def recording(self) -> bool:
        """Whether `describe` is worth calling."""
        return False

    def describe(self, attributes: Mapping[str, str]) -> None:
        """Add attributes to the SERVER span."""

    def executing(self) -> HostCall:
        """Give the context manager around the tool's run; enter it once, in the tool's own task.

        Inside, the call's context is current, sampled or not, so that the tool's spans and nested
        calls belong to the call, and never to whatever was current when the host connected. What
        the tool raises passes through: tell the outcome to `end`.
        """
        return self

    def __enter__(self) -> None:
        context = self._context
        if context or otel_context.get_current():
            self._token = otel_context.attach(context)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._token is not None:
            otel_context.detach(self._token)

    def end(self, error: RoomException | None = None, *, executed: Executed | None = None) -> None:
        """End the spans with the call's outcome, as `CallSpan.end` does."""


class _RecordedHostCall(HostCall):
    """A SERVER span, and below it an INTERNAL one for the time in which the tool runs."""

    __slots__ = ("_call", "_described", "_entered", "_inner", "_inner_end_ns", "_span", "_tracer")

    def __init__(
        self, span: trace.Span, tracer: Any, described: Described, call: Mapping[str, str]
    ) -> None:
        self._span = span
        self._tracer = tracer
        self._described = described
        self._call = call
        self._inner: trace.Span | None = None
        self._inner_end_ns: int | None = None

    @property
    def recording(self) -> bool:
        return True

    def describe(self, attributes: Mapping[str, str]) -> None:
        self._span.set_attributes(attributes)

    def __enter__(self) -> None:
        described = self._described
        written = described.run, self._call
        self._inner = self._tracer.start_within(
            self._span, described.run_name, SpanKind.INTERNAL, written
        )
        self._entered = enter_span(self._inner)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inner_end_ns = time.time_ns()
        leave(self._entered)

    def end(self, error: RoomException | None = None, *, executed: Executed | None = None) -> None:
        inner = getattr(self._inner, "untouched", self._inner)
        if inner is not None and inner.is_recording():
            record_outcome(inner, error, executed)
            inner.end(self._inner_end_ns)
        if self._span.is_recording():
            record_outcome(self._span, error, executed)
            self._span.end()


class Tracing:
    """Starts the spans of one part of a process: a participant, or a node.

    Args:
        tracer_provider: Where to record; the process's own provider unless given. That one is
            looked for at the first call and then once a second until somebody has set it.
        clock: Seconds that only grow, for that second.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._provider = tracer_provider
        self._clock = clock
        self.idle_until: float = float("-inf")
        """Until then, by the clock, nothing is recorded here: what needs no context may skip us."""
        self._tracer: LightTracer | FullTracer | None = None
        self._tool_tracer: Any = None
        self.roots: RootSampling | None = None
        """Begins a trace that nobody records, where no span is current: what most calls get where
        traces are sampled, for a small part of the cost of `start_client`, which takes up what was
        begun here if it is asked next. None where there is none to ask."""
        self._described: dict[str, Described] = {}

    def start_client(self, method: str, call_id: str) -> CallSpan | None:
        """Start the caller's CLIENT span below the current span; None if there is nothing to send.

        In a context that is valid but not recorded here, the span records nothing and passes that
        context on.
        """
        tracer = self._tracer or self._look_for_tracer()
        parent = trace.get_current_span() if otel_context.get_current() else trace.INVALID_SPAN
        is_root = parent is trace.INVALID_SPAN or not parent.get_span_context().is_valid
        if tracer is None or not (is_root or parent.get_span_context().trace_flags.sampled):
            received = trace_context_of(parent)
            return None if received is None else CallSpan(trace.INVALID_SPAN, received)
        described = self._described.get(method) or self._describe(method)
        written = described.client, {GEN_AI_TOOL_CALL_ID: call_id}
        span = tracer.start_span(described.name, None, SpanKind.CLIENT, written)
        context = trace_context_of(span)
        return None if context is None else CallSpan(span, context)

    def _describe(self, method: str) -> Described:
        """Collect what is the same for all calls of a tool, once for the tools in use."""
        described = Described.of(method)
        if described.name == method:
            if len(self._described) >= _MAX_METHODS_KEPT:
                self._described.clear()
            self._described[method] = described
        return described

    def start_server(
        self,
        method: str,
        call_id: str,
        *,
        received: TraceContext,
        trusted: bool,
        attributes: Mapping[str, str],
    ) -> CallSpan | None:
        """Start a node's SERVER span for a call whose context is sampled; None if it records none.

        Without trust, that is without the caller's grant `trace`, the span is a new root with a
        link to the caller's. Ask `received.sampled` first, and send `forwarded(...)` on.
        """
        tracer = self._tracer or self._look_for_tracer()
        remote = None if tracer is None else parse_traceparent(*received)
        if tracer is None or remote is None:
            return None
        described = self._described.get(method) or self._describe(method)
        written = described.server, {GEN_AI_TOOL_CALL_ID: call_id}, attributes
        links, parent = ((), remote) if trusted else ((trace.Link(remote),), None)
        span = tracer.start_span(method, _NO_CONTEXT, SpanKind.SERVER, written, links, parent)
        context = trace_context_of(span) if span.is_recording() else None
        return None if context is None else CallSpan(span, context)

    def start_host(self, method: str, call_id: str, *, received: TraceContext | None) -> HostCall:
        """Start a host's SERVER span; without a received context it is a root, if sampled at all.

        Never None: also an unrecorded call gives its tool the right context.
        """
        if received is not None and not received.sampled:
            return HostCall(_below(RemoteParent(*received)))
        tracer = self._tracer or self._look_for_tracer()
        if tracer is None:
            return HostCall(_NO_CONTEXT if received is None else _below(RemoteParent(*received)))
        remote = None if received is None else parse_traceparent(*received)
        described = self._described.get(method) or self._describe(method)
        call = {GEN_AI_TOOL_CALL_ID: call_id}
        written = described.server, call
        span = tracer.start_span(method, _NO_CONTEXT, SpanKind.SERVER, written, (), remote)
        if span.is_recording():
            return _RecordedHostCall(span, self._tool_tracer, described, call)
        return HostCall(_below(span))

    def _look_for_tracer(self) -> LightTracer | FullTracer | None:
        now = self._clock()
        if now < self.idle_until:
            return None
        self.idle_until = now + _LOOK_AGAIN_S
        provider = self._provider or trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider):
            return None
        tracer = provider.get_tracer(SCOPE, toolbus_version())
        if not isinstance(tracer, trace.NoOpTracer):
            from toolbus.root_sampling import RootSampling
            from toolbus.tool_spans import tracers_of

            self.roots = RootSampling.of(tracer)
            self._tracer, self._tool_tracer = tracers_of(tracer, provider)
            self.idle_until = float("-inf")
        return self._tracer


def _below(span: trace.Span) -> Context:
    return trace.set_span_in_context(span, _NO_CONTEXT)


def configure(service_name: str, *, instance_id: str | None = None) -> Callable[[], None] | None:
    """Record this process's spans if the standard `OTEL_*` variables ask for it.

    They ask by an OTLP endpoint or `OTEL_TRACES_EXPORTER=otlp`; `OTEL_SDK_DISABLED=true` and
    `OTEL_TRACES_EXPORTER=none` win. Call it once, early, in a program, never in a library.

    Args:
        service_name: `service.name`, unless the variables give one.
        instance_id: `service.instance.id`; random unless given.

    Returns:
        What to call at the end: it sends what is left, for 2 s at most, and blocks meanwhile. None
        if nothing was set up: not asked for, a provider is there already, or the extra `otel` is
        missing, which a warning says.
    """
    if not _asked_for(os.environ):
        return None
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    try:
        from toolbus.span_export import SpanPipeline
    except ImportError as error:
        _logger.warning(
            "OTEL_* variables ask for traces, but %s is missing: pip install 'toolbus[otel]'",
            error.name,
        )
        return None
    pipeline = SpanPipeline.from_environment(service_name, instance_id=instance_id)
    trace.set_tracer_provider(pipeline.provider)
    return pipeline.close


def _asked_for(environ: Mapping[str, str]) -> bool:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporters = environ.get("OTEL_TRACES_EXPORTER", "").lower().replace(" ", "")
    if exporters:
        return "otlp" in exporters.split(",")
    return any(
        environ.get(name)
        for name in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    )
