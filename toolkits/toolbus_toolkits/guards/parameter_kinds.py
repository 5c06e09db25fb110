"""What a text in the arguments of a call is: a path, an address, a command, or free text. Pure.

The kind decides which rules are asked, so that Markdown with backticks and "version 10.2" pass as
the free text that they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

__all__ = ["GuardedText", "ParameterKind", "check_kinds", "texts_of"]

ParameterKind: TypeAlias = Literal["path", "address", "command", "text"]

_FORMATS: Mapping[str, ParameterKind] = {
    "uri": "address",
    "url": "address",
    "uri-reference": "address",
    "path": "path",
    "file-path": "path",
    "directory-path": "path",
    "command": "command",
}
"""Formats of JSON Schema; pydantic writes some of them."""
_NAMES: Mapping[ParameterKind, frozenset[str]] = {
    "path": frozenset(
        {"path", "paths", "file", "files", "filename", "filepath", "folder", "directory", "dir"}
        | {"cwd", "source", "destination", "src", "dst", "root"}
    ),
    "address": frozenset({"url", "urls", "uri", "uris", "address", "endpoint", "host", "link"}),
    "command": frozenset({"command", "commands", "cmd", "shell", "script", "argv"}),
}
"""The last word of a parameter's name, in lower case."""
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+")
_MAX_DEPTH = 32


class GuardedText(NamedTuple):
    """One text in the arguments of a call."""

    path: str
    """Its JSON pointer."""
    kind: ParameterKind
    text: str


def check_kinds(kinds: Iterable[str]) -> None:
    """Raise `ValueError` for a kind that there is not."""
    known = get_args(ParameterKind)
    for kind in kinds:
        if kind not in known:
            raise ValueError(f"{kind!r} is no kind of a parameter: write {', '.join(known)}")


def texts_of(
    arguments: Mapping[str, Any],
    schema: Mapping[str, Any],
    kinds: Mapping[str, ParameterKind],
) -> Iterator[GuardedText]:
    """Yield each text of a call's arguments, with what it is.

    Args:
        arguments: The arguments.
        schema: The schema of the tool's arguments: a property's `format` says its kind.
        kinds: The kinds that are known, by the names of parameters; they win. Without either, the
            last word of a name decides: `source_path` is a path.
    """
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    for name, value in arguments.items():
        described = properties.get(name)
        kind = kinds.get(name) or _kind_of(name, described)
        yield from _texts(value, f"/{_escaped(name)}", kind, kinds, 0)


def _texts(
    value: Any, path: str, kind: ParameterKind, kinds: Mapping[str, ParameterKind], depth: int
) -> Iterator[GuardedText]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, str):
        yield GuardedText(path, kind, value)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}/{index}", kind, kinds, depth + 1)
    elif isinstance(value, Mapping):
        for name, member in value.items():
            inner = kinds.get(str(name)) or _kind_of(str(name), None)
            inner = kind if inner == "text" else inner
            yield from _texts(member, f"{path}/{_escaped(str(name))}", inner, kinds, depth + 1)


def _kind_of(name: str, described: object) -> ParameterKind:
    if isinstance(described, Mapping):
        items = described.get("items")
        for schema in (described, items if isinstance(items, Mapping) else {}):
            kind = _FORMATS.get(str(schema.get("format", "")))
            if kind is not None:
                return kind
    words = _WORD.findall(name)
    last = words[-1].lower() if words else ""
    return next((kind for kind, names in _NAMES.items() if last in names), "text")


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
