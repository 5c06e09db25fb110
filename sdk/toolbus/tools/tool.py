"""Tools: how they are defined, and how a call of one runs.

A tool is a subclass of `Tool`, or a function wrapped by `FunctionTool`. Their `execute` checks
nothing: `Toolkit.execute` is the entry point.
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

from toolbus.chunks.chunk_types import Chunk, FileChunk, LinkChunk, as_chunk
from toolbus.chunks.json_values import PlainArguments, shown
from toolbus.concurrency.thread_iterator import ThreadIterator
from toolbus.errors import InvalidResult
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.definition import CompiledDefinition, ToolDefinition
from toolbus.tools.input_stream import ATTACHMENT, InputParameter
from toolbus.tools.schema_validation import (
    JsonCheck,
    Violation,
    converted,
    invalid_arguments,
)
from toolbus.tools.signature import (
    FunctionSignature,
    code_of,
    name_of,
    read_method_input,
    read_signature,
    yields,
)
from toolbus.tools.sliced_parameters import SlicedParameters
from toolbus.wire.body_steps import Steps

__all__ = ["ITEMS_AHEAD", "FunctionTool", "Tool", "ToolOptions", "tool"]

ITEMS_AHEAD = 16
"""How many items of a sync generator may wait until they are read."""

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = "__toolbus_tool__"


class Tool(ToolDefinition, ABC):
    """One action of a toolkit.

    A subclass defines itself by class attributes or by the constructor, and overrides `execute`:

        class Forecast(Tool):
            name = "forecast"
            input_schema = {"properties": {"city": {"type": "string"}}, "required": ["city"]}

            async def execute(self, context, /, city):
                return {"city": city}

    If `execute` is an async generator the tool returns a stream. If it has a parameter `attachment`
    the tool takes what the caller sends while the call runs: an `InputStream[Row]` or a `FileChunk`
    by its annotation, an `InputStream` of chunks without one.

    Args:
        name: 1 to 64 of `A-Z a-z 0-9 _ -`.
        input_schema: A JSON Schema of the arguments, which are one object. `TypeError` unless it is
            a dict.
        title: A title for humans; made from the name by default.
        description: What the tool does, for humans and models.
        rules: How a model should use the tool.
        thumbnail_url: A picture.
        defs: Definitions that are added to the schema's `$defs`; `ValueError` on a conflict.
        supports_context: Whether it reads `context.caller_context`.
        output_schema: A JSON Schema that every result has to match.
        read_only: It changes nothing.
        idempotent: Running it twice has the effect of running it once.
        streaming: It returns its result chunk by chunk, because `execute` yields. By default it
            follows from `execute`; `ValueError` if the two differ.
        timeout_s: Seconds that one call may run.
        max_concurrency: How many calls one host runs at a time.
        affinity: Which calls stay with one host: "none", "caller", or an argument's name.
    """

    marks_entry = False
    """Whether `execute` itself sets `entered` of its run, because its function starts later."""
    input_parameter: InputParameter | None = None
    """The parameter of `execute` that receives the input of a call."""
    is_unary: bool = True
    """Whether it takes only arguments and returns one result; set when it is compiled."""

    @property
    def is_async(self) -> bool:
        """Whether `execute` runs on the event loop from start to end."""
        return True

    # `*_` lets type checkers accept an override that names its arguments; it is never passed.
    @abstractmethod
    def execute(self, context: ToolContext, /, *_: Any, **arguments: Any) -> Any:
        """Run the tool with arguments that match its schema.

        Async: it returns a value that `as_chunk` accepts, or yields such values.
        """

    async def start(self, room: Any) -> None:
        """Prepare for calls; runs before the tool's toolkit is registered in a room."""

    async def stop(self) -> None:
        """Release what `start` acquired; runs after the last call has ended."""

    def read_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Check arguments against the schema and return them in the form for `execute`.

        Raises `InvalidArguments` with the first violation's path and message.
        """
        check = (self._compiled or self._compile()).arguments
        try:
            if check.fits(arguments):
                return arguments
        except ValueError:  # not JSON; the violation is found below
            pass
        raise invalid_arguments(
            check.violation(arguments) or Violation("", "the value is not JSON")
        )

    def read_steps(self, arguments: dict[str, Any]) -> Steps[dict[str, Any]]:
        """Do as `read_arguments`, for large arguments and in steps where that is possible."""
        yield
        return self.read_arguments(arguments)

    def make_result(self, value: Any) -> Chunk:
        """Convert the return value of `execute` to a chunk that matches the output schema.

        Raises `InvalidResult` if it does not match, or cannot be sent.
        """
        chunk = as_chunk(value)
        check = (self._compiled or self._compile()).result
        if check is not None:
            _check_result(check, chunk)
        return chunk

    def _compile(self) -> CompiledDefinition:
        yields = self._yields()
        if self.streaming != yields and self._declares_streaming():
            text = "yields" if yields else "yields nothing"
            raise ValueError(f"{self._label}: streaming is {self.streaming}, and execute {text}")
        self.streaming = yields
        settled = super()._compile()
        self.input_parameter = self._input_parameter(settled)
        if self.input_parameter is not None:
            update = {
                "takes": self.input_parameter.takes,
                "takes_required": self.input_parameter.required,
            }
            settled = replace(settled, manifest=settled.manifest.model_copy(update=update))
            self._compiled = settled
        self.is_unary = not yields and self.input_parameter is None
        return settled

    def _yields(self) -> bool:
        """Return whether `execute` returns a stream. Raises `TypeError` if it is not async."""
        execute = type(self).execute
        inner = inspect.unwrap(execute)
        if inspect.isasyncgenfunction(execute):
            return True
        if inspect.iscoroutinefunction(execute) or inspect.iscoroutinefunction(inner):
            return False
        if inspect.isasyncgenfunction(inner):
            return True
        raise TypeError(f"{self._label}: execute must be async")

    def _declares_streaming(self) -> bool:
        declaring = (each for each in type(self).__mro__ if "streaming" in vars(each))
        return "streaming" in vars(self) or next(declaring) is not ToolDefinition

    def _input_parameter(self, settled: CompiledDefinition) -> InputParameter | None:
        """Find the parameter for the input, unless the schema has one of its name."""
        if ATTACHMENT in settled.manifest.input_schema.get("properties", {}):
            return None
        return read_method_input(self.execute, self._label)


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """The options of `@tool`; `Tool` documents the fields."""

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
def tool(  # noqa: PLR0913 - the promised signature
    function: Any = None,
    /,
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
) -> Any:
    """Mark a function as a tool, with the options of the tool; with or without parentheses.

    The function itself does not change and stays callable. When a `Toolkit` takes it, the schema is
    made from its signature and the description from its docstring, unless `output_schema` or
    `description` is given. A parameter annotated `ToolContext` receives the context of the call.

    Args:
        function: The function, where `@tool` is written without parentheses.
        name: The tool's name; the function's name by default.
        title: A title for humans; made from the name by default.
        description: What the tool does; the docstring by default.
        rules: How a model should use the tool.
        thumbnail_url: A picture.
        read_only: It changes nothing.
        idempotent: Running it twice has the effect of running it once.
        timeout_s: Seconds that one call may run.
        max_concurrency: How many calls one host runs at a time; by default unbounded for an async
            function, 1 for a sync one.
        affinity: Which calls stay with one host: "none", "caller", or the name of an argument.
        output_schema: A JSON Schema that every result has to fit.
        supports_context: Whether it reads `context.caller_context`.

    Raises `TypeError` for anything but a function or a method.
    """
    record = ToolOptions(
        name=name,
        title=title,
        description=description,
        rules=rules,
        thumbnail_url=thumbnail_url,
        read_only=read_only,
        idempotent=idempotent,
        timeout_s=timeout_s,
        max_concurrency=max_concurrency,
        affinity=affinity,
        output_schema=output_schema,
        supports_context=supports_context,
    )

    def mark(function: F) -> F:
        holder = function.__func__ if isinstance(function, staticmethod | classmethod) else function
        if isinstance(function, type) or not callable(holder):
            raise TypeError(f"@tool decorates a function, not {shown(function)}")
        try:
            setattr(holder, _OPTIONS, record)
        except AttributeError:
            raise TypeError(
                f"{name_of(function)} cannot be decorated: use FunctionTool(function,"
                " ToolOptions(...))"
            ) from None
        return function

    return mark if function is None else mark(function)


class FunctionTool(Tool):
    """A function as a tool.

    Wraps a function, a bound method, a partial or a callable object; async ones run on the event
    loop, others where the runner runs them. Raises `TypeError` or `ValueError`, with the
    names of function and parameter, if the signature has no JSON Schema.
    """

    _sliced: SlicedParameters | None = None  # made for the first large arguments

    def __init__(self, function: Callable[..., Any], options: ToolOptions | None = None) -> None:
        if not callable(function):
            raise TypeError(f"FunctionTool wraps a function, not {shown(function)}")
        self.function = function
        if not isinstance(options, ToolOptions | None):
            raise TypeError(f"FunctionTool takes ToolOptions(...), not {type(options).__name__}")
        marked = options or _options_of(function)
        name = marked.name or name_of(function)
        if name == "<lambda>":
            raise TypeError('a lambda has no name: write a function, or use @tool(name="...")')
        self._is_generator = yields(function)
        signature = read_signature(function)
        self._convert = signature.convert
        self._plain: PlainArguments | None = None
        self._signature = signature
        self._context = signature.context
        code = code_of(function)
        self._is_async = inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code)
        upload = signature.input_parameter
        if upload is not None and upload.is_file and not self._is_async:
            raise TypeError(
                f"{name_of(function)}: only an async function can take an upload as a file: make it"
                " async, or take attachment: InputStream[bytes]"
            )
        # The thread sets `entered`: a call that is cancelled before its thread starts never ran.
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
        # An override may collect what the function yields, or yield what it returns.
        return signature.output_schema if self._yields() is self._is_generator else None

    def _yields(self) -> bool:
        is_plain = type(self).execute is FunctionTool.execute
        return self._is_generator if is_plain else super()._yields()

    def _input_parameter(self, settled: CompiledDefinition) -> InputParameter | None:
        return self._signature.input_parameter

    @property
    def is_async(self) -> bool:
        """Whether the function is async; a sync one runs on a thread."""
        return self._is_async

    def read_arguments(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Check arguments against the schema, then convert them to the types of the parameters."""
        if self._plain is not None and type(arguments) is dict and self._plain.fit(arguments):
            return {**arguments}
        check = (self._compiled or self._compile()).arguments
        try:
            fits = check.fits(arguments)
        except ValueError:  # not JSON
            fits = False
        if not fits:
            return super().read_arguments(arguments)
        return converted(self._convert, arguments)

    def read_steps(self, arguments: dict[str, Any]) -> Steps[dict[str, Any]]:
        """Do as `read_arguments`, in steps."""
        if type(self).read_arguments is not FunctionTool.read_arguments:
            return (yield from super().read_steps(arguments))
        if self._sliced is None:
            schema = (self._compiled or self._compile()).manifest.input_schema
            signature = self._signature if schema == self._signature.input_schema else None
            self._sliced = SlicedParameters(schema, signature)
            yield
        return (yield from self._sliced.read_steps(self.read_arguments, arguments))

    def _compile(self) -> CompiledDefinition:
        settled = super()._compile()
        # A subclass may require more than the signature; then only the schema decides.
        if settled.manifest.input_schema == self._signature.input_schema:
            self._plain = self._signature.plain
        return settled

    def execute(self, context: ToolContext, /, **arguments: Any) -> Any:
        """Call the function with arguments that `read_arguments` returned.

        Returns an awaitable or, if the function yields, an async iterator.
        """
        leading: tuple[ToolContext, ...] = ()
        if (parameter := self._context) is not None:
            if parameter.positional:
                leading = (context,)
            else:
                arguments[parameter.name] = context
        if self._is_async:
            return self.function(*leading, **arguments)
        if self._is_generator:
            return self._items_of_thread(context, leading, arguments)
        return self._execute_in_thread(context, leading, arguments)

    def _items_of_thread(
        self, context: ToolContext, leading: tuple[Any, ...], arguments: dict[str, Any]
    ) -> ThreadIterator:
        run = run_of(context)

        def start() -> Any:
            run.entered = True
            return self.function(*leading, **arguments)

        return ThreadIterator(start, run.run_sync, ahead=ITEMS_AHEAD)

    async def _execute_in_thread(
        self, context: ToolContext, leading: tuple[Any, ...], arguments: dict[str, Any]
    ) -> Any:
        run = run_of(context)

        def call() -> Any:
            run.entered = True
            try:
                return self.function(*leading, **arguments)
            except StopIteration as error:
                # A future cannot hold it: the awaiting task would wait forever.
                raise RuntimeError("the function raised StopIteration") from error

        result = await run.run_sync(functools.partial(contextvars.copy_context().run, call))
        return await result if inspect.isawaitable(result) else result


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
        violation: Violation | None = Violation("", "the tool must return a JSON value")
    else:
        violation = check.violation(chunk.value)
    if violation is not None:
        message = f"the result breaks its schema at {violation.path or '/'}: {violation.message}"
        raise InvalidResult(message, details=violation.details)
