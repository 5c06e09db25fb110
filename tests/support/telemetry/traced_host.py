"""The toolkit of the telemetry tests; it returns the trace context that its tools see."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from opentelemetry import propagate, trace

from toolbus import RemoteToolkit, ToolContext, ToolFailed, tool


def _seen() -> dict[str, str]:
    """Return the headers that a request of the tool would carry now."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


@tool
async def forecast(city: str) -> dict[str, Any]:
    """Forecast the weather, with a span of the tool's own."""
    with trace.get_tracer("model").start_as_current_span("read model"):
        return {"city": city, "seen": _seen()}


@tool
async def look() -> dict[str, str]:
    """Only read the context."""
    return _seen()


@tool
async def trip(context: ToolContext, cities: list[str]) -> dict[str, Any]:
    """Ask for each city in turn."""
    stops = [await context.room.call("weather.forecast", city=city) for city in cities]
    return {"stops": stops, "seen": _seen()}


@tool
async def fail(words: str) -> None:
    """Fail with a message for the caller."""
    raise ToolFailed(words)


@tool
async def crash(words: str) -> None:
    """Fail with a message that the caller must not see."""
    raise ValueError(words)


@tool
async def linger(pipe: str = "") -> None:
    """Run until cancelled; report through a named pipe that it runs."""
    if pipe:
        await asyncio.to_thread(Path(pipe).write_text, "running", encoding="ascii")
    await asyncio.Event().wait()


@tool
async def name_spans(name: str, size: int) -> dict[str, str]:
    """Record a span with any name and an attribute of any size."""
    with trace.get_tracer("model").start_as_current_span(name, attributes={"big": "x" * size}):
        return _seen()


@tool
async def tides(days: int) -> AsyncIterator[int]:
    """Yield a number for each day, with an event of the current span."""
    for day in range(days):
        trace.get_current_span().add_event("tide", {"day": day})
        yield day


@tool
async def gauge(words: str) -> None:
    """Fail within a span of the tool's own."""
    with trace.get_tracer("model").start_as_current_span("read gauge"):
        raise ToolFailed(words)


@tool(idempotent=True)
def lightning(struck: str) -> int:
    """Kill the host that runs this first; the next one returns its process id."""
    try:
        Path(struck).touch(exist_ok=False)
    except FileExistsError:
        return os.getpid()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("the process runs after SIGKILL")


weather = RemoteToolkit(
    "weather", [forecast, look, trip, fail, crash, linger, name_spans, tides, gauge, lightning]
)
