"""Runs a tool inside its middlewares and policies, for `Toolkit.execute`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from toolbus.chunks.chunk_types import Chunk, EmptyChunk
from toolbus.chunks.json_values import packed_json
from toolbus.concurrency.slices import run_in_slices
from toolbus.errors import Executed, RoomException, ToolFailed
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.middleware import Middleware, MiddlewareChain, ToolCall, one_result
from toolbus.tools.policy import Inquiry, enforce
from toolbus.tools.streaming import check_streams, checked_result, close_items, with_input
from toolbus.tools.tool import Tool
from toolbus.tools.tool_info import ToolInfo
from toolbus.tools.tool_run import ToolRun
from toolbus.wire import unpack_body

if TYPE_CHECKING:  # most toolkits have no policy
    from toolbus.permissions.permissions import Permissions

__all__ = ["WrappedTool", "read_in_time"]

_END = EmptyChunk()


async def read_in_time(tool: Tool, run: ToolRun, arguments: dict[str, Any]) -> dict[str, Any]:
    """Check and convert arguments, large ones in slices. Raises `InvalidArguments`."""
    if not run.argument_bytes:
        return tool.read_arguments(arguments)
    return await run_in_slices(tool.read_steps(arguments), run.argument_bytes, continues=True)


class WrappedTool:
    """A tool with the middlewares of its toolkit and its own.

    Args:
        tool: The tool.
        info: Its description, which the middlewares get.
        middlewares: The outermost first.
        policies: What refuses calls inside of them; each has to allow a call.
        unentered: That of its toolkit.
    """

    def __init__(
        self,
        tool: Tool,
        info: ToolInfo,
        middlewares: Sequence[Middleware],
        policies: Sequence[Permissions],
        unentered: Executed,
    ) -> None:
        self._tool = tool
        self._info = info
        self._middlewares = middlewares
        self._policies = policies
        self._unentered = unentered

    async def run(
        self,
        context: ToolContext,
        arguments: dict[str, Any],
        attachment: Any,
    ) -> Chunk:
        """Run the tool with its middlewares, and return its result.

        Raises what `Toolkit.execute` raises; `InvalidResult` also if the middlewares of a tool that
        returns one result give none or several.
        """
        run = run_of(context)
        run.unentered = self._unentered
        try:
            await read_in_time(self._tool, run, arguments)
            check_streams(self._tool, run)
        except RoomException as error:
            run.refuse(error)
            raise
        call = ToolCall(self._info, arguments, context, run.call_id)
        chain = MiddlewareChain(
            self._middlewares, _Execution(self._tool, attachment, self._policies)
        )
        async with aclosing(chain.run(call)) as chunks:
            if not self._tool.streaming:
                recorded = partial(_recorded, run)
                result = await one_result(self._info.name, chunks, recorded)
                return checked_result(self._tool, run, result)
            async for chunk in chunks:
                await run.put(checked_result(self._tool, run, chunk))
            return _END


def _recorded(run: ToolRun, error: RoomException) -> RoomException:
    error.executed = run.executed
    return run.record(error)


class _Execution:
    """Runs the tool of one call, as the innermost part of its chain."""

    def __init__(self, tool: Tool, attachment: Any, policies: Sequence[Permissions]) -> None:
        self._tool = tool
        self._attachment = attachment
        self._policies = policies
        self._is_input_read = False

    async def __call__(self, call: ToolCall) -> AsyncGenerator[Chunk, None]:
        tool, run = self._tool, run_of(call.context)
        try:
            arguments = dict(call.arguments)
            if self._policies:
                # Others have these objects too, and may change them while the policies judge.
                packed = packed_json("arguments", arguments)
                judged = replace(call, arguments=unpack_body(packed))
                checked = await read_in_time(tool, run, unpack_body(packed))
                await enforce(self._policies, Inquiry(tool, judged, checked, self._policies[1:]))
                arguments = unpack_body(packed)
            checked = await read_in_time(tool, run, arguments)
            if self._attachment is not None and self._is_input_read:
                raise ToolFailed("the input of this call was read: it cannot run again")
            self._is_input_read = True
            if self._attachment is not None or not tool.is_unary:
                checked = await with_input(tool, run, checked, self._attachment)
        except RoomException as error:
            run.refuse(error)
            raise
        running = tool.execute(call.context, **checked)
        if not tool.marks_entry:
            run.entered = True
        if not tool.streaming:
            yield checked_result(tool, run, await running)
            return
        try:
            async for item in running:
                yield checked_result(tool, run, item)
        finally:
            await close_items(tool, running)
