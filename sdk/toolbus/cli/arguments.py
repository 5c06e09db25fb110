"""Parses what a call sends: its arguments, the caller's context, and the values of `--input`.

Arguments are `k=v` by the tool's JSON Schema, `k:=json`, or one JSON object. A name may lead to a
part of an argument: `order.item=pen`, `lines[0].count=2`. The schema gives names and types; the
host validates the values.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, NoReturn, TypeAlias

import typer

from toolbus.chunks.json_values import cut
from toolbus.cli.suggestions import listed, nearest
from toolbus.diagnostics.exit_codes import UsageError, with_step
from toolbus.errors import InvalidArguments
from toolbus.schemas.text import SchemaReader, values_of
from toolbus.untrusted_text import one_line
from toolbus.wire.codec import MAX_DEPTH

__all__ = [
    "Arguments",
    "json_lines",
    "needs_schema",
    "read_arguments",
    "read_caller_context",
    "read_file",
    "read_json",
    "read_json_option",
]

_ARRAY_OF_STRINGS = re.compile(r"array of (?:(?:at \w+ )?\d\S* )?\(?string\b")
Arguments: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        help="name=value by the tool's schema, name:=JSON, or one JSON object."
        " A part of an argument: order.item=pen, 'lines[0].count=2', 'tags[]=new'."
    ),
]
"""The arguments of a call, as commands take them."""
_MAX_BYTES = 1024 * 1024
"""Of a file that a flag names, and of a line of `--input`: each is in memory, and sent whole."""
_KEY = re.compile(r"[^.\[]+")
_INDEX = re.compile(r"\[(\d{0,9})\](?=[.\[]|\Z)")


def _shown(name: str) -> str:
    """Return a name for a message, of which it cannot begin another line."""
    return one_line(cut(name))


@dataclass(frozen=True, slots=True)
class _Parameter:
    """What the schema of a tool says of an argument, or of a part of one."""

    name: str
    """As it is typed."""
    types: frozenset[str]
    """The JSON types that its schema allows; empty if the schema does not restrict them."""
    type_text: str
    """Its type, for people."""
    examples: tuple[Any, ...] = ()
    """Numbers of its schema, for messages about a wrong value."""
    field: str | None = None
    """The first field of an object, or of the objects in a list, for such messages."""

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
            f"{_shown(self.name)}: {text[:64]!r} does not match {self.type_text}{self._advice()}"
        )

    def _advice(self) -> str:
        """Return what to write instead, with an example."""
        name = _shown(self.name)
        if self.field is not None:
            key = _shown(self.field)
            kind = "object"
            part = f"{name}.{key}=..."
            whole = f"{{{json.dumps(key, ensure_ascii=False)}: ...}}"
            if "object" not in self.types:
                kind = "list"
                part = f"{name}[].{key}=..."
                whole = f"[{whole}]"
            quoted = shlex.quote(part)
            return f": write {quoted}, or the whole {kind}: {name}:={shlex.quote(whole)}"
        kinds = [kind for kind in _WRITTEN if kind in self.types]
        if "number" in kinds:
            kinds = [kind for kind in kinds if kind != "integer"]
        if not kinds:
            return ""
        forms = [_WRITTEN[kind][0] for kind in kinds]
        example = f"{name}={self._example(kinds[0])}"
        if kinds[0] == "array":
            example += f" or {shlex.quote(f'{name}[]=...')}"
        advice = f"{name}:=JSON sends a JSON value unchanged"
        return f": write {' or '.join(forms)}, for example {example}; {advice}"

    def _example(self, kind: str) -> str:
        """Return an example as it is typed: from the schema if possible, else a generic one."""
        for value in self.examples:
            text = json.dumps(value)
            if len(text) <= 24 and kind in {"integer", "number"}:
                with suppress(ValueError):
                    _READERS[kind](text)
                    return text
        if _ARRAY_OF_STRINGS.match(self.type_text):
            return shlex.quote('["a", "b"]')
        return shlex.quote(_WRITTEN[kind][1])


def _read_integer(text: str) -> int:
    if re.fullmatch(r"-?\d+", text) is None:
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
        "null": ("null", "null"),
    }
)


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


def needs_schema(arguments: tuple[str, ...]) -> bool:
    """Whether the type of an argument decides how its text is parsed."""
    split = (_split(argument) for argument in arguments if not _is_object(argument))
    return any(sign == "=" or not _KEY.fullmatch(name) for name, sign, _ in split)


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
    if name.endswith(":"):
        return name[:-1], ":=", value
    return name, "=", value


def read_arguments(typed: tuple[str, ...], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the arguments of a call: `k=v` and `k:=json`, or one JSON object alone.

    Args:
        typed: The arguments.
        schema: The input schema of the tool; an empty one if it is not known.

    Raises:
        UsageError: An argument cannot be parsed; the message names it.
        InvalidArguments: It does not match the schema.
    """
    if len(typed) == 1 and _is_object(typed[0]):
        try:
            value: dict[str, Any] = read_json(typed[0])
        except (ValueError, RecursionError) as error:
            raise UsageError(f"the arguments are not a JSON object: {error}") from error
        return value
    if any(_is_object(argument) for argument in typed):
        raise UsageError("a JSON object cannot be combined with other arguments")
    tree = _Branch()
    for argument in typed:
        name, sign, text = _split(argument)
        # A reader of its own: the steps of one argument leave all of theirs to the next.
        branch, key, field = _Place(name, SchemaReader(schema)).find(tree, schema)
        try:
            value = read_json(text) if sign == ":=" else field.read(text)
        except (ValueError, RecursionError) as error:
            if sign == ":=":
                raise UsageError(f"the value of {_shown(name)}:= is not JSON: {error}") from error
            raise InvalidArguments(str(error)) from error
        branch[key] = _Leaf(name, value)
    return {str(key): _value(node) for key, node in tree.items()}


