"""Makes a JSON Schema of a function's signature, and converts checked arguments to Python values.

Reads functions, bound methods, partials and callable objects; never calls them. A parameter that
no schema can describe, such as `*args`, is refused when the tool is made, with the names of
function and parameter. Where an `args_schema` describes the arguments, the types of the parameters
do not count.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import suppress
from inspect import cleandoc
from types import MappingProxyType
from typing import (
    Annotated,
    Any,
    NamedTuple,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaMode
from typing_extensions import TypedDict, is_typeddict

from toolbus.chunks.chunk_types import (
    EmptyChunk,
    FileChunk,
    JsonChunk,
    LinkChunk,
    MixedChunk,
    TextChunk,
)
from toolbus.chunks.json_values import PlainArguments, shown
from toolbus.tools.argument_models import (
    GivenArguments,
    OpenNames,
    SchemaWriter,
    check_defaults,
    near,
    read_given,
)
from toolbus.tools.context import ToolContext
from toolbus.tools.input_stream import (
    ATTACHMENT,
    InputParameter,
    InputStream,
    read_input_parameter,
    unsupported_type_text,
)

__all__ = [
    "ARGUMENTS_CONFIG",
    "ContextParameter",
    "FunctionDocs",
    "FunctionSignature",
    "is_async",
    "is_context",
    "name_of",
    "read_docstring",
    "read_result_type",
    "read_signature",
    "takes_positional",
    "with_preset",
    "yields",
]

ARGUMENTS_CONFIG = ConfigDict(extra="forbid")
"""How pydantic reads arguments."""
_OURS = MappingProxyType(
    {"ToolContext": ToolContext, "InputStream": InputStream, "FileChunk": FileChunk}
)
_ITERATORS = (AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable, Iterator)
_CHUNKS = (EmptyChunk, FileChunk, JsonChunk, LinkChunk, MixedChunk, TextChunk)
_UNSET = inspect.Parameter.empty
_PLAIN = (str, int, bool)
_NOT_BY_NAME: MappingProxyType[Any, str] = MappingProxyType(
    {
        inspect.Parameter.POSITIONAL_ONLY: "is positional-only, but arguments are passed by name",
        inspect.Parameter.VAR_POSITIONAL: "takes any number of arguments, and no schema can name"
        " them: take a list instead",
    }
)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class ContextParameter(NamedTuple):
    """The parameter that receives the `ToolContext`."""

    name: str
    positional: bool


class FunctionSignature(NamedTuple):
    """What was read from a signature and a docstring."""

    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    """Only if the return annotation is a model, a dataclass or a TypedDict, or an iterator of such;
    then it is the schema of each item."""
    returned: TypeAdapter[Any] | None
    """The type of a result, or of each item, if it is or holds such a type: it says which fields
    are in a result."""
    context: ContextParameter | None
    convert: Callable[[Any], dict[str, Any]]
    """Converts checked arguments to the function's keywords; raises `pydantic.ValidationError`."""
    plain: PlainArguments | None
    """Set if every parameter is a plain `str`, `int` or `bool` without further rules."""
    input_parameter: InputParameter | None
    """The parameter that receives the input of a call; not in the schema."""
    collections: Mapping[str, Any]
    """The annotations of parameters that are exactly a `list[...]` or `dict[...]`: pydantic
    converts each of their items by itself."""
    unconverted: frozenset[str]
    """Parameters of any type, which pydantic passes on."""
    parameters: frozenset[str]
    """The parameters that arguments fill, apart from `**kwargs`."""
    takes_any: bool
    """Whether the function has `**kwargs`."""
    given: frozenset[str]
    """The keywords that the arguments of the schema become."""
    missing: frozenset[str]
    """Required parameters that the schema does not promise to fill."""
    reserved: frozenset[str]
    """Names that no caller may give: preset, or filled by the run or by Python."""
    open_names: OpenNames | None
    """Set if the schema accepts names that it does not list."""
    is_async: bool
    is_generator: bool


