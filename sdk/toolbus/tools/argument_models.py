"""Arguments that a pydantic model or a JSON Schema describes, in place of a signature or beside it.

`args_schema` replaces the types of a function's parameters, `extended` adds fields to them. The
schemas are made here, and checked arguments are converted; the function is never called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from difflib import get_close_matches
from math import isfinite
from typing import Any, NamedTuple

from pydantic import AliasChoices, AliasPath, BaseModel, RootModel
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import PydanticSerializationError, to_json

from toolbus.chunks.json_values import plain_json, shown
from toolbus.errors import InvalidResult
from toolbus.schemas.validation import JsonCheck, UnknownArgument
from toolbus.schemas.walker import target_of
from toolbus.tools.input_stream import unsupported_type_text

__all__ = [
    "ExtendedModel",
    "GivenArguments",
    "OpenNames",
    "SchemaWriter",
    "check_defaults",
    "near",
    "read_given",
]

Convert = Callable[[Any], dict[str, Any]]

_ELSEWHERE = frozenset(
    {
        *("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "then", "else"),
        *("dependentSchemas", "unevaluatedProperties"),
    }
)
"""Keywords that may describe properties outside of `properties`."""


class SchemaWriter(GenerateJsonSchema):
    """Pydantic's schemas without generated titles and without warnings about odd defaults.

    A default or a bound that no frame can carry, such as 2**64, is not in the schema: the function
    has it, and pydantic checks it.
    """

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {  # noqa: RUF012 - its type
        "skipped-choice",
        "non-serializable-default",
    }

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False: a title made of a field's name says nothing."""
        return False

    def ser_schema(self, schema: Any) -> Any:
        """Raise `PydanticUserError` for a serializer that does not say what it returns.

        Pydantic would write the schema of the field itself, and each result would break it.
        """
        is_function = schema["type"] in ("function-plain", "function-wrap")
        if is_function and schema.get("return_schema") is None:
            function = schema["function"]
            if not str(getattr(function, "__module__", "")).startswith("pydantic"):
                text = f"its serializer {getattr(function, '__name__', shown(function))!r} does not"
                hint = "say what it returns: annotate it, `-> str`, or set `return_type`"
                raise PydanticUserError(f"{text} {hint}", code=None)
        return super().ser_schema(schema)

    def encode_default(self, dft: Any) -> Any:
        """Return a default as JSON. Raises what pydantic takes as "leave it out"."""
        try:
            return plain_json(super().encode_default(dft))
        except InvalidResult as error:
            raise PydanticSerializationError(str(error)) from error

    def update_with_validations(
        self, json_schema: dict[str, Any], core_schema: Any, mapping: dict[str, str]
    ) -> None:
        """Add the bounds of a value that can be sent."""
        sent = {
            key: bound
            for key, bound in core_schema.items()
            if type(bound) is not int or -(2**63) <= bound < 2**64
        }
        super().update_with_validations(json_schema, sent, mapping)


def check_defaults(schema: dict[str, Any], defaults: Mapping[str, Any], label: str) -> None:
    """Raise `TypeError` for a default that no caller could send, by its parameter's schema.

    Only defaults that are JSON values are checked. None is always accepted: it says that there is
    no value. So are other objects, such as dates and markers of an omitted argument.
    """
    known = schema["properties"]
    checked = {
        name: value
        for name, value in defaults.items()
        if name in known and value is not None and _is_json(value)
    }
    if not checked:
        return
    check = JsonCheck({key: value for key, value in schema.items() if key != "required"})
    violation = check.violation(checked)
    if violation is not None:
        name = violation.path.split("/")[1]
        raise TypeError(
            f"{label}: parameter {name!r}: the default {shown(checked[name])} does not fit its"
            f" type: {violation.message}; change one of them"
        )


def _is_json(value: Any) -> bool:
    """Whether a value is JSON as it is, so that its schema needs no conversion."""
    if type(value) is list:
        return all(map(_is_json, value))
    if type(value) is dict:
        return all(type(key) is str and _is_json(item) for key, item in value.items())
    if type(value) is float:
        return isfinite(value)
    return value is None or type(value) in (str, int, bool)


