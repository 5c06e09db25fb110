"""Tools: how they are written, and how one call of them runs.

A tool is a subclass of `Tool`, or a function that `FunctionTool` wraps. Neither checks anything in
its `execute`: the way in is `Toolkit.execute`.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, TypeVar, overload

from pydantic import ValidationError

from toolbus.argument_check import JsonCheck, Violation, conversion_violation
from toolbus.chunks import Chunk, FileChunk, LinkChunk, as_chunk
from toolbus.context import ToolContext
from toolbus.errors import InvalidArguments, InvalidResult
from toolbus.input_stream import ATTACHMENT, Intake
from toolbus.plain_json import PlainArguments, cut
from toolbus.signature import (
    FunctionSignature,
    code_of,
    name_of,
    read_method_intake,
    read_signature,
    yields,
)
from toolbus.thread_items import ThreadItems
from toolbus.tool_definition import Settled, ToolDefinition

__all__ = ["ITEMS_AHEAD", "FunctionTool", "Tool", "ToolOptions", "running", "tool"]

ITEMS_AHEAD = 16
"""How many items of a sync generator may wait until they are taken."""

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = "__toolbus_tool__"


class Tool(ToolDefinition, ABC):
    """One action of a toolkit.

    A subclass says what it is, in class attributes or through the constructor, and overrides
    `execute`::

        class Forecast(Tool):
            name = "forecast"
            input_schema = {"properties": {"city": {"type": "string"}}, "required": ["city"]}

            async def execute(self, context, /, city):
                return {"city": city}

    One whose `execute` is an async generator gives a stream; one whose `execute` has a parameter
    `attachment` takes what the caller sends while the call runs: an `InputStream[Row]` or a
    `FileChunk` as it is annotated, an `InputStream` of chunks where it is not.

    Args:
        name: 1 to 64 of `A-Z a-z 0-9 _ -`.
        input_schema: A JSON Schema of the arguments, which are one object. `TypeError` unless it is
            a dict.
        title: For people; made from the name unless given.
        description: What the tool does, for people and models.
        rules: How it is to be used, for models.
        thumbnail_url: A picture.
        defs: Definitions that are added to the schema's `$defs`; `ValueError` on a clash.
        supports_context: Whether it reads `context.caller_context`.
        output_schema: A JSON Schema that every result has to fit.
        read_only: It changes nothing.
        idempotent: Running it twice does what running it once does.
        streaming: It gives its result piece by piece, as `execute` does that yields. Said by that
            alone unless given; `ValueError` where the two differ.
        timeout_s: How long one call may run.
        max_concurrency: How many calls one host runs at a time.
        affinity: Which calls stay with one host: "none", "caller", or an argument's name.
    """

    marks_entry = False
    """Whether `execute` itself sets `context.entered`, because it starts its function later."""
    intake: Intake | None = None
    """The parameter of `execute` that takes what the caller sends while the call runs."""
    is_unary: bool = True
    """Whether it takes arguments alone, and gives one result; known once it is settled."""

    @property
    def is_async(self) -> bool:
        """Whether `execute` runs on the event loop from start to end."""
        return True

    # `*_` lets type checkers accept an override that names its arguments; nothing is passed there.
    @abstractmethod
    def execute(self, context: ToolContext, /, *_: Any, **arguments: Any) -> Any:
        """Run the tool with arguments that fit its schema.

        Async: it returns whatever `as_chunk` takes, or yields that, one after another.
        """

    async def start(self, room: Any) -> None:
        """Prepare for calls; runs before the tool's toolkit is registered in a room."""

    async def stop(self) -> None:
        """Release what `start` took; runs after the last call has ended."""

    def read_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Check arguments against the schema and return them as `execute` takes them.

        Raises `InvalidArguments` with the first violation's path and message.
        """
        check = (self._settled or self._settle()).arguments
        try:
            if check.fits(arguments):
                return arguments
        except ValueError:  # no JSON; what is wrong with it is found below
            pass
        raise _invalid(check.violation(arguments) or Violation("", "the value is no JSON"))

    def make_result(self, value: Any) -> Chunk:
        """Turn what `execute` returned into a chunk that fits the output schema.

        Raises `InvalidResult` where it does not, or where it cannot be sent.
        """
        chunk = as_chunk(value)
        check = (self._settled or self._settle()).result
        if check is not None:
            _check_result(check, chunk)
        return chunk

    def _settle(self) -> Settled:
        yields = self._yields()
        if self.streaming != yields and self._says_whether_it_streams():
            words = "yields" if yields else "yields nothing"
            raise ValueError(f"{self._label}: streaming is {self.streaming}, and execute {words}")
        self.streaming = yields
        settled = super()._settle()
        self.intake = self._intake(settled)
        if self.intake is not None:
            told = {"takes": self.intake.takes, "takes_required": self.intake.is_needed}
            settled = replace(settled, manifest=settled.manifest.model_copy(update=told))
            self._settled = settled
        self.is_unary = not yields and self.intake is None
        return settled

    def _yields(self) -> bool:
        """Tell whether `execute` gives a stream. Raises `TypeError` where it is not async."""
        execute = type(self).execute
        inner = inspect.unwrap(execute)
        if inspect.isasyncgenfunction(execute):
            return True
        if inspect.iscoroutinefunction(execute) or inspect.iscoroutinefunction(inner):
            return False
        if inspect.isasyncgenfunction(inner):
            return True
        raise TypeError(f"{self._label}: execute must be async")

    def _says_whether_it_streams(self) -> bool:
        saying = (each for each in type(self).__mro__ if "streaming" in vars(each))
        return "streaming" in vars(self) or next(saying) is not ToolDefinition

    def _intake(self, settled: Settled) -> Intake | None:
        """Find the parameter for the input, unless the schema has one of its name."""
        if ATTACHMENT in settled.manifest.input_schema.get("properties", {}):
            return None
        return read_method_intake(self.execute, self._label)


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """What `@tool` was told; the fields mean what they mean in `Tool`."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    rules: Sequence[str] = ()
    thumbnail_url: str = ""
    read_only: bool = False
    idempotent: bool = False
    timeout_s: float | None = None
    max_concurrency: int | None = None
    affinity: str = "none"
    output_schema: dict[str, Any] | None = None
    supports_context: bool = False


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    rules: Sequence[str] = (),
    thumbnail_url: str = "",
    read_only: bool = False,
    idempotent: bool = False,
    timeout_s: float | None = None,
    max_concurrency: int | None = None,
    affinity: str = "none",
    output_schema: dict[str, Any] | None = None,
    supports_context: bool = False,
) -> Callable[[F], F]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Say that a function is a tool, and how it is to be offered; with or without parentheses.

    The function stays what it is, callable as before. Its schema comes from its signature and its
    words from its docstring when a `Toolkit` takes it, unless `description` or `output_schema` is
    given. A parameter annotated `ToolContext` gets the context of the call.
    """
    record = ToolOptions(**options)

    def mark(function: F) -> F:
        holder = function.__func__ if isinstance(function, staticmethod | classmethod) else function
        if isinstance(function, type) or not callable(holder):
            raise TypeError(f"@tool goes on a function, not on {function!r}")
        try:
            setattr(holder, _OPTIONS, record)
        except AttributeError:
            raise TypeError(
                f"{name_of(function)} takes no mark: use FunctionTool(function, ToolOptions(...))"
            ) from None
        return function

    return mark if function is None else mark(function)


class FunctionTool(Tool):
    """A function as a tool.

    Takes a function, a bound method, a partial or a callable object; async ones run on the event
    loop, others where `context.run_sync` puts them. Raises `TypeError` or `ValueError`, naming
    function and parameter, where the signature cannot make a schema.
    """

    def __init__(self, function: Callable[..., Any], options: ToolOptions | None = None) -> None:
        self.function = function
        marked = options or _options_of(function)
        name = marked.name or name_of(function)
        if name == "<lambda>":
            raise TypeError('a lambda has no name: write a function, or @tool(name="...")')
        self._is_generator = yields(function)
        signature = read_signature(function)
        self._convert = signature.convert
        self._plain: PlainArguments | None = None
        self._signature = signature
        self._context = signature.context
        code = code_of(function)
        self._is_async = inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code)
        self.is_bare: bool = self._is_async and self._context is None
        """Whether it is called with nothing but its arguments, where calls run."""
        if signature.intake is not None and signature.intake.is_file and not self._is_async:
            raise TypeError(
                f"{name_of(function)}: only an async function takes an upload as a file: let it be"
                " async, or take attachment: InputStream[bytes]"
            )
        # The thread marks the entry: a call that is cancelled before its thread begins never ran.
        self.marks_entry: bool = not self._is_async and type(self).execute is FunctionTool.execute
        super().__init__(
            name,
            deepcopy(signature.input_schema),
            title=marked.title,
            description=signature.description if marked.description is None else marked.description,
            rules=marked.rules,
            thumbnail_url=marked.thumbnail_url,
            supports_context=marked.supports_context,
            output_schema=marked.output_schema or self._read_output_schema(signature),
            read_only=marked.read_only,
            idempotent=marked.idempotent,
            timeout_s=marked.timeout_s,
            max_concurrency=marked.max_concurrency,
            affinity=marked.affinity,
        )

    def _read_output_schema(self, signature: FunctionSignature) -> dict[str, Any] | None:
        # An override may gather what the function yields, or yield what it returns.
        return signature.output_schema if self._yields() is self._is_generator else None

    def _yields(self) -> bool:
        is_plain = type(self).execute is FunctionTool.execute
        return self._is_generator if is_plain else super()._yields()

    def _intake(self, settled: Settled) -> Intake | None:
        return self._signature.intake

    @property
    def is_async(self) -> bool:
        """Whether the function is async; a sync one runs on a thread."""
        return self._is_async

    def read_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Check arguments against the schema, then convert them to the types of the parameters."""
        if self._plain is not None and type(arguments) is dict and self._plain.fit(arguments):
            return {**arguments}
        check = (self._settled or self._settle()).arguments
        try:
            fits = check.fits(arguments)
        except ValueError:  # no JSON
            fits = False
        if not fits:
            return super().read_arguments(arguments)
        try:
            return self._convert(arguments)
        except ValidationError as error:
            raise _invalid(conversion_violation(error, arguments)) from None
        except Exception as error:
            words = f"the arguments cannot be converted: {type(error).__name__}"
            raise _invalid(Violation("", cut(words))) from error

    def _settle(self) -> Settled:
        settled = super()._settle()
        # A subclass may ask for more than the signature does; then the schema alone decides.
        if settled.manifest.input_schema == self._signature.input_schema:
            self._plain = self._signature.plain
        return settled

    def execute(self, context: ToolContext, /, **arguments: Any) -> Any:
        """Call the function with arguments that `read_arguments` returned.

        Gives what is to be awaited or, of a function that yields, gone through with `async for`.
        """
        place = self._context
        if self.is_bare:
            return self.function(**arguments)
        if place is not None and not place.positional:
            arguments[place.name] = context
        leading = (context,) if place is not None and place.positional else ()
        if self._is_async:
            return self.function(*leading, **arguments)
        if self._is_generator:
            return self._items_of_thread(context, leading, arguments)
        return self._execute_in_thread(context, leading, arguments)

    def _items_of_thread(
        self, context: ToolContext, leading: tuple[Any, ...], arguments: dict[str, Any]
    ) -> ThreadItems:
        def start() -> Any:
            context.entered = True
            return self.function(*leading, **arguments)

        return ThreadItems(start, context.run_sync, ahead=ITEMS_AHEAD)

    async def _execute_in_thread(
        self, context: ToolContext, leading: tuple[Any, ...], arguments: dict[str, Any]
    ) -> Any:
        def call() -> Any:
            context.entered = True
            try:
                return self.function(*leading, **arguments)
            except StopIteration as error:
                # A future cannot carry it: the awaiting task would wait for ever.
                raise RuntimeError("the function raised StopIteration") from error

        result = await context.run_sync(functools.partial(contextvars.copy_context().run, call))
        return await result if inspect.isawaitable(result) else result


