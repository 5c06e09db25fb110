"""One call of a tool: in the room, with its progress, to its result."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import mcp_types as types

from toolbus.agents.asked_agents import read_answer
from toolbus.cli.output import held_text
from toolbus.client.held_calls import HeldCall
from toolbus.errors import RoomException
from toolbus.room.room import Room, room_of_call
from toolbus_gateway.limits import CALL_TIMEOUT_S, MAX_RESULT_BYTES
from toolbus_gateway.listing import ListedTool
from toolbus_gateway.member import Member
from toolbus_gateway.progress import ProgressSender
from toolbus_gateway.questions import CallResult, ClientQuestions, Waits, run_asking
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
    questions: ClientQuestions | None = None,
) -> CallResult:
    """Call a tool for a member, and return its result, its error, or what its user is asked.

    Args:
        member: The caller.
        tool: The tool as it was listed for the member.
        arguments: By name, as the client sent them; the host checks them.
        settings: The limits.
        progress: Where progress is sent; None if the client asked for none.
        questions: How the user is asked; None if the client cannot.
    """
    if questions is not None and questions.refusal is not None:
        return questions.refusal
    waits = Waits()
    reports: dict[str, Any] = {}
    if progress is not None:
        reports["on_progress"] = progress.emit
    if progress is not None or questions is not None:
        reports["on_held"] = _teller(waits, progress)
    writer = ResultWriter(tool.definition, settings.max_result_bytes)
    room: Room = member.room
    if questions is not None:
        room = room_of_call(room, questions.call_id)
    call = _outcome(room, tool, arguments, settings, writer, reports)
    result: Coroutine[Any, Any, CallResult] = call
    if questions is not None:
        is_idempotent = tool.definition.is_idempotent
        result = run_asking(questions, member.room, call, waits, is_idempotent=is_idempotent)
    if progress is None:
        return await result
    async with progress.sending():
        return await result


def _teller(waits: Waits, progress: ProgressSender | None) -> Callable[[HeldCall], None]:
    def tell(held: HeldCall) -> None:
        tool = waits.tools.setdefault(held.id, held.tool)  # what goes on has its id alone
        waits.note(held)
        if progress is not None:
            progress.emit(held_text(replace(held, tool=held.tool or tool)))

    return tell


async def _outcome(
    room: Room,
    tool: ListedTool,
    arguments: dict[str, Any],
    settings: CallSettings,
    writer: ResultWriter,
    reports: dict[str, Any],
) -> types.CallToolResult:
    try:
        await _run(room, tool, arguments, settings, writer, reports)
    except RoomException as error:
        return writer.failed(error)
    return writer.result()


async def _run(
    room: Room,
    tool: ListedTool,
    arguments: dict[str, Any],
    settings: CallSettings,
    writer: ResultWriter,
    reports: dict[str, Any],
) -> None:
    definition = tool.definition
    timeout_s = settings.timeout_s
    if definition.timeout_s is not None:
        timeout_s = min(timeout_s, definition.timeout_s)
    options: dict[str, Any] = {"participant": tool.participant, "timeout_s": timeout_s, **reports}
    if not definition.is_streaming:
        await writer.add(await room.invoke(tool.full_name, arguments, **options))
        return
    # The time of the call is its limit; a stream that says nothing for long is told by progress.
    options["stall_timeout_s"] = None
    async with room.stream(tool.full_name, arguments, **options) as chunks:
        if definition.is_of_agent:
            emit = reports.get("on_progress", _drop)
            async with aclosing(read_answer(chunks, emit)) as answer:
                async for chunk in answer:
                    await writer.add(chunk)
            return
        async for chunk in chunks:
            await writer.add(chunk)


def _drop(_: object) -> None:
    """Send no progress: the client asked for none."""