class OpenNames(NamedTuple):
    """Refuses arguments that an open schema accepts and the function cannot take."""

    refused: frozenset[str]
    allowed: frozenset[str] | None
    """All that may be given; None if the function or its model takes any others."""

    def before(self, convert: Convert, added: frozenset[str]) -> Convert:
        """Return a conversion that first raises `UnknownArgument` for what cannot be given.

        Names of `added` are allowed besides.
        """

        def convert_known(arguments: Any) -> dict[str, Any]:
            for name in arguments:
                is_known = self.allowed is None or name in self.allowed or name in added
                if name in self.refused or not is_known:
                    raise UnknownArgument(name)
            return convert(arguments)

        return convert_known


class GivenArguments(NamedTuple):
    """What was read from an `args_schema`."""

    schema: dict[str, Any]
    convert: Convert
    """Converts checked arguments to keywords."""
    keywords: frozenset[str]
    """The keywords that arguments may become."""
    guaranteed: frozenset[str]
    """The keywords that each call has."""
    unconverted: frozenset[str]
    """Arguments that are passed on as they are."""
    takes_any: bool
    """Whether arguments of further names become keywords."""

    @property
    def is_open(self) -> bool:
        """Whether the schema accepts names that it does not list."""
        schema = self.schema
        return schema.get("additionalProperties") is not False or "patternProperties" in schema


def read_given(
    args_schema: object, hidden: frozenset[str], label: str, *, takes_any: bool
) -> GivenArguments:
    """Read an `args_schema`: a pydantic model, or a JSON Schema as a dict.

    Names that it does not list are refused, unless it says otherwise. Preset arguments, `hidden`,
    are removed from it. `takes_any` says whether the function has `**kwargs`.

    Raises `TypeError` for anything else, and if it gives names that the function cannot take, and
    `ValueError` for an invalid schema.
    """
    what = f"{label}: args_schema"
    if isinstance(args_schema, dict):
        given = _of_schema(args_schema, hidden, what)
    elif isinstance(args_schema, type) and issubclass(args_schema, BaseModel):
        given = _of_model(args_schema, hidden, what)
    else:
        text = "must be a pydantic model or a JSON Schema as a dict"
        raise TypeError(f"{what} {text}, not {shown(args_schema)}")
    if given.takes_any and not takes_any:
        raise TypeError(f"{what} allows arguments of any name, and the function has no **kwargs")
    return given


