"""Spans of our own, for those that nobody but us touches: cheaper than the SDK's.

The SDK's `Span` is made for anybody, at any time, from any thread, and for processors that look at
it while it runs. A call's CLIENT and SERVER spans are begun, described and ended by `Tracing`
alone, and one processor takes them at their end. These keep what they are told until then. Where
the exporter can read them they leave as they are, else as the SDK's `ReadableSpan`, equal to what
the SDK would have sent.

Only below a `PipelineProvider` with a sampler that the variables can name, and only as long as
nobody has added a processor of their own to it; else the SDK makes its spans, as everywhere.

Imports the OpenTelemetry SDK, so it is itself imported only where one is configured.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from math import inf
from time import time_ns
from typing import Any

from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import (
    ReadableSpan,
    SpanLimits,
    SpanProcessor,
    Tracer,
    TracerProvider,
)
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from toolbus.full_tracer import FullTracer, joined
from toolbus.root_sampling import Rule
from toolbus.semantics import SCOPE, toolbus_version

__all__ = [
    "UNSET",
    "LightSpan",
    "LightTracer",
    "PipelineProvider",
    "counts_its_own",
    "readable",
]

UNSET = Status(StatusCode.UNSET)
"""Of a span of which nothing was said."""
# Older releases neither send this flag nor know it.
_RANDOM: int = getattr(TraceFlags, "RANDOM_TRACE_ID", 0)
_SAMPLED: int = TraceFlags.SAMPLED


def counts_its_own(environ: Mapping[str, str]) -> bool:
    """Say whether the variables ask the SDK to count what it records and sends."""
    asked = environ.get("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "")
    return asked.strip().lower() == "true"


class PipelineProvider(TracerProvider):
    """A tracer provider that made its one processor itself, and sees when others add theirs.

    Args:
        processor: Takes all spans; it must not look at a span before it has ended.
        resource: Whose spans they are.
        limits: What a span may hold.
    """

    def __init__(self, processor: SpanProcessor, resource: Resource, limits: SpanLimits) -> None:
        super().__init__(resource=resource, span_limits=limits, shutdown_on_exit=False)
        super().add_span_processor(processor)
        self.limits: SpanLimits = limits
        """What a span may hold."""
        # The SDK's own counts of spans are taken where its spans are made.
        self.takes_light_spans: bool = not counts_its_own(os.environ)
        """Whether nobody looks for the SDK's own spans here."""
        self.sink: Callable[[LightSpan], None] | None = None
        """Takes light spans at their end as they are, in the place of the processor."""

    def add_span_processor(self, span_processor: SpanProcessor) -> None:
        """Add somebody else's processor, which from now on sees the SDK's spans from their start.

        Spans that have begun before still reach it at their end.
        """
        self.takes_light_spans = False
        super().add_span_processor(span_processor)