# Arguments that set a part of a value: they grow a tree, which becomes objects and lists.


class _Leaf(NamedTuple):
    """A value, and the name of the argument that sets it."""

    name: str
    value: Any


class _Branch(dict[str | int, "_Branch | _Leaf"]):
    """What is set in parts: an object by its fields, or a list by the indices of its elements."""


def _first_leaf(node: _Branch | _Leaf) -> _Leaf:
    while isinstance(node, _Branch):
        node = next(iter(node.values()))
    return node


def _value(node: _Branch | _Leaf) -> Any:
    """Return the value that a tree is for. Raises UsageError for a list with a gap."""
    if isinstance(node, _Leaf):
        return node.value
    if isinstance(next(iter(node)), str):
        return {key: _value(inner) for key, inner in node.items()}
    for index in range(len(node)):
        if index not in node:
            name = _shown(_first_leaf(node).name)
            raise UsageError(f"{name} is of a list whose element [{index}] is missing")
    return [_value(node[index]) for index in range(len(node))]


class _Place:
    """Finds the place that the name of an argument leads to, in a tree and in the schema."""

    def __init__(self, name: str, reader: SchemaReader) -> None:
        self._name = name
        self._rest = name
        self._reader = reader

    def find(
        self, tree: _Branch, schema: Mapping[str, Any]
    ) -> tuple[_Branch, str | int, _Parameter]:
        """Return the branch that the value belongs to, its key there, and what the schema says.

        Raises:
            UsageError: The name is not well formed, or contradicts another one.
            InvalidArguments: The schema does not have it.
        """
        branch = tree
        for _ in range(MAX_DEPTH):
            key, schema = self._next(branch, schema)
            first = _first_leaf(branch) if branch else None
            if first and isinstance(key, str) is not isinstance(next(iter(branch)), str):
                raise self._contradicts(first, "one sets a field, the other an element of a list")
            known = branch.get(key)
            if not self._rest:
                if known is not None:
                    why = "one sets a part of the other"
                    if isinstance(known, _Leaf):
                        why = "both set the same element"
                    raise self._contradicts(_first_leaf(known), why)
                return branch, key, self._parameter(schema)
            if isinstance(known, _Leaf):
                raise self._contradicts(known, "one sets a part of the other")
            if known is None:
                known = branch[key] = _Branch()
            branch = known
        raise UsageError(f"{_shown(self._name)} has more than {MAX_DEPTH} levels")

    def _next(self, branch: _Branch, schema: Mapping[str, Any]) -> tuple[str | int, dict[str, Any]]:
        """Read one more part of the name; return its key and its schema."""
        before = self._name[: len(self._name) - len(self._rest)]
        if before and self._rest.startswith("["):
            return self._next_index(branch, schema, before)
        if before:
            self._rest = self._rest[1:]
        fields = self._reader.fields(schema)
        # A name of the schema that has dots or brackets itself counts as it is.
        known = [name for name in fields if name and self._leads_to(name)]
        plain = _KEY.match(self._rest)
        if plain is None and not known:
            raise UsageError(f"{_shown(self._name)} has an empty part: one dot separates two names")
        key = max(known, key=len) if known else plain[0]  # type: ignore[index]
        self._rest = self._rest[len(key) :]
        if known:
            return key, fields[key]
        if not before and not self._rest:
            return key, {}  # the host says what is wrong with the name
        return key, self._other(schema, [*fields], before, key)

    def _leads_to(self, name: str) -> bool:
        end = self._rest[len(name) : len(name) + 1]
        return self._rest.startswith(name) and end in {"", ".", "["}

    def _next_index(
        self, branch: _Branch, schema: Mapping[str, Any], before: str
    ) -> tuple[int, dict[str, Any]]:
        index = _INDEX.match(self._rest)
        if index is None:
            raise UsageError(
                f"{_shown(self._name)}: write an element of a list as {_shown(before)}[0], "
                f"one more as {_shown(before)}[], and a field as {_shown(before)}.name"
            )
        self._refuse_unless("array", schema, before, "elements")
        self._rest = self._rest[index.end() :]
        key = int(index[1]) if index[1] else len(branch)
        return key, self._reader.element(schema, key)

    def _other(
        self, schema: Mapping[str, Any], fields: list[str], before: str, key: str
    ) -> dict[str, Any]:
        """Return the schema of a field that is not in `properties`. Raises InvalidArguments."""
        self._refuse_unless("object", schema, before, "fields")
        others = self._reader.others(schema)
        if others is not None or not fields:
            return others or {}
        hint = f"it has {listed(fields)}"
        if near := nearest(key, fields):
            dot = f"{before}." if before else ""
            hint = f"did you mean {_shown(f'{dot}{near[0]}{self._rest}')}?"
        raise InvalidArguments(f"{_shown(before) or 'the tool'} has no field {_shown(key)}: {hint}")

    def _refuse_unless(self, kind: str, schema: Mapping[str, Any], before: str, parts: str) -> None:
        kinds = self._reader.types(schema)
        if kinds and kind not in kinds:
            text = self._reader.type_text(schema)
            if kind in self._reader.types(self._reader.element(schema, 0)):
                text += f", write {_shown(f'{before}[0]{self._name[len(before) :]}')}=..."
            raise InvalidArguments(
                f"{_shown(self._name)}: {_shown(before)} has no {parts}: it is {text}"
            )

    def _contradicts(self, other: _Leaf, why: str) -> UsageError:
        if other.name == self._name:
            return UsageError(f"{_shown(self._name)} is given twice")
        return UsageError(f"{_shown(self._name)} contradicts {_shown(other.name)}: {why}")

    def _parameter(self, schema: Mapping[str, Any]) -> _Parameter:
        bounds = (schema.get(name) for name in ("default", "minimum", "maximum"))
        parts = self._reader.applied(schema)
        first = [values[0] for values in map(values_of, parts) if values]
        values = [*first, *bounds]
        examples = tuple(value for value in values if type(value) in {int, float})
        reader = self._reader
        types = reader.types(schema)
        whole = schema if "object" in types else reader.element(schema, 0)
        field = None
        if "object" in reader.types(whole):
            field = next(iter(reader.fields(whole)), "key")
        return _Parameter(self._name, types, reader.type_text(schema), examples, field)


