"""What becomes of the calls in a room, as those read it who may observe them.

Values only. Arguments and results are never among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolbus.errors import Executed
from toolbus.trace_context import parse_traceparent
from toolbus.wire import unpack_body

__all__ = ["CallNews", "EndedCall"]


@dataclass(frozen=True, slots=True)
class EndedCall:
    """A call that has ended, by the server's own tables."""

    call_id: str
    """The same for every attempt of one call; the caller chose it."""
    caller: str
    """The name of who made it."""
    caller_id: str
    """The caller's connection."""
    toolkit: str
    """The toolkit's name; of a call that was refused what the caller wrote."""
    tool: str
    """The tool's name, or what the caller wrote."""
    host: str | None
    """The name of who ran it; None where it was refused before a host had it."""
    host_id: str | None
    """The host's connection."""
    code: str | None
    """The code of the error it ended with; None where there was a result."""
    executed: Executed
    """What the caller was told of whether the tool ran."""
    duration_s: float
    """From its coming to the server until its end there; 0 where it was refused."""
    trace_id: str | None
    """32 hex digits, where the call was to be recorded: what Jaeger is asked for."""

    @classmethod
    def from_wire(cls, fields: Sequence[Any]) -> EndedCall:
        """Read a call as the server tells of it. Raises ValueError or TypeError for what is none.

        Fields behind those that this release knows are ignored.
        """
        call_id, caller, toolkit, tool, host, code, executed, duration_us, traceparent = fields[:9]
        (caller_id, caller_name), (host_id, host_name) = caller[:2], (host or (None, None))[:2]
        return cls(
            call_id=call_id,
            caller=caller_name,
            caller_id=caller_id,
            toolkit=toolkit,
            tool=tool,
            host=host_name,
            host_id=host_id,
            code=code,
            executed=executed,
            duration_s=duration_us / 1e6,
            trace_id=_trace_id(traceparent),
        )


@dataclass(frozen=True, slots=True)
class CallNews:
    """What has become of the calls in a room since the news before it."""

    in_flight: int
    """Calls that have not ended, now."""
    started: int
    """Calls that came, those that were refused among them."""
    ended: int
    """Calls that ended."""
    failed: int
    """Of those that ended, the ones with an error."""
    calls: tuple[EndedCall, ...] = ()
    """Those that ended, at most 200: where there were more, first those that failed."""
    has_gap: bool = False
    """Whether there may have been calls before these of which nothing is told: the connection was
    lost and came back, or the reader was too far behind."""

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> CallNews:
        """Read an event's data. Raises LookupError, TypeError or ValueError for what is none."""
        return cls(
            in_flight=data["in_flight"],
            started=data["started"],
            ended=data["ended"],
            failed=data["failed"],
            calls=tuple(map(EndedCall.from_wire, unpack_body(data["calls"]))),
        )


def _trace_id(traceparent: str | None) -> str | None:
    context = parse_traceparent(traceparent)
    return None if context is None else f"{context.trace_id:032x}"
