"""A factory: a function that makes a toolkit from one pydantic config, and the config's fields.

Here is what a factory is and how its fields are read from text. Where the values come from, flags
and variables or an agent's request, is decided by `toolbus.cli` and `toolbus.turns`.
"""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from toolbus.chunks.json_values import cut
from toolbus.tools.toolkit import Toolkit

__all__ = [
    "ConfigField",
    "ConfigProblem",
    "OperatorOnly",
    "ToolkitFactory",
    "read_factory",
    "unmasked",
]

FieldKind: TypeAlias = Literal["switch", "list", "text", "json"]
_LISTS = (list, tuple, set, frozenset)
_RECORD_MARKS = frozenset({"__dataclass_fields__", "__total__", "_fields"})
"""Attributes of dataclasses, of any `TypedDict`, and of named tuples."""
_METAVARS: Mapping[Any, str] = types.MappingProxyType(
    {int: "INTEGER", float: "NUMBER", Path: "PATH"}
)


class OperatorOnly:
    """Marks a field that only the operator of a toolkit sets: `Annotated[Path, OperatorOnly]`.

    `toolbus host` reads it as any other field. A request to a builder cannot name it, and its
    schema does not show it. It marks a whole field of the config: `builder_of` refuses a config
    where a part of an open field is marked.
    """


class ConfigProblem(NamedTuple):
    """Why a config is refused; without the value, which may be a secret."""

    field: ConfigField | None
    """The field; None for a rule of the whole config."""
    path: tuple[int | str, ...]
    """Where in the config."""
    message: str


@dataclass(frozen=True, slots=True, eq=False)
class ConfigField:
    """One field of a config."""

    name: str
    key: str
    """Under which the model takes its value: its alias, if it has one."""
    info: FieldInfo
    kind: FieldKind
    """`switch` is a boolean; `json` is a value that one text cannot say, such as a mapping."""
    item: Any
    """Its type without None; of a list, that of its items."""

    @classmethod
    def of(cls, name: str, info: FieldInfo) -> ConfigField:
        """Find out how the text of an option becomes the value of a field."""
        alias = info.validation_alias or info.alias
        item = _without_none(info.annotation)
        kind: FieldKind = "switch" if item is bool else "text"
        origin = typing.get_origin(item) or item
        if origin in _LISTS:
            arguments = [argument for argument in typing.get_args(item) if argument is not Ellipsis]
            item = _without_none(arguments[0]) if arguments else str
            kind = "list"
        elif _is_structure(item):
            kind = "json"
        return cls(name, alias if isinstance(alias, str) else name, info, kind, item)

    @property
    def is_operator_only(self) -> bool:
        """Whether a request to a builder cannot name it."""
        return _has_mark(self.info.metadata)

    @property
    def is_partly_operator_only(self) -> bool:
        """Whether a part of its type is marked, such as a field of a nested model."""
        return _is_marked_within(self.info.annotation, set())

    @property
    def is_secret(self) -> bool:
        """Whether its value is shown nowhere."""
        return self.item in (SecretStr, SecretBytes)

    @property
    def choices(self) -> dict[str, Any]:
        """The values that it may have, by their text; empty if there are others."""
        if typing.get_origin(self.item) is Literal:
            return {str(value): value for value in typing.get_args(self.item)}
        if inspect.isclass(self.item) and issubclass(self.item, Enum):
            return {str(member.value): member.value for member in self.item}
        return {}

    @property
    def metavar(self) -> str:
        """What stands for its value in a help text."""
        if self.choices:
            return f"[{'|'.join(self.choices)}]"
        if self.kind == "json" or _is_structure(self.item):
            return "JSON"
        return _METAVARS.get(self.item, "TEXT")

    @property
    def default_text(self) -> str:
        """Its default as text; empty if it is required, computed, None or a secret."""
        default = self.info.default
        if self.info.is_required() or default is None or self.is_secret or self.kind == "json":
            return ""
        if self.info.default_factory is not None or isinstance(default, BaseModel):
            return ""
        if isinstance(default, bool):
            return "on" if default else "off"
        if isinstance(default, _LISTS):
            return ", ".join(map(str, default))
        return str(default.value if isinstance(default, Enum) else default)

    def from_text(self, text: str) -> Any:
        """Return the value of a flag or a variable, which pydantic checks. Raises ValueError."""
        if self.kind == "json":
            return _from_json(text)
        if self.kind != "list":
            return self._item_from(text)
        if text.lstrip().startswith("["):
            return _from_json(text)
        return [self._item_from(item.strip()) for item in text.split(",")]

    def from_texts(self, texts: list[str]) -> list[Any]:
        """Return the value of a list whose items were given one by one. Raises ValueError."""
        return [self._item_from(text) for text in texts]

    def _item_from(self, text: str) -> Any:
        if _is_structure(self.item):
            return _from_json(text)
        return self.choices.get(text, text)


