"""A web server on loopback for pages, which records all requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

__all__ = ["Site", "serving"]


class _Files(SimpleHTTPRequestHandler):
    """Serves files and records the requests."""

    def __init__(self, *args: Any, asked: list[str], **options: Any) -> None:
        self._asked = asked
        super().__init__(*args, **options)

    def log_message(self, format: str, *args: Any) -> None:  # the library's own name
        self._asked.append(f"{format % args} {self.headers}")


@dataclass(slots=True)
class Site:
    """A running web server."""

    port: int
    asked: list[str] = field(default_factory=list)
    """The log of its requests, with all headers."""

    def origin(self, host: str = "127.0.0.1") -> str:
        """The origin of its pages, under one of the names of loopback."""
        return f"http://{host}:{self.port}"


@contextmanager
def serving(folder: Path) -> Iterator[Site]:
    """Serve the files of a folder until the block ends."""
    asked: list[str] = []
    handler = partial(_Files, directory=str(folder), asked=asked)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Site(server.server_port, asked)
        finally:
            server.shutdown()
            thread.join()
