"""The requests of MCP that were answered and those that run, and what Prometheus reads of them.

As with the room server, labels have a fixed set of values: no text of a client becomes a series.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from time import perf_counter
from types import TracebackType
from typing import Self

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.types import Message, Send

from toolbus_gateway.member_pool import MemberPool

__all__ = ["GatewayMetrics", "OpenRequest", "Requests"]

_REVISIONS = frozenset({*HANDSHAKE_PROTOCOL_VERSIONS, *MODERN_PROTOCOL_VERSIONS})
_CALL = "tools/call"
_METHODS = frozenset(
    {
        _CALL,
        "initialize",
        "notifications/cancelled",
        "notifications/initialized",
        "ping",
        "server/discover",
        "subscriptions/listen",
        "tools/list",
    }
)
_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class OpenRequest:
    """One request while it is answered: `with requests.open(...) as request:`."""

    __slots__ = ("_requests", "_started", "_status", "method", "revision")

    def __init__(self, requests: Requests, revision: str | None, method: str | None) -> None:
        self._requests = requests
        self._started = perf_counter()
        self._status = 0
        self.revision: str | None = revision
        self.method: str | None = method
        """As the client wrote it; None while it is not known."""

    def __enter__(self) -> Self:
        self._requests.running.add(self)
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._requests.end(self, self._status, perf_counter() - self._started)

    def watched(self, send: Send) -> Send:
        """Return what sends a response, and sees its status."""

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._status = message["status"]
            await send(message)

        return watch


class Requests:
    """The requests of MCP: those that run, and the numbers of those that have ended."""

    def __init__(self) -> None:
        self.running: set[OpenRequest] = set()
        self.ended: Counter[tuple[str, str, str]] = Counter()
        """By revision, method and code; a client that closed before has the code `closed`."""
        self.durations: dict[str, list[int]] = {}
        """By method: how many took at most the time of each bucket, the last without a limit."""
        self.seconds: Counter[str] = Counter()
        self.refused_tokens = 0
        self._is_idle = asyncio.Event()

    def open(self, revision: str | None, method: str | None) -> OpenRequest:
        """Return a request that is counted while it is entered.

        Args:
            revision: The revision that the client names.
            method: The method, if a header says it.
        """
        return OpenRequest(self, revision, method)

    def end(self, request: OpenRequest, status: int, seconds: float) -> None:
        """Count a request that has ended."""
        self.running.discard(request)
        revision = _label(request.revision, _REVISIONS)
        method = _label(request.method, _METHODS)
        self.ended[revision, method, str(status) if status else "closed"] += 1
        # The sum of a Counter may be a float, which its type does not say.
        self.seconds[method] += seconds  # type: ignore[assignment]
        buckets = self.durations.setdefault(method, [0] * (len(_BUCKETS_S) + 1))
        buckets[bisect_left(_BUCKETS_S, seconds)] += 1
        if not self.running:
            self._is_idle.set()

    async def wait_idle(self) -> None:
        """Wait until no request runs."""
        while self.running:
            self._is_idle.clear()
            await self._is_idle.wait()


def _label(text: str | None, known: frozenset[str]) -> str:
    if text is None:
        return "none"
    return text if text in known else "other"


class GatewayMetrics(Collector):
    """The numbers of one gateway, in a registry of their own."""

    def __init__(self, requests: Requests, pool: MemberPool) -> None:
        self._requests = requests
        self._pool = pool
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def exposition(self) -> tuple[str, str]:
        """Return all numbers in Prometheus' text format, and its content type."""
        return generate_latest(self._registry).decode(), CONTENT_TYPE_PLAIN_0_0_4

    def collect(self) -> Iterator[Metric]:
        """Yield the current numbers."""
        requests, pool = self._requests, self._pool
        calls = sum(request.method == _CALL for request in requests.running)
        gauges: list[tuple[str, str, float]] = [
            ("connections", "Connections to the room server, one a token and room.", len(pool)),
            ("connections_busy", "Those that have a request.", pool.busy),
            ("requests_in_flight", "Requests that have not ended.", len(requests.running)),
            ("calls_in_flight", "Calls of tools that have not ended.", calls),
        ]
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"toolbus_gateway_{name}", text, value)
        text = "Requests that had a token which the room server refuses."
        yield CounterMetricFamily("toolbus_gateway_tokens_refused", text, requests.refused_tokens)
        labels = ["revision", "method", "code"]
        ended = CounterMetricFamily(
            "toolbus_gateway_requests", "Requests that have ended.", labels=labels
        )
        for key, count in requests.ended.items():
            ended.add_metric(key, count)
        yield ended
        durations = HistogramMetricFamily(
            "toolbus_gateway_request_duration_seconds",
            "From the head of a request to the end of its response.",
            labels=["method"],
        )
        for method, counts in requests.durations.items():
            durations.add_metric([method], _buckets(counts), requests.seconds[method])
        yield durations


def _buckets(counts: Sequence[int]) -> list[tuple[str, float]]:
    names = [*map(str, _BUCKETS_S), "+Inf"]
    return list(zip(names, map(float, accumulate(counts)), strict=True))
