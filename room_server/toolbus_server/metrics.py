"""What a server tells Prometheus: how much of everything there is, and nothing of whom.

All numbers are kept elsewhere for their own reasons and are read when somebody asks. Labels are
closed sets: never a room, a participant or a tool, so that no stranger's words become series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from toolbus.errors import ERRORS
from toolbus_server.admission import Admission
from toolbus_server.crowd import LineCounts
from toolbus_server.hub import Hub, OpenRoom
from toolbus_server.routing import OTHER_CODE

__all__ = ["Numbers", "ServerMetrics", "exposition_of"]

Numbers: TypeAlias = "list[list[Any]]"
"""What one server has, as JSON can carry it: of each family name, words, kind, and samples."""
_OK = "ok"
_CODES = (*ERRORS, OTHER_CODE)


class ServerMetrics(Collector):
    """The numbers of one server, in a registry of their own.

    Args:
        hub: The rooms, and the calls in flight.
        admission: Who was refused.
        lines: What the connections have counted.
    """

    def __init__(self, hub: Hub, admission: Admission, lines: LineCounts) -> None:
        self._hub = hub
        self._admission = admission
        self._lines = lines
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def exposition(self) -> tuple[str, str]:
        """Write all numbers in the text format that every Prometheus reads, and give its type."""
        return generate_latest(self._registry).decode(), CONTENT_TYPE_PLAIN_0_0_4

    def numbers(self) -> Numbers:
        """Give all numbers, for `exposition_of` in another process."""
        return [
            [
                each.name,
                each.documentation,
                each.type,
                [list(sample[:3]) for sample in each.samples],
            ]
            for each in self.collect()
        ]

    def collect(self) -> Iterator[Metric]:
        """Read the numbers as they are now."""
        yield from self._gauges()
        yield from self._call_counters()
        yield from self._connection_counters()

    def _gauges(self) -> Iterator[Metric]:
        rooms = self._hub.rooms.values()
        seats = sum(len(each.occupants) for each in rooms)
        toolkits = sum(map(_count_toolkits, rooms))
        yield GaugeMetricFamily("toolbus_rooms", "Rooms with somebody in them.", len(rooms))
        yield GaugeMetricFamily("toolbus_participants", "Participants in all rooms.", seats)
        yield GaugeMetricFamily("toolbus_toolkits", "Toolkits that have a host.", toolkits)
        yield GaugeMetricFamily(
            "toolbus_calls_in_flight", "Calls that have not ended.", self._hub.router.in_flight
        )

    def _call_counters(self) -> Iterator[Metric]:
        router = self._hub.router
        ended = {_OK: router.succeeded} | {code: router.failures[code] for code in _CODES}
        yield _counter("toolbus_calls", "Calls that ended, by their outcome.", "code", ended)
        yield CounterMetricFamily(
            "toolbus_replies_dropped",
            "Late, duplicate and unknown replies, chunks and credits.",
            router.dropped + router.streams.dropped,
        )
        denied = self._hub.denied + sum(each.registry.denied for each in self._hub.rooms.values())
        yield CounterMetricFamily(
            "toolbus_registrations_denied", "Registrations without the grant for them.", denied
        )

    def _connection_counters(self) -> Iterator[Metric]:
        refused = {**self._admission.refused, "flood": self._admission.crowd.dropped}
        yield _counter(
            "toolbus_connections_refused", "Connections not let in, by reason.", "reason", refused
        )
        yield CounterMetricFamily(
            "toolbus_slow_consumers",
            "Connections closed because they did not read.",
            self._lines.slow_consumers,
        )


def exposition_of(workers: Mapping[str, Numbers]) -> tuple[str, str]:
    """Write the numbers of several servers as `exposition` does, with the label `worker`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Together(workers))
    return generate_latest(registry).decode(), CONTENT_TYPE_PLAIN_0_0_4


class _Together(Collector):
    def __init__(self, workers: Mapping[str, Numbers]) -> None:
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for worker, numbers in self._workers.items():
            for name, words, kind, samples in numbers:
                family = families.setdefault(name, Metric(name, words, kind))
                for sample, labels, value in samples:
                    family.add_sample(sample, {**labels, "worker": worker}, value)
        return iter(families.values())


def _count_toolkits(open_room: OpenRoom) -> int:
    members = (occupant.seat.member for occupant in open_room.occupants.values())
    return len({id(toolkit) for member in members for toolkit in member.toolkits})


def _counter(name: str, words: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, words, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