class ExtendedModel:
    """A pydantic model whose fields are further arguments of a tool.

    Raises `TypeError` unless it is a model with fields.
    """

    def __init__(self, model: type[BaseModel], label: str) -> None:
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise TypeError(f"{label}: extended must be a pydantic model class, not {shown(model)}")
        self._what = f"{label}: extended {model.__name__}"
        self._schema, self._fields, self._convert = _read_model(model, self._what)
        self._added_defs: frozenset[str] = frozenset()

    @property
    def properties(self) -> Mapping[str, Any]:
        """The added properties of the schema, by the name of the argument."""
        properties: dict[str, Any] = self._schema.get("properties", {})
        return properties

    @property
    def keywords(self) -> frozenset[str]:
        """The names of the fields."""
        return frozenset(self._fields)

    def check_names(self, given: Iterable[str], reserved: Iterable[str]) -> None:
        """Raise `ValueError` for a field that the function fills already, or that no caller sets.

        Other arguments give the keywords `given`; `reserved` are preset, or filled by the run.
        """
        for name in sorted({*self._fields, *self.properties}):
            if name in given:
                raise ValueError(f"{self._what}: there is an argument {name!r} already")
            if name in reserved:
                raise ValueError(f"{self._what}: {name!r} is preset or filled by the run")

    def added_to(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return an input schema with the fields.

        Raises `ValueError` that names a property or an entry of `$defs` that is there already.
        """
        properties = schema.get("properties", {})
        for name in self.properties:
            if name in properties:
                raise ValueError(f"{self._what}: there is an argument {name!r} already")
        merged = {**schema, "properties": {**properties, **self.properties}}
        if required := [*schema.get("required", ()), *self._schema.get("required", ())]:
            merged["required"] = required
        defs = dict(schema.get("$defs", {}))
        self._added_defs = frozenset(self._schema.get("$defs", {})) - defs.keys()
        for name, definition in self._schema.get("$defs", {}).items():
            if defs.setdefault(name, definition) != definition:
                raise ValueError(f"{self._what}: $defs has another definition of {name!r}")
        return {**merged, "$defs": defs} if defs else merged

    def removed_from(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a schema that `added_to` returned, without the fields."""
        own = self.properties
        remaining = {
            "properties": {k: v for k, v in schema.get("properties", {}).items() if k not in own},
            "required": [name for name in schema.get("required", ()) if name not in own],
            "$defs": {
                k: v for k, v in schema.get("$defs", {}).items() if k not in self._added_defs
            },
        }
        merged = {**schema, **remaining}
        for keyword in ("required", "$defs"):
            if not merged[keyword]:
                del merged[keyword]
        return merged

    def around(self, convert: Convert, passed: frozenset[str] | None) -> Convert:
        """Return a conversion that converts the fields, and all other arguments by `convert`.

        Of the fields those of `passed` become keywords; None means all.
        """

        def convert_all(arguments: Any) -> dict[str, Any]:
            own = self.properties
            keywords = convert({k: v for k, v in arguments.items() if k not in own})
            fields = self._convert({k: v for k, v in arguments.items() if k in own})
            for name in self._fields:
                if passed is None or name in passed:
                    keywords[name] = fields[name]
            return keywords

        return convert_all


def near(name: str, known: Iterable[str]) -> str:
    """Return a hint at the name that was probably meant, or an empty text."""
    found = get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _of_schema(schema: dict[str, Any], hidden: frozenset[str], what: str) -> GivenArguments:
    try:
        JsonCheck(schema)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{what}: {error}") from error
    if schema.get("type", "object") != "object":
        raise ValueError(f"{what}: its type must be 'object'")
    own = _inlined(deepcopy(schema))
    any_name = own.get("additionalProperties", False) is not False or "patternProperties" in own
    if not own.keys() & _ELSEWHERE:
        own.setdefault("additionalProperties", False)
    _hide(own, hidden)
    required = frozenset(own.get("required", ()))
    names = frozenset(own.get("properties", {})) | required
    return GivenArguments(own, dict, names, required, names, any_name)


def _of_model(model: type[BaseModel], hidden: frozenset[str], what: str) -> GivenArguments:
    what = f"{what} {model.__name__}"
    schema, fields, convert = _read_model(model, what)
    for name in sorted(hidden & fields.keys()):
        if model.model_fields[name].is_required():
            raise TypeError(f"{what} requires {name!r}, which is preset: give the field a default")
    if "extra" not in model.model_config:
        schema["additionalProperties"] = False
    _hide(schema, frozenset(fields[name] for name in hidden & fields.keys()))

    def keywords_of(arguments: Any) -> dict[str, Any]:
        return {name: value for name, value in convert(arguments).items() if name not in hidden}

    names = frozenset(fields) - hidden
    any_name = model.model_config.get("extra") == "allow"
    return GivenArguments(
        schema, keywords_of if hidden else convert, names, names, frozenset(), any_name
    )


def _read_model(
    model: type[BaseModel], what: str
) -> tuple[dict[str, Any], dict[str, str], Convert]:
    """Return a model's schema, the property of each of its fields, and its conversion."""
    if model is BaseModel or issubclass(model, RootModel):
        raise TypeError(f"{what}: arguments need a model with fields")
    try:
        schema = _inlined(model.model_json_schema(schema_generator=SchemaWriter))
    except PydanticUserError as error:
        raise TypeError(f"{what} has no JSON Schema: {unsupported_type_text(error)}") from None
    for key in ("title", "description"):
        schema.pop(key, None)
    fields = {
        name: _property(field.validation_alias or name)
        for name, field in model.model_fields.items()
    }

    def convert(arguments: Any) -> dict[str, Any]:
        if model.model_config.get("strict"):  # strict models accept dates as text only in JSON
            made = model.model_validate_json(to_json(arguments, inf_nan_mode="constants"))
        else:
            made = model.model_validate({**arguments})  # its own: a validator may change it
        return {**{name: getattr(made, name) for name in fields}, **(made.model_extra or {})}

    return schema, fields, convert


def _property(alias: str | AliasPath | AliasChoices) -> str:
    """Return the name that pydantic gives a field in a schema."""
    if isinstance(alias, AliasChoices):
        return _property(alias.choices[0])
    return str(alias.path[0]) if isinstance(alias, AliasPath) else alias


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with the definition that it refers to as a whole, as recursive models do."""
    target = target_of(schema, schema.get("$ref"))
    if not isinstance(target, dict) or target is schema:
        return schema
    return {**deepcopy(target), **{key: value for key, value in schema.items() if key != "$ref"}}


def _hide(schema: dict[str, Any], names: frozenset[str]) -> None:
    """Remove properties from a schema."""
    for name in names:
        schema.get("properties", {}).pop(name, None)
    if "required" in schema:
        schema["required"] = [name for name in schema["required"] if name not in names]
        if not schema["required"]:
            del schema["required"]
