"""Parses what a call sends: its arguments, and the caller's context.

Arguments are `k=v` by the tool's JSON Schema, `k:=json`, or one JSON object. Only the top level of
the schema is used: names and types. The host validates the values.
"""

from __future__ import annotations

import json
import re
import shlex
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import typer

from toolbus.chunks.json_values import cut
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.schemas.text import SchemaReader, values_of
from toolbus.untrusted_text import SHOWN_CHARS, one_line

__all__ = [
    "Parameter",
    "needs_schema",
    "read_arguments",
    "read_caller_context",
    "read_file",
    "read_json",
    "read_json_option",
    "read_parameters",
    "warn_if_readable",
]

_INTEGER = re.compile(r"-?\d+")
_ARRAY_OF_STRINGS = re.compile(r"array of (?:(?:at \w+ )?\d\S* )?\(?string\b")
_MAX_PARAMETERS = 1_000
_MAX_EXAMPLE_CHARS = 24
_MAX_FILE_BYTES = 1024 * 1024
"""Of a file that a flag names: what it has goes into each request, and no model reads so much."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """What the schema of a tool says of one of its parameters."""

    name: str
    types: frozenset[str]
    """The JSON types that its schema allows; empty if the schema does not restrict them."""
    type_text: str
    """Its type, for people."""
    examples: tuple[Any, ...] = ()
    """Numbers of its schema, for messages about a wrong value."""

    def read(self, text: str) -> Any:
        """Parse the text of `name=text` as one of the allowed types.

        Of several types, the first that the text can be parsed as is used, in this order: integer,
        number, boolean, array, object, string, null. So `null` is null only where text is not
        allowed.

        Raises:
            ValueError: The text matches none of the types; the message says what is allowed.
        """
        if not self.types:
            return _read_any_text(text)
        for kind, read in _READERS.items():
            if kind in self.types:
                try:
                    return read(text)
                except ValueError:
                    continue
        raise ValueError(
            f"{cut(self.name)}: {text[:64]!r} does not match {self.type_text}{self._advice()}"
        )

    def _advice(self) -> str:
        """Return what to write instead, with an example."""
        kinds = [kind for kind in _WRITTEN if kind in self.types]
        if "number" in kinds:
            kinds = [kind for kind in kinds if kind != "integer"]
        if not kinds:
            return ""
        forms = [_WRITTEN[kind][0] for kind in kinds]
        example = f"{cut(self.name)}={self._example(kinds[0])}"
        return f": write {' or '.join(forms)}, for example {example}"

    def _example(self, kind: str) -> str:
        """Return an example as it is typed: from the schema if possible, else a generic one."""
        for value in self.examples:
            text = json.dumps(value)
            if len(text) <= _MAX_EXAMPLE_CHARS and _is_number_of(kind, text):
                return text
        of_strings = _ARRAY_OF_STRINGS.match(self.type_text)
        return shlex.quote('["a", "b"]' if of_strings else _WRITTEN[kind][1])


def _read_integer(text: str) -> int:
    if _INTEGER.fullmatch(text) is None:
        raise ValueError("not an integer")
    return int(text)


def _read_json(*kinds: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = read_json(text)
        if type(value) not in kinds:
            raise ValueError("wrong type")
        return value

    return read


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# The order is that in which types are tried.
_READERS: MappingProxyType[str, Callable[[str], Any]] = MappingProxyType(
    {
        "integer": _read_integer,
        "number": _read_json(int, float),
        "boolean": _read_json(bool),
        "array": _read_json(list),
        "object": _read_json(dict),
        "string": str,
        "null": _read_json(type(None)),
    }
)
# How users write a value of each type, and an example.
_WRITTEN = MappingProxyType(
    {
        "integer": ("a whole number", "3"),
        "number": ("a number", "0.5"),
        "boolean": ("true or false", "true"),
        "array": ("a JSON array", "[1, 2]"),
        "object": ("a JSON object", '{"key": 1}'),
        "null": ("null", "null"),
    }
)


def _is_number_of(kind: str, text: str) -> bool:
    """Whether the text is a number of this kind."""
    try:
        return kind in {"integer", "number"} and _READERS[kind](text) is not None
    except ValueError:
        return False


def read_json(text: str) -> Any:
    """Parse strict JSON, without NaN and Infinity. Raises ValueError or RecursionError."""
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{text[:64]} is too large for a number")
    return value


def _read_any_text(text: str) -> Any:
    """Parse the text as JSON; return it unchanged if it is not JSON."""
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        return text


def read_parameters(schema: Mapping[str, Any]) -> dict[str, Parameter]:
    """Return the parameters of a tool's input schema, in its order."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    reader = SchemaReader(schema)
    return {
        name: _parameter(name, field if isinstance(field, dict) else {}, reader)
        for name, field in islice(properties.items(), _MAX_PARAMETERS)
    }


