"""Writes the stub module of a toolkit: a class with one typed method for each tool.

The class is a `TypedToolkitProxy`, so that `words: Words = await room.toolkit("words")` is typed.
Equal definitions of one owner give equal text. Objects with fields become TypedDicts.

Manifests are untrusted: their schemas may refer to themselves, and be deep or wide without limit.
What exceeds a limit, and what has no equivalent in Python's types, is `Any`. No text can end the
literal, docstring or comment that it is in: quotes, backslashes and all characters that are not
printable are escaped.
"""

from __future__ import annotations

import ast
import keyword
import re
import shlex
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from toolbus.room.toolkit_proxy import ToolkitInfo, ToolkitProxy
from toolbus.schemas.python_types import PythonTypes, sorted_fields
from toolbus.untrusted_text import one_line
from toolbus.wire import ToolkitManifest, ToolManifest

__all__ = ["Names", "stub_module"]

# Others write the schemas and their texts, and an editor and a type checker read the stub.
_MAX_CHARS = 1_000  # of one annotation
_MAX_TEXT_CHARS = 4_000
_MAX_NAME_CHARS = 64
_MAX_LINE = 100
_MAX_DEFAULT_CHARS = 80
_PROXY_NAMES = frozenset(dir(ToolkitProxy))
_FURTHER_FIELDS = frozenset({"$ref", "allOf", "anyOf", "oneOf", "patternProperties"})
"""By these an object without fields of its own may have some."""
_TAKES = {"attachment": "an attachment", "input": "an input"}
_SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}
_SOURCES = {
    "Any": "typing",
    "ChunkStream": "toolbus",
    "Literal": "typing",
    "NotRequired": "typing",
    "TypedToolkitProxy": "toolbus",
    "TypedDict": "typing",
    **dict.fromkeys(("bool", "dict", "float", "int", "list", "str"), "builtins"),
}
"""Where the names that annotations use come from."""


def stub_module(info: ToolkitInfo, manifest: ToolkitManifest) -> str:
    """Return the source of a `.pyi` file for the toolkit of a proxy."""
    tools = sorted(manifest.tools, key=lambda tool: tool.name)
    methods = [tool for tool in tools if not _unusable(tool.name)]
    names = Names({tool.name for tool in methods})
    class_name = names.add_class(_camel_case(info.name))
    variable = info.name.replace("-", "_")
    lines = [f"class {class_name}({names.use('TypedToolkitProxy')}):"]
    lines += _docstring(manifest.description, "    ")
    if len(lines) == 1 and not methods:
        lines.append("    ...")
    for tool in tools:
        if reason := _unusable(tool.name):
            call = f'await {variable}.call("{tool.name}", {{...}})'
            lines += [f"    # {tool.name} {reason}: {call}"]
    for tool in methods:
        if len(lines) > 1:
            lines.append("")
        lines += _method(tool, class_name, names)
    for typed_dict in names.typed_dicts:
        lines += ["", *typed_dict.lines(names)]
    head = _header(info, class_name, variable)
    imports = names.import_lines("\n".join(lines))
    return "\n".join([*head, "", *imports, "", *lines, ""])


def _header(info: ToolkitInfo, class_name: str, variable: str) -> list[str]:
    owner = f"{info.full_owner} (issuer {info.issuer})"
    kind = "public"
    command = f"toolbus stubs {info.name}"
    wanted = f'"{info.name}"'
    if not info.public:
        kind = "private"
        command += f" --participant {shlex.quote(info.full_owner)}"
        wanted += f", participant={_literal(info.full_owner)}"
    texts = [
        f"The tools of the {kind} toolkit {info.name} for type checkers, written by `{command}`.",
        f"Owner: {owner}",
        f"Version: {info.version or '-'}",
        f"Digest: {info.digest}",
        "",
        f"{variable}: {class_name} = await room.toolkit({wanted})",
    ]
    return [f"# {one_line(text)}".rstrip() for text in texts]


def _unusable(tool: str) -> str:
    """Return why a tool is not a method of the class; empty if it is one."""
    if not _is_name(tool):
        return "is not a name of Python"
    if tool in _PROXY_NAMES:
        return "is a name of every proxy"
    if tool.startswith("_"):
        return "is a private name of Python"
    return ""


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
    description = _docstring(_description(tool), "        ")
    end = ":" if description else ": ..."
    line = f"    {start} {tool.name}({', '.join(['self', *parameters])}) -> {returns}{end}"
    if len(line) <= _MAX_LINE:
        return [line, *description]
    inner = [f"        {parameter}," for parameter in ("self", *parameters)]
    return [f"    {start} {tool.name}(", *inner, f"    ) -> {returns}{end}", *description]


