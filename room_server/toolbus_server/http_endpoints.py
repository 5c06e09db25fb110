"""What a server answers to plain HTTP: whether it lives, whether it lets people in, its numbers.

`/healthz`, `/readyz` and `/metrics` need no token, since they tell nothing of who is there, and are
answered before anything is asked about a websocket. Every other path is `admission`'s matter.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from toolbus_server.admission import Admission

if TYPE_CHECKING:
    from toolbus_server.metrics import Numbers, ServerMetrics

__all__ = ["AskWorkers", "HttpEndpoints"]

AskWorkers: TypeAlias = "Callable[[], Awaitable[Mapping[str, Numbers]]]"
"""Asks all servers of one address for their numbers; returns them by the servers' names."""
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
        ask_workers: Asks all servers of this address for theirs, this one among them, each by its
            name; None where it is alone.
    """

    def __init__(
        self,
        admission: Admission,
        make_metrics: Callable[[], ServerMetrics] | None,
        ask_workers: AskWorkers | None = None,
    ) -> None:
        self._admission = admission
        self._ask_workers = ask_workers
        self._make_metrics = make_metrics
        self._metrics: ServerMetrics | None = None
        self._answers: MappingProxyType[str, Callable[[Request], Response]] = MappingProxyType(
            {"/healthz": self._health, "/readyz": self._readiness, "/metrics": self._numbers}
        )

    def answer(self, request: Request) -> Response | Awaitable[Response] | None:
        """Answer a request for one of the three; None for every other path."""
        answer = self._answers.get(request.path.partition("?")[0])
        if answer is None:
            return None
        if request.method not in _READS:
            response = _response(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and HEAD.\n")
            response.headers["Allow"] = ", ".join(_READS)
        elif answer == self._numbers and self._make_metrics and self._ask_workers:
            return self._all_numbers(request, self._ask_workers)
        else:
            response = answer(request)
        return _cut(response, request)

    def numbers(self) -> Numbers:
        """Give the numbers of this server; none where there are none to give."""
        try:
            return self._known.numbers() if self._make_metrics else []
        except ModuleNotFoundError:  # who is asked over HTTP says so
            return []

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
            return _response(HTTPStatus.OK, *self._known.exposition())
        except ModuleNotFoundError as error:
            _logger.error("no metrics: %s is missing: pip install 'toolbus[server]'", error.name)
            return _response(HTTPStatus.NOT_IMPLEMENTED, "This server lacks a part for metrics.\n")

    async def _all_numbers(self, request: Request, ask_workers: AskWorkers) -> Response:
        alone = self._numbers(request)
        if alone.status_code != HTTPStatus.OK:
            return _cut(alone, request)
        from toolbus_server.metrics import exposition_of  # it is there: it has just been used

        text = exposition_of(await ask_workers())
        return _cut(_response(HTTPStatus.OK, *text), request)

    @property
    def _known(self) -> ServerMetrics:
        """The numbers, made when first asked for. Raises ModuleNotFoundError."""
        if self._metrics is None:
            assert self._make_metrics is not None
            self._metrics = self._make_metrics()
        return self._metrics


def _cut(response: Response, request: Request) -> Response:
    if request.method == "HEAD":
        response.body = b""
    return response


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
