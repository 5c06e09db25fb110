"""The plain HTTP endpoints of a server: `/healthz`, `/readyz` and `/metrics`.

They need no token, since they name no participant, and are answered before a websocket request is
examined. Every other path is handled by `admission`.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from websockets.datastructures import Headers
from websockets.http11 import Response

from toolbus.bounded_logging import bounded_logger
from toolbus_server.access.admission import Admission
from toolbus_server.websocket.request_reader import ReceivedRequest

if TYPE_CHECKING:
    from toolbus_server.cluster.node import Node
    from toolbus_server.websocket.metrics import ServerMetrics

__all__ = ["HttpEndpoints"]

_logger = bounded_logger(__name__)
_TEXT = "text/plain; charset=utf-8"
_METHODS = ("GET", "HEAD")


class HttpEndpoints:
    """Answers probes and scrapes of one server.

    Args:
        admission: Tells whether the server is draining.
        make_metrics: Creates the metrics at the first scrape, so that a server that is never
            scraped does not load `prometheus_client`; None if metrics are off.
        node: The part in a cluster; None for a single server.
    """

    def __init__(
        self,
        admission: Admission,
        make_metrics: Callable[[], ServerMetrics] | None,
        node: Node | None = None,
    ) -> None:
        self._admission = admission
        self._make_metrics = make_metrics
        self._node = node
        self._metrics: ServerMetrics | None = None
        self._answers: dict[str, Callable[[], Response]] = {
            "/healthz": lambda: _response(HTTPStatus.OK, "ok\n"),
            "/readyz": self._readiness,
            "/metrics": self._metrics_response,
        }

    def answer(self, request: ReceivedRequest) -> Response | None:
        """Return the response for an endpoint; None for every other path."""
        answer = self._answers.get(request.path.partition("?")[0])
        if answer is None:
            return None
        if request.method not in _METHODS:
            response = _response(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and HEAD.\n")
            response.headers["Allow"] = ", ".join(_METHODS)
        else:
            response = answer()
        if request.method == "HEAD":
            response.body = b""
        return response

    def _readiness(self) -> Response:
        if self._admission.draining:
            # 404 and not 503: haproxy (`http-check disable-on-404`) then sends no new connections,
            # and keeps existing ones. For other balancers and Kubernetes both mean not ready.
            return _response(HTTPStatus.NOT_FOUND, "leaving\n")
        if self._node is None:
            return _response(HTTPStatus.OK, "ready\n")
        is_ready, text = self._node.readiness()
        # 404, as above: the sessions of an isolated node must not end before they have moved.
        response = _response(HTTPStatus.OK if is_ready else HTTPStatus.NOT_FOUND, text)
        response.headers.update(self._node.probe_headers)
        return response

    def _metrics_response(self) -> Response:
        if self._make_metrics is None:
            return _response(HTTPStatus.NOT_FOUND, "Metrics are off on this server.\n")
        try:
            if self._metrics is None:
                self._metrics = self._make_metrics()
            return _response(HTTPStatus.OK, *self._metrics.exposition())
        except ModuleNotFoundError as error:
            _logger.error("no metrics: %s is missing: pip install 'toolbus[server]'", error.name)
            return _response(
                HTTPStatus.NOT_IMPLEMENTED, "This server lacks a package for metrics.\n"
            )


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
