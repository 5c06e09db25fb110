"""A named bundle of tools, and the one way into each of them.

`Toolkit.execute` checks, runs and hands back a chunk, whether the caller is in this process or far
away. Deadlines, concurrency and answers to callers are its runner's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from toolbus.chunks import Chunk, JsonChunk
from toolbus.context import ToolContext
from toolbus.errors import (
    InvalidArguments,
    InvalidResult,
    NotFound,
    RoomException,
    TooLarge,
    ToolFailed,
)
from toolbus.input_stream import InputStream
from toolbus.plain_json import cut, plain_json
from toolbus.tool import FunctionTool, Tool, running
from toolbus.tool_definition import rules_of, title_of
from toolbus.tool_stream import run_apart
from toolbus.wire import MAX_FRAME_BYTES, BadBody, ToolkitManifest, pack_body
from toolbus.wire.codec import pack_json_chunk, unpack_map

__all__ = [
    "MAX_RESULT_BYTES",
    "Toolkit",
    "failure_of",
    "packed_result",
    "read_arguments",
    "too_large",
]

MAX_RESULT_BYTES = MAX_FRAME_BYTES - 32
"""A result's frame is its body and a few bytes of kind, id and length."""


class Toolkit:
    """Tools that belong together, under one name.

    Args:
        name: A lower-case letter, then up to 63 of `a-z 0-9 _ -`.
        tools: Functions, decorated or not, bound methods, and instances of `Tool`.
        rules: How the tools are to be used together, for models.
        title: For people; made from the name unless given.
        description: What the toolkit is for.
        thumbnail_url: A picture.
        annotations: JSON values of its own, for programs.
        version: The definition's version, as its author counts.

    Raises `TypeError` or `ValueError` for a tool that cannot be one, for two of one name and for
    names out of their grammar. The definition is settled once it is made.
    """

    def __init__(  # noqa: PLR0913 - the promised signature
        self,
        name: str,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        rules: Sequence[str] = (),
        title: str | None = None,
        description: str = "",
        thumbnail_url: str = "",
        annotations: Mapping[str, Any] | None = None,
        version: str = "",
    ) -> None:
        self.name = name
        self.title: str = title_of(name) if title is None else title
        self.description = description
        self.rules: tuple[str, ...] = rules_of(rules, f"toolkit {name!r}")
        self.thumbnail_url = thumbnail_url
        self.annotations: dict[str, Any] = deepcopy(dict(annotations or {}))
        self.version = version
        self._tools = _by_name(name, tools)
        self._manifest = ToolkitManifest(
            name=name,
            title=self.title,
            description=description,
            rules=self.rules,
            thumbnail_url=thumbnail_url,
            annotations=deepcopy(self.annotations),
            version=version,
            tools=tuple(each.manifest() for each in self._tools.values()),
        )
        self.in_process: Any = None
        """What runs its tools for those who use it in this process; made by the first of them."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools, in the order in which they were given."""
        return tuple(self._tools.values())

    def manifest(self) -> ToolkitManifest:
        """Return what others are told of this toolkit. Not to be changed."""
        return self._manifest

    def get_tool(self, name: str) -> Tool:
        """Return a tool by its name, or raise `NotFound`."""
        found = self._tools.get(name)
        if found is None:
            raise NotFound(cut(f"there is no tool {self.name}.{name}"))
        return found

    async def make(self, room: Any, model: Any, config: Any) -> Toolkit:
        """Return the toolkit itself: a toolkit is its own builder."""
        return self

    async def execute(
        self,
        context: ToolContext,
        name: str,
        arguments: dict[str, Any],
        attachment: InputStream[Any] | None = None,
    ) -> Chunk:
        """Check the arguments, run a tool and return its result.

        Of a streaming tool each item goes to `context.put`, and what is returned is empty. The
        call's input, if it has one, is `attachment`.

        The one way into a tool; an override sees every call and calls `super().execute`. An
        override that turns a call down raises `context.refuse(error)`, so that the caller knows
        that nothing ran. Raises `NotFound` and `InvalidArguments` before the tool's function is
        entered, `InvalidResult` after it has ended, and whatever the function raises.
        """
        try:
            chosen = self.get_tool(name)
            checked = chosen.read_arguments(arguments)
        except RoomException as error:
            context.refuse(error)
            raise
        if attachment is not None or not chosen.is_unary:
            return await run_apart(chosen, context, checked, attachment)
        awaited = running(chosen, context, checked)
        if not chosen.marks_entry:
            context.entered = True
        result = await awaited
        try:
            return chosen.make_result(result)
        except RoomException as error:
            context.fail(error)
            raise


