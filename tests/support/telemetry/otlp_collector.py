"""A collector without our code: the standard library receives the bytes, OpenTelemetry decodes
them.

It keeps every body unchanged, so that a test can also check what no body contains.
"""

from __future__ import annotations

import gzip
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status

from support.patience import PATIENCE_S

_UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
    "": bytes,
}


@dataclass(frozen=True, slots=True)
class Sent:
    """One span as a process sent it."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty for a root."""
    service: str
    instance: str
    attributes: dict[str, Any]
    status: str
    message: str
    links: tuple[tuple[str, str], ...]
    trace_state: str
    events: tuple[tuple[str, dict[str, Any]], ...]
    start_ns: int
    end_ns: int


def _values(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {
        pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value")
        for pair in pairs
    }


def _sent(span: Span, resource: dict[str, Any]) -> Sent:
    return Sent(
        name=span.name,
        kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        service=str(resource.get("service.name")),
        instance=str(resource.get("service.instance.id")),
        attributes=_values(span.attributes),
        status=Status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_"),
        message=span.status.message,
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        trace_state=span.trace_state,
        events=tuple((event.name, _values(event.attributes)) for event in span.events),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
    )


def _decode(group: ResourceSpans) -> Iterator[Sent]:
    resource = _values(group.resource.attributes)
    for scope in group.scope_spans:
        for span in scope.spans:
            yield _sent(span, resource)


@dataclass(slots=True)
class Collector:
    """The spans and bodies received so far."""

    endpoint: str = ""
    spans: list[Sent] = field(default_factory=list, repr=False)
    bodies: list[bytes] = field(default_factory=list, repr=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, repr=False)

    def take(self, body: bytes) -> None:
        """Keep a body and its spans."""
        request = ExportTraceServiceRequest.FromString(body)
        spans = [span for group in request.resource_spans for span in _decode(group)]
        with self._changed:
            self.bodies.append(body)
            self.spans.extend(spans)
            self._changed.notify_all()

    def trace(self, trace_id: str) -> list[Sent]:
        """Return the received spans of a trace, in order of start."""
        with self._changed:
            found = [span for span in self.spans if span.trace_id == trace_id]
        return sorted(found, key=lambda span: span.start_ns)

    def wait_for(self, trace_id: str, count: int) -> list[Sent]:
        """Wait until a trace has this many spans."""
        until = time.monotonic() + PATIENCE_S
        with self._changed:
            while sum(span.trace_id == trace_id for span in self.spans) < count:
                left_s = until - time.monotonic()
                assert left_s > 0, f"of {count} spans came {draw(self.trace(trace_id))}"
                self._changed.wait(left_s)
        return self.trace(trace_id)

    @property
    def raw(self) -> bytes:
        """All bytes that were ever sent."""
        with self._changed:
            return b"\n".join(self.bodies)


def draw(spans: Sequence[Sent]) -> list[str]:
    """Draw a trace: kind, name and service, indented below its parent, siblings by start."""

    return [
        f"{'  ' * depth}{span.kind} {span.name} @{span.service}" for depth, span in in_tree(spans)
    ]


def in_tree(spans: Sequence[Sent]) -> Iterator[tuple[int, Sent]]:
    """Return the spans of a trace with their depth: each below its parent, siblings as given."""

    def below(parent_id: str, depth: int) -> Iterator[tuple[int, Sent]]:
        for span in spans:
            if span.parent_id == parent_id:
                yield depth, span
                yield from below(span.span_id, depth + 1)

    known = {span.span_id for span in spans}
    for parent_id in dict.fromkeys(span.parent_id for span in spans if span.parent_id not in known):
        yield from below(parent_id, 0)


@contextmanager
def collecting() -> Iterator[Collector]:
    """Collect on a free port until the block ends."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            packed = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            assert self.headers["Content-Type"] == "application/x-protobuf"
            collector.take(_UNPACK[self.headers.get("Content-Encoding", "")](packed))
            reply = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    collector.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def slow_collector() -> Iterator[str]:
    """Accept connections and never answer: the system accepts them into the backlog."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def dead_collector() -> Iterator[str]:
    """Return a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    yield f"http://127.0.0.1:{port}"
