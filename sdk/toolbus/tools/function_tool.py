"""A function as a tool: of any callable, sync or async, also a generator."""

from __future__ import annotations

import contextvars
import functools
import inspect
from collections.abc import Callable
from copy import deepcopy
from typing import Any, Unpack

from toolbus.chunks.json_values import PlainArguments, shown
from toolbus.concurrency.thread_iterator import ThreadIterator
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.definition import CompiledDefinition
from toolbus.tools.input_stream import InputParameter
from toolbus.tools.options import ToolFields, ToolOptions, merged_options, options_of
from toolbus.tools.schema_validation import converted
from toolbus.tools.signature import (
    FunctionSignature,
    code_of,
    name_of,
    read_signature,
    yields,
)
from toolbus.tools.sliced_parameters import SlicedParameters
from toolbus.tools.tool import Tool
from toolbus.wire.body_steps import Steps

__all__ = ["ITEMS_AHEAD", "FunctionTool"]

ITEMS_AHEAD = 16
"""How many items of a sync generator may wait until they are read."""
_PASSED_ON = (
    "title",
    "rules",
    "thumbnail_url",
    "supports_context",
    "read_only",
    "idempotent",
    "concurrency_safe",
    "destructive",
    "open_world",
    "external",
    "approval",
    "timeout_s",
    "max_concurrency",
    "affinity",
    "cache_ttl_s",
    "middlewares",
)
"""The options that are those of `Tool`."""


class FunctionTool(Tool):
    """A function as a tool.

    Wraps a function, a bound method, a partial or a callable object; async ones run on the event
    loop, others where the runner runs them. Raises `TypeError` or `ValueError`, with the
    names of function and parameter, if the signature has no JSON Schema.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: ToolOptions | None = None,
        /,
        **given: Unpack[ToolFields],
    ) -> None:
        if not callable(function):
            raise TypeError(f"FunctionTool wraps a function, not {shown(function)}")
        self.function = function
        if not isinstance(options, ToolOptions | None):
            raise TypeError(f"FunctionTool takes ToolOptions(...), not {type(options).__name__}")
        marked = merged_options(options or options_of(function), given, "FunctionTool")
        name = marked.name or name_of(function)
        if name == "<lambda>":
            raise TypeError('a lambda has no name: write a function, or use @tool(name="...")')
        self._is_generator = yields(function)
        signature = read_signature(function)
        self._convert = signature.convert
        self._plain: PlainArguments | None = None
        self._signature = signature
        self._sliced: SlicedParameters | None = None
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
            description=signature.description if marked.description is None else marked.description,
            output_schema=marked.output_schema or self._read_output_schema(signature),
            **{option: getattr(marked, option) for option in _PASSED_ON},
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
