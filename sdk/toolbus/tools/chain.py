"""What stands around the function of a tool: middlewares, the judged step, its input, its chunks.

`ToolChain` runs a tool that has any of these, for `Toolkit.execute`; all others skip it. A turn
runs its own middlewares by the same `MiddlewareChain` and `collected`, around calls here and
elsewhere.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.attachments import as_attachment, check_readable
from toolbus.chunks.chunk_types import Chunk, EmptyChunk, chunks_of, result_chunk
from toolbus.chunks.json_values import shown
from toolbus.errors import Executed, InvalidArguments, InvalidResult, RoomException, ToolFailed
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.input_stream import InputStream
from toolbus.tools.middleware import CallNext, Middleware, ToolCall, middleware_name
from toolbus.tools.policy import JudgedToolkit, permitted
from toolbus.tools.tool import Tool, read_in_time
from toolbus.tools.tool_info import ToolInfo
from toolbus.tools.tool_run import ToolRun

if TYPE_CHECKING:  # most toolkits have no policy
    pass

__all__ = [
    "MiddlewareChain",
    "ToolChain",
    "collected",
    "input_refusal",
    "unreadable_input",
]

_logger = bounded_logger(__name__)
_END = EmptyChunk()


_NEEDED = {
    "attachment": "an attachment: attachment= of room.invoke, --attach of `toolbus call`",
    "input": "an input: input= of room.stream, --input of `toolbus call`",
}


class ToolChain:
    """Runs a tool that has middlewares or policies, takes an input or returns a stream.

    The outermost middleware is the first; inside of them the policies let a call through or refuse
    it.
    """

    def __init__(
        self,
        tool: Tool,
        info: ToolInfo,
        middlewares: Sequence[Middleware],
        toolkit: JudgedToolkit,
    ) -> None:
        self.tool: Tool = tool
        self.toolkit: JudgedToolkit = toolkit
        self._info = info
        self._middlewares = middlewares

    async def run(
        self, context: ToolContext, arguments: dict[str, Any], attachment: Any = None
    ) -> Chunk:
        """Run the tool and return its result; the chunks of a stream go to the caller.

        Raises what `Toolkit.execute` raises; `InvalidResult` also if the middlewares of a tool that
        returns one result give none or several.
        """
        tool, run = self.tool, run_of(context)
        run.unentered = self.toolkit.unentered
        call = ToolCall(self._info, arguments, context, run.call_id)
        innermost = _ToolStep(self, attachment)
        if not self._middlewares:
            running = await innermost.enter(call)
            if not tool.streaming:
                return run.made(tool.make_result, await running)
        else:
            try:
                await read_in_time(tool, run, arguments)
                _check_streams(tool, run)
            except RoomException as error:
                run.refuse(error)
                raise
            running = MiddlewareChain(self._middlewares, innermost).run(call)
        return await collected(run, self._info, running, partial(run.made, tool.make_result))


class _ToolStep:
    """Runs the tool of one call: the innermost part of its chain."""

    def __init__(self, chain: ToolChain, attachment: Any) -> None:
        self._chain = chain
        self._attachment = attachment
        self._is_input_read = False

    async def __call__(self, call: ToolCall) -> AsyncGenerator[Chunk, None]:
        tool, run = self._chain.tool, run_of(call.context)
        running = await self.enter(call)
        if not tool.streaming:
            yield run.made(tool.make_result, await running)
            return
        try:
            async for item in running:
                yield run.made(tool.make_result, item)
        finally:
            await _close(running, f"tool {tool.name}")

    async def enter(self, call: ToolCall) -> Any:
        """Enter the function if the call may run; return its awaitable or its async iterator.

        Raises `InvalidArguments` before the tool is entered if its caller accepts no stream, sends
        an input that the tool does not take, or sends none to a tool that requires one.
        """
        chain, run = self._chain, run_of(call.context)
        tool = chain.tool
        arguments = dict(call.arguments)
        try:
            has_policy = chain.toolkit.policies or (tool.approval and run.enforces_approval)
            if has_policy and not run.is_judged:
                _check_streams(tool, run)  # a call that cannot run is not judged
                has_input = self._attachment is not None
                arguments = await permitted(chain.toolkit, tool, call, has_input=has_input)
            checked = await read_in_time(tool, run, arguments)
            _check_streams(tool, run)
            if self._attachment is not None:
                if self._is_input_read:
                    raise ToolFailed("the input of this call was read: it cannot run again")
                self._is_input_read = True
            checked = await _with_input(tool, run, checked, self._attachment)
        except RoomException as error:
            run.refuse(error)
            raise
        running = tool.execute(call.context, **checked)
        if not tool.marks_entry:
            run.entered = True
        return running


async def collected(
    run: ToolRun, tool: ToolInfo, chunks: AsyncIterator[Any], check: Callable[[Any], Chunk]
) -> Chunk:
    """Pass the chunks of a streaming tool on, or return the one of a tool that returns one.

    Args:
        run: Takes the chunks, and records errors.
        tool: The tool.
        chunks: What its chain gives; closed in any case.
        check: Returns a chunk for what the caller gets. Raises a `RoomException`, recorded.

    Raises `InvalidResult` for a tool that returns one, if there is none or a second one.
    """
    result: Chunk | None = None
    text = f"{tool.name} returns one result, and its middlewares gave"
    try:
        async for value in chunks:
            if tool.streaming:
                for chunk in chunks_of(check(value)):
                    await run.put(chunk)
            elif result is not None:
                raise run.fail(InvalidResult(f"{text} more than one"))
            else:
                result = value
    finally:
        await _close(chunks, f"tool {tool.name}")
    if tool.streaming:
        return _END
    if result is None:
        raise run.fail(InvalidResult(f"{text} none: yield EmptyChunk() for an empty one"))
    return check(result)


class MiddlewareChain:
    """The middlewares of one call, around what runs the call. Used once."""

    def __init__(self, middlewares: Sequence[Middleware], innermost: CallNext) -> None:
        self.middlewares: Sequence[Middleware] = middlewares
        self.innermost: CallNext = innermost
        self.opened: list[AsyncIterator[Chunk]] = []
        """The generators of the call, the outermost first; `run` closes them."""
        self.reached: bool = False
        """Whether the innermost function was called."""
        self.has_ended: bool = False
        """Whether the call has ended: nothing runs any more."""

    async def run(self, call: ToolCall) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of the call; close everything that was opened in any case.

        Raises what a middleware or the call raises. A `RoomException` of a middleware that refuses
        the call before it reaches the tool states that the tool did not run.
        """
        try:
            async for chunk in _Next(self, 0)(call):
                yield chunk
        except RoomException as error:
            run = run_of(call.context)
            if not self.reached and not run.entered:
                error.executed = "no"
                run.refuse(error)
            raise
        finally:
            self.has_ended = True
            for opened in reversed(self.opened):  # the innermost first
                await _close(opened, "a middleware")
            self.opened.clear()


