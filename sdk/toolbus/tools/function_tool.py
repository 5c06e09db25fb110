"""A function as a tool: of any callable, sync or async, also a generator."""

from __future__ import annotations

import contextvars
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, closing
from copy import copy, deepcopy
from dataclasses import fields
from typing import Any, NamedTuple, Self, Unpack

from pydantic import BaseModel, TypeAdapter

from toolbus.chunks.json_values import PlainArguments, cut, shown
from toolbus.concurrency.thread_iterator import ThreadIterator
from toolbus.schemas.validation import converted
from toolbus.tools.argument_models import ExtendedModel
from toolbus.tools.assessing import on_assess_thread
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.definition import CompiledDefinition
from toolbus.tools.input_stream import InputParameter
from toolbus.tools.options import ToolFields, ToolOptions, merged_options, options_of
from toolbus.tools.signature import (
    is_async,
    is_context,
    name_of,
    read_result_type,
    read_signature,
    takes_positional,
    with_preset,
    yields,
)
from toolbus.tools.sliced_parameters import SlicedParameters
from toolbus.tools.tool import Tool
from toolbus.wire.body_steps import Steps

__all__ = ["ITEMS_AHEAD", "FunctionTool"]


ITEMS_AHEAD = 16
"""How many items of a sync generator may wait until they are read."""
_OF_FUNCTIONS = {
    *("name", "description", "args_schema", "preset", "extended", "postprocess"),
    *("output_schema", "assess", "match_rule"),
}
_PASSED_ON = [option.name for option in fields(ToolOptions) if option.name not in _OF_FUNCTIONS]
"""The options that are those of `Tool`."""


class _InputFunction(NamedTuple):
    """A function that gets some of a tool's arguments by their names, such as `assess`."""

    function: Callable[..., Any]
    names: frozenset[str] | None
    """The arguments that it takes; None means all of them."""
    context: str | None
    """The parameter that gets the `ToolContext`."""
    is_async: bool
    defaults: Mapping[str, Any]
    """Those of the tool's function, for arguments that a call leaves out."""

    @classmethod
    def of(
        cls,
        function: Any,
        tool: Callable[..., Any],
        known: frozenset[str] | None,
        label: str,
        *,
        takes_pattern: bool = False,
    ) -> Self:
        """Read the parameters of a function.

        The tool's arguments may have the names `known`; None means any. With `takes_pattern` it
        gets the pattern of a rule by position, before the arguments.

        Raises `TypeError` for what is no function, and for a parameter that no argument fills.
        """
        if not callable(function) or isinstance(function, type) or yields(function):
            raise TypeError(f"{label} must be a function that returns one value")
        if takes_pattern and is_async(function):
            raise TypeError(f"{label} must not be async: it is called for each pattern of a rule")
        parameters = _parameters(function)
        if takes_pattern:
            if not parameters or parameters.pop(0).kind not in (
                inspect.Parameter.POSITIONAL_ONLY,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
            ):
                raise TypeError(f"{label} must take the pattern first")
        context: str | None = None
        names: set[str] = set()
        takes_all = False
        for parameter in parameters:
            if parameter.kind is parameter.VAR_KEYWORD:
                takes_all = True
            elif parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise TypeError(
                    f"{label}: {parameter.name!r} must be taken by name, as the arguments are"
                )
            elif is_context(parameter.annotation) and not takes_pattern:
                context = parameter.name
            elif known is not None and parameter.name not in known:
                there = cut(", ".join(sorted(known))) or "none"
                raise TypeError(
                    f"{label}: {name_of(function)} takes {shown(parameter.name)}, which is no"
                    f" argument of the tool; there are: {there}"
                )
            else:
                names.add(parameter.name)
        defaults = {
            parameter.name: parameter.default
            for parameter in inspect.signature(tool).parameters.values()
            if parameter.default is not parameter.empty
            and (takes_all or parameter.name in names)
            and (known is None or parameter.name in known)
        }
        taken = None if takes_all else frozenset(names)
        return cls(function, taken, context, is_async(function), defaults)

    def call(self, *leading: Any, context: ToolContext | None, arguments: Mapping[str, Any]) -> Any:
        """Call the function with the arguments that it takes."""
        names = self.names
        given = {name: value for name, value in arguments.items() if names is None or name in names}
        if self.context is not None:
            given[self.context] = context
        return self.function(*leading, **given)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError:  # a name that is there for type checkers only
        signature = inspect.signature(function)
    return list(signature.parameters.values())


