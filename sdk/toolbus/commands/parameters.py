"""What a tool takes, read from its JSON Schema: for showing it, and for reading `k=v` by it.

It looks at the top of a schema: names, types, defaults and words. Whether a value fits is the
host's business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

__all__ = ["Parameter", "read_any_text", "read_parameters", "type_words"]

_MAX_DEPTH = 8
_INTEGER = re.compile(r"-?\d+")
_JSON_TYPES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a tool."""

    name: str
    types: frozenset[str]
    """The JSON types that its schema lets through; empty where it does not say."""
    words: str
    """Its type, for people."""
    description: str
    required: bool
    default: Any = None
    """Its default; None also where there is none."""
    has_default: bool = False

    def read(self, text: str) -> Any:
        """Read what was typed as `name=text`, by the types that the schema lets through.

        Text stays text where only text will do. Where several types will do, it is the first of
        integer, number, boolean, array or object that it can be read as; else text, if that will
        do, and `null` only where text will not.

        Raises:
            ValueError: It can be read as none of them.
        """
        if not self.types:
            return read_any_text(text)
        for kind, read in _READERS.items():
            if kind in self.types:
                try:
                    return read(text)
                except ValueError:
                    continue
        raise ValueError(f"{self.name}: {text[:64]!r} is not {self.words}")


def _read_integer(text: str) -> int:
    if _INTEGER.fullmatch(text) is None:
        raise ValueError("no integer")
    return int(text)


def _read_json(*kinds: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = json.loads(text, parse_constant=_refuse_constant)
        if type(value) not in kinds:
            raise ValueError("another type")
        return value

    return read


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# In the order in which they are tried.
_READERS: dict[str, Callable[[str], Any]] = {
    "integer": _read_integer,
    "number": _read_json(int, float),
    "boolean": _read_json(bool),
    "array": _read_json(list),
    "object": _read_json(dict),
    "string": str,
    "null": _read_json(type(None)),
}


def read_any_text(text: str) -> Any:
    """Read JSON if it is JSON, else keep the text."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text


def read_parameters(schema: Mapping[str, Any]) -> dict[str, Parameter]:
    """Read the parameters of a tool's input schema, in its order."""
    required = schema.get("required")
    names = set(required) if isinstance(required, list) else set()
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {
        name: _parameter(name, each, schema, name in names)
        for name, each in properties.items()
        if isinstance(each, dict | bool)
    }


def _parameter(name: str, schema: Any, root: Mapping[str, Any], required: bool) -> Parameter:
    told = schema if isinstance(schema, dict) else {}
    return Parameter(
        name=name,
        types=frozenset(_types(told, root, _MAX_DEPTH)),
        words=type_words(told, root),
        description=str(told.get("description", "")),
        required=required,
        default=told.get("default"),
        has_default="default" in told,
    )


def _alternatives(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a schema refers to, or is one of."""
    found: list[Any] = []
    if isinstance(target := schema.get("$ref"), str):
        found.append(_resolve(target, root))
    for keyword in ("anyOf", "oneOf", "allOf"):
        if isinstance(several := schema.get(keyword), list):
            found.extend(several)
    return [each for each in found if isinstance(each, dict)]


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    if not reference.startswith("#"):
        return {}
    for part in reference.removeprefix("#").strip("/").split("/"):
        if part:
            found = found.get(part.replace("~1", "/").replace("~0", "~"), {})
        if not isinstance(found, dict):
            return {}
    return found


def _types(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Iterator[str]:
    match schema.get("type"):
        case str(kind):
            yield kind
        case list(kinds):
            yield from (kind for kind in kinds if isinstance(kind, str))
        case _ if isinstance(values := _values(schema), list):
            yield from (_JSON_TYPES[type(value)] for value in values if type(value) in _JSON_TYPES)
        case _ if depth:
            for each in _alternatives(schema, root):
                yield from _types(each, root, depth - 1)


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def type_words(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = _MAX_DEPTH) -> str:
    """Say a schema's type in a few words: `integer`, `array of string`, `"a" | "b"`, `any`."""
    if (values := _values(schema)) is not None:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
    match schema.get("type"):
        case "array" if depth and isinstance(items := schema.get("items"), dict):
            return f"array of {type_words(items, root, depth - 1)}"
        case str(kind):
            return f"{kind} ({schema['format']})" if "format" in schema else kind
        case list(kinds):
            return " | ".join(str(kind) for kind in kinds)
    if not depth:
        return "any"
    told = [type_words(each, root, depth - 1) for each in _alternatives(schema, root)]
    return " | ".join(dict.fromkeys(told)) or "any"
