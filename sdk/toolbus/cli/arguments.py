"""Parses what a call sends: its arguments, the caller's context, and the values of `--input`.

Arguments are `k=v` by the tool's JSON Schema, `k:=json`, or one JSON object. Only the top level of
the schema is used: names and types. The host validates the values.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, NoReturn, TypeAlias

import typer

from toolbus.chunks.json_values import cut
from toolbus.diagnostics.exit_codes import UsageError, with_step
from toolbus.schemas.text import SchemaReader, values_of
from toolbus.untrusted_text import SHOWN_CHARS, one_line

__all__ = [
    "Arguments",
    "Parameter",
    "json_lines",
    "needs_schema",
    "read_arguments",
    "read_caller_context",
    "read_file",
    "read_json",
    "read_json_option",
    "read_parameters",
    "warn_if_readable",
]

_ARRAY_OF_STRINGS = re.compile(r"array of (?:(?:at \w+ )?\d\S* )?\(?string\b")
Arguments: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(help="name=value by the tool's schema, name:=JSON, or one JSON object."),
]
"""The arguments of a call, as commands take them."""
_MAX_PARAMETERS = 1_000
"""Their types are read, which takes time; a schema of others may have any number."""
_MAX_BYTES = 1024 * 1024
"""Of a file that a flag names, and of a line of `--input`: each is in memory, and sent whole."""


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
        "object": ("a JSON object", '{"key": 1}'),
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


def read_parameters(schema: Mapping[str, Any]) -> dict[str, Parameter]:
    """Return the parameters of a tool's input schema, in its order."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    reader = SchemaReader(schema)
    return {
        name: _parameter(name, field, reader)
        for name, field in islice(properties.items(), _MAX_PARAMETERS)
    }


def _parameter(name: str, schema: Any, reader: SchemaReader) -> Parameter:
    if not isinstance(schema, dict):
        schema = {}
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
    if name.endswith(":"):
        return name[:-1], ":=", value
    return name, "=", value


def read_arguments(typed: tuple[str, ...], parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """Parse the arguments of a call: `k=v` and `k:=json`, or one JSON object alone.

    The parameters are those of the tool, as far as they are known.

    Raises:
        UsageError: An argument cannot be parsed; the message names it.
    """
    if len(typed) == 1 and _is_object(typed[0]):
        try:
            value: dict[str, Any] = read_json(typed[0])
        except (ValueError, RecursionError) as error:
            raise UsageError(f"the arguments are not a JSON object: {error}") from error
        return value
    if any(_is_object(argument) for argument in typed):
        raise UsageError("a JSON object cannot be combined with other arguments")
    arguments: dict[str, Any] = {}
    for argument in typed:
        name, sign, text = _split(argument)
        if name in arguments:
            raise UsageError(f"{cut(name)} is given twice")
        if sign == ":=":
            try:
                arguments[name] = read_json(text)
            except (ValueError, RecursionError) as error:
                raise UsageError(f"the value of {cut(name)}:= is not JSON: {error}") from error
        elif name in parameters:
            try:
                arguments[name] = parameters[name].read(text)
            except (ValueError, RecursionError) as error:
                advice = f"{cut(name)}:=JSON sends a JSON value unchanged"
                raise UsageError(f"{error}; {advice}") from error
        else:
            arguments[name] = _read_any_text(text)
    return arguments


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


def warn_if_readable(flag: str, path: Path) -> None:
    """Warn of the private file of a flag if other users can read it; one that we make is 0600."""
    if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        text = f"{flag}: other users can read {path}: chmod 600 {shlex.quote(str(path))}"
        typer.echo(text, err=True)


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
            yield read_json(line.decode())
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