class FunctionTool(Tool):
    """A function as a tool.

    Wraps a function, a bound method, a partial or a callable object; async ones run on the event
    loop, others where the runner runs them. A generator returns a stream.

    The schema of the arguments comes from the signature, or from `args_schema`: its names have to
    be parameters, unless the function has `**kwargs`, which take them. A pydantic model validates
    and converts the arguments, and the function gets its fields; a JSON Schema only validates them.
    Names that neither lists are refused, unless the model sets `extra` or the schema
    `additionalProperties`. `*args` is refused.

    `preset` fixes arguments, as the keywords of a partial do: they are in no schema, a call that
    names one is `invalid_arguments`, and the function gets the very objects. `extended` adds the
    fields of a model to the schema; the function gets those that it has a parameter for, or all by
    `**kwargs`, and the others are only checked and seen by middlewares. `postprocess` gets what the
    function returns, of a generator each item, and returns the result of the tool; an error of it
    is `tool_failed`, as one of the function is. The output schema is that of its own return
    annotation.

    A subclass may override `execute`: it gets converted arguments, and `super().execute` adds what
    is preset and postprocesses.

    Args:
        function: The function.
        options: The options; those that `@tool` set by default.
        given: Options in place of those; see `ToolOptions`.

    Raises `TypeError` or `ValueError`, with the names of function and parameter, if the signature
    has no JSON Schema or an option does not fit it.
    """

    input_schema: dict[str, Any]
    _extended: ExtendedModel | None = None
    # Set only where they are used: see `_is_direct`.
    _assess: _InputFunction | None = None
    _match_rule: _InputFunction | None = None

    def __init__(
        self,
        function: Callable[..., Any],
        options: ToolOptions | None = None,
        /,
        **given: Unpack[ToolFields],
    ) -> None:
        if not callable(function):
            found = shown(function)
            if isinstance(function, Tool):
                found = f"the tool {shown(function.name)}"
            raise TypeError(f"FunctionTool wraps a function, not {found}")
        if not isinstance(options, ToolOptions | None):
            raise TypeError(f"FunctionTool takes ToolOptions(...), not {type(options).__name__}")
        marked = merged_options(options or options_of(function), given, "FunctionTool")
        name = marked.name or name_of(function)
        if name == "<lambda>":
            raise TypeError('a lambda has no name: write a function, or use @tool(name="...")')
        self.function: Callable[..., Any] = with_preset(function, marked.preset)
        signature = read_signature(
            self.function,
            marked.args_schema,
            is_extended=marked.extended is not None,
            has_own_result=bool(marked.postprocess or marked.output_schema),
        )
        self._plain: PlainArguments | None = None
        self._signature = signature
        self._sliced: SlicedParameters | None = None
        self._context = signature.context
        self._postprocess = _Postprocess.of(marked.postprocess, name_of(function))
        upload = signature.input_parameter
        if upload is not None and upload.is_file and not signature.is_async:
            raise TypeError(
                f"{name_of(self.function)}: only an async function can take an upload as a file:"
                " make it async, or take attachment: InputStream[bytes]"
            )
        # Beyond 30 attributes CPython reads each of them slower; `_extended` is set only if used.
        self._is_direct = signature.is_async and self._postprocess is None
        # The thread sets `entered`: a call that is cancelled before its thread starts never ran.
        self.marks_entry: bool = (
            not signature.is_async and type(self).execute is FunctionTool.execute
        )
        # An override may collect what the function yields, or yield what it returns.
        is_own_result = self._yields() is signature.is_generator
        result = self._postprocess or (is_own_result and signature) or None
        super().__init__(
            name,
            deepcopy(signature.input_schema),
            description=signature.description if marked.description is None else marked.description,
            output_schema=marked.output_schema or (result and result.output_schema),
            **{option: getattr(marked, option) for option in _PASSED_ON},
        )
        if result and result.returned is not None:
            self._returned = result.returned
        self._extend(marked.extended)
        known = None if signature.takes_any else signature.parameters
        label = name_of(self.function)
        if marked.assess is not None:
            text = f"{label}: assess"
            self._assess = _InputFunction.of(marked.assess, self.function, known, text)
        if marked.match_rule is not None:
            text = f"{label}: match_rule"
            self._match_rule = _InputFunction.of(
                marked.match_rule, self.function, known, text, takes_pattern=True
            )

    async def assess(self, context: ToolContext, arguments: dict[str, Any]) -> Any:
        """Return what the function of the option `assess` says, or the flags without one."""
        function = self._assess
        if function is None:
            return await super().assess(context, arguments)
        call = functools.partial(function.call, context=context, arguments=arguments)
        if function.is_async:
            return await call()
        return await _awaited(await on_assess_thread(run_of(context), call))

    def match_rule(self, pattern: str, arguments: dict[str, Any]) -> bool:
        """Return what the function of the option `match_rule` says; False without one."""
        function = self._match_rule
        if function is None:
            return False
        found: bool = function.call(pattern, context=None, arguments=arguments)
        return found  # whatever it is: who asks checks it

    @property
    def has_assess(self) -> bool:
        """Whether it assesses its inputs itself; else its flags answer."""
        return self._assess is not None or type(self).assess is not FunctionTool.assess

    @property
    def has_patterns(self) -> bool:
        """Whether it has a `match_rule`."""
        return self._match_rule is not None or type(self).match_rule is not FunctionTool.match_rule

    def with_extended(self, model: type[BaseModel] | None) -> Self:
        """Return this tool with the fields of a model added to its arguments, or with none added.

        Replaces the `extended` of this tool, which does not change; all else is the same.

        Args:
            model: The model; None for only the tool's own arguments, where `**kwargs` get nothing.

        Raises `ValueError` that names a field, or an entry of `$defs`, that is there already, and
        `TypeError` for anything but a model, and if the function requires a field that goes.
        """
        made = copy(self)
        made._compiled = made._plain = made._sliced = None
        made._extend(model)
        return made

    def _extend(self, model: type[BaseModel] | None) -> None:
        signature, label = self._signature, name_of(self.function)
        extended = None if model is None else ExtendedModel(model, label)
        missing = signature.missing - (extended.keywords if extended else frozenset())
        for name in sorted(missing):
            text = "add it, preset it, or give the parameter a default"
            raise TypeError(f"{label} requires {name!r}, and args_schema does not: {text}")
        convert = signature.convert
        if self._extended is not None:
            self.input_schema = self._extended.removed_from(self.input_schema)
        if extended is not None or self._extended is not None:
            self._extended = extended
        if extended is not None:
            extended.check_names(signature.given, signature.reserved)
            self.input_schema = extended.added_to(self.input_schema)
            passed = None if signature.takes_any else signature.parameters
            convert = extended.around(convert, passed)
        if signature.open_names is not None:
            added = () if extended is None else extended.properties
            convert = signature.open_names.before(convert, frozenset(added))
        self._convert = convert

    def _yields(self) -> bool:
        is_plain = type(self).execute is FunctionTool.execute
        return self._signature.is_generator if is_plain else super()._yields()

    def _input_parameter(self, settled: CompiledDefinition) -> InputParameter | None:
        return self._signature.input_parameter

    @property
    def is_async(self) -> bool:
        """Whether the function is async; a sync one runs on a thread."""
        return self._signature.is_async

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
            own = schema if self._extended is None else self._extended.removed_from(schema)
            signature = self._signature if own == self._signature.input_schema else None
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
        if self._is_direct:
            return self.function(*leading, **arguments)
        postprocess = self._postprocess
        if self._signature.is_async and postprocess is not None:
            call = functools.partial(self.function, *leading, **arguments)
            if self._signature.is_generator:
                return postprocess.map_items(call())
            return postprocess.after(call)
        if self._signature.is_generator:
            items = self._items_of_thread(context, leading, arguments)
            return items if postprocess is None else postprocess.each_of_thread(items)
        return self._execute_in_thread(context, leading, arguments)

    def _items_of_thread(
        self, context: ToolContext, leading: tuple[Any, ...], arguments: dict[str, Any]
    ) -> ThreadIterator:
        run = run_of(context)

        def start() -> Any:
            run.entered = True
            items = self.function(*leading, **arguments)
            postprocess = self._postprocess
            if postprocess is None or postprocess.is_async:
                return items
            return _each(items, postprocess.function)

        return ThreadIterator(start, run.run_sync, ahead=ITEMS_AHEAD)

    async def _execute_in_thread(
        self, context: ToolContext, leading: tuple[Any, ...], arguments: dict[str, Any]
    ) -> Any:
        run = run_of(context)
        postprocess = self._postprocess

        def call() -> Any:
            run.entered = True
            try:
                result = self.function(*leading, **arguments)
                if postprocess is None or postprocess.is_async or inspect.isawaitable(result):
                    return result
                return _Processed(postprocess.function(result))
            except StopIteration as error:
                # A future cannot hold it: the awaiting task would wait forever.
                raise RuntimeError("the function raised StopIteration") from error

        result = await run.run_sync(functools.partial(contextvars.copy_context().run, call))
        if isinstance(result, _Processed):
            return await _awaited(result.value)
        result = await _awaited(result)
        return result if postprocess is None else await postprocess(result)