class _Parameter(NamedTuple):
    name: str
    annotation: Any
    default: Any


class _Split(NamedTuple):
    """The parts of a signature."""

    context: ContextParameter | None
    input_parameter: InputParameter | None
    parameters: list[_Parameter]
    var_keyword: str
    """The name of `**kwargs`; empty if there is none."""
    returns: Any

    @property
    def required(self) -> frozenset[str]:
        """The parameters that every call has to fill; a `Field(...)` is no default in Python."""
        return frozenset(
            parameter.name
            for parameter in self.parameters
            if parameter.default is _UNSET or isinstance(parameter.default, FieldInfo)
        )

    @property
    def filled_by_run(self) -> frozenset[str]:
        """The names of the parameters for context and input."""
        names: set[str] = set()
        if self.input_parameter is not None:
            names.add(self.input_parameter.parameter)
        if self.context is not None and not self.context.positional:
            names.add(self.context.name)
        return frozenset(names)


def read_signature(
    function: Callable[..., Any],
    args_schema: type[BaseModel] | dict[str, Any] | None = None,
    *,
    is_extended: bool = False,
    has_own_result: bool = False,
) -> FunctionSignature:
    """Read a function's parameters, docstring and return annotation.

    Args:
        function: The function.
        args_schema: What describes the arguments, in place of the types of the parameters.
        is_extended: Whether a further model may fill `**kwargs`.
        has_own_result: Whether another function makes the result, or its schema is given, so that
            none is read.

    Raises `TypeError` with the names of function and parameter if they have no schema, for a
    default that does not fit its type, or if `args_schema` does not fit the function.
    """
    label = name_of(function)
    if _chooses_by_position(function):
        raise TypeError(
            f"{label}: singledispatch chooses by the first positional argument, and arguments are"
            f" passed by name: make a tool of a function that calls {label}(value)"
        )
    split = _split(function, label)
    if split.var_keyword and args_schema is None and not is_extended:
        raise TypeError(
            f"{label}: parameter {split.var_keyword!r} takes arguments of any name: name them by"
            " extended=Model, or describe all arguments by args_schema=..."
        )
    hidden = _preset(function) | _bound(function)
    reserved = hidden | split.filled_by_run
    docs = read_docstring(_docstring(function))
    if args_schema is None:
        found = _of_parameters(label, split.parameters, docs.parameters)
    else:
        found = read_given(args_schema, hidden, label, takes_any=bool(split.var_keyword))
        _check_names(found, split, reserved, label)
    names = frozenset(parameter.name for parameter in split.parameters)
    passes_all = args_schema is None or isinstance(args_schema, type) or bool(split.var_keyword)
    is_generator = yields(function)
    returns = _item_of(split.returns) if is_generator else split.returns
    return FunctionSignature(
        description=docs.description,
        input_schema=found.schema,
        output_schema=None if has_own_result else _output_schema(label, returns),
        returned=_declared_type(returns),
        context=split.context,
        convert=found.convert,
        plain=_plain(split.parameters) if args_schema is None else None,
        input_parameter=split.input_parameter,
        collections=_collections(split.parameters) if args_schema is None else {},
        unconverted=found.unconverted,
        parameters=names,
        takes_any=bool(split.var_keyword),
        given=found.keywords,
        missing=split.required - found.guaranteed,
        reserved=reserved,
        open_names=OpenNames(reserved, None if passes_all else names) if found.is_open else None,
        is_async=is_async(function),
        is_generator=is_generator,
    )


def read_result_type(
    function: Callable[..., Any], label: str
) -> tuple[dict[str, Any] | None, TypeAdapter[Any] | None]:
    """Return the schema of a structured return annotation, and the type that holds fields."""
    try:
        annotation = inspect.signature(function).return_annotation
    except (ValueError, TypeError):  # a class or a function written in C
        return None, None
    returns = _Names(function, label).resolve(annotation, "its return type")
    return _output_schema(label, returns), _declared_type(returns)


