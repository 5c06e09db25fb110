"""The receiver that traced legs send their spans to: it reads and counts them, and keeps none.

It runs on the same cores as what is measured, so it does as little as a collector can: what becomes
of spans there is not the bus's cost.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from bench.role import Where, next_line, run_role, say


class SpanCounter(ThreadingHTTPServer):
    """An OTLP/HTTP endpoint on loopback that counts spans."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Intake)
        self.spans = 0
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """What `OTEL_EXPORTER_OTLP_ENDPOINT` is to be."""
        return f"http://127.0.0.1:{self.server_port}"

    def count(self, body: bytes) -> None:
        """Add the spans of one request. Raises DecodeError for what is none."""
        request = ExportTraceServiceRequest.FromString(body)
        scopes = (scope for resource in request.resource_spans for scope in resource.scope_spans)
        spans = sum(len(scope.spans) for scope in scopes)
        with self._lock:
            self.spans += spans


class _Intake(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SpanCounter

    def do_POST(self) -> None:
        """Take one batch."""
        self.server.count(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: what is said is for the harness."""


async def receive(_where: Where) -> None:
    """Say where to send spans, then, at each line, how many have come."""
    with SpanCounter() as counter:
        threading.Thread(target=counter.serve_forever, daemon=True).start()
        say(url=counter.url)
        while await next_line():
            say(spans=counter.spans)
        counter.shutdown()


if __name__ == "__main__":
    run_role({"receiver": receive})
