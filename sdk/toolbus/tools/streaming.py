"""Runs tools that return a stream or take an input.

Called by `Toolkit.execute` with checked arguments.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.attachments import as_attachment, check_readable
from toolbus.chunks.chunk_types import Chunk, EmptyChunk, chunks_of
from toolbus.errors import Executed, InvalidArguments, RoomException
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.input_stream import InputStream
from toolbus.tools.tool import Tool
from toolbus.tools.tool_run import ToolRun

__all__ = [
    "check_streams",
    "checked_result",
    "close_items",
    "run_with_streams",
    "unreadable_input",
    "with_input",
]

_logger = bounded_logger(__name__)
_END = EmptyChunk()


async def run_with_streams(
    tool: Tool,
    context: ToolContext,
    arguments: dict[str, Any],
    attachment: Any,
) -> Chunk:
    """Run a tool with its input, and send the items that it yields.

    Raises `InvalidArguments` before the tool is entered if its caller accepts no stream, sends an
    input that the tool does not take, or sends none to a tool that requires one; and what
    `Toolkit.execute` raises.
    """
    run = run_of(context)
    try:
        check_streams(tool, run)
        arguments = await with_input(tool, run, arguments, attachment)
    except RoomException as error:
        if not run.is_recorded(error):
            run.refuse(error)
        raise
    running = tool.execute(context, **arguments)
    if not tool.marks_entry:
        run.entered = True
    if tool.streaming:
        await _put_all(tool, run, running)
        return _END
    return checked_result(tool, run, await running)


def check_streams(tool: Tool, run: ToolRun) -> None:
    """Raise `InvalidArguments` if a tool returns a stream and its caller accepts none."""
    if tool.streaming and not run.streams:
        raise _refusal(f"{tool.name} returns a stream: call it with room.stream")


async def with_input(
    tool: Tool, run: ToolRun, arguments: dict[str, Any], attachment: Any
) -> dict[str, Any]:
    """Add the input of a call to its checked arguments.

    Args:
        tool: The tool.
        run: Its run.
        arguments: Its checked arguments.
        attachment: An `InputStream`, or one file in a form that `as_attachment` accepts.

    Raises `InvalidArguments` for an input that the tool does not take, and for a missing one;
    `OSError` for a file that cannot be read, noted in the run.
    """
    input_parameter = tool.input_parameter
    if attachment is None:
        if input_parameter is not None and input_parameter.required:
            raise _needs_input(tool)
        return arguments
    if input_parameter is None:
        raise _refusal(f"{tool.name} takes no attachment and no input")
    taken = await input_parameter.read(await _stream_of(run, attachment))
    if taken is None:
        if input_parameter.required:
            raise _needs_input(tool)
        return arguments
    return {**arguments, input_parameter.parameter: taken}


async def _stream_of(run: ToolRun, attachment: Any) -> InputStream[Any]:
    if isinstance(attachment, InputStream):
        return attachment
    file = as_attachment(attachment)
    try:
        await check_readable(file)
    except OSError as error:
        run.input_error = error
        raise
    return InputStream([file])


def unreadable_input(path: str, error: BaseException, executed: Executed) -> InvalidArguments:
    """Return the error of a call whose own caller cannot read what it sends.

    Args:
        path: "/attachment" or "/input".
        error: What reading raised.
        executed: Whether the tool ran.
    """
    text = f"the input of the call cannot be read: {type(error).__name__}"
    failure = InvalidArguments(text, executed=executed, details={"path": path, "message": text})
    failure.__cause__ = error
    return failure


async def _put_all(tool: Tool, run: ToolRun, items: AsyncIterator[Any]) -> None:
    """Send every item as it is yielded; in any case wait for the end of the tool."""
    try:
        async for item in items:
            for chunk in chunks_of(checked_result(tool, run, item)):
                await run.put(chunk)
    finally:
        await close_items(tool, items)


async def close_items(tool: Tool, items: Any) -> None:
    """Close what a tool yields from; an error is logged."""
    close = getattr(items, "aclose", None)
    if close is not None:
        try:
            await close()
        except Exception:
            # The result of the call is already determined.
            _logger.exception("tool %s raised while its stream was closed", tool.name)


def checked_result(tool: Tool, run: ToolRun, value: Any) -> Chunk:
    """Convert a tool's value to a chunk. Raises `InvalidResult`, recorded in the run."""
    try:
        return tool.make_result(value)
    except RoomException as error:
        if not run.entered:  # a middleware answered in the tool's place
            error.executed = run.executed
        run.record(error)
        raise


_NEEDED = {
    "attachment": "an attachment: attachment= of room.invoke, --attach of `toolbus call`",
    "input": "an input: input= of room.stream, --input of `toolbus call`",
}


def _needs_input(tool: Tool) -> InvalidArguments:
    takes = "" if tool.input_parameter is None else tool.input_parameter.takes
    return _refusal(f"{tool.name} needs {_NEEDED.get(takes, 'an input')}")


def _refusal(message: str) -> InvalidArguments:
    return InvalidArguments(message, details={"path": "", "message": message})