class LightSpan(trace.NonRecordingSpan):  # its constructor would keep the context once more
    """A span that belongs to one thread, has attributes, links and a status, and no events.

    Args:
        tracer: Takes it at its end.
        context: Its own ids.
        parent: What it is below; None for a root.
        name: What is recorded.
        kind: Which end of the call it is.
        written: Attributes that are known at the start; kept, not copied.
    """

    def __init__(
        self,
        tracer: LightTracer,
        context: SpanContext,
        parent: SpanContext | None,
        name: str,
        kind: SpanKind,
        written: Iterable[Mapping[str, Any]],
    ) -> None:
        self.context: SpanContext = context
        """Its own ids."""
        self.tracer: LightTracer = tracer
        """Takes it at its end."""
        self.parent: SpanContext | None = parent
        """What it is below; None for a root."""
        self.name: str = name
        """What is recorded."""
        self.kind: SpanKind = kind
        """Which end of the call it is."""
        self.written: list[Mapping[str, Any]] = [*written]
        """Attributes, in the order in which they were set; later ones win."""
        self.links: Sequence[trace.Link] = ()
        """Other spans that this one points to."""
        self.status: Status = UNSET
        """How it went."""
        self.start_ns: int = time_ns()
        """When it began, in nanoseconds since 1970."""
        self.end_ns: int | None = None
        """When it ended."""

    def get_span_context(self) -> SpanContext:
        """Give its own ids."""
        return self.context

    def is_recording(self) -> bool:
        """Whether it has not ended."""
        return self.end_ns is None

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes, until the end."""
        if self.end_ns is None:
            self.written.append(attributes)

    def set_attribute(self, key: str, value: Any) -> None:
        """Add one attribute, until the end."""
        if self.end_ns is None:
            self.written.append({key: value})

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Say how it went, until the end."""
        if self.end_ns is None:
            self.status = status if isinstance(status, Status) else Status(status, description)

    def end(self, end_time: int | None = None) -> None:
        """End it, once, and hand it on."""
        if self.end_ns is not None:
            return
        self.end_ns = time_ns() if end_time is None else end_time
        provider = self.tracer.provider
        if provider.sink is not None and provider.takes_light_spans:
            provider.sink(self)
        else:
            self.tracer.take(self)

    @property
    def resource(self) -> Resource:
        """Whose span it is."""
        return self.tracer.resource

    def __repr__(self) -> str:
        return f"LightSpan({self.context!r})"

    def readable(self) -> ReadableSpan:
        """Give it as the SDK's, within its limits."""
        return self.tracer.readable(self)


def _or_any(limit: int | None) -> float:
    return inf if limit is None else limit


def readable(span: ReadableSpan | LightSpan) -> ReadableSpan:
    """Give a span of either kind as the SDK's."""
    return span.readable() if isinstance(span, LightSpan) else span


