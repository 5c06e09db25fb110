"""Writes the stub module of a toolkit: a class with one typed method for each tool.

The class is a `TypedToolkitProxy`, so that `words: Words = await room.toolkit("words")` is typed.
Equal definitions of one owner give equal text.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from toolbus.cli.stubs.annotations import Annotations, Names, sorted_fields
from toolbus.cli.stubs.source_text import camel_case, comment, docstring, is_name, literal
from toolbus.room.toolkit_proxy import ToolkitInfo, ToolkitProxy
from toolbus.wire import ToolkitManifest, ToolManifest

__all__ = ["stub_module"]

_MAX_LINE = 100
_MAX_DEFAULT_CHARS = 80
_PROXY_NAMES = frozenset(dir(ToolkitProxy))
_TAKES = {"attachment": "an attachment", "input": "an input"}


def stub_module(info: ToolkitInfo, manifest: ToolkitManifest) -> str:
    """Return the source of a `.pyi` file for the toolkit of a proxy."""
    tools = sorted(manifest.tools, key=lambda tool: tool.name)
    methods = [tool for tool in tools if not _unusable(tool.name)]
    names = Names({tool.name for tool in methods})
    class_name = names.add_class(camel_case(info.name))
    variable = info.name.replace("-", "_")
    lines = [f"class {class_name}({names.use('TypedToolkitProxy')}):"]
    lines += docstring(manifest.description, "    ") or ([] if methods else ["    ..."])
    for tool in tools:
        if reason := _unusable(tool.name):
            call = f'await {variable}.call("{tool.name}", {{...}})'
            lines += [f"    # {tool.name} {reason}: {call}"]
    for tool in methods:
        lines += [*([""] if len(lines) > 1 else []), *_method(tool, class_name, names)]
    for typed_dict in names.typed_dicts:
        lines += ["", *typed_dict.lines(names)]
    head = _header(info, class_name, variable)
    imports = names.import_lines("\n".join(lines))
    return "\n".join([*head, "", *imports, "", *lines, ""])


def _header(info: ToolkitInfo, class_name: str, variable: str) -> list[str]:
    owner = f"{info.full_owner} (issuer {info.issuer})"
    command = f"toolbus stubs {info.name}"
    if not info.public:
        command += f" --participant {shlex.quote(info.full_owner)}"
    owned = "" if info.public else f", participant={literal(info.full_owner)}"
    kind = "public" if info.public else "private"
    texts = [
        f"The tools of the {kind} toolkit {info.name} for type checkers, written by `{command}`.",
        f"Owner: {owner}",
        f"Version: {info.version or '-'}",
        f"Digest: {info.digest}",
        "",
        f'{variable}: {class_name} = await room.toolkit("{info.name}"{owned})',
    ]
    return [f"# {comment(text)}".rstrip() for text in texts]


def _unusable(tool: str) -> str:
    """Return why a tool is not a method of the class; empty if it is one."""
    if not is_name(tool):
        return "is not a name of Python"
    if tool in _PROXY_NAMES:
        return "is a name of every proxy"
    return "is a private name of Python" if tool.startswith("_") else ""


def _method(tool: ToolManifest, class_name: str, names: Names) -> list[str]:
    prefix = f"{class_name} {tool.name}"
    parameters = list(_parameters(tool.input_schema, Annotations(tool.input_schema, names, prefix)))
    if tool.streaming:
        start, returns = "def", names.use("ChunkStream")
    else:
        start, returns = "async def", names.use("Any")
        if tool.output_schema is not None:
            annotations = Annotations(tool.output_schema, names, prefix)
            returns = annotations.of(tool.output_schema, "result")
    description = docstring(_description(tool), "        ")
    end = ":" if description else ": ..."
    line = f"    {start} {tool.name}({', '.join(['self', *parameters])}) -> {returns}{end}"
    if len(line) <= _MAX_LINE:
        return [line, *description]
    inner = [f"        {parameter}," for parameter in ("self", *parameters)]
    return [f"    {start} {tool.name}(", *inner, f"    ) -> {returns}{end}", *description]


def _parameters(schema: dict[str, Any], annotations: Annotations) -> Iterator[str]:
    """Yield the parameters after `self`: keywords, or one mapping if a name is not possible."""
    fields = sorted_fields(schema)
    if not all(is_name(name) and name != "self" for name, _, _ in fields):
        default = "" if any(is_required for _, _, is_required in fields) else " = ..."
        yield f"arguments: {annotations.typed_dict(schema, 'arguments')}{default}"
        yield "/"
        return
    if fields:
        yield "*"
    for name, field, is_required in fields:
        text = annotations.of(field, name)
        yield f"{name}: {text}" if is_required else f"{name}: {text} = {_default(field, text)}"
    others = schema.get("additionalProperties")
    if others is True or isinstance(others, dict) or (not fields and _is_open(schema)):
        rest = "others"
        while rest in {name for name, _, _ in fields}:
            rest += "_"
        yield f"**{rest}: {annotations.of(others, rest)}"


def _is_open(schema: Mapping[str, Any]) -> bool:
    """Whether a schema without fields of its own takes fields in another way, as by `$ref`."""
    return not {"$ref", "allOf", "anyOf", "oneOf", "patternProperties"}.isdisjoint(schema)


def _default(schema: Any, annotation: str) -> str:
    """Return a parameter's default if its type is plain, else `...`."""
    if not isinstance(schema, dict) or "default" not in schema or "[" in annotation:
        return "..."
    value = schema["default"]
    kind = "None" if value is None else type(value).__name__
    text = literal(value)
    is_shown = text and len(text) <= _MAX_DEFAULT_CHARS and kind in annotation.split(" | ")
    return text if is_shown and text else "..."


def _description(tool: ToolManifest) -> str:
    """Return description, parameters, and what a call sends in addition."""
    parts = [tool.description.strip()] if tool.description.strip() else []
    if tool.takes in _TAKES:
        verb = "Requires" if tool.takes_required else "Accepts"
        parts.append(f"{verb} {_TAKES[tool.takes]}, by `with_options({tool.takes}=...)`.")
    described = [
        f"    {name}: {' '.join(text.split())}"
        for name, field, _ in sorted_fields(tool.input_schema)
        if isinstance(field, dict) and isinstance(text := field.get("description"), str) and text
    ]
    return "\n\n".join([*parts, *(["\n".join(["Args:", *described])] if described else [])])