class ToolkitFactory:
    """A function with one parameter, which is annotated with a pydantic model, its config."""

    def __init__(self, function: Callable[[Any], Toolkit], config: type[BaseModel]) -> None:
        self.function: Callable[[Any], Toolkit] = function
        self.config: type[BaseModel] = config
        self.fields: list[ConfigField] = [
            ConfigField.of(*entry) for entry in config.model_fields.items()
        ]
        """The fields of its config, in their order."""

    def make(self, values: Mapping[str, Any]) -> Toolkit:
        """Make a toolkit from the values of fields, by their names.

        Raises:
            ValidationError: The config is not valid; `problems` explains it.
            Exception: What the function raises.
        """
        return self.function(self.read(values))

    def read(self, values: Mapping[str, Any]) -> BaseModel:
        """Make the config from values by the names of fields. Raises ValidationError."""
        keys = {field.name: field.key for field in self.fields}
        return self.config.model_validate({keys[name]: value for name, value in values.items()})

    def problems(
        self, error: ValidationError, values: Mapping[str, Any]
    ) -> Iterator[ConfigProblem]:
        """Explain why a config of some values is refused."""
        by_key = {
            key: config_field
            for config_field in self.fields
            for key in (config_field.key, config_field.name)
        }
        for fault in error.errors(include_url=False, include_context=False, include_input=False):
            path, message = fault["loc"], cut(fault["msg"].removeprefix("Value error, "))
            field = by_key.get(str(path[0])) if path else None
            if _shows_a_secret(message, self.fields, values):
                message = "is not valid"
            yield ConfigProblem(field, path, message)


def _shows_a_secret(message: str, fields: list[ConfigField], values: Mapping[str, Any]) -> bool:
    secrets = (values.get(field.name) for field in fields if field.is_secret)
    items = (
        item for secret in secrets for item in (secret if isinstance(secret, list) else [secret])
    )
    return any(text in message for text in map(unmasked, items) if text)


def unmasked(value: object) -> str:
    """Return a value as text, for a comparison; also one of pydantic's secret types."""
    if isinstance(value, SecretStr | SecretBytes):
        value = value.get_secret_value()
    return "" if value is None else str(value)


def read_factory(found: object) -> ToolkitFactory | None:
    """Return the factory that a function is; None if it is none.

    A factory has one parameter, and its annotation is a pydantic model.
    """
    if not inspect.isroutine(found):
        return None
    try:
        parameters = list(inspect.signature(found).parameters.values())
        hints = typing.get_type_hints(found)
    except Exception:  # it has no signature, or its annotations are not importable
        return None
    if len(parameters) != 1:
        return None
    only = parameters[0]
    config = hints.get(only.name)
    is_variadic = only.kind in (only.VAR_POSITIONAL, only.VAR_KEYWORD)
    if is_variadic or not (inspect.isclass(config) and issubclass(config, BaseModel)):
        return None
    if only.kind is only.KEYWORD_ONLY:
        return ToolkitFactory(lambda value: found(**{only.name: value}), config)
    return ToolkitFactory(found, config)


def _without_none(annotation: Any) -> Any:
    """Return a type without `Annotated` and without None."""
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
        if len(kinds) == 1:
            return _without_none(kinds[0])
    return annotation


def _has_mark(metadata: Iterable[Any]) -> bool:
    return any(mark is OperatorOnly or isinstance(mark, OperatorOnly) for mark in metadata)


def _is_marked_within(kind: Any, seen: set[Any]) -> bool:
    """Return whether `OperatorOnly` marks a part of a type."""
    if typing.get_origin(kind) is typing.Annotated and _has_mark(kind.__metadata__):
        return True
    parts = list(typing.get_args(kind))
    if inspect.isclass(kind) and kind not in seen:
        seen.add(kind)
        if issubclass(kind, BaseModel):
            fields = kind.model_fields.values()
            parts += [field.annotation for field in fields]
            if any(_has_mark(field.metadata) for field in fields):
                return True
        elif not _RECORD_MARKS.isdisjoint(vars(kind)):
            parts += typing.get_type_hints(kind, include_extras=True).values()
    return any(_is_marked_within(part, seen) for part in parts)


def _is_structure(kind: Any) -> bool:
    origin = typing.get_origin(kind) or kind
    return inspect.isclass(origin) and issubclass(
        origin, BaseModel | Mapping | list | tuple | set | frozenset
    )


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"must be JSON: {error.args[0]}") from None
