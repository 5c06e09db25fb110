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
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.chunk_types import Chunk
from toolbus.chunks.json_values import cut, shown
from toolbus.tools.context import ToolContext
from toolbus.tools.signature import takes_positional
from toolbus.tools.tool_info import ToolInfo

__all__ = [
    "CallNext",
    "Middleware",
    "ToolCall",
    "check_tool",
    "checked_generators",
    "checked_middlewares",
    "middleware_name",
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

    They are async generator functions of two positional parameters, or objects with such a
    `__call__`.
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


def _functions_of(value: Any) -> tuple[Any, ...]:
    """Return what may be the generator function: the value, what it wraps, and its `__call__`."""
    return value, inspect.unwrap(value) if callable(value) else None, getattr(value, "__call__", 0)  # noqa: B004


def middleware_name(middleware: object) -> str:
    """Return what a middleware is called in errors."""
    name = getattr(middleware, "__qualname__", None) or type(middleware).__name__
    return cut(str(name))
