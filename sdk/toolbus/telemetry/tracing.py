"""Spans of a call, and the trace context that connects them over three processes.

    caller CLIENT  weather.forecast                Tracing.start_client
      server SERVER  weather.forecast              Tracing.start_server; one per server passed
        host SERVER  weather.forecast              Tracing.start_host
          host INTERNAL  execute_tool forecast     HostCall.executing
            the tool's own spans
            host INTERNAL  hold                    the wait for a person: `tools.observed_hold`

Needs `opentelemetry-api` alone: without a configured SDK nothing is recorded, and a received
context is passed on unchanged. What records is chosen in `recorder.py`. This runs on every call, so
a parent that is not sampled is final for these spans; only roots and sampled parents ask the
configured sampler.

Arguments and results are not recorded; `attributes.py` has the names of all attributes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Token

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind

from toolbus.bounded_logging import bounded_logger, silence
from toolbus.errors import Executed, RoomException
from toolbus.telemetry.attributes import (
    GEN_AI_TOOL_CALL_ID,
    ToolDescription,
    call_attributes,
    record_outcome,
    recorded_method,
    toolbus_version,
)
from toolbus.telemetry.propagation import (
    CALL_AS_TRACE,
    TRACESTATE,
    RemoteParent,
    TraceContext,
    below,
    enter_unsampled,
    format_traceparent,
    is_sampled,
    is_unsampled,
    parse_traceparent,
    read_trace_context,
    trace_context_of,
)
from toolbus.telemetry.recorder import SpanRecorder, recorder_of
from toolbus.telemetry.variables import asks_for_spans, corrected_variables

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
    "recorded",
    "recorded_method",
    "toolbus_version",
]


@contextmanager
def recorded(service_name: str) -> Iterator[None]:
    """Record spans within the block, if the standard `OTEL_*` variables ask for it.

    At its end, spans that are left are sent, which blocks for 2 s at most.

    Args:
        service_name: `service.name`, unless the variables give one.
    """
    send_spans = configure(service_name)
    try:
        yield
    finally:
        if send_spans is not None:
            send_spans()


_PROVIDER_CHECK_S = 1.0
_MAX_DESCRIPTIONS = 256
"""Callers name tools, also such as do not exist: without it all names would stay in memory."""
_PROVIDER = "OTEL_PYTHON_TRACER_PROVIDER"
_NO_CONTEXT = Context()
_CLIENT = SpanKind.CLIENT
_logger = bounded_logger(__name__)


def forwarded(
    span: CallSpan | None, received: TraceContext | None, *, trusted: bool
) -> TraceContext | None:
    """Choose the context a server sends on: its own span's, else the received one, unchanged.

    The context of a sender without the `trace` grant is not sent on.
    """
    if span is not None:
        return span.context
    return received if trusted else None


class CallSpan:
    """One hop's span of one call; `context` goes to the next hop."""

    __slots__ = ("_span", "context")

    def __init__(self, span: trace.Span, context: TraceContext) -> None:
        self._span = span
        self.context: TraceContext = context

    @property
    def recording(self) -> bool:
        """Whether `describe` has an effect."""
        return self._span.is_recording()

    def describe(self, attributes: Mapping[str, str]) -> None:
        """Add attributes that were not known at the start."""
        self._span.set_attributes(attributes)

    def end(
        self,
        error: RoomException | None = None,
        *,
        executed: Executed | None = None,
        at_ns: int | None = None,
    ) -> None:
        """End the span with the call's outcome; `executed` is the error's, or "yes", unless given.

        The status is ERROR for every error but `cancelled`. A message is recorded only if the tool
        chose it by raising `ToolFailed(message)`: other texts may quote arguments.

        Args:
            error: The call's error; None if it has a result.
            executed: Whether the tool ran.
            at_ns: When the span ends, in nanoseconds since the epoch; now unless given.
        """
        if self._span.is_recording():
            record_outcome(self._span, error, executed)
            self._span.end(at_ns)


class UnrecordedCallSpan(CallSpan):
    """The context of a call that is not recorded here: it only goes to the next hop."""

    __slots__ = ()

    recording = False

    def __init__(self, context: TraceContext) -> None:
        super().__init__(trace.INVALID_SPAN, context)


_UNSAMPLED_ROOT = UnrecordedCallSpan(TraceContext(CALL_AS_TRACE))


def _call_span(span: trace.Span) -> CallSpan | None:
    context = trace_context_of(span)
    return None if context is None else CallSpan(span, context)


