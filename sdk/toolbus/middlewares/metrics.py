"""Records calls as OpenTelemetry metrics. Without an SDK, or a provider, nothing is recorded."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from time import monotonic

from opentelemetry.metrics import MeterProvider, get_meter

from toolbus.chunks.chunk_types import Chunk
from toolbus.errors import ERRORS
from toolbus.middlewares.outcomes import outcome_of
from toolbus.telemetry.attributes import (
    ERROR_TYPE,
    EXECUTE_TOOL,
    EXECUTE_TOOL_DURATION,
    EXECUTED,
    GEN_AI_OPERATION_NAME,
    OTHER,
    OUTCOME,
    SCOPE,
    TOOL_CALLS,
    TOOL_CALLS_ACTIVE,
    rpc_attributes,
    tool_attributes,
    toolbus_version,
)
from toolbus.tools.middleware import CallNext, ToolCall

__all__ = ["Metrics"]

_BOUNDS_S = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
_NO_ERRORS = ("ok", "closed", "parked")


class Metrics:
    """A middleware that records calls as OpenTelemetry metrics.

    - `gen_ai.execute_tool.duration`: a histogram, in seconds, with the time in which persons decide
    - `toolbus.tool.calls`: a counter of ended calls
    - `toolbus.tool.calls.active`: how many calls are under way

    All have `gen_ai.operation.name`, `gen_ai.tool.name` and `rpc.method` (`toolkit.tool`). The
    first two have `toolbus.outcome` and `toolbus.executed` too, and `error.type` for a failure.
    Callers and arguments are no attributes.

    Args:
        provider: The provider of meters; by default the global one, which may be set later.
    """

    def __init__(self, provider: MeterProvider | None = None) -> None:
        meter = get_meter(SCOPE, toolbus_version(), provider)
        self._duration = meter.create_histogram(
            EXECUTE_TOOL_DURATION,
            "s",
            "Duration of calls of tools",
            explicit_bucket_boundaries_advisory=_BOUNDS_S,
        )
        self._calls = meter.create_counter(TOOL_CALLS, "{call}", "Calls of tools that ended")
        self._active = meter.create_up_down_counter(
            TOOL_CALLS_ACTIVE, "{call}", "Calls of tools that are under way"
        )

    async def __call__(self, call: ToolCall, next: CallNext, /) -> AsyncGenerator[Chunk, None]:
        """Record the call."""
        name = call.tool.name
        tool = {
            GEN_AI_OPERATION_NAME: EXECUTE_TOOL,
            **rpc_attributes(name),
            **tool_attributes(name),
        }
        began_s, raised = monotonic(), None
        self._active.add(1, tool)
        try:
            async for chunk in next(call):
                yield chunk
        except BaseException as error:
            raised = error
            raise
        finally:
            self._active.add(-1, tool)
            code, executed = outcome_of(call, raised)
            attributes = {**tool, OUTCOME: code, EXECUTED: executed}
            if code not in _NO_ERRORS:
                if code not in ERRORS:  # a remote host's codes add no series here
                    code = OTHER
                attributes |= {OUTCOME: code, ERROR_TYPE: code}
            self._calls.add(1, attributes)
            self._duration.record(monotonic() - began_s, attributes)
