"""The records of hosted calls: also of those that were refused, cancelled or left behind.

The end of a call is recorded as its caller learns it. Where the server has answered in place of
this host, the reason of its cancel frame tells what it answered.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from toolbus.errors import Executed, RoomException
from toolbus.hosting.hosted_call import HostedCall
from toolbus.telemetry.propagation import current_trace_id, trace_id_of
from toolbus.wire import Failed, Frame

if TYPE_CHECKING:  # most programs record nothing
    from toolbus.records.recording import Recording
    from toolbus.records.records import Records

__all__ = ["begin_recording", "end_recording", "note_arguments", "record_refusal"]

_OUTCOMES = MappingProxyType(
    {
        "deadline": "deadline_exceeded",
        "broken": "stream_broken",
        "stalled": "stream_stalled",
        "leaving": "unavailable",
        "lost": "host_lost",
    }
)


def begin_recording(call: HostedCall, records: Records) -> Recording:
    """Begin the record of a call."""
    dispatch = call.dispatch
    recording = call.begin_recording(records, call.method)
    recording.trace_id = trace_id_of(dispatch.traceparent, dispatch.call_id)
    return recording


def note_arguments(recording: Recording, arguments: dict[str, object]) -> None:
    """Add the arguments, where they are kept, and the trace, where this host began it."""
    recording.keep_arguments(arguments)
    recording.trace_id = recording.trace_id or current_trace_id()


def record_refusal(call: HostedCall, records: Records, error: RoomException) -> None:
    """Record a call that this host refused as it arrived."""
    recording = begin_recording(call, records)
    _identify(recording, call)
    recording.end(error)


def end_recording(call: HostedCall, reply: Frame | None) -> None:
    """Record the end of a call, if it has not been recorded.

    Args:
        call: The call.
        reply: What it ends with; not sent if the server has answered in its place. None for a call
            that has no end of its own.
    """
    recording = call.recording
    if recording is None or recording.ended:
        return
    _identify(recording, call)
    if call.given_up:
        recording.end_with(_OUTCOMES.get(call.stop_reason, "cancelled"), call.executed)
    elif reply is None:
        recording.end_with("host_lost", call.executed)
    elif isinstance(reply, Failed):
        recording.end_with(reply.code, cast(Executed, reply.executed))  # of this host
    else:
        recording.end_with("ok", call.executed)


def _identify(recording: Recording, call: HostedCall) -> None:
    recording.owner, recording.digest = call.owner, call.hosted.digest
