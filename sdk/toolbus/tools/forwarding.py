"""Forwards a call: calls another tool for the caller of the call that runs.

How a forwarded call ends is how the call around it ends, so that its caller cannot tell it from one
that it made itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toolbus.chunks.chunk_types import Chunk, EmptyChunk
from toolbus.errors import RoomException
from toolbus.permissions.assessment import Assessment
from toolbus.tools.call_room import CallRoom
from toolbus.tools.tool_run import ToolRun
from toolbus.untrusted_text import one_line

__all__ = ["forward_assess", "forward_call"]

_REFUSALS = frozenset(
    "not_found permission_denied invalid_arguments no_host definition_changed loop_detected".split()
)
"""How a call ends that is refused whenever it is made: a question about it ends likewise."""
_ASSESS_S = 4.0
"""Less than the 5 s that the asker waits, so that there is an answer in place of a missing one."""
_ENDLESS_S = 2.0**31 - 1
"""The longest time-out of a call: the deadline of the call around it ends it before."""


async def forward_call(
    run: ToolRun,
    room: CallRoom,
    tool: str,
    arguments: Mapping[str, Any] | None,
    *,
    participant: str | None,
    attachment: Any,
) -> Chunk:
    """Call a tool for the caller of a run; see `ToolContext.forward`.

    Args:
        run: The run. Chunks and progress go to its caller.
        room: Its room.
        tool: The tool, written `toolkit.tool`.
        arguments: Values by parameter.
        participant: The name of an owner.
        attachment: A file to upload.
    """
    own = run.caller_context
    if run.recording is not None and not run.entered:  # else the forwarding function acts itself
        run.recording.reach(tool, arguments, owner=participant or "")
    # One attempt: the error reaches a caller that makes further ones, with its own limits.
    options: dict[str, Any] = {
        "participant": participant,
        "attachment": attachment,
        "caller_context": None if own is None else dict(own),
        "retry": False,
        "wait_for_host_s": 0,
        "on_progress": run.emit if run.wants_progress else None,
    }
    try:
        if run.is_hosted:
            room = room.forwarding()
        # A local run receives the chunks of a tool that is known to stream; this one is not.
        if not (run.streams and run.is_hosted):
            chunk: Chunk = await room.invoke(tool, arguments, timeout_s=_ENDLESS_S, **options)
            run.entered = True
            return chunk
        async with room.stream(tool, arguments, stall_timeout_s=None, **options) as chunks:
            async for chunk in chunks:
                run.entered = True
                await run.put(chunk)
    except RoomException as error:
        raise _recorded(run, error) from None
    run.entered = True
    return EmptyChunk()


async def forward_assess(
    run: ToolRun,
    room: CallRoom,
    tool: str,
    arguments: Mapping[str, Any] | None,
    *,
    participant: str | None,
) -> Assessment:
    """Ask what a call is that a run would forward; see `ToolContext.forward_assess`."""
    try:
        if run.is_hosted:
            room = room.forwarding()
        assessment = await room.assess(
            tool,
            arguments,
            patterns=run.patterns,
            participant=participant,
            timeout_s=_seconds_to_ask(run),
        )
    except RoomException as error:
        if error.code in _REFUSALS:
            raise run.refuse(error) from None
        # Rules about the reached tool have to hold although it cannot be asked.
        message = f"{one_line(tool, 140)} cannot be asked about this call: {error.message}"
        return Assessment("ask", immune=True, message=message, source="manifest", reaches=tool)
    if not assessment.reaches:
        return replace(assessment, reaches=tool)
    if tool == run.method:  # a forwarding tool that calls itself: the last of them decides
        return assessment
    # There is a place for one reached name. Of two, rules about the other one would be passed by.
    name = one_line(tool, 140)
    message = f"{name} forwards too, to {one_line(assessment.reaches, 140)}: call {name} itself"
    return Assessment("deny", message=message, reaches=assessment.reaches)


def _seconds_to_ask(run: ToolRun) -> float:
    left = _ASSESS_S if run.deadline_at is None else run.deadline_at - run.clock()
    return max(0.01, min(_ASSESS_S, 0.8 * left))


def _recorded(run: ToolRun, error: RoomException) -> RoomException:
    """Record the error of a forwarded call as that of the run, and return it to be raised."""
    if error.executed == "yes":
        run.entered = True
    elif error.executed == "no" and run.entered:
        error.executed, error.retryable = run.executed, False  # the forwarding function itself ran
    if error.executed == "maybe":
        # A caller may repeat it only if the tool that it called itself is idempotent.
        error.retryable = False
        error.details = {key: fact for key, fact in error.details.items() if key != "digest"}
    return run.record(error)
