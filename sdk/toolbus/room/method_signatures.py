"""What `help` and `inspect.signature` show of a proxy's methods, from the manifest of each tool.

Manifests come from other participants: a schema may be any JSON, wide and deep, and a name that is
no identifier cannot be a parameter. What has no form here is `Any`, or part of `**arguments`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from inspect import Parameter, Signature
from keyword import iskeyword
from operator import or_
from types import MappingProxyType
from typing import Any

from toolbus.untrusted_text import one_line, printable
from toolbus.wire import ToolManifest

__all__ = ["documentation_of", "signature_of"]

_MAX_PARAMETERS = 256
_MAX_DEPTH = 4
_MAX_BRANCHES = 16
_MAX_DEFAULT_CHARS = 200
_MAX_LINE_CHARS = 300
_MAX_DOC_CHARS = 8_000
_TYPES: Mapping[str, Any] = MappingProxyType(
    {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}
)


def signature_of(tool: ToolManifest, stream: Any) -> Signature:
    """Return the signature of the method that calls a tool.

    Each argument is a keyword. One that may be left out has its default, or `...` where the schema
    says none.

    Args:
        tool: The tool.
        stream: What the method of a streaming tool returns.
    """
    schema = tool.input_schema
    properties = _properties(schema)
    required = schema.get("required")
    names = [name for name in properties if name.isidentifier() and not iskeyword(name)]
    parameters = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=(
                Parameter.empty
                if isinstance(required, list) and name in required
                else _default(properties[name])
            ),
            annotation=_annotation(properties[name]),
        )
        for name in names[:_MAX_PARAMETERS]
    ]
    is_open = schema.get("additionalProperties") is not False or "patternProperties" in schema
    if is_open or len(parameters) < len(properties):
        more = "arguments"
        while more in names:
            more += "_"
        parameters.append(Parameter(more, Parameter.VAR_KEYWORD, annotation=Any))
    if tool.streaming:
        result = stream
    else:
        result = Any if tool.output_schema is None else _annotation(tool.output_schema)
    return Signature(parameters, return_annotation=result)


def documentation_of(tool: ToolManifest) -> str:
    """Return the description of a tool and of its parameters, escaped and bounded."""
    described = [
        f"    {one_line(name, _MAX_LINE_CHARS)}: {one_line(schema['description'], _MAX_LINE_CHARS)}"
        for name, schema in [*_properties(tool.input_schema).items()][:_MAX_PARAMETERS]
        if isinstance(schema, dict) and isinstance(schema.get("description"), str)
    ]
    lines = [tool.description, *(["", "Args:", *described] if described else [])]
    return printable("\n".join(lines).strip(), _MAX_DOC_CHARS)


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _default(schema: Any) -> Any:
    if isinstance(schema, dict) and "default" in schema:
        value = schema["default"]
        if len(repr(value)) <= _MAX_DEFAULT_CHARS:
            return value
    return ...


def _annotation(schema: Any, depth: int = 0) -> Any:
    """Return the type of the values that a schema describes; `Any` if it has no plain one."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return Any
    for keyword in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(keyword), list) and "type" not in schema:
            return _union(_annotation(branch, depth + 1) for branch in branches[:_MAX_BRANCHES])
    kind = schema.get("type")
    if isinstance(kind, list):
        # Each name once: an array of an array of 16 equal names would be read thousands of times.
        names = dict.fromkeys(name for name in kind[:_MAX_BRANCHES] if isinstance(name, str))
        return _union(_annotation({**schema, "type": name}, depth + 1) for name in names)
    if kind == "array":
        item = _annotation(schema.get("items"), depth + 1)
        return list[item]  # type: ignore[valid-type]
    if kind == "object":
        value = _annotation(schema.get("additionalProperties"), depth + 1)
        return dict[str, value]  # type: ignore[valid-type]
    return _TYPES.get(kind, Any) if isinstance(kind, str) else Any


def _union(types: Iterable[Any]) -> Any:
    found = list(types)
    # `None | None` is no type, and `Any | int` says no more than Any.
    if not found or Any in found or found == [None]:
        return found[0] if found == [None] else Any
    return reduce(or_, [type(None) if kind is None else kind for kind in dict.fromkeys(found)])