class HostCall:
    """A call on its host; this one records nothing, and keeps the context for the tool."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._token: Token[Context] | None = None

    @property
    def recording(self) -> bool:
        """Whether `describe` has an effect."""
        return False

    def describe(self, attributes: Mapping[str, str]) -> None:
        """Add attributes to the SERVER span."""

    def executing(self) -> HostCall:
        """Return the context manager around the tool's run; enter it once, in the tool's own task.

        Inside, the call's context is current, sampled or not, so that the tool's spans and nested
        calls belong to the call, and never to the span that was current when the host connected.
        Exceptions of the tool pass through; report the outcome to `end`.
        """
        return self

    def __enter__(self) -> None:
        self._token = otel_context.attach(self._context)

    def __exit__(self, *_: object) -> None:
        # A coroutine that is destroyed unfinished ends in another context, which stays as it is.
        if self._token is not None and otel_context.get_current() is self._context:
            otel_context.detach(self._token)

    def end(self, error: RoomException | None = None, *, executed: Executed | None = None) -> None:
        """End the spans with the call's outcome, as `CallSpan.end` does."""


class _RecordedHostCall(HostCall):
    """A SERVER span, and below it an INTERNAL one for the time in which the tool runs."""

    __slots__ = ("_call", "_description", "_inner", "_inner_end_ns", "_recorder", "_span")

    def __init__(
        self,
        span: trace.Span,
        recorder: SpanRecorder,
        description: ToolDescription,
        call: Mapping[str, str],
    ) -> None:
        super().__init__(_NO_CONTEXT)
        self._span = span
        self._recorder = recorder
        self._description = description
        self._call = call
        self._inner: trace.Span | None = None
        self._inner_end_ns: int | None = None

    @property
    def recording(self) -> bool:
        return True

    def describe(self, attributes: Mapping[str, str]) -> None:
        self._span.set_attributes(attributes)

    def __enter__(self) -> None:
        description = self._description
        self._inner = self._recorder.start_span(
            description.run_name,
            SpanKind.INTERNAL,
            (description.run, self._call),
            below(self._span),
        )
        self._context = below(self._inner)
        super().__enter__()

    def __exit__(self, *_: object) -> None:
        self._inner_end_ns = time.time_ns()
        super().__exit__()

    def end(self, error: RoomException | None = None, *, executed: Executed | None = None) -> None:
        if self._inner is not None and self._inner.is_recording():
            record_outcome(self._inner, error, executed)
            self._inner.end(self._inner_end_ns)
        if self._span.is_recording():
            record_outcome(self._span, error, executed)
            self._span.end()


