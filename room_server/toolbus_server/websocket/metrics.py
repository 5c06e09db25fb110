"""The metrics that a server exports to Prometheus: numbers of this process only.

The numbers are kept elsewhere and read at each scrape. Labels have a fixed set of values, never a
room, a participant or a tool, so that no text of an untrusted party becomes a series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from toolbus.errors import ERRORS
from toolbus_server.access.admission import Admission
from toolbus_server.calls.router import OTHER_CODE
from toolbus_server.rooms.hub import Hub, OpenRoom

if TYPE_CHECKING:
    from toolbus_server.cluster.node import Node

__all__ = ["ServerMetrics"]

_OK = "ok"
_CODES = (*ERRORS, OTHER_CODE)


class ServerMetrics(Collector):
    """The numbers of one server, in a registry of their own."""

    def __init__(self, hub: Hub, admission: Admission, node: Node | None = None) -> None:
        self._hub = hub
        self._admission = admission
        self._node = node
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def exposition(self) -> tuple[str, str]:
        """Return all numbers in Prometheus' text format, and its content type."""
        return generate_latest(self._registry).decode(), CONTENT_TYPE_PLAIN_0_0_4

    def collect(self) -> Iterator[Metric]:
        """Yield the current numbers."""
        yield from self._gauges()
        if self._node is not None:
            yield from _cluster_gauges(self._node)
        yield from self._call_counters()
        yield from self._connection_counters()

    def _gauges(self) -> Iterator[Metric]:
        rooms = self._hub.rooms.values()
        participants = sum(len(room.sessions) for room in rooms)
        toolkits = sum(map(_count_toolkits, rooms))
        yield GaugeMetricFamily("toolbus_rooms", "Rooms with participants.", len(rooms))
        yield GaugeMetricFamily("toolbus_participants", "Participants in all rooms.", participants)
        yield GaugeMetricFamily("toolbus_toolkits", "Toolkits that have a host.", toolkits)
        yield GaugeMetricFamily(
            "toolbus_calls_in_flight",
            "Calls and assessments that have not ended.",
            self._hub.router.in_flight,
        )

    def _call_counters(self) -> Iterator[Metric]:
        router = self._hub.router
        ended = {_OK: router.succeeded} | {code: router.failures[code] for code in _CODES}
        yield _counter("toolbus_calls", "Calls that ended, by their outcome.", "code", ended)
        yield CounterMetricFamily(
            "toolbus_replies_dropped",
            "Late, duplicate and unknown replies, chunks and credits that were dropped.",
            router.dropped + router.streams.dropped,
        )
        denied = self._hub.denied + sum(
            room.toolkit_requests.denied for room in self._hub.rooms.values()
        )
        yield CounterMetricFamily(
            "toolbus_registrations_denied", "Registrations without the grant for them.", denied
        )

    def _connection_counters(self) -> Iterator[Metric]:
        refused = {**self._admission.refused, "flood": self._admission.quotas.dropped}
        yield _counter(
            "toolbus_connections_refused", "Connections refused, by reason.", "reason", refused
        )
        yield CounterMetricFamily(
            "toolbus_slow_consumers",
            "Connections closed because they did not read.",
            self._admission.quotas.slow_consumers,
        )


def _cluster_gauges(node: Node) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "toolbus_redis_up", "1 while this node has its lease in Redis, else 0.", node.has_lease()
    )
    yield GaugeMetricFamily(
        "toolbus_redis_outage_seconds", "Time without Redis so far.", node.outage.lasts_s
    )
    yield GaugeMetricFamily(
        "toolbus_node_isolated",
        "1 while this node has no Redis and another node has, else 0.",
        node.isolation.is_isolated,
    )


def _count_toolkits(open_room: OpenRoom) -> int:
    participants = (session.connection.participant for session in open_room.sessions.values())
    return len({id(toolkit) for participant in participants for toolkit in participant.toolkits})


def _counter(name: str, text: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
