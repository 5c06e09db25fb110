"""Runs the tools that do more than take arguments and return: those that stream, or take an input.

`Toolkit.execute` is the way in; the arguments it hands over are checked.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

from toolbus.chunks import Chunk, EmptyChunk
from toolbus.context import ToolContext
from toolbus.errors import InvalidArguments, RoomException
from toolbus.input_stream import InputStream
from toolbus.tool import Tool

__all__ = ["run_apart"]

_logger = logging.getLogger(__name__)
_END = EmptyChunk()


async def run_apart(
    tool: Tool,
    context: ToolContext,
    arguments: dict[str, Any],
    stream: InputStream[Any] | None,
) -> Chunk:
    """Run a tool with the input it takes, and put what it yields.

    Raises `InvalidArguments` before the tool is entered where its caller takes no stream, or sends
    an input that the tool does not take, or none to one that needs it; and what `Toolkit.execute`
    raises.
    """
    try:
        if tool.streaming and not context.streams:
            raise _refusal(f"{tool.name} gives a stream: call it with room.stream")
        arguments = await _with_input(tool, arguments, stream)
    except RoomException as error:
        if not context.stands(error):
            context.refuse(error)
        raise
    running = tool.execute(context, **arguments)
    if not tool.marks_entry:
        context.entered = True
    if tool.streaming:
        await _put_all(tool, context, running)
        return _END
    return _result(tool, context, await running)


async def _with_input(
    tool: Tool, arguments: dict[str, Any], stream: InputStream[Any] | None
) -> dict[str, Any]:
    intake = tool.intake
    if stream is None:
        if intake is not None and intake.is_needed:
            raise _needs_input(tool)
        return arguments
    if intake is None:
        raise _refusal(f"{tool.name} takes no attachment and no input")
    if not isinstance(stream, InputStream):
        raise TypeError(f"attachment is an InputStream, not a {type(stream).__name__}")
    taken = await intake.read(stream)
    if taken is None:
        if intake.is_needed:
            raise _needs_input(tool)
        return arguments
    return {**arguments, intake.parameter: taken}


async def _put_all(tool: Tool, context: ToolContext, items: AsyncIterator[Any]) -> None:
    """Hand every item on as it comes; however that ends, the tool's own end is waited for."""
    try:
        async for item in items:
            await context.put(_result(tool, context, item))
    finally:
        await _close(tool, items)


async def _close(tool: Tool, items: Any) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        try:
            await close()
        except Exception:
            # What the call ends with is known already.
            _logger.exception("tool %s raised while its stream was closed", tool.name)


def _result(tool: Tool, context: ToolContext, value: Any) -> Chunk:
    try:
        return tool.make_result(value)
    except RoomException as error:
        context.fail(error)
        raise


_NEEDED = {
    "attachment": "an attachment: attachment= of room.invoke, --attach of `toolbus call`",
    "input": "an input: input= of room.stream, --input of `toolbus call`",
}


def _needs_input(tool: Tool) -> InvalidArguments:
    takes = "" if tool.intake is None else tool.intake.takes
    return _refusal(f"{tool.name} needs {_NEEDED.get(takes, 'an input')}")


def _refusal(message: str) -> InvalidArguments:
    return InvalidArguments(message, details={"path": "", "message": message})
