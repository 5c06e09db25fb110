"""Middlewares: async generators around the calls of a tool, a toolkit or a turn.

A middleware gets a call and the function `next`, which runs what is inside of it:

    async def shout(call, next):
        async for chunk in next(call):
            yield chunk.value.upper()

It may change the arguments, change, drop or add chunks, or answer without calling on. The first of
a list is the outermost. Whatever it passes on is checked again: the arguments before the tool runs,
and the results before they reach the caller.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.chunk_types import Chunk, result_chunk
from toolbus.chunks.json_values import cut, shown
from toolbus.errors import InvalidResult, RoomException, ToolFailed
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.signature import takes_positional
from toolbus.tools.tool_info import ToolInfo
from toolbus.tools.tool_run import ToolRun

__all__ = [
    "CallNext",
    "Middleware",
    "MiddlewareChain",
    "ToolCall",
    "check_tool",
    "checked_generators",
    "checked_middlewares",
    "middleware_name",
    "one_result",
]

_logger = bounded_logger(__name__)
_M = TypeVar("_M", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call on its way to the tool. It does not change; `replace` makes another one."""

    tool: ToolInfo
    """The called tool."""
    arguments: Mapping[str, Any]
    """Values by parameter, as JSON. Not to be changed."""
    context: ToolContext
    """Who calls, for whom, until when; the context that a tool in this process gets."""
    id: str = ""
    """The id of the call: the same for every attempt, and that of its trace where it begins one."""

    def replace(self, *, arguments: Mapping[str, Any]) -> Self:
        """Return this call with other arguments. They are checked before the tool runs."""
        if not isinstance(arguments, Mapping):
            raise TypeError(f"arguments must be a mapping, not {type(arguments).__name__}")
        return replace(self, arguments=arguments)


CallNext: TypeAlias = Callable[[ToolCall], AsyncIterator[Chunk]]
"""Runs the rest of a call. It may be called again only after a failure, and before any chunk."""


class Middleware(Protocol):
    """An async generator function, or an object with such a `__call__`.

    The object may have a method `check_tool(tool, own)`. When a toolkit is made with it, that gets
    the `ToolInfo` of each tool, and whether it is in the tool's own list; what it raises is raised.
    """

    def __call__(self, call: ToolCall, next: CallNext, /) -> AsyncIterator[Any]:
        """Yield the chunks of the call, or values that a tool may return."""


def checked_middlewares(values: Iterable[Middleware], label: str) -> tuple[Middleware, ...]:
    """Return middlewares as a tuple. Raises `TypeError` for anything but async generators."""
    return checked_generators(
        values,
        label,
        "`async def m(call, next)` with `async for chunk in next(call): yield chunk`",
    )


def checked_generators(values: Iterable[_M], label: str, form: str) -> tuple[_M, ...]:
    """Return middlewares of any kind as a tuple; raise `TypeError`, which says how to write one.

    Args:
        values: Async generator functions of two positional parameters, or objects with such a
            `__call__`.
        label: Whose they are.
        form: How one is written.
    """
    if callable(values) or not isinstance(values, Iterable):
        raise TypeError(f"{label}: middlewares must be a list, not {shown(values)}")
    found = tuple(values)
    for middleware in found:
        if isinstance(middleware, type):
            raise TypeError(
                f"{label}: {middleware_name(middleware)} is a class: pass an instance of it"
            )
        is_generator = any(map(inspect.isasyncgenfunction, _functions_of(middleware)))
        if not is_generator or not takes_positional(middleware, 2):
            raise TypeError(
                f"{label}: {middleware_name(middleware)} is not a middleware: write {form}"
            )
    return found


def check_tool(tool: ToolInfo, middlewares: Iterable[Middleware], *, own: bool) -> None:
    """Let middlewares that have a `check_tool` refuse a tool. Raises what they raise."""
    for middleware in middlewares:
        check = getattr(middleware, "check_tool", None)
        if check is not None:
            check(tool, own)


class MiddlewareChain:
    """The middlewares of one call, around what runs the call. Used once.

    Args:
        middlewares: The outermost first.
        innermost: Runs the call.
    """

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
                await _close(opened)
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
        if is_tool:
            chain.reached = True
            running = chain.innermost(call)
        else:
            running = chain.middlewares[self._index](call, _Next(chain, self._index + 1))
        try:
            async for value in running:
                chunk = value if is_tool else _checked_chunk(value, run)
                self._state = "a chunk"
                yield chunk
        except Exception:
            if self._state != "a chunk":
                self._state = ""  # a failure before any chunk: it may be tried again
            raise
        finally:
            await _close(running)
        self._state = "success"


async def one_result(
    tool: str, chunks: AsyncIterator[Chunk], recorded: Callable[[RoomException], RoomException]
) -> Chunk:
    """Return the one chunk of a tool that returns one result.

    Args:
        tool: Its name.
        chunks: What its middlewares give.
        recorded: Records an error of this function for the caller, and returns it.

    Raises `InvalidResult` if there is none, or a second one.
    """
    result: Chunk | None = None
    text = f"{tool} returns one result, and its middlewares gave"
    async for chunk in chunks:
        if result is not None:
            raise recorded(InvalidResult(f"{text} more than one"))
        result = chunk
    if result is None:
        raise recorded(InvalidResult(f"{text} none: yield EmptyChunk() for an empty one"))
    return result


async def _close(opened: AsyncIterator[Any]) -> None:
    """Close a generator, with all that it has opened; an error is logged."""
    close = getattr(opened, "aclose", None)
    if close is not None:
        try:
            await close()
        except Exception:
            _logger.exception("a middleware raised while the call was closed")


def _checked_chunk(value: Any, run: ToolRun) -> Chunk:
    """Return a value of a middleware as a chunk. Raises `InvalidResult`, recorded in the run."""
    try:
        return result_chunk(value)
    except InvalidResult as error:
        error.executed = run.executed
        run.record(error)
        raise


def _functions_of(value: Any) -> tuple[Any, ...]:
    """Return what may be the generator function: the value, what it wraps, and its `__call__`."""
    return value, inspect.unwrap(value) if callable(value) else None, getattr(value, "__call__", 0)  # noqa: B004


def middleware_name(middleware: object) -> str:
    """Return what a middleware is called in errors."""
    name = getattr(middleware, "__qualname__", None) or type(middleware).__name__
    return cut(str(name))