class Tracing:
    """Starts the spans of one part of a process: a participant, or a server.

    Args:
        tracer_provider: Where to record; the process's own provider unless given. Until that one
            is set, the first call and then one call per second check for it.
        clock: Monotonic seconds, for that second.
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
        """Until this time, by `clock`, nothing is recorded; calls may skip this object."""
        self._recorder: SpanRecorder | None = None
        self._descriptions: dict[str, ToolDescription] = {}

    def start_client(self, method: str, call_id: str) -> CallSpan | None:
        """Start the caller's CLIENT span below the current span; None if there is nothing to send.

        In a context that is valid but not recorded here, the span records nothing and passes that
        context on.
        """
        recorder = self._recorder or self._find_recorder()
        if not otel_context.get_current():
            return self._start_root(recorder, method, call_id)
        parent = trace.get_current_span()
        parent_context = parent.get_span_context()
        if not parent_context.is_valid:
            return self._start_root(recorder, method, call_id)
        if recorder is None or not parent_context.trace_flags.sampled:
            received = trace_context_of(parent)
            return None if received is None else UnrecordedCallSpan(received)
        description = self._descriptions.get(method) or self._describe(method)
        attributes = description.client, {GEN_AI_TOOL_CALL_ID: call_id}
        return _call_span(recorder.start_span(description.name, SpanKind.CLIENT, attributes))

    def _start_root(
        self, recorder: SpanRecorder | None, method: str, call_id: str
    ) -> CallSpan | None:
        if recorder is None:
            return None
        description = self._descriptions.get(method) or self._describe(method)
        span = recorder.start_root(description.name, _CLIENT, description.client)
        if span is None:
            return _UNSAMPLED_ROOT
        span.set_attribute(GEN_AI_TOOL_CALL_ID, call_id)
        return _call_span(span)

    def _describe(self, method: str) -> ToolDescription:
        """Make the attributes that all calls of a tool share; kept for the tools in use."""
        description = ToolDescription.of(method)
        if description.name == method:
            if len(self._descriptions) >= _MAX_DESCRIPTIONS:
                self._descriptions.clear()
            self._descriptions[method] = description
        return description

    def start_server(
        self,
        method: str,
        call_id: str,
        *,
        received: TraceContext,
        trusted: bool,
        attributes: Mapping[str, str],
    ) -> CallSpan | None:
        """Start a server's span for a call whose context is sampled; None if it records none.

        Without trust, that is without the caller's grant `trace`, the span is a new root with a
        link to the caller's. Check `received.sampled` first, and send `forwarded(...)` on.
        """
        recorder = self._recorder or self._find_recorder()
        if recorder is None or (remote := parse_traceparent(*received)) is None:
            return None
        description = self._descriptions.get(method) or self._describe(method)
        written = description.server, {GEN_AI_TOOL_CALL_ID: call_id}, attributes
        context = below(trace.NonRecordingSpan(remote)) if trusted else _NO_CONTEXT
        links = () if trusted else (trace.Link(remote),)
        span = recorder.start_span(method, SpanKind.SERVER, written, context, links)
        return _call_span(span) if span.is_recording() else None

    def start_host(self, method: str, call_id: str, *, received: TraceContext | None) -> HostCall:
        """Start a host's SERVER span; without a received context it is a root, if sampled at all.

        Never None: also an unrecorded call gives its tool the right context.
        """
        context = _NO_CONTEXT if received is None else below(RemoteParent(*received))
        if received is not None and not received.sampled:
            return HostCall(context)
        recorder = self._recorder or self._find_recorder()
        if recorder is None:
            return HostCall(context)
        description = self._descriptions.get(method) or self._describe(method)
        call = {GEN_AI_TOOL_CALL_ID: call_id}
        span = recorder.start_span(method, SpanKind.SERVER, (description.server, call), context)
        if span.is_recording():
            return _RecordedHostCall(span, recorder, description, call)
        return HostCall(below(span))

    def recorder(self) -> SpanRecorder | None:
        """Return what records spans now; None if nothing does."""
        return self._recorder or self._find_recorder()

    def _find_recorder(self) -> SpanRecorder | None:
        now = self._clock()
        if now < self.idle_until:
            return None
        self.idle_until = now + _PROVIDER_CHECK_S
        provider = self._provider or _process_provider()
        if isinstance(provider, trace.ProxyTracerProvider):
            return None
        self._recorder = recorder_of(provider)
        if self._recorder is not None:
            self.idle_until = float("-inf")
        return self._recorder


def configure(service_name: str, *, instance_id: str | None = None) -> Callable[[], None] | None:
    """Record this process's spans if the standard `OTEL_*` variables ask for it.

    They ask by an OTLP endpoint or `OTEL_TRACES_EXPORTER=otlp`; `OTEL_SDK_DISABLED=true` and
    `OTEL_TRACES_EXPORTER=none` win. Call it once, early, in a program, never in a library.

    Args:
        service_name: `service.name`, unless the variables give one.
        instance_id: `service.instance.id`; random unless given.

    A wrong variable is a warning that names it, and its default is used.

    Returns:
        A function to call at the end: it sends the spans that are left, and blocks for 2 s at
        most. None if nothing was set up: the variables do not ask for it, a provider is set
        already, or the extra `otel` is missing, which is logged as a warning.
    """
    if not asks_for_spans(os.environ):
        return None
    if not isinstance(_process_provider(), trace.ProxyTracerProvider):
        return None
    try:
        with corrected_variables():  # the SDK reads some of them when it is imported
            from toolbus.telemetry.otlp_exporter import SpanPipeline

            pipeline = SpanPipeline.from_environment(service_name, instance_id=instance_id)
    except ImportError as error:
        _logger.warning(
            "OTEL_* variables ask for traces, but %s is missing: pip install 'toolbus[otel]'",
            error.name,
        )
        return None
    except Exception as error:  # another part that the variables name: telemetry stops no program
        _logger.warning("no spans are sent: setting that up failed with %s", type(error).__name__)
        _logger.debug("setting up spans failed", exc_info=True)
        return None
    trace.set_tracer_provider(pipeline.provider)
    return pipeline.close


def _process_provider() -> trace.TracerProvider:
    """Return this process's tracer provider; one that a variable names and that fails is none.

    The API logs a traceback and raises at each attempt to load it, which would be at each call.
    """
    if _PROVIDER in os.environ:
        silence("opentelemetry.util._providers")
    try:
        return trace.get_tracer_provider()
    except Exception as error:
        os.environ.pop(_PROVIDER, None)  # the next attempt would fail as well
        _logger.warning("%s cannot be loaded (%s): none is used", _PROVIDER, type(error).__name__)
        return trace.get_tracer_provider()
