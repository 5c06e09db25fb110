"""The arguments that a model wrote, as the tool takes them.

Pure. Providers restrict the names of parameters, and their strict schemas make each parameter
required, so that a model writes null for one that it leaves out. Calls of programs are not changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import Enum, auto
from typing import Any, NamedTuple

from toolbus.schemas.argument_schema import (
    NOT_ASKING,
    ArgumentSchema,
    IdentityCache,
    Schema,
    argument_schema,
)
from toolbus.schemas.keywords import IN_PLACE

__all__ = ["tool_arguments"]

# The event loop waits for 200 ms at most: an object or a list takes 1 us, and where several parts
# say of the same properties, each takes 5 us.
_MAX_STEPS = 100_000
"""Parts of a schema that are applied to the parts of one value; nulls beyond them stay, and the
tool's check names them."""
_STEPS_OF_PART = 5
_IN_BRANCHES = ("anyOf", "oneOf")
# Of parts that are made while a value is read; a schema has no such keys.
_ALL: Any = ("all",)
_ANY: Any = ("any",)
_BRANCHES: tuple[Any, ...] = (_ANY, *_IN_BRANCHES)
_NOT_SIMPLE = frozenset(
    {"$ref", "patternProperties", "prefixItems", "unevaluatedProperties", *IN_PLACE}
)
"""Keywords by which other parts say of the same properties or items, or that need a closer look."""
_MAX_SETTLED = 8
_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "number": (int, float),
    "integer": (int, float),
}


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
    restorer = _restorers(schema)
    named = restorer.with_names(arguments)
    return restorer.without_nulls(named) if restorer.has_nulls else named


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
    """What a part says of the properties of an object, or the items of an array."""

    left_out: frozenset[str]
    """Those whose null means "left out"."""
    below: dict[str, Schema | None]
    """The schema of each that is named; None if no null in it means "left out"."""
    others: Schema | None
    """That of all other properties, or of all items."""
    known: Collection[str] | None
    """All properties, if no others are taken."""