class LightTracer:
    """Begins light spans in the place of the SDK's tracer, sampled as that would have them.

    Args:
        tracer: The SDK's, whose ids and resource they get.
        provider: Where it comes from.
        rule: How its sampler decides.
    """

    def __init__(self, tracer: Tracer, provider: PipelineProvider, rule: Rule) -> None:
        self._tracer = tracer
        self._full = FullTracer(tracer)
        self.provider: PipelineProvider = provider
        """Where its spans go."""
        self._rule = rule
        self._scope = InstrumentationScope(SCOPE, toolbus_version())
        limits = provider.limits
        self.max_attributes: float = _or_any(limits.max_span_attributes)
        """How many attributes a span may have."""
        self.max_chars: float = _or_any(limits.max_span_attribute_length)
        """How many characters each may have."""

    @classmethod
    def of(cls, tracer: trace.Tracer, provider: trace.TracerProvider) -> LightTracer | None:
        """Make one for a tracer; None where the SDK has to make the spans itself."""
        if not isinstance(provider, PipelineProvider) or not isinstance(tracer, Tracer):
            return None
        rule = Rule.of(tracer.sampler)
        return None if rule is None else cls(tracer, provider, rule)

    def start_span(
        self,
        name: str,
        context: Context | None,
        kind: SpanKind,
        written: Sequence[Mapping[str, Any]],
        links: Sequence[trace.Link] = (),
        parent: SpanContext | None = None,
    ) -> trace.Span:
        """Begin a span as the SDK's tracer does; one that is not sampled records nothing.

        Args:
            name: What is recorded.
            context: What it is begun in; the current one if there is none.
            kind: Which end of the call it is.
            written: Attributes.
            links: Other spans that it points to.
            parent: What it is below, in the place of what the context says.
        """
        if not self.provider.takes_light_spans:
            return self._full.start_span(name, context, kind, written, links, parent)
        if parent is None:
            parent = trace.get_current_span(context).get_span_context()
        ids = self._tracer.id_generator
        trace_id, _, _, known, trace_state, is_valid = parent  # by name it takes a call for each
        if is_valid:
            flags = known & _RANDOM
        else:
            parent, trace_id, trace_state = None, ids.generate_trace_id(), trace.DEFAULT_TRACE_STATE
            flags = _RANDOM if _RANDOM and ids.is_trace_id_random() else 0
        is_sampled = self._rule.samples(parent, trace_id)
        flags_set = TraceFlags(flags | _SAMPLED if is_sampled else flags)
        own = SpanContext(trace_id, ids.generate_span_id(), False, flags_set, trace_state)
        if not is_sampled:
            return trace.NonRecordingSpan(own)
        span = LightSpan(self, own, parent, name, kind, written)
        span.links = links
        return span

    def start_within(
        self,
        span: trace.Span,
        name: str,
        kind: SpanKind,
        written: Sequence[Mapping[str, Any]],
    ) -> LightSpan | None:
        """Begin a span below a recorded one, which is recorded too, as all of a trace is.

        None where only the SDK can: if it made that span, or somebody looks at all spans.
        """
        if type(span) is not LightSpan or not self.provider.takes_light_spans:
            return None
        parent = span.context
        trace_id, _, _, flags, trace_state, _ = parent
        span_id = self._tracer.id_generator.generate_span_id()
        own = SpanContext(trace_id, span_id, False, flags, trace_state)
        return LightSpan(self, own, parent, name, kind, written)

    def full(self, span: LightSpan, context: Context) -> trace.Span:
        """Begin the SDK's span in the place of one of ours: with its ids, its start and its facts.

        Args:
            span: What has nothing but its first attributes yet; it is not used any more.
            context: What it was begun in.
        """
        tracer = copy(self._tracer)  # nobody else draws ids of this one
        tracer.id_generator = _SameIds(span.context)
        return tracer.start_span(
            span.name, context, span.kind, joined(span.written), start_time=span.start_ns
        )

    def take(self, span: LightSpan) -> None:
        """Hand a span that has ended to a processor, which takes it as the SDK's."""
        self._tracer.span_processor.on_end(self.readable(span))

    @property
    def resource(self) -> Resource:
        """Whose spans these are: another one in a process that was forked."""
        return self._tracer.resource

    def readable(self, span: LightSpan) -> ReadableSpan:
        """Give a span as the SDK's."""
        return ReadableSpan(
            name=span.name,
            context=span.context,
            parent=span.parent,
            resource=self.resource,
            attributes=self._attributes_of(span),
            links=self._links_of(span),
            kind=span.kind,
            status=span.status,
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )

    def _attributes_of(self, span: LightSpan) -> Mapping[str, Any]:
        """Join what was written; where a limit is met or a key was set twice, as the SDK does."""
        attributes = joined(span.written)
        if sum(map(len, span.written)) == len(attributes) and self._are_within_limits(attributes):
            return attributes
        limits = self.provider.limits
        bounded = BoundedAttributes(
            limits.max_span_attributes,
            immutable=False,
            max_value_len=limits.max_span_attribute_length,
        )
        for written in span.written:
            bounded.update(written)
        return bounded

    def _are_within_limits(self, attributes: Mapping[str, Any]) -> bool:
        return len(attributes) <= self.max_attributes and all(
            type(value) is str and len(value) <= self.max_chars for value in attributes.values()
        )

    def _links_of(self, span: LightSpan) -> Sequence[trace.Link]:
        if not span.links:
            return ()
        links: Sequence[trace.Link] = BoundedList.from_seq(
            self.provider.limits.max_links, span.links
        )
        return links


class _SameIds(IdGenerator):
    """Draws what was drawn before."""

    def __init__(self, drawn: SpanContext) -> None:
        self._drawn = drawn

    def generate_span_id(self) -> int:
        return self._drawn.span_id

    def generate_trace_id(self) -> int:
        return self._drawn.trace_id

    def is_trace_id_random(self) -> bool:
        return bool(self._drawn.trace_flags & _RANDOM)
