"""The metrics that a server exports to Prometheus: numbers of this process only.

The numbers are kept elsewhere and read at each scrape. Labels have a fixed set of values, never a
room, a participant or a tool, so that no text of an untrusted party becomes a series.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from math import inf
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from toolbus.errors import ERRORS
from toolbus_server.access.admission import Admission
from toolbus_server.calls.hold_statistics import HoldStatistics
from toolbus_server.calls.router import OTHER_CODE
from toolbus_server.rooms.hub import Hub, OpenRoom

if TYPE_CHECKING:
    from toolbus_server.cluster.node import Node

__all__ = ["ServerMetrics"]

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
        router, rooms = self._hub.router, self._hub.rooms.values()
        yield from self._key_set_ages()
        gauges: list[tuple[str, str, float]] = [
            ("rooms", "Rooms with participants.", len(rooms)),
            ("participants", "Participants in all rooms.", sum(len(r.sessions) for r in rooms)),
            ("toolkits", "Toolkits that have a host.", sum(map(_count_toolkits, rooms))),
            ("calls_in_flight", "Calls and assessments that have not ended.", router.in_flight),
            ("holds_open", "Calls that wait for a person.", router.holds.open),
            (
                "tokens_extended",
                "Tokens with `until` known to have another life; -1 where none gets one.",
                -1 if self._admission.extensions is None else len(self._admission.extensions),
            ),
            ("revocations", "Revocations of tokens.", len(self._admission.revocations)),
        ]
        node = self._node
        if node is not None:
            gauges += [
                ("redis_up", "1 while this node has its lease in Redis, else 0.", node.has_lease()),
                ("redis_outage_seconds", "Time without Redis so far.", node.outage.lasts_s),
                (
                    "node_isolated",
                    "1 while this node has no Redis and another node has, else 0.",
                    node.isolation.is_isolated,
                ),
            ]
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"toolbus_{name}", text, value)
        ended = {"ok": router.succeeded} | {code: router.failures[code] for code in _CODES}
        yield _by_label("toolbus_calls", "Calls that ended, by their outcome.", "code", ended)
        yield from _waits(router.holds)
        quotas = self._admission.quotas
        refused = {**self._admission.refused, "flood": quotas.dropped}
        text = "Connections refused, by reason."
        yield _by_label("toolbus_connections_refused", text, "reason", refused)
        dropped = router.dropped + router.streams.dropped
        denied = self._hub.denied + sum(room.toolkit_requests.denied for room in rooms)
        for name, text, value in (
            (
                "replies_dropped",
                "Late, duplicate and unknown replies, chunks and credits that were dropped.",
                dropped,
            ),
            ("registrations_denied", "Registrations without the grant for them.", denied),
            (
                "slow_consumers",
                "Connections closed because they did not read.",
                quotas.slow_consumers,
            ),
        ):
            yield CounterMetricFamily(f"toolbus_{name}", text, value)

    def _key_set_ages(self) -> Iterator[Metric]:
        issuers = [issuer for issuer in self._admission.keys.issuers.values() if issuer.is_remote]
        if not issuers:
            return
        text = "Time since the key set of an issuer was fetched; +Inf if it never was."
        ages = GaugeMetricFamily("toolbus_key_set_age_seconds", text, labels=["issuer"])
        for issuer in issuers:  # the operator wrote their names
            age_s = inf if issuer.loaded_at is None else time.time() - issuer.loaded_at
            ages.add_metric([issuer.iss], age_s)
        yield ages


def _count_toolkits(open_room: OpenRoom) -> int:
    participants = (session.connection.participant for session in open_room.sessions.values())
    return len({id(toolkit) for participant in participants for toolkit in participant.toolkits})


def _waits(holds: HoldStatistics) -> Iterator[Metric]:
    settled = {outcome: waits.count for outcome, waits in holds.waits.items()}
    text = "Waits for a person that ended, by their outcome."
    yield _by_label("toolbus_holds_settled", text, "outcome", settled)
    text = "How long calls waited for a person, by the outcome."
    family = HistogramMetricFamily("toolbus_hold_duration_seconds", text, labels=["outcome"])
    for outcome, waits in holds.waits.items():
        buckets = [(_bound_text(bound), count) for bound, count in waits.buckets()]
        family.add_metric([outcome], buckets, waits.total_s)
    yield family


def _bound_text(bound_s: float) -> str:
    return "+Inf" if bound_s == inf else str(bound_s)


def _by_label(name: str, text: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
