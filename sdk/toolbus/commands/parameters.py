"""What a tool takes, read from its JSON Schema for reading `k=v` by it.

It looks at the top of a schema: names and types. Whether a value fits is the host's business.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from types import MappingProxyType
from typing import Any, NoReturn

from toolbus.commands.schema_words import SchemaReader, values_of

__all__ = ["Parameter", "read_any_text", "read_json", "read_parameters"]

_INTEGER = re.compile(r"-?\d+")
_OF_STRINGS = re.compile(r"array of (?:(?:at \w+ )?\d\S* )?\(?string\b")
_MAX_PARAMETERS = 1_000
_MAX_EXAMPLE_CHARS = 24


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a tool."""

    name: str
    types: frozenset[str]
    """The JSON types that its schema lets through; empty where it does not say."""
    words: str
    """Its type, for people."""
    examples: tuple[Any, ...] = ()
    """Values that its schema tells of."""

    def read(self, text: str) -> Any:
        """Read what was typed as `name=text`, by the types that the schema lets through.

        Text stays text where only text will do. Where several types will do, it is the first of
        integer, number, boolean, array or object that it can be read as; else text, if that will
        do, and `null` only where text will not.

        Raises:
            ValueError: It can be read as none of them; the text says what can be.
        """
        if not self.types:
            return read_any_text(text)
        for kind, read in _READERS.items():
            if kind in self.types:
                try:
                    return read(text)
                except ValueError:
                    continue
        raise ValueError(f"{self.name}: {text[:64]!r} is not {self.words}{self._advice()}")

    def _advice(self) -> str:
        """Say what may be written, with an example."""
        kinds = [kind for kind in _WRITTEN if kind in self.types]
        if "number" in kinds:
            kinds = [kind for kind in kinds if kind != "integer"]
        if not kinds:
            return ""
        told = [_WRITTEN[kind][0] for kind in kinds]
        return f": write {' or '.join(told)}, as in {self.name}={self._example(kinds[0])}"

    def _example(self, kind: str) -> str:
        """Write a value as it would be typed: one that the schema tells of, or any."""
        for value in self.examples:
            text = json.dumps(value)
            if len(text) <= _MAX_EXAMPLE_CHARS and _is_read_as(kind, text):
                return text
        usual = '["a", "b"]' if _OF_STRINGS.match(self.words) else _WRITTEN[kind][1]
        return shlex.quote(usual)


def _read_integer(text: str) -> int:
    if _INTEGER.fullmatch(text) is None:
        raise ValueError("no integer")
    return int(text)


def _read_json(*kinds: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = read_json(text)
        if type(value) not in kinds:
            raise ValueError("another type")
        return value

    return read


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# In the order in which they are tried.
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
# What people write for a type, and an example.
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


def _is_read_as(kind: str, text: str) -> bool:
    """Whether a number would be read as that kind; no other kind needs an example of its own."""
    try:
        return kind in {"integer", "number"} and _READERS[kind](text) is not None
    except ValueError:
        return False


def read_json(text: str) -> Any:
    """Read JSON, and nothing that only Python takes for it. Raises ValueError, RecursionError."""
    return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{text[:64]} is more than a number can be")
    return value


def read_any_text(text: str) -> Any:
    """Read JSON if it is JSON, else keep the text."""
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        return text


def read_parameters(schema: Mapping[str, Any]) -> dict[str, Parameter]:
    """Read the parameters of a tool's input schema, in its order."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    reader = SchemaReader(schema)
    return {
        name: _parameter(name, each if isinstance(each, dict) else {}, reader)
        for name, each in islice(properties.items(), _MAX_PARAMETERS)
    }


def _parameter(name: str, schema: Mapping[str, Any], reader: SchemaReader) -> Parameter:
    bounds = (schema.get(name) for name in ("default", "minimum", "maximum"))
    told = [*(values_of(schema) or [])[:1], *bounds]
    examples = tuple(each for each in told if type(each) in {int, float})
    return Parameter(name, reader.types(schema), reader.words(schema), examples)
