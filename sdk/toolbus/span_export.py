"""Sends a process's spans to an OTLP collector, and never lets the collector hold the process up.

Needs the extra `otel`. Spans wait in a bounded queue and leave on a thread of their own; when the
queue is full they are dropped. A collector that is away or slow shows as one line in the log, and
one more when it is back, never as a traceback.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import sleep
from typing import Any
from urllib.request import getproxies
from uuid import uuid4

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from toolbus.light_spans import LightSpan, PipelineProvider, counts_its_own, readable
from toolbus.semantics import (
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
    SERVICE_VERSION,
    toolbus_version,
)
from toolbus.span_encoder import SpanEncoder

__all__ = ["HashedResource", "LightExporter", "ReportingExporter", "SpanPipeline"]

_FLUSH_S = 2.0
_EXPORT_TIMEOUT_S = 5.0
_BATCH_DELAY_MS = 500.0
"""Ten times shorter than the SDK's own: whoever watches a call wants to see it now."""
_SPANS_AT_ONCE = 32
"""A third of a millisecond's work: for so long one thread of Python's holds all others up."""
_MAX_ATTRIBUTE_CHARS = 4_096
_MAX_REQUEST_BYTES = 32 * 1024 * 1024
"""Half of what the library's exporter sends at most."""
_NOISY_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._shared_internal",
)
# What `requests` reads from the environment beside proxies, and who else may make the session.
_SESSION_SETTINGS = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NETRC")
_CREDENTIAL_PROVIDERS = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
)
_PASSWORD_FILES = ("~/.netrc", "~/_netrc")
_logger = logging.getLogger("toolbus.telemetry")


class ReportingExporter(SpanExporter):
    """Hands spans to another exporter and reports a failure once, until one succeeds again."""

    def __init__(self, inner: SpanExporter, endpoint: str) -> None:
        self._inner = inner
        self._endpoint = endpoint
        self._failing = False
        self._under_way = False
        self._ended = False
        self.lost: int = 0
        """Spans that the collector did not take."""
        self.reads_light_spans: bool = getattr(inner, "reads_light_spans", False)
        """Whether it takes our own spans as they are."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export one batch; whatever goes wrong is a failed batch, not an exception."""
        result = SpanExportResult.FAILURE
        self._under_way = True
        try:
            if not self._ended:
                result = self._inner.export(spans)
        except Exception:
            _logger.debug("exporting spans failed", exc_info=True)
        self._under_way = False
        self._report(result is SpanExportResult.SUCCESS, len(spans))
        return result

    def _report(self, succeeded: bool, count: int) -> None:
        if succeeded and self._failing:
            _logger.warning("spans reach %s again; %d were lost", self._endpoint, self.lost)
        if not succeeded:
            self.lost += count
            self._tell_failing()
        self._failing = not succeeded

    def _tell_failing(self) -> None:
        if not self._failing:
            self._failing = True
            words = "spans do not reach %s and are lost; calls are not affected"
            _logger.warning(words, self._endpoint)

    def shutdown(self) -> None:
        """End a retry that is waiting, and drop further batches; that spans are lost is said."""
        if self._ended:
            return
        self._ended = True
        if self._under_way:  # what a collector takes that long for is lost with this process
            self._tell_failing()
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is kept here."""
        return self._inner.force_flush(timeout_millis)


class LightExporter(OTLPSpanExporter):
    """The library's exporter, but for the encoding: that is `SpanEncoder`'s, where it may be.

    Connection, retries, packing and headers stay the library's. It encodes by itself in releases
    that have no place for bytes of ours, where it is to count its exports, and what is so much
    that it might refuse it.
    """

    reads_light_spans = True
    _encoder: SpanEncoder | None = None

    def export(self, spans: Sequence[ReadableSpan | LightSpan]) -> SpanExportResult:
        """Send one batch."""
        send = getattr(getattr(self, "_client", None), "export", None)
        if send is None or counts_its_own(os.environ):
            return self._export_readable(spans)
        request = b"".join(self._encoded(spans))
        if len(request) > _MAX_REQUEST_BYTES:
            return self._export_readable(spans)
        return SpanExportResult.SUCCESS if send(request).success else SpanExportResult.FAILURE

    def _export_readable(self, spans: Sequence[ReadableSpan | LightSpan]) -> SpanExportResult:
        return super().export([readable(span) for span in spans])

    def _encoded(self, spans: Sequence[ReadableSpan | LightSpan]) -> Iterator[bytes]:
        """Encode a few at a time, and let other threads run between: calls do not wait for it."""
        encoder = self._encoder = self._encoder or SpanEncoder()
        for first in range(0, len(spans), _SPANS_AT_ONCE):
            yield encoder.encode(spans[first : first + _SPANS_AT_ONCE])
            sleep(0)


class CollectorSession(requests.Session):
    """Connections to the collector, which notice where nobody listens.

    Args:
        looks_around: Whether proxies and passwords are looked for at each request.
    """

    def __init__(self, *, looks_around: bool) -> None:
        super().__init__()
        self.trust_env = looks_around
        self.is_refused: bool = False
        """Whether the last attempt met nobody who listens."""
        self.on_refused: Callable[[], None] = lambda: None
        """Told of each such attempt, on the thread that made it."""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Send one request, as the library does."""
        try:
            response = super().send(request, **options)
        except requests.ConnectionError as error:
            self.is_refused = _is_refusal(error)
            if self.is_refused:
                self.on_refused()
            raise
        self.is_refused = False
        return response


def _is_refusal(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, ConnectionRefusedError):
        error = error.__cause__ or error.__context__
    return error is not None