def _parameters(schema: dict[str, Any], annotations: Annotations) -> Iterator[str]:
    """Yield the parameters after `self`: keywords, or one mapping if a name is not possible."""
    fields = sorted_fields(schema)
    if not all(_is_name(name) and name != "self" for name, _, _ in fields):
        default = "" if any(is_required for _, _, is_required in fields) else " = ..."
        yield f"arguments: {annotations.typed_dict(schema, 'arguments')}{default}"
        yield "/"
        return
    if fields:
        yield "*"
    for name, part, is_required in fields:
        annotation = annotations.of(part, name)
        text = f"{name}: {annotation}"
        if not is_required:
            text += f" = {_default(part, annotation)}"
        yield text
    others = schema.get("additionalProperties")
    is_open = not fields and not _FURTHER_FIELDS.isdisjoint(schema)
    if others is True or isinstance(others, dict) or is_open:
        rest = "others"
        while rest in {name for name, _, _ in fields}:
            rest += "_"
        yield f"**{rest}: {annotations.of(others, rest)}"


def _default(schema: Any, annotation: str) -> str:
    """Return a parameter's default if its type is plain, else `...`."""
    if not isinstance(schema, dict) or "default" not in schema or "[" in annotation:
        return "..."
    value = schema["default"]
    kind = "None" if value is None else type(value).__name__
    text = _literal(value) or ""
    if 0 < len(text) <= _MAX_DEFAULT_CHARS and kind in annotation.split(" | "):
        return text
    return "..."


def _description(tool: ToolManifest) -> str:
    """Return description, parameters, and what a call sends in addition."""
    parts = [tool.description.strip()]
    if tool.takes in _TAKES:
        verb = "Requires" if tool.takes_required else "Accepts"
        parts.append(f"{verb} {_TAKES[tool.takes]}, by `with_options({tool.takes}=...)`.")
    described = [
        f"    {name}: {' '.join(text.split())}"
        for name, part, _ in sorted_fields(tool.input_schema)
        if isinstance(part, dict) and isinstance(text := part.get("description"), str) and text
    ]
    if described:
        parts.append("\n".join(["Args:", *described]))
    return "\n\n".join(filter(None, parts))


# Annotations


@dataclass(slots=True)
class TypedDictClass:
    """A TypedDict; a field is its name and its annotation."""

    name: str
    description: str
    fields: list[tuple[str, str]] = field(default_factory=list)

    def lines(self, names: Names) -> list[str]:
        """Return its source: a class, or a call if a field's name is not possible in a class."""
        base = names.use("TypedDict")
        if all(_is_name(key) and not names.is_type(key) for key, _ in self.fields):
            fields = [f"    {key}: {text}" for key, text in self.fields]
            return [f"class {self.name}({base}):", *_docstring(self.description, "    "), *fields]
        fields = [f"        {_literal(key)}: {text}," for key, text in self.fields]
        return [f"{self.name} = {base}(", f'    "{self.name}",', "    {", *fields, "    },", ")"]


class Names:
    """The names of one stub module: imports, classes, and TypedDicts in the order of first use.

    Args:
        methods: The names of the methods of its class. In there they hide types of these names, so
            such types are imported under another name.
    """

    def __init__(self, methods: Collection[str]) -> None:
        self._methods = frozenset(methods)
        self._classes: set[str] = set()
        self._last_numbers: dict[str, int] = {}
        """The number behind the last name that was made of a text; 1 for none."""
        self.typed_dicts: list[TypedDictClass] = []

    def use(self, name: str) -> str:
        """Return how annotations write an imported or built-in type."""
        return f"_{name}" if name in self._methods else name

    def add_class(self, wanted: str) -> str:
        """Return a free name for a class, and take it."""
        base = _camel_case(wanted)
        number = self._last_numbers.get(base, 1)
        name = base if number == 1 else f"{base}{number}"
        while name in self._methods or self.is_type(name) or keyword.iskeyword(name):
            number += 1
            name = f"{base}{number}"
        self._classes.add(name)
        self._last_numbers[base] = number
        return name

    def is_type(self, name: str) -> bool:
        """Whether annotations may use this name."""
        return name.removeprefix("_") in _SOURCES or name in self._classes

    def import_lines(self, source: str) -> list[str]:
        """Return the import statements that source with these names needs."""
        used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
        by_module: dict[str, list[str]] = {}
        for name, module in sorted(_SOURCES.items()):
            written = self.use(name)
            if written in used and (module != "builtins" or written != name):
                alias = name if written == name else f"{name} as {written}"
                by_module.setdefault(module, []).append(alias)
        lines = [
            f"from {module} import {', '.join(by_module[module])}" for module in sorted(by_module)
        ]
        own = [line for line in lines if line.startswith("from toolbus ")]
        others = [line for line in lines if line not in own]
        if own and others:
            others.append("")
        return [*others, *own]