class _Next:
    """The function `next` of one middleware in one call: runs the middleware that comes after it.

    The first one runs the whole chain, and the last one the call itself.
    """

    def __init__(self, chain: MiddlewareChain, index: int) -> None:
        self._chain = chain
        self._index = index
        self._state = ""

    def __call__(self, call: ToolCall) -> AsyncIterator[Chunk]:
        if not isinstance(call, ToolCall):
            raise TypeError(f"{self._label}: next takes the call, not {shown(call)}")
        running = self._run(call)
        self._chain.opened.append(running)
        return running

    @property
    def _label(self) -> str:
        return f"middleware {middleware_name(self._chain.middlewares[self._index - 1])}"

    async def _run(self, call: ToolCall) -> AsyncGenerator[Chunk, None]:
        chain, run = self._chain, run_of(call.context)
        if self._state or chain.has_ended:
            when = f"again after {self._state}" if self._state else "after the end of the call"
            raise ToolFailed(f"{self._label} called next {when}", executed=run.executed)
        self._state = "it began"
        is_tool = self._index == len(chain.middlewares)
        running: AsyncIterator[Any] | None = None
        try:
            if is_tool:
                chain.reached = True
                running = chain.innermost(call)
            else:  # a wrapper of a generator function may raise at once
                running = chain.middlewares[self._index](call, _Next(chain, self._index + 1))
            async for value in running:
                chunk = value if is_tool else run.made(result_chunk, value)
                self._state = "a chunk"
                yield chunk
        except Exception:
            if self._state != "a chunk":
                self._state = ""  # a failure before any chunk: it may be tried again
            raise
        finally:
            await _close(running, "a middleware")
        self._state = "success"


async def _close(opened: Any, label: str) -> None:
    """Close a generator, with all that it has opened; an error is logged."""
    close = getattr(opened, "aclose", None)
    if close is not None:
        try:
            await close()
        except Exception:
            # The result of the call is already determined.
            _logger.exception("%s raised while the call was closed", label)


def _check_streams(tool: Tool, run: ToolRun) -> None:
    """Raise `InvalidArguments` if a tool returns a stream and its caller accepts none."""
    if tool.streaming and not run.streams:
        raise _refusal(f"{tool.name} returns a stream: call it with room.stream")


async def _with_input(
    tool: Tool, run: ToolRun, arguments: dict[str, Any], attachment: Any
) -> dict[str, Any]:
    """Add the input of a call, an `InputStream` or what `as_attachment` takes, to its arguments.

    Raises `InvalidArguments` for an input that the tool does not take, and for a missing one;
    `OSError` for a file that cannot be read, noted in the run.
    """
    parameter = tool.input_parameter
    if attachment is None and parameter is None:
        return arguments
    if parameter is None:
        raise input_refusal(tool)
    taken = None
    if attachment is not None:
        taken = await parameter.read(await _stream_of(run, attachment))
    if taken is not None:
        return {**arguments, parameter.parameter: taken}
    if parameter.required:
        raise _refusal(f"{tool.name} needs {_NEEDED[parameter.takes]}")
    return arguments


def input_refusal(tool: Tool) -> InvalidArguments:
    """Return the error for an input of a tool that takes none."""
    return _refusal(f"{tool.name} takes no attachment and no input")


async def _stream_of(run: ToolRun, attachment: Any) -> InputStream[Any]:
    stream: InputStream[Any] = attachment
    if not isinstance(attachment, InputStream):
        file = as_attachment(attachment)
        try:
            await check_readable(file)
        except OSError as error:
            run.input_error = error
            raise
        stream = InputStream([file])
    if run.takes_input and not run.entered:  # else a tool runs this one, with an input of its own
        stream.begin_run(run)
    return stream


def unreadable_input(path: str, error: BaseException, executed: Executed) -> InvalidArguments:
    """Return the error of a call whose own caller cannot read what it sends."""
    text = f"the input of the call cannot be read: {type(error).__name__}"
    failure = InvalidArguments(text, executed=executed, details={"path": path, "message": text})
    failure.__cause__ = error
    return failure


def _refusal(message: str) -> InvalidArguments:
    return InvalidArguments(message, details={"path": "", "message": message})