class _Processed(NamedTuple):
    """What a post-processor returned on a thread."""

    value: Any


class _Postprocess(NamedTuple):
    """The post-processor of a function; a sync one runs where its function runs."""

    function: Callable[[Any], Any]
    is_async: bool
    output_schema: dict[str, Any] | None
    returned: TypeAdapter[Any] | None

    @classmethod
    def of(cls, function: Any, label: str) -> Self | None:
        """Read a post-processor. Raises `TypeError` for one that does not return one value."""
        if function is None:
            return None
        if not callable(function) or yields(function):
            text = "must be a function that returns the result, sync or async"
            raise TypeError(f"{label}: postprocess {text}, not {shown(function)}")
        if not takes_positional(function, 1):
            raise TypeError(f"{label}: postprocess must take one value: {shown(function)} does not")
        schema, returned = read_result_type(function, f"{label}: postprocess")
        return cls(function, is_async(function), schema, returned)

    async def __call__(self, value: Any) -> Any:
        return await _awaited(self.function(value))

    async def after(self, call: Callable[[], Any]) -> Any:
        """Return the result for what a call of an async function returns."""
        return await self(await call())

    async def map_items(self, items: Any) -> AsyncIterator[Any]:
        """Yield the result for each item."""
        async with aclosing(items):
            async for item in items:
                yield await self(item)

    def each_of_thread(self, items: Any) -> Any:
        """Return the results for what the thread of a sync generator yields."""
        return self.map_items(items) if self.is_async else _settled(items)


def _each(items: Any, function: Callable[[Any], Any]) -> Iterator[Any]:
    with closing(items):
        for item in items:
            yield function(item)


async def _settled(items: Any) -> AsyncIterator[Any]:
    """Await the items that are awaitable: a sync function may return what an async one does."""
    async with aclosing(items):
        async for item in items:
            yield await _awaited(item)


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
