"""Sends a process's spans to an OTLP collector, and never lets the collector block the process.

Needs the extra `otel`. Spans wait in a bounded queue and are sent by a thread; when the queue is
full they are dropped. A collector that is unreachable or slow is logged in one line, and its return
in one more, never as a traceback.

Source of the variables and of the retries: https://opentelemetry.io/docs/specs/otlp/#otlphttp and
https://opentelemetry.io/docs/specs/otel/protocol/exporter/.
"""

from __future__ import annotations

import atexit
import copy
import gzip
import os
import random
import sys
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from uuid import uuid4

import requests
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.util.re import parse_env_headers

from toolbus.bounded_logging import bounded_logger, silence
from toolbus.forked_children import call_in_children
from toolbus.telemetry.attributes import (
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
    SERVICE_VERSION,
    toolbus_version,
)
from toolbus.telemetry.light_spans import LightSpan, PipelineProvider, readable
from toolbus.telemetry.otlp_encoder import SpanEncoder

__all__ = ["OtlpExporter", "ReportingExporter", "SpanPipeline"]

_FLUSH_S = 2.0
_EXPORT_TIMEOUT_S = 5.0
_BATCH_DELAY_MS = 500.0
"""Ten times shorter than the SDK's own, so that a call is visible at once."""
_SPANS_PER_STEP = 32
"""Encoding so many takes a third of a millisecond, during which no other thread runs."""
_MAX_ATTRIBUTE_CHARS = 4_096
"""OpenTelemetry has no limit by default: collectors refuse a batch with a value of megabytes."""
_MAX_ATTEMPTS = 6
"""As in OpenTelemetry: a collector may ask for pauses of 0 s."""
_JITTER = 0.2
_LENGTH_LIMITS = ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT")
_RETRIED_STATUSES = frozenset({408, 429, 502, 503, 504})
_COMPRESSIONS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
}
_CREDENTIAL_PROVIDERS = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
)
_logger = bounded_logger("toolbus.telemetry.tracing")


