"""One call of a tool: in the room, with its progress, to its result."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import mcp_types as types

from toolbus.agents.asked_agents import read_answer
from toolbus.errors import RoomException
from toolbus_gateway.limits import CALL_TIMEOUT_S, MAX_RESULT_BYTES
from toolbus_gateway.listing import ListedTool
from toolbus_gateway.member import Member
from toolbus_gateway.progress import ProgressSender
from toolbus_gateway.results import ResultWriter

__all__ = ["CallSettings", "call_tool"]


@dataclass(frozen=True, slots=True)
class CallSettings:
    """What an operator decides about calls."""

    timeout_s: float = CALL_TIMEOUT_S
    """Seconds that a call may take; a tool may have a shorter time of its own."""
    max_result_bytes: int = MAX_RESULT_BYTES
    """The most content of one result."""


async def call_tool(
    member: Member,
    tool: ListedTool,
    arguments: dict[str, Any],
    settings: CallSettings,
    progress: ProgressSender | None,
) -> types.CallToolResult:
    """Call a tool for a member, and return its result or its error.

    Args:
        member: The caller.
        tool: The tool as it was listed for the member.
        arguments: By name, as the client sent them; the host checks them.
        settings: The limits.
        progress: Where progress is sent; None if the client asked for none.
    """
    writer = ResultWriter(tool.definition, settings.max_result_bytes)
    if progress is None:
        return await _outcome(member, tool, arguments, settings, writer, None)
    async with progress.sending():
        return await _outcome(member, tool, arguments, settings, writer, progress)


async def _outcome(
    member: Member,
    tool: ListedTool,
    arguments: dict[str, Any],
    settings: CallSettings,
    writer: ResultWriter,
    progress: ProgressSender | None,
) -> types.CallToolResult:
    try:
        await _run(member, tool, arguments, settings, writer, progress)
    except RoomException as error:
        return writer.failed(error)
    return writer.result()


async def _run(
    member: Member,
    tool: ListedTool,
    arguments: dict[str, Any],
    settings: CallSettings,
    writer: ResultWriter,
    progress: ProgressSender | None,
) -> None:
    definition = tool.definition
    timeout_s = settings.timeout_s
    if definition.timeout_s is not None:
        timeout_s = min(timeout_s, definition.timeout_s)
    options: dict[str, Any] = {"participant": tool.participant, "timeout_s": timeout_s}
    if progress is not None:
        options["on_progress"] = progress.emit
    if not definition.is_streaming:
        await writer.add(await member.room.invoke(tool.full_name, arguments, **options))
        return
    # The time of the call is its limit; a stream that says nothing for long is told by progress.
    options["stall_timeout_s"] = None
    async with member.room.stream(tool.full_name, arguments, **options) as chunks:
        if definition.is_of_agent:
            emit = _drop if progress is None else progress.emit
            async with aclosing(read_answer(chunks, emit)) as answer:
                async for chunk in answer:
                    await writer.add(chunk)
            return
        async for chunk in chunks:
            await writer.add(chunk)


def _drop(_: object) -> None:
    """Send no progress: the client asked for none."""