def read_caller_context(typed: str | None) -> dict[str, Any] | None:
    """Parse the caller's context: one JSON object, or @FILE with one. Raises UsageError."""
    if typed is None:
        return None
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
    label = _shown(name)
    try:
        return label, read_json(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{label} is not JSON: {error}") from error


def read_file(flag: str, name: str) -> str:
    """Read the file that a flag names as @FILE, of 1 MiB at most. Raises `UsageError`."""
    label = _shown(name)
    try:
        with open(name, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{flag}: cannot read {label}: {reason}") from error
    if len(data) > _MAX_BYTES:
        raise UsageError(f"{flag}: {label} is larger than {_MAX_BYTES:,} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{flag}: {label} is not text in UTF-8") from error


# Values for `toolbus call --input`: one JSON value per line of a file or of stdin. Lines are read
# on demand, so an endless input works too.


_LINE_STEP = (
    'write each line as JSON, a text in quotes: "to be"; the tool may have started: check its '
    "effects before you retry"
)


def json_lines(path: Path) -> Iterator[Any]:
    """Open a file (`-` is stdin) and return an iterator over the values of its non-empty lines.

    Raises:
        UsageError: The file cannot be opened. The iterator raises it, with `executed` "maybe", for
            a line that is not JSON, with its number, and for a line of more than 1 MiB.
    """
    if path == Path("-"):
        return _values(sys.stdin.fileno(), "stdin")
    try:
        return _values_of_file(os.open(path, os.O_RDONLY), str(path))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _values_of_file(file: int, name: str) -> Iterator[Any]:
    try:
        yield from _values(file, name)
    finally:
        os.close(file)


def _values(file: int, name: str) -> Iterator[Any]:
    for number, line in enumerate(_lines(file, name), start=1):
        if not line.strip():
            continue
        try:
            yield read_json(line.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            text = f"line {number} of {name} is not JSON: {error}"
            raise with_step(UsageError(text, executed="maybe"), _LINE_STEP) from error


def _lines(file: int, name: str) -> Iterator[bytes]:
    """Return each line as soon as it is complete; the buffer of `sys.stdin` would delay it."""
    rest = b""
    try:
        while block := os.read(file, 65_536):
            *lines, rest = (rest + block).split(b"\n")
            yield from lines
            if len(rest) > _MAX_BYTES:
                raise _unreadable(f"a line of {name} is longer than {_MAX_BYTES} bytes")
    except OSError as error:
        raise _unreadable(f"cannot read {name}: {error.strerror}") from error
    if rest:
        yield rest


def _unreadable(message: str) -> UsageError:
    # The iterator starts when the tool asks for the first value, so the tool may have run.
    return UsageError(message, executed="maybe")