class ArgumentRestorer:
    """Restores the arguments of one tool: its own names, no nulls for what is left out."""

    def __init__(self, source: ArgumentSchema) -> None:
        self._source = source
        self._by_alias = {alias: name for name, alias in source.aliases.items()}
        self._leading = _leading_parts(source)
        self._simple: dict[tuple[int, str], _Simple | None] = {}
        """By the identity of a part of the schema, and the type of a value."""
        self.has_nulls: bool = id(source.root) in self._leading
        """Whether any null can mean "left out"."""

    def with_names(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with the names of parameters for their aliases."""
        if self._by_alias.keys().isdisjoint(arguments):
            return arguments
        names = {alias: name for alias, name in self._by_alias.items() if name not in arguments}
        return {names.get(name, name): value for name, value in arguments.items()}

    def without_nulls(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments without nulls that mean "left out"."""
        found: dict[str, Any] = _NullRemover(self).of_object(arguments, self._source.root)
        return found

    def leads(self, part: Schema) -> bool:
        """Whether a null in a value of a part can mean "left out"."""
        if not isinstance(part, dict):
            return False
        made: Any = part.get(_ANY) or part.get(_ALL)
        return any(self.leads(branch) for branch in made) if made else id(part) in self._leading

    def settled(self, part: Schema, kind: str) -> Schema:
        """Return what a reference leads to, and the one branch that values of a type may match."""
        for _ in range(_MAX_SETTLED):
            if not isinstance(part, dict):
                break
            asking = part.keys() - NOT_ASKING
            if asking == {"$ref"}:
                target = self.target(part)
                part = True if target is None else target
                continue
            branches = part[next(iter(asking))] if asking in ({"anyOf"}, {"oneOf"}) else ()
            possible = [branch for branch in branches if self._may_be(branch, kind)]
            if len(possible) != 1:
                break
            part = possible[0]
        return part

    def _may_be(self, part: Schema, kind: str) -> bool:
        if isinstance(part, dict) and "$ref" in part:
            part = self.target(part) or part
        kinds = part.get("type", kind) if isinstance(part, dict) else kind
        return part is not False and (kinds == kind or kind in kinds)

    def simple(self, part: Schema, kind: str) -> _Simple | None:
        """Return what a part says of its properties; None if other parts say of them too."""
        key = (id(part), kind)
        if key not in self._simple:
            self._simple[key] = self._read_simple(self.settled(part, kind), kind)
        return self._simple[key]

    def _read_simple(self, part: Schema, kind: str) -> _Simple | None:
        if not isinstance(part, dict) or not _NOT_SIMPLE.isdisjoint(part):
            return None
        properties = part.get("properties", {})
        optional = properties.keys() - part.get("required", ())
        others = part.get("additionalProperties" if kind == "object" else "items")
        return _Simple(
            frozenset(name for name in optional if not self._source.takes_null(properties[name])),
            {name: schema if self.leads(schema) else None for name, schema in properties.items()},
            others if isinstance(others, dict) and self.leads(others) else None,
            properties if _is_closed(part) else None,
        )

    def own_null(self, part: dict[str, Any], name: str) -> _Null:
        """Return what the own keywords of a part say of a property that is null."""
        properties = part.get("properties", {})
        if name in properties:
            if self._source.takes_null(properties[name]):
                return _Null.FITS
            return _Null.REQUIRED if name in part.get("required", ()) else _Null.LEFT_OUT
        if name in part.get("required", ()):
            return _Null.REQUIRED
        return _Null.LEFT_OUT if _is_closed(part) else _Null.SILENT

    def target(self, part: dict[str, Any]) -> Schema | None:
        """Return where the `$ref` of a part leads."""
        return self._source.target(part["$ref"])


_restorers = IdentityCache(lambda schema: ArgumentRestorer(argument_schema(schema)))


def _leading_parts(source: ArgumentSchema) -> set[int]:
    """Return the parts, by identity, under which a null can mean "left out"."""
    users: dict[int, list[int]] = {}
    leading: list[int] = []
    waiting: list[tuple[Any, bool]] = [(source.root, False)]
    seen: set[tuple[int, bool]] = set()
    while waiting:
        part, is_branch = waiting.pop()
        if not isinstance(part, dict) or (id(part), is_branch) in seen:
            continue
        seen.add((id(part), is_branch))
        required = {*part.get("required", ())}
        optional = (name for name in part.get("properties", ()) if name not in required)
        # A model may give null to the properties of other branches, where these are written as one.
        forbids = is_branch and _is_closed(part)
        forbids = forbids or part.get("unevaluatedProperties") is False
        if forbids or not all(source.takes_null(part["properties"][name]) for name in optional):
            leading.append(id(part))
        for held, place in _parts_of(source, part):
            users.setdefault(id(held), []).append(id(part))
            in_branch = place is _Place.BRANCH or (place is _Place.SAME and is_branch)
            waiting.append((held, in_branch))
    found: set[int] = set()
    while leading:
        part_id = leading.pop()
        if part_id not in found:
            found.add(part_id)
            leading += users.get(part_id, ())
    return found


class _Place(Enum):
    """Where a part is applied."""

    SAME = auto()
    """To the same value."""
    BRANCH = auto()
    """To the same value, perhaps."""
    BELOW = auto()


def _parts_of(source: ArgumentSchema, part: dict[str, Any]) -> Iterator[tuple[Any, _Place]]:
    """Yield the parts that a part applies."""
    if "$ref" in part:
        yield source.target(part["$ref"]), _Place.SAME
    yield from ((held, _Place.SAME) for held in part.get("allOf", ()))
    yield from ((held, _Place.SAME) for held in part.get("dependentSchemas", {}).values())
    for keyword in _IN_BRANCHES:
        yield from ((held, _Place.BRANCH) for held in part.get(keyword, ()))
    yield from ((part.get(keyword), _Place.BRANCH) for keyword in ("then", "else"))
    yield from ((held, _Place.BELOW) for held in part.get("properties", {}).values())
    yield from ((held, _Place.BELOW) for held in part.get("prefixItems", ()))
    yield from ((part.get(keyword), _Place.BELOW) for keyword in ("items", "additionalProperties"))


def _is_closed(part: dict[str, Any]) -> bool:
    return part.get("additionalProperties") is False and not part.get("patternProperties")


class _NullRemover:
    """Reads one value. A part that it makes of others has `_ANY` or `_ALL` of them."""

    def __init__(self, restorer: ArgumentRestorer) -> None:
        self._restorer = restorer
        self._steps_left = _MAX_STEPS
        self._visiting: set[int] = set()

    def of_object(self, value: dict[str, Any], part: Schema) -> Any:
        """Return an object without nulls that mean "left out"; itself if it has none."""
        try:
            return self._of(value, part)
        except (_TooManyStepsError, RecursionError):
            return value

    def _of(self, value: Any, part: Schema) -> Any:
        self._step(1)
        kind = "object" if isinstance(value, dict) else "array"
        made = isinstance(part, dict) and (_ALL in part or _ANY in part)
        simple = None if made else self._restorer.simple(part, kind)
        changes: dict[Any, Any] = {}
        gone: set[Any] = set()
        for key, item in _items(value):
            if item is None and kind == "object":
                if self._is_left_out(part, value, key, simple):
                    gone.add(key)
            elif isinstance(item, dict | list):
                below = self._part_below(part, value, key, simple)
                cleaned = item if below is None else self._of(item, below)
                if cleaned is not item:
                    changes[key] = cleaned
        if not changes and not gone:
            return value
        if isinstance(value, list):
            return [changes.get(index, item) for index, item in enumerate(value)]
        return {name: changes.get(name, item) for name, item in value.items() if name not in gone}

    def _is_left_out(
        self, part: Schema, value: dict[str, Any], name: str, simple: _Simple | None
    ) -> bool:
        if simple is None:
            return self._null(part, value, name) is _Null.LEFT_OUT
        return name in simple.left_out or (simple.known is not None and name not in simple.known)

    def _part_below(
        self, part: Schema, value: Any, key: Any, simple: _Simple | None
    ) -> Schema | None:
        """Return what holds for a property or an item; None if no null in it is left out."""
        if simple is not None:
            return simple.below.get(key, simple.others)
        below = _all([*self._below(part, value, key)])
        return below if self._restorer.leads(below) else None

    def _step(self, steps: int = _STEPS_OF_PART) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise _TooManyStepsError

    def _null(self, part: Schema, value: dict[str, Any], name: str) -> _Null:
        """Return what a part says of a property that is null."""
        self._step()
        if not isinstance(part, dict):
            return _Null.SILENT
        found = {self._restorer.own_null(part, name)}
        found |= {self._null(applied, value, name) for applied in self._applied(part, value)}
        for branches in self._unions(part, value):
            nulls = {self._null(branch, value, name) for branch in branches} or {_Null.SILENT}
            found.add(next(null for null in _OF_ANY if null in nulls))
        most = next(null for null in _OF_ALL if null in found)
        is_unevaluated = most is _Null.SILENT and part.get("unevaluatedProperties") is False
        return _Null.LEFT_OUT if is_unevaluated else most

    def _below(self, part: Schema, value: Any, key: Any) -> Iterator[Schema]:
        """Yield the parts that hold for a property or an item of a value."""
        self._step()
        if not isinstance(part, dict):
            return
        if isinstance(value, dict):
            named = part.get("properties", {})
            others = {} if part.get("patternProperties") else part.get("additionalProperties", {})
            yield named.get(key, others)
        else:
            first = part.get("prefixItems", ())
            yield first[key] if key < len(first) else part.get("items", {})
        for applied in self._applied(part, value):
            yield from self._below(applied, value, key)
        for branches in self._unions(part, value):
            yield _any([_all([*self._below(branch, value, key)]) for branch in branches])

    def _applied(self, part: dict[str, Any], value: Any) -> Iterator[Schema]:
        """Yield the parts that hold for the same value, whatever it is."""
        if "$ref" in part:
            target = self._restorer.target(part)
            if isinstance(target, dict):
                yield target
        yield from part.get(_ALL, ())
        yield from part.get("allOf", ())
        for name, schema in part.get("dependentSchemas", {}).items():
            if isinstance(value, dict) and value.get(name) is not None:
                yield schema

    def _unions(self, part: dict[str, Any], value: Any) -> Iterator[list[Schema]]:
        """Yield for each union the branches that may be meant."""
        for keyword in _BRANCHES:
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
                    for keyword in _BRANCHES
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
        for name, item in value.items():
            if item is None:
                continue
            if name in properties:
                if not self._may_match_scalar(properties[name], item):
                    return False
            elif _is_closed(part):
                return False
        return True

    def _may_match_scalar(self, part: Schema, value: Any) -> bool:
        """Whether a value may be that of a property: discriminators have `const` or `enum`."""
        for _ in range(8):
            self._step()
            if not isinstance(part, dict):
                return part is not False
            if not _is_of_kind(part, value):
                return False
            if "$ref" not in part:
                return True
            target = self._restorer.target(part)
            part = True if target is None else target
        return True


def _items(value: dict[str, Any] | list[Any]) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, dict) else enumerate(value)


def _is_of_kind(part: dict[str, Any], value: Any) -> bool:
    """Whether a value is of the types and the listed values of a part."""
    kinds = part.get("type")
    if kinds is not None:
        names = [kinds] if isinstance(kinds, str) else kinds
        classes = [_TYPES[name] for name in names]
        if isinstance(value, bool):
            if bool not in classes:
                return False
        elif not any(isinstance(value, kind) for kind in classes):
            return False
    if "const" in part and part["const"] != value:
        return False
    return "enum" not in part or value in part["enum"]


def _all(parts: list[Schema]) -> Schema:
    different = _different(part for part in parts if part is not True and part != {})
    if len(different) == 1:
        return different[0]
    return {_ALL: different} if different else True


def _any(parts: list[Schema]) -> Schema:
    different = _different(parts)
    return different[0] if len(different) == 1 else {_ANY: different}


def _different(parts: Iterable[Schema]) -> list[Schema]:
    return [*{id(part): part for part in parts}.values()]