class ReportingExporter(SpanExporter):
    """Passes spans to another exporter and reports a failure once, until one succeeds again."""

    def __init__(self, inner: SpanExporter, endpoint: str) -> None:
        self._inner = inner
        self._endpoint = endpoint
        self._failing = False
        self._exporting = False
        self._ended = False
        self.lost: int = 0
        """Spans that the collector did not take."""

    def export(self, spans: Sequence[ReadableSpan | LightSpan]) -> SpanExportResult:
        """Export one batch; an exception counts as a failed batch."""
        result = SpanExportResult.FAILURE
        self._exporting = True
        try:
            if not self._ended and isinstance(self._inner, OtlpExporter):
                result = self._inner.export(spans)
            elif not self._ended:
                result = self._inner.export([readable(span) for span in spans])
        except Exception:
            _logger.debug("exporting spans failed", exc_info=True)
        self._exporting = False
        if result is not SpanExportResult.SUCCESS:
            self.lost += len(spans)
            self._report_failure()
        elif self._failing:
            self._failing = False
            _logger.warning("spans reach %s again; %d were lost", self._endpoint, self.lost)
        return result

    def restart_in_child(self) -> None:
        """Begin anew in a forked child: what was being exported is the parent's."""
        self._exporting = False
        if isinstance(self._inner, OtlpExporter):
            self._inner.restart_in_child()

    def _report_failure(self) -> None:
        if not self._failing:
            self._failing = True
            _logger.warning(
                "spans do not reach %s and are lost; calls are not affected", self._endpoint
            )

    def shutdown(self) -> None:
        """Interrupt a waiting retry, and drop further batches; lost spans are reported."""
        if self._ended:
            return
        self._ended = True
        if self._exporting:  # the batch is lost when this process ends
            self._report_failure()
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the other exporter; nothing is kept here."""
        return self._inner.force_flush(timeout_millis)


class OtlpExporter(SpanExporter):
    """Posts batches of spans to a collector over OTLP/HTTP, with retries.

    Args:
        endpoint: The full URL for traces.
        session: Makes the requests; its headers are sent with each.
        timeout_s: How long one batch may take, retries included.
        compression: `gzip`, `deflate` or `none`.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        session: requests.Session | None = None,
        timeout_s: float = _EXPORT_TIMEOUT_S,
        compression: str = "none",
    ) -> None:
        self._endpoint = endpoint
        self._session = session or requests.Session()
        self._sessions_before_fork: list[requests.Session] = []
        self._timeout_s = timeout_s
        self._compress = _COMPRESSIONS.get(compression)
        self._headers = {"Content-Type": "application/x-protobuf"}
        if self._compress is not None:
            self._headers["Content-Encoding"] = compression
        self._encoder = SpanEncoder()
        self._closing = threading.Event()
        self._closed = threading.Event()

    @classmethod
    def from_environment(cls) -> OtlpExporter:
        """Build one as the `OTEL_EXPORTER_OTLP_*` variables specify."""
        session = requests.Session()
        if name := next(filter(None, map(os.environ.get, _CREDENTIAL_PROVIDERS)), None):
            [provider] = entry_points(group="opentelemetry_otlp_credential_provider", name=name)
            session = provider.load()()
        session.headers.update(parse_env_headers(_variable("HEADERS"), liberal=True))
        session.verify = _variable("CERTIFICATE") or session.verify
        certificate, key = _variable("CLIENT_CERTIFICATE"), _variable("CLIENT_KEY")
        if certificate:
            session.cert = (certificate, key) if key else certificate
        return cls(
            _endpoint(),
            session=session,
            timeout_s=float(_variable("TIMEOUT") or _EXPORT_TIMEOUT_S),
            compression=_variable("COMPRESSION").strip().lower(),
        )

    def export(self, spans: Sequence[ReadableSpan | LightSpan]) -> SpanExportResult:
        """Send one batch."""
        body = b"".join(self._encoded(spans))
        if self._compress is not None:
            body = self._compress(body)
        ends_at = time.monotonic() + self._timeout_s
        for attempt in range(_MAX_ATTEMPTS):
            if self._closed.is_set():
                break
            status, pause_s, refused = self._post(body, ends_at)
            if status is not None and status < 400:
                return SpanExportResult.SUCCESS
            if status is not None and status not in _RETRIED_STATUSES:
                break
            if pause_s is None:
                pause_s = 2**attempt * random.uniform(1 - _JITTER, 1 + _JITTER)
            # Where no collector listens, the end of the process does not wait for another attempt.
            wake = self._closing if refused else self._closed
            if time.monotonic() + pause_s > ends_at or (refused and wake.is_set()):
                break
            wake.wait(pause_s)
        return SpanExportResult.FAILURE

    def _post(self, body: bytes, ends_at: float) -> tuple[int | None, float | None, bool]:
        """Make one attempt; return its status, the pause it asks for, whether it was refused."""
        for is_last in (False, True):
            timeout_s = max(0.001, ends_at - time.monotonic())
            try:
                response = self._session.post(
                    self._endpoint, data=body, headers=self._headers, timeout=timeout_s
                )
            except requests.ConnectionError as error:
                # A kept connection may have been closed meanwhile: try a new one at once.
                refused = _is_refusal(error)
                if is_last or refused:
                    return None, None, refused
            except requests.Timeout:
                return None, None, False
            else:
                after = response.headers.get("Retry-After", "")
                pause_s = float(after) if after.isdecimal() else None
                return response.status_code, pause_s, False
        return None, None, False

    def _encoded(self, spans: Sequence[ReadableSpan | LightSpan]) -> Iterator[bytes]:
        """Encode a few at a time, and let other threads run between: calls do not wait for it."""
        for first in range(0, len(spans), _SPANS_PER_STEP):
            yield self._encoder.encode(spans[first : first + _SPANS_PER_STEP])
            time.sleep(0)

    def restart_in_child(self) -> None:
        """Use connections and locks of its own: those of the parent may be in use at the fork."""
        # Kept, as its end would close its connections, and wait for a lock that is never released.
        self._sessions_before_fork.append(self._session)
        self._session = copy.copy(self._session)
        adapters = self._session.adapters.items()
        self._session.adapters = OrderedDict((url, copy.copy(adapter)) for url, adapter in adapters)
        self._closing = threading.Event()
        self._closed = threading.Event()

    def prepare_close(self) -> None:
        """From now on, give up at once where no collector listens."""
        self._closing.set()

    def shutdown(self) -> None:
        """Interrupt a waiting retry, and send nothing more."""
        self._closing.set()
        self._closed.set()
        self._session.close()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is kept here."""
        return True


def _is_refusal(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, ConnectionRefusedError):
        error = error.__cause__ or error.__context__
    return error is not None


def _variable(name: str) -> str:
    """Return the variable for traces, else the one for all signals, else an empty text."""
    for prefix in ("OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"):
        if value := os.environ.get(prefix + name):
            return value
    return ""


def _endpoint() -> str:
    if endpoint := os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        return endpoint
    base = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or "http://localhost:4318"
    return f"{base.removesuffix('/')}/v1/traces"


class SpanPipeline:
    """A tracer provider with one exporter, and how both are closed."""

    def __init__(
        self,
        provider: TracerProvider,
        exporter: ReportingExporter,
        prepare_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.provider = provider
        self._exporter = exporter
        self._prepare_close = prepare_close
        self._start()
        atexit.register(self.close)
        # After the queue of the SDK, which starts its own thread in a child, and empties itself.
        call_in_children(self._restart_in_child)

    def _start(self) -> None:
        self._close_requested = threading.Event()
        self._closed = threading.Event()
        # Started now, because Python starts no thread while it shuts down.
        threading.Thread(target=self._close_on_request, name="toolbus-spans", daemon=True).start()

    def _restart_in_child(self) -> None:
        """Send the spans of a forked child, also those of one that ends within the delay."""
        self._exporter.restart_in_child()
        self._start()
        # A child of `multiprocessing` ends without `atexit`, by finalizers of its own: those that
        # exist at the fork are removed, and after that these functions run.
        processes = sys.modules.get("multiprocessing.util")
        if processes is not None:
            processes.register_after_fork(self, SpanPipeline._close_with_process)

    def _close_with_process(self) -> None:
        from multiprocessing.util import Finalize

        # The lowest priority: finalizers of the program may still record spans.
        Finalize(None, self.close, exitpriority=-1_000)

    @classmethod
    def from_environment(cls, service_name: str, *, instance_id: str | None = None) -> SpanPipeline:
        """Build provider, sampler, queue and exporter as the `OTEL_*` variables specify.

        Enter `corrected_variables` first: the SDK raises for some wrong ones.
        """
        silence("opentelemetry.sdk._shared_internal")  # we report failures
        exporter = OtlpExporter.from_environment()
        shown = _variable("ENDPOINT") or "localhost:4318"  # without the credentials in it
        return cls.to_exporter(
            ReportingExporter(exporter, shown.partition("?")[0].rpartition("@")[2]),
            Resource.create(
                {
                    SERVICE_NAME: service_name,
                    SERVICE_INSTANCE_ID: instance_id or str(uuid4()),
                    SERVICE_VERSION: toolbus_version(),
                    **OTELResourceDetector().detect().attributes,  # those of variables
                }
            ),
            exporter.prepare_close,
        )

    @classmethod
    def to_exporter(
        cls,
        exporter: ReportingExporter,
        resource: Resource,
        prepare_close: Callable[[], None] = lambda: None,
    ) -> SpanPipeline:
        """Build the queue before an exporter; the sampler is the variables'."""
        delay_ms = None if os.environ.get("OTEL_BSP_SCHEDULE_DELAY") else _BATCH_DELAY_MS
        processor = BatchSpanProcessor(exporter, schedule_delay_millis=delay_ms)
        limits = SpanLimits(max_attribute_length=_MAX_ATTRIBUTE_CHARS)
        if any(map(os.environ.get, _LENGTH_LIMITS)):
            limits = SpanLimits()
        provider = PipelineProvider(processor, resource, limits)
        return cls(provider, exporter, prepare_close)

    def close(self, timeout_s: float = _FLUSH_S) -> None:
        """Send the spans that are left, for `timeout_s` at most; later spans are dropped.

        Gives up at once where no collector listens.
        """
        atexit.unregister(self.close)
        if self._close_requested.is_set():
            return
        self._prepare_close()
        self._close_requested.set()
        if not self._closed.wait(timeout_s):
            self._exporter.shutdown()

    def _close_on_request(self) -> None:
        self._close_requested.wait()
        self.provider.shutdown()
        self._closed.set()
