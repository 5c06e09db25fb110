"""Three traced processes and the collector that hears them, as the tests speak of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from support.telemetry.otlp_collector import Collector, Sent, collecting
from support.telemetry.traced_processes import TracedProcesses, traced_processes

CALLER, SERVER, HOST = "caller", "toolbus-server", "weather"
TRACE, PARENT = "5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174"
FORECAST = [
    f"CLIENT weather.forecast @{CALLER}",
    f"  SERVER weather.forecast @{SERVER}",
    f"    SERVER weather.forecast @{HOST}",
    f"      INTERNAL execute_tool forecast @{HOST}",
    f"        INTERNAL read model @{HOST}",
]


class TracedRoom(NamedTuple):
    """Three processes, and the collector that hears them."""

    processes: TracedProcesses
    collector: Collector

    def spans_of(self, answer: Any, count: int) -> list[Sent]:
        """Wait for the spans of a call that was made within a span."""
        return self.collector.wait_for(answer["trace_id"], count)

    def outcomes(self, answer: Any, *hops: tuple[str, str]) -> list[tuple[Any, ...]]:
        """Tell how each hop of one call ended: status, words, error and whether the tool ran."""
        spans = self.spans_of(answer, len(hops) + 1)
        below = spans[1:]
        assert [(span.kind, span.service) for span in below] == list(hops)
        assert [span.parent_id for span in below] == [span.span_id for span in spans[:-1]]
        return [
            (
                span.status,
                span.words,
                span.attributes.get("error.type"),
                span.attributes.get("toolbus.executed"),
            )
            for span in below
        ]

    def settle(self) -> None:
        """Wait until everything that was recorded before this has been sent."""
        answer = self.processes.ask("weather.forecast", {"within": "last"}, city="Bergen")
        self.spans_of(answer, len(FORECAST) + 1)


@contextmanager
def traced_room(folder: Path, redis: str = "") -> Iterator[TracedRoom]:
    """Run the processes and the collector for as long as the block runs; see `stage`."""
    with collecting() as collector, traced_processes(folder, collector.endpoint, redis) as running:
        yield TracedRoom(running, collector)


def trace_id_of(seen: dict[str, str]) -> str:
    """Name the trace that a tool saw."""
    return seen["traceparent"].split("-")[1]


HOPS = [
    ("CLIENT", CALLER),
    ("SERVER", SERVER),
    ("SERVER", HOST),
    ("INTERNAL", HOST),
]
