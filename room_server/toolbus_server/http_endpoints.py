"""What a server answers to plain HTTP: whether it lives, whether it lets people in, its numbers.

`/healthz`, `/readyz` and `/metrics` need no token, since they tell nothing of who is there, and are
answered before anything is asked about a websocket. Every other path is `admission`'s matter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING

from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from toolbus_server.admission import Admission

if TYPE_CHECKING:
    from toolbus_server.metrics import ServerMetrics

__all__ = ["HttpEndpoints"]

_logger = logging.getLogger(__name__)
_TEXT = "text/plain; charset=utf-8"
_READS = ("GET", "HEAD")
_RETRY_AFTER = ("Retry-After", "1")


class HttpEndpoints:
    """Answers probes and scrapes of one server.

    Args:
        admission: Knows whether the server is leaving.
        make_metrics: Makes the numbers when they are first asked for, so that a server whose
            numbers nobody reads need not load what writes them; None where there shall be none.
    """

    def __init__(
        self, admission: Admission, make_metrics: Callable[[], ServerMetrics] | None
    ) -> None:
        self._admission = admission
        self._make_metrics = make_metrics
        self._metrics: ServerMetrics | None = None
        self._answers: MappingProxyType[str, Callable[[Request], Response]] = MappingProxyType(
            {"/healthz": self._health, "/readyz": self._readiness, "/metrics": self._numbers}
        )

    def answer(self, request: Request) -> Response | None:
        """Answer a request for one of the three; None for every other path."""
        answer = self._answers.get(request.path.partition("?")[0])
        if answer is None:
            return None
        if request.method not in _READS:
            response = _response(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and HEAD.\n")
            response.headers["Allow"] = ", ".join(_READS)
        else:
            response = answer(request)
        if request.method == "HEAD":
            response.body = b""
        return response

    def _health(self, _: Request) -> Response:
        return _response(HTTPStatus.OK, "ok\n")

    def _readiness(self, _: Request) -> Response:
        if not self._admission.draining:
            return _response(HTTPStatus.OK, "ready\n")
        response = _response(HTTPStatus.SERVICE_UNAVAILABLE, "leaving\n")
        response.headers[_RETRY_AFTER[0]] = _RETRY_AFTER[1]
        return response

    def _numbers(self, _: Request) -> Response:
        if self._make_metrics is None:
            return _response(HTTPStatus.NOT_FOUND, "There are no metrics here.\n")
        try:
            self._metrics = self._metrics or self._make_metrics()
        except ModuleNotFoundError as error:
            _logger.error("no metrics: %s is missing: pip install 'toolbus[server]'", error.name)
            return _response(HTTPStatus.NOT_IMPLEMENTED, "This server lacks a part for metrics.\n")
        return _response(HTTPStatus.OK, *self._metrics.exposition())


def _response(status: HTTPStatus, text: str, content_type: str = _TEXT) -> Response:
    body = text.encode()
    headers = Headers(
        [
            ("Connection", "close"),
            ("Cache-Control", "no-store"),
            ("Content-Length", str(len(body))),
            ("Content-Type", content_type),
        ]
    )
    return Response(status.value, status.phrase, headers, body)