_EXECUTE = FunctionTool.execute


def running(tool: Tool, context: ToolContext, arguments: dict[str, Any]) -> Any:
    """Call `tool.execute`; where that would do nothing but call a function, as mostly, call that.

    Keyword arguments are made twice else. Whoever puts something in the place of `execute`, at any
    time, is asked.
    """
    execute: Any = tool.execute
    if getattr(execute, "__func__", None) is _EXECUTE and execute.__self__ is tool:
        if isinstance(tool, FunctionTool) and tool.is_bare:
            return tool.function(**arguments)
    return execute(context, **arguments)


def _options_of(function: Callable[..., Any]) -> ToolOptions:
    while True:
        options = getattr(function, _OPTIONS, None)
        if isinstance(options, ToolOptions):
            return options
        if not isinstance(function, functools.partial):
            return ToolOptions()
        function = function.func


def _check_result(check: JsonCheck, chunk: Chunk) -> None:
    if isinstance(chunk, FileChunk | LinkChunk):
        violation: Violation | None = Violation("", "the tool promises a JSON value")
    else:
        violation = check.violation(chunk.value)
    if violation is not None:
        message = f"the result breaks its schema at {violation.path or '/'}: {violation.message}"
        raise InvalidResult(message, details=violation.details)


def _invalid(violation: Violation) -> InvalidArguments:
    message = f"{violation.path}: {violation.message}" if violation.path else violation.message
    return InvalidArguments(message, details=violation.details)