class HashedResource(Resource):
    """A resource that computes its hash once: an exporter asks for it with each span."""

    _hash: int | None = None

    @classmethod
    def of(cls, resource: Resource) -> HashedResource:
        """Copy a resource."""
        return cls(resource.attributes, resource.schema_url)

    def __eq__(self, other: object) -> bool:
        return self is other or super().__eq__(other)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = super().__hash__()
        return self._hash

    def merge(self, other: Resource) -> HashedResource:
        """Merge as any resource does; the SDK does so in a process that was forked."""
        return type(self).of(super().merge(other))


class SpanPipeline:
    """A tracer provider whose spans go to one exporter, and its end."""

    def __init__(self, provider: TracerProvider, exporter: SpanExporter) -> None:
        self.provider = provider
        self._exporter = exporter
        self._session: CollectorSession | None = None
        self._process_id = os.getpid()
        self._asked_to_close = threading.Event()
        self._closed = threading.Event()
        # Started now, because Python starts no thread while it shuts down.
        threading.Thread(target=self._close_when_asked, name="toolbus-spans", daemon=True).start()
        atexit.register(self.close)

    @classmethod
    def from_environment(cls, service_name: str, *, instance_id: str | None = None) -> SpanPipeline:
        """Build provider, sampler, queue and exporter as the `OTEL_*` variables say."""
        _quieten_libraries()
        if os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip().lower() == "grpc":
            _logger.warning("OTEL_EXPORTER_OTLP_PROTOCOL=grpc: spans are sent by OTLP/HTTP")
        session = _session(os.environ)
        exporter = LightExporter(timeout=_timeout_s(os.environ), session=session)
        made = cls.to_exporter(
            ReportingExporter(exporter, _endpoint(os.environ)),
            _resource(service_name, instance_id or str(uuid4())),
        )
        if session is not None:
            made._session, session.on_refused = session, made._on_refused
        return made

    @classmethod
    def to_exporter(cls, exporter: SpanExporter, resource: Resource) -> SpanPipeline:
        """Build the queue before an exporter; the sampler is the variables'."""
        delay_ms = None if os.environ.get("OTEL_BSP_SCHEDULE_DELAY") else _BATCH_DELAY_MS
        processor = BatchSpanProcessor(exporter, schedule_delay_millis=delay_ms)
        limits = _span_limits(os.environ)
        provider = PipelineProvider(processor, HashedResource.of(resource), limits)
        if getattr(exporter, "reads_light_spans", False):
            provider.sink = _queue_of(processor)
        return cls(provider, exporter)

    def close(self, timeout_s: float = _FLUSH_S) -> None:
        """Send what is left, for `timeout_s` at most; spans that end later are dropped.

        Where nobody listens it is given up at once.
        """
        atexit.unregister(self.close)
        if os.getpid() != self._process_id or self._asked_to_close.is_set():
            return
        self._asked_to_close.set()
        if self._session is not None and self._session.is_refused:
            self._exporter.shutdown()
        if not self._closed.wait(timeout_s):
            self._exporter.shutdown()

    def _on_refused(self) -> None:
        """Give a collector up that is not there, instead of trying again, where the end waits."""
        if self._asked_to_close.is_set():
            self._exporter.shutdown()

    def _close_when_asked(self) -> None:
        self._asked_to_close.wait()
        self.provider.shutdown()
        self._closed.set()


def _queue_of(processor: BatchSpanProcessor) -> Callable[[Any], None]:
    """Find what puts a span into a processor's queue, whatever kind of span it is."""
    emit: Callable[[Any], None] | None = getattr(
        getattr(processor, "_batch_processor", None), "emit", None
    )
    return processor.on_end if emit is None else emit


def _quieten_libraries() -> None:
    """Leave the report to us, unless the program has set these loggers itself."""
    for name in _NOISY_LOGGERS:
        library_logger = logging.getLogger(name)
        if library_logger.level == logging.NOTSET:
            library_logger.setLevel(logging.CRITICAL + 1)


def _resource(service_name: str, instance_id: str) -> Resource:
    said = OTELResourceDetector().detect().attributes
    return Resource.create(
        {
            SERVICE_NAME: service_name,
            SERVICE_INSTANCE_ID: instance_id,
            SERVICE_VERSION: toolbus_version(),
            **said,
        }
    )


def _session(environ: Mapping[str, str]) -> CollectorSession | None:
    """Make a session that looks for proxies and passwords at each request only if there are any.

    None where the exporter is to get its session from elsewhere.
    """
    if any(environ.get(name) for name in _CREDENTIAL_PROVIDERS):
        return None
    is_set = any(environ.get(name) for name in _SESSION_SETTINGS)
    has_password = any(os.path.exists(os.path.expanduser(path)) for path in _PASSWORD_FILES)
    has_proxy = bool(getproxies().keys() - {"no"})
    return CollectorSession(looks_around=is_set or has_password or has_proxy)


def _timeout_s(environ: Mapping[str, str]) -> float | None:
    """Give our timeout, None where the variables have one."""
    names = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
    return None if any(environ.get(name) for name in names) else _EXPORT_TIMEOUT_S


def _endpoint(environ: Mapping[str, str]) -> str:
    """Name the collector for the log, without the credentials that an address may carry."""
    endpoint = (
        environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        or "localhost:4318"
    )
    return endpoint.partition("?")[0].rpartition("@")[2]


def _span_limits(environ: Mapping[str, str]) -> SpanLimits:
    names = ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT")
    if any(environ.get(name) for name in names):
        return SpanLimits()
    return SpanLimits(max_attribute_length=_MAX_ATTRIBUTE_CHARS)
