"""The arguments that a model wrote, as the tool takes them.

Pure. Providers restrict the names of parameters, and their strict schemas make each parameter
required, so that a model writes null for one that it leaves out. Calls of programs are not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import Any, NamedTuple

from toolbus.schemas.argument_schema import NOT_ASKING, ArgumentSchema, argument_schema
from toolbus.schemas.keywords import IN_PLACE, JSON_TYPES, types_of
from toolbus.schemas.walker import Schema, joined, others_of

__all__ = ["tool_arguments"]

# The event loop waits for 200 ms at most: an object or a list takes 1 us, and where several parts
# say of the same properties, each takes 5 us.
_MAX_STEPS = 100_000
"""Parts of a schema that are applied to the parts of one value; nulls beyond them stay, and the
tool's check names them."""
_STEPS_OF_PART = 5
_UNIONS = ("anyOf", "oneOf")
_NOT_SIMPLE = frozenset(
    {"$ref", "patternProperties", "prefixItems", "unevaluatedProperties", *IN_PLACE}
)
"""Keywords by which other parts say of the same properties or items, or that need a closer look."""
_MAX_SETTLED = 8
"""References may lead in a circle."""
_NUMBERS = frozenset({"integer", "number"})


def tool_arguments(schema: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with the tool's own names, without nulls that mean "left out".

    Such a null is the value of an optional property, at any depth, whose schema does not take null,
    or that is forbidden. In a union it must be so in each branch that may be meant. A null that
    some branch takes stays, and so does one that is required, and one in a map, whose keys the
    schema does not name.

    Args:
        schema: The tool's input schema.
        arguments: What the model wrote; not changed.
    """
    source = argument_schema(schema)
    names = {
        alias: name
        for name, alias in source.aliases.items()
        if alias in arguments and name not in arguments
    }
    if names:
        arguments = {names.get(name, name): value for name, value in arguments.items()}
    if not any(value is None or isinstance(value, dict | list) for value in arguments.values()):
        return arguments
    try:
        found: dict[str, Any] = _NullRemover(source).without_nulls(arguments, source.root)
        return found
    except (_TooManyStepsError, RecursionError):
        return arguments


class _Null(Enum):
    """What a part of a schema says of a property that is null."""

    SILENT = auto()
    FITS = auto()
    LEFT_OUT = auto()
    """It is optional and not taken, or forbidden."""
    REQUIRED = auto()
    """It is required and not taken."""


_OF_ANY = (_Null.FITS, _Null.SILENT, _Null.LEFT_OUT, _Null.REQUIRED)
"""What counts of what the branches of a union say, the first of these."""
_OF_ALL = (_Null.REQUIRED, _Null.LEFT_OUT, _Null.FITS, _Null.SILENT)
"""What counts of what parts say that all hold."""


class _TooManyStepsError(Exception):
    pass


class _Simple(NamedTuple):
    """What a part says of the properties of an object, or the items of an array, alone."""

    left_out: frozenset[str]
    """Those whose null means "left out"."""
    properties: dict[str, Schema]
    others: Schema
    """The schema of all other properties, or of all items."""
    is_closed: bool


class _NullRemover:
    """Reads the arguments of one call.

    Where several parts hold for one value, it goes on with an `allOf` or an `anyOf` of them.
    """

    def __init__(self, source: ArgumentSchema) -> None:
        self._source = source
        self._steps_left = _MAX_STEPS
        self._visiting: set[int] = set()
        self._simple: dict[tuple[int, str], tuple[Schema, _Simple | None]] = {}
        """By the identity of a part, which is kept so that no other one has it, and the type of a
        value."""

    def without_nulls(self, value: Any, part: Schema) -> Any:
        """Return an object or a list without nulls that mean "left out"; itself if it has none."""
        self._step(1)
        kind = JSON_TYPES[type(value)]
        if (id(part), kind) not in self._simple:
            self._simple[id(part), kind] = (part, self._read_simple(part, kind))
        _, simple = self._simple[id(part), kind]
        changes: dict[Any, Any] = {}
        gone: set[Any] = set()
        items: Iterable[tuple[Any, Any]] = value.items() if kind == "object" else enumerate(value)
        for key, item in items:
            if item is None and kind == "object":
                if self._is_left_out(part, value, key, simple):
                    gone.add(key)
            elif isinstance(item, dict | list):
                if simple is None:
                    below = _all_of(self._below(part, value, key))
                else:
                    below = simple.properties.get(key, simple.others)
                cleaned = self.without_nulls(item, below)
                if cleaned is not item:
                    changes[key] = cleaned
        if not changes and not gone:
            return value
        if kind == "array":
            return [changes.get(index, item) for index, item in enumerate(value)]
        return {name: changes.get(name, item) for name, item in value.items() if name not in gone}

    def _is_left_out(
        self, part: Schema, value: dict[str, Any], name: str, simple: _Simple | None
    ) -> bool:
        if simple is None:
            return self._null(part, value, name) is _Null.LEFT_OUT
        return name in simple.left_out or (simple.is_closed and name not in simple.properties)

    def _read_simple(self, part: Schema, kind: str) -> _Simple | None:
        """Return what a part says of properties or items; None if other parts say of them too."""
        part = self._settled(part, kind)
        if not isinstance(part, dict) or not _NOT_SIMPLE.isdisjoint(part):
            return None
        properties = part.get("properties", {})
        optional = properties.keys() - part.get("required", ())
        return _Simple(
            frozenset(name for name in optional if not self._source.takes_null(properties[name])),
            properties,
            part.get("additionalProperties" if kind == "object" else "items", True),
            _is_closed(part),
        )

    def _settled(self, part: Schema, kind: str) -> Schema:
        """Return what a reference leads to, and the one branch that values of a type may match."""
        for _ in range(_MAX_SETTLED):
            if not isinstance(part, dict):
                break
            asking = part.keys() - NOT_ASKING
            if asking == {"$ref"}:
                part = self._source.target(part["$ref"])
                continue
            if asking not in ({"anyOf"}, {"oneOf"}):
                break
            (union,) = asking
            possible = [branch for branch in part[union] if self._may_be(branch, kind)]
            if len(possible) != 1:
                break
            part = possible[0]
        return part

    def _may_be(self, part: Schema, kind: str) -> bool:
        if isinstance(part, dict) and "$ref" in part:
            part = self._source.target(part["$ref"])
        return part is not False and (part is True or kind in (types_of(part) or (kind,)))

    def _step(self, steps: int = _STEPS_OF_PART) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise _TooManyStepsError

    def _null(self, part: Schema, value: dict[str, Any], name: str) -> _Null:
        """Return what a part says of a property that is null."""
        self._step()
        if not isinstance(part, dict):
            return _Null.SILENT
        found = {self._own_null(part, name)}
        found |= {self._null(applied, value, name) for applied in self._applied(part, value)}
        for branches in self._unions(part, value):
            nulls = [self._null(branch, value, name) for branch in branches]
            found.add(min(nulls, key=_OF_ANY.index, default=_Null.SILENT))
        most = min(found, key=_OF_ALL.index)
        if most is _Null.SILENT and part.get("unevaluatedProperties") is False:
            return _Null.LEFT_OUT
        return most

    def _own_null(self, part: dict[str, Any], name: str) -> _Null:
        """Return what the own keywords of a part say of a property that is null."""
        properties = part.get("properties", {})
        if name in properties and self._source.takes_null(properties[name]):
            return _Null.FITS
        if name in part.get("required", ()):
            return _Null.REQUIRED
        return _Null.LEFT_OUT if name in properties or _is_closed(part) else _Null.SILENT

    def _below(self, part: Schema, value: Any, key: Any) -> Iterator[Schema]:
        """Yield the parts that hold for a property or an item of a value."""
        self._step()
        if not isinstance(part, dict):
            return
        if isinstance(value, dict):
            yield part.get("properties", {}).get(key, others_of(part))
        else:
            first = part.get("prefixItems", ())
            yield first[key] if key < len(first) else part.get("items", True)
        for applied in self._applied(part, value):
            yield from self._below(applied, value, key)
        for branches in self._unions(part, value):
            held = (_all_of(self._below(branch, value, key)) for branch in branches)
            yield joined("anyOf", _different(held))

    def _applied(self, part: dict[str, Any], value: Any) -> Iterator[Schema]:
        """Yield the parts that hold for the same value, whatever it is."""
        if "$ref" in part:
            yield self._source.target(part["$ref"])
        yield from part.get("allOf", ())
        for name, schema in part.get("dependentSchemas", {}).items():
            if isinstance(value, dict) and value.get(name) is not None:
                yield schema

    def _unions(self, part: dict[str, Any], value: Any) -> Iterator[list[Schema]]:
        """Yield for each union the branches that may be meant."""
        for keyword in _UNIONS:
            if keyword in part:
                yield [branch for branch in part[keyword] if self._may_match(branch, value)]
        if "if" in part:
            yield [part.get("then", True), part.get("else", True)]

    def _may_match(self, part: Schema, value: Any) -> bool:
        """Whether a value may match a part once some nulls are removed, without going deeper."""
        self._step()
        if not isinstance(part, dict):
            return part is not False
        key = id(part)
        if key in self._visiting:
            return True
        self._visiting.add(key)
        try:
            return (
                self._own_match(part, value)
                and all(self._may_match(applied, value) for applied in self._applied(part, value))
                and all(
                    any(self._may_match(branch, value) for branch in part[keyword])
                    for keyword in _UNIONS
                    if keyword in part
                )
            )
        finally:
            self._visiting.discard(key)

    def _own_match(self, part: dict[str, Any], value: Any) -> bool:
        if not _is_of_kind(part, value):
            return False
        if not isinstance(value, dict):
            return True
        properties = part.get("properties", {})
        if not all(name in value for name in part.get("required", ())):
            return False
        given = {name: item for name, item in value.items() if item is not None}
        if _is_closed(part) and not given.keys() <= properties.keys():
            return False
        return all(
            self._may_match_scalar(properties[name], given[name])
            for name in given
            if name in properties
        )

    def _may_match_scalar(self, part: Schema, value: Any) -> bool:
        """Whether a value may be that of a property: discriminators have `const` or `enum`."""
        for _ in range(_MAX_SETTLED):
            self._step()
            if not isinstance(part, dict):
                return part is not False
            if not _is_of_kind(part, value):
                return False
            if "$ref" not in part:
                return True
            part = self._source.target(part["$ref"])
        return True


def _is_closed(part: dict[str, Any]) -> bool:
    return part.get("additionalProperties") is False and not part.get("patternProperties")


def _is_of_kind(part: dict[str, Any], value: Any) -> bool:
    """Whether a value is of the types and the listed values of a part."""
    kinds = types_of(part)
    kind = JSON_TYPES[type(value)]
    if kinds and kind not in kinds and (kind not in _NUMBERS or _NUMBERS.isdisjoint(kinds)):
        return False
    if "const" in part and part["const"] != value:
        return False
    return "enum" not in part or value in part["enum"]


def _all_of(parts: Iterable[Schema]) -> Schema:
    return joined("allOf", _different(part for part in parts if part not in (True, {})))


def _different(parts: Iterable[Schema]) -> Iterable[Schema]:
    return {id(part): part for part in parts}.values()
