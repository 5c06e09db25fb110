"""An HTTP server in a thread that answers each request with a status, and records them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def recording_server(*answers: int) -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    """Answer with each status in turn, then with 200; yield the URL and the requests.

    A request is recorded as its path and its headers, with names in lower case.
    """
    asked: list[tuple[str, dict[str, str]]] = []
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            self.send_response(left.pop(0) if left else 200)
            self.send_header("Retry-After", "0")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()