def read_arguments(context: ToolContext, packed: bytes) -> dict[str, Any]:
    """Unpack a call's arguments. Raises `InvalidArguments`, recorded: nothing ran."""
    try:
        arguments = unpack_map(packed)
    except BadBody as error:
        raise context.refuse(_invalid(error.path, error.reason)) from error
    if type(arguments) is not dict:
        raise context.refuse(_invalid("", "arguments are one object"))
    return arguments


def _invalid(path: str, message: str) -> InvalidArguments:
    return InvalidArguments(message, details={"path": path, "message": message})


def packed_result(context: ToolContext, chunk: Chunk, *, is_checked: bool = False) -> bytes:
    """Pack what a tool returned as the body of its result, here as at a host.

    Args:
        context: The call.
        chunk: What came out of `Toolkit.execute`.
        is_checked: Whether nothing but `as_chunk` made it, so that nobody has to look again.

    Raises `InvalidResult` where it holds what cannot be sent and `TooLarge` where it does not fit
    one frame, recorded in the context.
    """
    try:
        if type(chunk) is JsonChunk:
            body = pack_json_chunk(chunk.json, is_plain=is_checked)
        else:
            body = pack_body(chunk.to_wire())
    except BadBody as error:
        unsendable = InvalidResult(error.reason, executed=context.executed)
        raise context.fail(unsendable) from error
    if len(body) > MAX_RESULT_BYTES:
        raise too_large(context, body)
    return body


def too_large(context: ToolContext, body: bytes) -> TooLarge:
    """Record that a result does not fit one frame, and return that to be raised."""
    words = f"the result has {len(body)} bytes, at most {MAX_RESULT_BYTES} can be sent"
    return context.fail(TooLarge(words, executed=context.executed))


def failure_of(exception: BaseException, context: ToolContext) -> RoomException:
    """Decide what the caller is told of an exception that came out of `Toolkit.execute`.

    What toolbus itself refused before the function was entered, or found wrong after it had ended,
    stands. Any other exception is the tool's, also an error of toolbus that a call within the tool
    met: `ToolFailed`, with the tool's own words only if it raised that. `CancelledError` and
    `KeyboardInterrupt` are raised again.
    """
    if isinstance(exception, asyncio.CancelledError | KeyboardInterrupt):
        raise exception
    if isinstance(exception, RoomException) and context.stands(exception):
        return exception
    executed = context.executed
    if isinstance(exception, ToolFailed):
        return ToolFailed(
            exception.message,
            executed=executed,
            retryable=exception.retryable,
            details=_sendable(exception.details),
            retry_after_s=exception.retry_after_s,
        )
    cause = cut(type(exception).__name__)
    details = {"cause": cause}
    if isinstance(exception, RoomException):
        details["code"] = exception.code
    return ToolFailed(f"the tool raised {cause}", executed=executed, details=details)


def _sendable(details: object) -> dict[str, Any]:
    """Write a tool's details as JSON; what cannot be written so is left out."""
    try:
        written = plain_json(details)
    except InvalidResult:
        return {}
    return written if isinstance(written, dict) else {}


def _by_name(toolkit: str, tools: Iterable[Tool | Callable[..., Any]]) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    if not isinstance(tools, Iterable):
        raise TypeError(f"toolkit {toolkit!r}: tools is a list of tools, not one of them")
    for each in tools:
        made = _as_tool(toolkit, each)
        if made.name in found:
            raise ValueError(f"toolkit {toolkit!r} has two tools named {made.name!r}")
        found[made.name] = made
    return found


def _as_tool(toolkit: str, value: object) -> Tool:
    if isinstance(value, Tool):
        return value
    if isinstance(value, type):
        raise TypeError(f"toolkit {toolkit!r}: {value.__name__} is a class: pass an instance of it")
    if callable(value):
        return FunctionTool(value)
    raise TypeError(f"toolkit {toolkit!r}: a {type(value).__name__} is no tool")