class Annotations(PythonTypes[str]):
    """Makes the annotations of one schema and of its parts.

    Args:
        root: The whole schema; references are relative to it.
        names: The names of the module.
        prefix: The beginning of the names of its TypedDicts.
    """

    def __init__(self, root: Mapping[str, Any], names: Names, prefix: str) -> None:
        super().__init__(root)
        self._names = names
        self._prefix = prefix
        self._made: dict[str, TypedDictClass] = {}

    def of(self, schema: Any, hint: str = "", depth: int = 0) -> str:
        text = super().of(schema, hint, depth)
        return text if len(text) <= _MAX_CHARS else self.any

    @property
    def any(self) -> str:
        return self._names.use("Any")

    def scalar(self, kind: str) -> str:
        if kind == "null":
            return "None"
        return self._names.use(_SCALARS.get(kind, "Any"))

    def literal(self, values: list[str | int]) -> str:
        shown = dict.fromkeys(_literal(value) or "" for value in values)
        return f"{self._names.use('Literal')}[{', '.join(shown)}]"

    def list_of(self, item: str) -> str:
        return f"{self._names.use('list')}[{item}]"

    def dict_of(self, value: str) -> str:
        return f"{self._names.use('dict')}[{self._names.use('str')}, {value}]"

    def union(self, parts: list[str]) -> str:
        return " | ".join(sorted(parts, key=lambda part: part == "None"))

    def begin_dict(self, hint: str, description: str) -> str:
        name = self._names.add_class(f"{self._prefix} {hint}")
        self._made[name] = TypedDictClass(name, description)
        self._names.typed_dicts.append(self._made[name])
        return name

    def end_dict(self, begun: str, hint: str, fields: list[tuple[str, str, bool]]) -> str:
        for key, text, is_required in fields:
            form = text if is_required else f"{self._names.use('NotRequired')}[{text}]"
            self._made[begun].fields.append((key, form))
        return begun


# Source


def _literal(value: object) -> str | None:
    """Return a text, number, boolean or None as source; None for any other value."""
    if isinstance(value, str):
        text = repr(value)
        if text[0] == "'" and '"' not in text:
            return f'"{text[1:-1]}"'
        return text
    if value is None or isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
        return repr(value)
    return None


def _docstring(text: str, indent: str) -> list[str]:
    """Return the lines of a docstring; none for empty text. Long text is cut."""
    text = text.strip()
    if len(text) > _MAX_TEXT_CHARS:
        text = f"{text[:_MAX_TEXT_CHARS].rstrip()} ..."
    text = re.sub(r'"(?="|\Z)', r"\"", text.replace("\\", "\\\\"))
    lines = [one_line(line).rstrip() for line in text.split("\n")]
    if not text:
        return []
    if len(lines) > 1:
        inner = [f"{indent}{line}".rstrip() for line in lines[1:]]
        return [f'{indent}"""{lines[0]}', *inner, f'{indent}"""']
    return [f'{indent}"""{lines[0]}"""']


def _is_name(text: str) -> bool:
    """Whether text can be a parameter or a field: an identifier that Python leaves unchanged."""
    return (
        text.isidentifier()
        and len(text) <= _MAX_NAME_CHARS
        and not keyword.iskeyword(text)
        and not text.startswith("__")  # a class changes such names
        and unicodedata.normalize("NFKC", text) == text
    )


def _camel_case(text: str) -> str:
    """Return text as the name of a class: ASCII letters and digits, at most 64."""
    words = re.findall(r"[A-Za-z0-9]+", text)
    name = "".join(f"{word[0].upper()}{word[1:]}" for word in words)[:_MAX_NAME_CHARS]
    if name[:1].isalpha():
        return name
    return f"T{name}"