def with_preset(
    function: Callable[..., Any], preset: Mapping[str, Any] | None
) -> Callable[..., Any]:
    """Return a function with fixed arguments; the function itself if there are none.

    Raises `TypeError` for a name that is not a parameter, unless the function has `**kwargs`.
    """
    if preset is None:
        return function
    label = name_of(function)
    if not isinstance(preset, Mapping):
        text = "must be a dict of values by parameter"
        raise TypeError(f"{label}: preset {text}, not {type(preset).__name__}")
    parameters = _signature(function, label).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind in _BY_NAME]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    bound = _bound(function)
    for name in preset:
        if name in known or (takes_any and isinstance(name, str) and name not in bound):
            continue
        hint = near(name, known) if isinstance(name, str) else ""
        raise TypeError(f"{label}: preset {shown(name)} is not a parameter of the function{hint}")
    return functools.partial(function, **preset) if preset else function


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a callable for messages."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", None) or type(function).__name__)


def code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that has a callable's code: of a partial, or an object's `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function):
        return function
    return type(function).__call__


def _chooses_by_position(function: Any) -> bool:
    """Whether a callable is a `singledispatch` function or method without its first argument."""
    while isinstance(function, functools.partial):
        if function.args:
            return False
        function = function.func
    # Before Python 3.14 a method is a function of `functools`, since then an object.
    module = getattr(function, "__globals__", {}).get("__name__", type(function).__module__)
    return module == functools.__name__ and hasattr(function, "register")


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a callable is a coroutine function or an async generator."""
    code = code_of(function)
    return inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code)


def yields(function: Callable[..., Any]) -> bool:
    """Return whether a callable is a generator, async or not.

    Raises `ValueError` for a plain function around a generator: it may collect the items, or return
    the iterator.
    """
    code = code_of(function)
    if inspect.isasyncgenfunction(code) or inspect.isgeneratorfunction(code):
        return True
    inner = inspect.unwrap(code)
    if inspect.iscoroutinefunction(code) or not (
        inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner)
    ):
        return False
    text = "a function that yields is wrapped in one that does not: the wrapper must yield too"
    raise ValueError(f"{name_of(function)}: {text}")


def takes_positional(function: Callable[..., Any], number: int) -> bool:
    """Return whether a callable can be called with so many values, as far as it can be known."""
    try:
        parameters = inspect.signature(function, follow_wrapped=False)
    except ValueError:  # of some built-in functions it is not known
        return True
    try:
        parameters.bind(*range(number))
    except TypeError:
        return False
    return True


def _docstring(function: Callable[..., Any]) -> str | None:
    while isinstance(function, functools.partial):
        function = function.func
    found = inspect.getdoc(code_of(function))
    if inspect.isroutine(function):
        return found
    # Without a docstring, `__call__` inherits that of every class.
    has_own = found not in (None, inspect.getdoc(type.__call__))
    return found if has_own else inspect.getdoc(type(function))


def _plain(parameters: list[_Parameter]) -> PlainArguments | None:
    for parameter in parameters:
        if parameter.annotation not in _PLAIN or isinstance(parameter.default, FieldInfo):
            return None
    return PlainArguments({parameter.name: parameter.annotation for parameter in parameters})


def _split(function: Callable[..., Any], label: str) -> _Split:
    """Split a signature: parameters of context and input, arguments, return annotation."""
    signature = _signature(function, label)
    names = _Names(function, label)
    # Arguments set by a partial are fixed; a caller neither sees nor overrides them.
    preset = _preset(function)
    contexts: list[ContextParameter] = []
    input_parameters: list[InputParameter] = []
    parameters: list[_Parameter] = []
    var_keyword = ""
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            var_keyword = parameter.name
            continue
        if parameter.name in preset:
            continue
        annotation = names.resolve(parameter.annotation, f"parameter {parameter.name!r}")
        if is_context(annotation):
            positional = parameter.kind is parameter.POSITIONAL_ONLY
            contexts.append(ContextParameter(parameter.name, positional))
            continue
        _refuse_odd(parameter, label, first=not parameters)
        input_parameter = _input_parameter(parameter, annotation, label)
        if input_parameter is not None:
            input_parameters.append(input_parameter)
        else:
            parameters.append(_Parameter(parameter.name, annotation, parameter.default))
    if len(contexts) > 1:
        raise TypeError(f"{label}: {contexts[1].name!r} is a second ToolContext parameter")
    if len(input_parameters) > 1:
        raise TypeError(
            f"{label}: {input_parameters[1].parameter!r} is a second parameter for the input"
        )
    returns = names.resolve(signature.return_annotation, "the return annotation")
    context, taken = next(iter(contexts), None), next(iter(input_parameters), None)
    return _Split(context, taken, parameters, var_keyword, returns)


def _preset(function: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the keywords that partials fix; a partial with attributes nests."""
    found: set[str] = set()
    while isinstance(function, functools.partial):
        found |= function.keywords.keys()
        function = function.func
    return frozenset(found)


def _bound(function: Callable[..., Any]) -> frozenset[str]:
    """Return the parameters that Python fills by position: `self`, and those of partials."""
    code = code_of(function)
    try:
        inner = inspect.signature(getattr(code, "__func__", code)).parameters.values()
    except (ValueError, TypeError):
        return frozenset()
    outer = inspect.signature(function).parameters
    names = frozenset(parameter.name for parameter in inner if parameter.kind in _BY_NAME)
    return names - outer.keys()


def _check_names(
    found: GivenArguments, split: _Split, reserved: frozenset[str], label: str
) -> None:
    """Raise `TypeError` if an `args_schema` gives what the function does not take."""
    names = [parameter.name for parameter in split.parameters]
    for name in sorted(found.keywords):
        if name in reserved:
            raise TypeError(f"{label}: args_schema has {name!r}, which the run fills: rename it")
        if name not in names and not split.var_keyword:
            hint = near(name, names)
            raise TypeError(f"{label}: args_schema has {name!r}, which is not a parameter{hint}")


def _input_parameter(
    parameter: inspect.Parameter, annotation: Any, label: str
) -> InputParameter | None:
    if parameter.name == ATTACHMENT and parameter.annotation is _UNSET:
        annotation = FileChunk
    required = parameter.default is _UNSET
    return read_input_parameter(parameter.name, annotation, required=required, label=label)


def read_method_input(execute: Callable[..., Any], label: str) -> InputParameter | None:
    """Read the parameter `attachment` of a tool's own `execute`; None if it has none.

    Its annotation is read as in a function; without one, or with one that is not an input type, it
    receives unconverted chunks. Raises `TypeError` if the annotation is invalid.
    """
    parameter = _signature(execute, label).parameters.get(ATTACHMENT)
    if parameter is None:
        return None
    annotation = _Names(execute, label).resolve(parameter.annotation, f"parameter {ATTACHMENT!r}")
    required = parameter.default is _UNSET
    found = read_input_parameter(ATTACHMENT, annotation, required=required, label=label)
    return found or InputParameter(ATTACHMENT, required)


def _signature(function: Callable[..., Any], label: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (ValueError, TypeError, NameError) as error:
        raise TypeError(f"{label}: its signature cannot be read: {error}") from error


def _refuse_odd(parameter: inspect.Parameter, label: str, *, first: bool) -> None:
    reason = _NOT_BY_NAME.get(parameter.kind)
    if reason is not None:
        raise TypeError(f"{label}: parameter {parameter.name!r} {reason}")
    if parameter.name == "context" and parameter.annotation is _UNSET:
        raise TypeError(
            f"{label}: parameter 'context' has no annotation; did you mean"
            " context: ToolContext? An argument of that name needs a type"
        )
    if first and parameter.name in ("self", "cls") and parameter.annotation is _UNSET:
        raise TypeError(
            f"{label}: parameter {parameter.name!r} is unbound: pass the method of an instance"
        )


class _Names:
    """Resolves the names in a function's annotations."""

    def __init__(self, function: Callable[..., Any], label: str) -> None:
        code = inspect.unwrap(code_of(function))
        self._label = label
        self._globals: dict[str, Any] = getattr(code, "__globals__", {})
        # Types used only in annotations are often imported for type checkers only.
        self._locals = {k: v for k, v in _OURS.items() if k not in self._globals}
        self._locals |= _enclosed(code)

    def resolve(self, annotation: Any, what: str) -> Any:
        if annotation is _UNSET:
            return Any
        holder = types.SimpleNamespace(__annotations__={"it": annotation})
        try:
            return get_type_hints(holder, self._globals, self._locals, include_extras=True)["it"]
        except NameError as error:
            raise TypeError(
                f"{self._label}: {what} cannot be resolved: {error} "
                "(a name used in an annotation must exist at run time, in the module)"
            ) from error
        except (TypeError, SyntaxError, AttributeError) as error:
            raise TypeError(f"{self._label}: {what} is not a type: {error}") from error


def _enclosed(code: Any) -> dict[str, Any]:
    """Return the names that a function uses from its enclosing functions."""
    names = getattr(getattr(code, "__code__", None), "co_freevars", ())
    cells = getattr(code, "__closure__", None) or ()
    found: dict[str, Any] = {}
    for name, cell in zip(names, cells, strict=True):
        with suppress(ValueError):  # not assigned yet
            found[name] = cell.cell_contents
    return found


def is_context(annotation: Any) -> bool:
    """Return whether a parameter with this annotation receives the `ToolContext`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return is_context(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not types.NoneType]
        return len(members) == 1 and is_context(members[0])
    return isinstance(annotation, type) and issubclass(annotation, ToolContext)


def _of_parameters(
    label: str, parameters: list[_Parameter], docs: dict[str, str]
) -> GivenArguments:
    """Make the schema of parameters, and their conversion, from their types."""
    adapter, schema = _arguments(label, parameters, docs)
    check_defaults(schema, dict(_doubtful_defaults(parameters)), label)
    names = frozenset(parameter.name for parameter in parameters)
    unconverted = frozenset(
        parameter.name for parameter in parameters if parameter.annotation is Any
    )
    convert = adapter.validator.validate_python
    return GivenArguments(schema, convert, names, names, unconverted, takes_any=False)


def _doubtful_defaults(parameters: list[_Parameter]) -> Iterator[tuple[str, Any]]:
    """Yield the defaults that may not fit their types, those of `Field(...)` too."""
    for parameter in parameters:
        default = parameter.default
        if isinstance(default, FieldInfo):
            yield parameter.name, default.default
        elif default is not _UNSET and type(default) is not parameter.annotation:
            yield parameter.name, default


def _collections(parameters: list[_Parameter]) -> dict[str, Any]:
    return {
        parameter.name: parameter.annotation
        for parameter in parameters
        if (get_origin(parameter.annotation) or parameter.annotation) in (list, dict)
        and not isinstance(parameter.default, FieldInfo)
    }


def _arguments(
    label: str, parameters: list[_Parameter], docs: dict[str, str]
) -> tuple[TypeAdapter[dict[str, Any]], dict[str, Any]]:
    """Make the pydantic type of the arguments: a TypedDict, whose fields may have any name."""
    fields = {
        parameter.name: _field(parameter, docs.get(parameter.name)) for parameter in parameters
    }
    make: Any = TypedDict  # type checkers accept the functional form with a literal dict only
    arguments = make("arguments", fields)
    arguments.__pydantic_config__ = ARGUMENTS_CONFIG
    try:
        adapter = TypeAdapter(arguments)
        schema = adapter.json_schema(schema_generator=SchemaWriter)
    except Exception as error:
        for parameter in parameters:
            _adapted(parameter.annotation, "validation", f"{label}: parameter {parameter.name!r}")
        raise TypeError(f"{label}: its arguments have no JSON Schema: {error}") from error
    del schema["title"]
    return adapter, schema


def _field(parameter: _Parameter, docs: str | None) -> Any:
    """Add the default and the description of a parameter to its annotation."""
    annotation, default = parameter.annotation, parameter.default
    if isinstance(default, FieldInfo):  # def f(days: int = Field(3, ge=1))
        annotation, default = Annotated[annotation, default], _UNSET
    metadata = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    infos = [entry for entry in metadata if isinstance(entry, FieldInfo)]
    docs = next((entry for entry in metadata if isinstance(entry, str)), docs)
    if docs and not any(info.description for info in infos):
        annotation = Annotated[annotation, Field(description=docs)]
    if default is not _UNSET:
        annotation = Annotated[annotation, Field(default=default)]
    elif all(info.is_required() for info in infos):
        return annotation
    return NotRequired[annotation]


def _item_of(returns: Any) -> Any:
    """Return the item type of a generator's return annotation."""
    while get_origin(returns) is Annotated:
        returns = get_args(returns)[0]
    return next(iter(get_args(returns)), Any) if get_origin(returns) in _ITERATORS else Any


def _output_schema(label: str, returns: Any) -> dict[str, Any] | None:
    while get_origin(returns) is Annotated:
        returns = get_args(returns)[0]
    if not isinstance(returns, type) or returns in _CHUNKS:
        return None
    structured = issubclass(returns, BaseModel) or dataclasses.is_dataclass(returns)
    if not structured and not is_typeddict(returns):
        return None
    return _adapted(returns, "serialization", f"{label}: the return annotation")


def _declared_type(returns: Any) -> TypeAdapter[Any] | None:
    """Return a type that writes results; None if no model, dataclass or TypedDict is in it."""
    if not _holds_fields(returns):
        return None
    try:
        return TypeAdapter(returns)
    except Exception:  # beside such a type may be one that pydantic does not know
        return None


def _holds_fields(annotation: Any) -> bool:
    if isinstance(annotation, type) and not get_args(annotation):
        if annotation is BaseModel or annotation in _CHUNKS:
            return False
        is_model = issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation)
        return is_model or is_typeddict(annotation)
    return any(map(_holds_fields, get_args(annotation)))


def _adapted(annotation: Any, mode: JsonSchemaMode, what: str) -> dict[str, Any]:
    try:
        return TypeAdapter(annotation).json_schema(schema_generator=SchemaWriter, mode=mode)
    except PydanticUserError as error:
        raise TypeError(f"{what} has no JSON Schema: {unsupported_type_text(error)}") from None


class FunctionDocs(NamedTuple):
    """The parts of one docstring."""

    description: str
    """Summary and body, without the sections about parameters, results and errors."""
    parameters: dict[str, str]
    """The description of each parameter."""


def read_docstring(text: str | None) -> FunctionDocs:
    """Split a docstring, as `inspect.getdoc` returns it, into its parts."""
    if not text or not text.strip():
        return FunctionDocs("", {})
    if ":" not in text and "--" not in text:
        # In no style is there a section without one of these, and griffe is slow to import.
        return FunctionDocs(cleandoc(text).strip(), {})
    body: list[str] = []
    parameters: dict[str, str] = {}
    for section in _sections(text):
        match section.kind.value:
            case "text":
                body.append(section.value)
            case "admonition":
                body.append(f"{section.title}: {section.value.description}")
            case "parameters" | "other parameters":
                for parameter in section.value:
                    parameters[parameter.name.lstrip("*")] = parameter.description.strip()
    return FunctionDocs("\n\n".join(body).strip(), parameters)


def _sections(text: str) -> list[Any]:
    # Imported here because it takes long, and few participants read docstrings with sections.
    import griffe

    return griffe.parse_auto(
        griffe.Docstring(text),
        default="google",
        per_style_options={
            "google": {"warnings": False},
            "numpy": {"warnings": False},
            "sphinx": {"warnings": False},
        },
    )