def _parameter(name: str, schema: Mapping[str, Any], reader: SchemaReader) -> Parameter:
    bounds = (schema.get(name) for name in ("default", "minimum", "maximum"))
    values = [*(values_of(schema) or [])[:1], *bounds]
    examples = tuple(value for value in values if type(value) in {int, float})
    return Parameter(name, reader.types(schema), reader.type_text(schema), examples)


def needs_schema(arguments: tuple[str, ...]) -> bool:
    """Whether the type of an argument decides how its text is parsed."""
    return any(not _is_object(argument) and _split(argument)[1] == "=" for argument in arguments)


def _is_object(argument: str) -> bool:
    return argument.lstrip().startswith("{")


def _split(argument: str) -> tuple[str, str, str]:
    """Split `k=v` or `k:=json` at its first `=`. Raises UsageError."""
    name, equals, value = argument.partition("=")
    if argument in {"true", "false"}:
        raise UsageError(
            f"{argument!r} is not an argument: a switch such as --no-retry takes no value, and an "
            f"argument needs a name: NAME={argument}"
        )
    if not equals or name in {"", ":"}:
        raise UsageError(
            f"{argument[:64]!r} is not an argument: write name=value, name:=JSON or one JSON object"
        )
    return (name[:-1], ":=", value) if name.endswith(":") else (name, "=", value)


def read_arguments(typed: tuple[str, ...], parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """Parse the arguments of a call.

    Args:
        typed: `k=v`, `k:=json`, or one JSON object alone.
        parameters: The parameters of the tool, as far as they are known.

    Raises:
        UsageError: An argument cannot be parsed; the message names it.
    """
    if len(typed) == 1 and _is_object(typed[0]):
        return _read_object_argument(typed[0])
    if any(_is_object(argument) for argument in typed):
        raise UsageError("a JSON object cannot be combined with other arguments")
    arguments: dict[str, Any] = {}
    for argument in typed:
        name, sign, text = _split(argument)
        if name in arguments:
            raise UsageError(f"{cut(name)} is given twice")
        arguments[name] = (
            _read_json_argument(name, text)
            if sign == ":="
            else _read_text_argument(name, text, parameters)
        )
    return arguments


def _read_text_argument(name: str, text: str, parameters: Mapping[str, Parameter]) -> Any:
    parameter = parameters.get(name)
    if parameter is None:
        return _read_any_text(text)
    try:
        return parameter.read(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{error}; {cut(name)}:=JSON sends a JSON value unchanged") from error


def _read_json_argument(name: str, text: str) -> Any:
    try:
        return read_json(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the value of {cut(name)}:= is not JSON: {error}") from error


def _read_object_argument(text: str) -> dict[str, Any]:
    try:
        value = read_json(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the arguments are not a JSON object: {error}") from error
    assert isinstance(value, dict)
    return value


def read_caller_context(typed: str) -> dict[str, Any]:
    """Parse the caller's context: one JSON object, or @FILE with one. Raises UsageError."""
    name, value = read_json_option("--caller-context", typed)
    if not isinstance(value, dict):
        raise UsageError(f'{name} must be one JSON object, for example {{"locale": "de"}}')
    return value


def read_json_option(flag: str, typed: str) -> tuple[str, Any]:
    """Parse a flag's JSON, or that of @FILE; return how errors name it, and the value.

    Raises UsageError.
    """
    name, text = flag, typed
    if typed.startswith("@"):
        name = typed[1:]
        text = read_file(flag, name)
    label = one_line(name, SHOWN_CHARS)
    try:
        return label, read_json(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{label} is not JSON: {error}") from error


def read_file(flag: str, name: str) -> str:
    """Read the file that a flag names as @FILE, of 1 MiB at most. Raises `UsageError`."""
    label = one_line(name, SHOWN_CHARS)
    try:
        with open(name, "rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{flag}: cannot read {label}: {reason}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise UsageError(f"{flag}: {label} is larger than {_MAX_FILE_BYTES:,} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{flag}: {label} is not text in UTF-8") from error


def warn_if_readable(flag: str, path: Path) -> None:
    """Warn of the private file of a flag if other users can read it; one that we make is 0600."""
    if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        text = f"{flag}: other users can read {path}: chmod 600 {shlex.quote(str(path))}"
        typer.echo(text, err=True)
