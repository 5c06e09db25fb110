"""Three traced processes and the collector that receives their spans."""

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
    """Three processes, and the collector that receives their spans."""

    processes: TracedProcesses
    collector: Collector

    def spans_of(self, answer: Any, count: int) -> list[Sent]:
        """Wait for the spans of a call that was made within a span."""
        return self.collector.wait_for(answer["trace_id"], count)

    def outcomes(self, answer: Any, *hops: tuple[str, str]) -> list[tuple[Any, ...]]:
        """Return how each hop of one call ended."""
        spans = self.spans_of(answer, len(hops) + 1)
        below = spans[1:]
        assert [(span.kind, span.service) for span in below] == list(hops)
        assert [span.parent_id for span in below] == [span.span_id for span in spans[:-1]]
        return [outcome(span) for span in below]

    def settle(self) -> None:
        """Wait until everything that was recorded before this has been sent."""
        answer = self.processes.ask("weather.forecast", {"within": "last"}, city="Bergen")
        self.spans_of(answer, len(FORECAST) + 1)


def outcome(span: Sent) -> tuple[Any, ...]:
    """Return how one hop ended: status, message, error and whether the tool ran."""
    attributes = (span.attributes.get(name) for name in ("error.type", "toolbus.executed"))
    return (span.status, span.message, *attributes)


@contextmanager
def traced_room(folder: Path, redis: str = "") -> Iterator[TracedRoom]:
    """Run the processes and the collector until the block ends; the options are
    `traced_processes`'.
    """
    with collecting() as collector, traced_processes(folder, collector.endpoint, redis) as running:
        yield TracedRoom(running, collector)


def trace_id_of(seen: dict[str, str]) -> str:
    """Return the trace id that a tool saw."""
    return seen["traceparent"].split("-")[1]


HOPS = [
    ("CLIENT", CALLER),
    ("SERVER", SERVER),
    ("SERVER", HOST),
    ("INTERNAL", HOST),
]
