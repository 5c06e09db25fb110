"""An HTTP service in a thread that returns what it was sent, in every part of its answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["PATHS", "EchoingService", "echoing_service"]

PATHS = ("echo", "denied", "file", "cut", "moved", "page")


@dataclass
class EchoingService:
    """A running service."""

    url: str = ""
    seen: list[str] = field(default_factory=list)
    """The requests: target and headers, as JSON."""
    end: threading.Event = field(default_factory=threading.Event)
    """Releases the requests that hang."""


@contextmanager
def echoing_service() -> Iterator[EchoingService]:
    """Serve on a free port until the block ends.

    Below `/denied` is a 401; `/file` is binary, `/cut` ends before its body does, `/moved`
    redirects, `/page` names a next page, `/hang` never answers, and all others return JSON.
    """
    service = EchoingService()

    class Handler(_Handler):
        running = service

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield service
    finally:
        service.end.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    running: EchoingService

    def do_GET(self) -> None:
        shown = json.dumps({"target": self.path, **dict(self.headers.items())})
        self.running.seen.append(shown)
        path, _, query = self.path.partition("?")
        token = self.headers.get("Authorization", "none")
        match path.split("/")[1]:
            case "denied":
                self._answer(401, shown, {"WWW-Authenticate": token, "Content-Type": "text/plain"})
            case "file":
                name = {"Content-Disposition": f'attachment; filename="{token}"'}
                self._answer(200, shown, {**name, "Content-Type": "application/x-env"})
            case "cut":
                self._answer(200, shown, {"Content-Length": "999999"})
                self.close_connection = True
            case "moved":
                self._answer(302, "", {"Location": f"/echo/moved?from={token}&{query}"})
            case "page":
                further = "" if "n=2" in query else f'<{path}?{query}&n=2>; rel="next"'
                self._answer(200, shown, {"Link": further})
            case "hang":
                self.running.end.wait()
            case _:
                self._answer(200, shown, {})

    do_POST = do_GET

    def _answer(self, status: int, body: str, headers: dict[str, str]) -> None:
        self.send_response(status, self.headers.get("Authorization"))
        length = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        for name, value in (length | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""
