"""The receiver that recorded spans are sent to: it parses and counts them, and stores none."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from bench.role import Facts, serve_orders


class SpanCounter(ThreadingHTTPServer):
    """An OTLP/HTTP endpoint on loopback."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans = 0
        self._lock = threading.Lock()

    def count(self, body: bytes) -> None:
        """Add the spans of one request."""
        request = ExportTraceServiceRequest.FromString(body)
        scopes = (scope for resource in request.resource_spans for scope in resource.scope_spans)
        spans = sum(len(scope.spans) for scope in scopes)
        with self._lock:
            self.spans += spans


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SpanCounter

    def do_POST(self) -> None:
        """Receive one request."""
        self.server.count(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: stdout takes replies."""


async def receive(_facts: Facts) -> None:
    """Run the receiver; the order `count` returns how many spans have arrived."""
    with SpanCounter() as counter:
        threading.Thread(target=counter.serve_forever, daemon=True).start()

        async def count() -> Facts:
            return {"spans": counter.spans}

        await serve_orders({"count": count}, endpoint=f"http://127.0.0.1:{counter.server_port}")
        counter.shutdown()
