"""Writes a schema with the few keywords that a provider takes, or with all. Pure.

What is left out stands in descriptions, so a model still knows it; the tool checks it in any case.
Unions take what stands beside them into their branches, and `allOf` is merged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from toolbus.chunks.json_values import pointer_keys
from toolbus.schemas.argument_schema import NOT_ASKING, ArgumentSchema
from toolbus.schemas.keywords import DEFINITIONS, JSON_TYPES, UNEVALUATED, one_or_all, types_of
from toolbus.schemas.merging import (
    ImpossiblePart,
    Merger,
    NotMergedError,
    declared,
    json_key,
    same_json,
)
from toolbus.schemas.notes import described, note, notes_of
from toolbus.schemas.rules import Rules
from toolbus.schemas.walker import Schema, in_order, part_in, rewritten

__all__ = ["DEFINITION_PREFIX", "NoFormError", "Reduction", "plain_object"]

_MAX_PARTS = 5_000
"""Parts of a reduced schema: branches and merged parts can multiply those of the schema."""
_VALUES_OF_PART = 8
"""How many values of an enum count as one part."""
_MAX_IN_PLACE = 20
"""Parts that are written, each within another, where a reference to them stands."""
_UNIONS = {"anyOf", "oneOf"}
_TYPED_BY = (
    ("object", ("properties", "required", "additionalProperties", "patternProperties")),
    ("array", ("items", "prefixItems", "minItems", "maxItems")),
    ("string", ("pattern", "minLength", "maxLength", "format", "contentEncoding")),
    ("number", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
)
"""The type of a part that names none, by its keywords."""
_NOT_SIMPLE = re.compile(r"\(\?|\\[^dDwWsSnrtfv0.*+?^$|(){}\[\]/\\-]|[*+?}]\+")
"""Syntax of patterns that not every provider knows: groups with options, properties, and others."""
DEFINITION_PREFIX = "#/$defs/"
"""How references to definitions begin in what is written."""


class NoFormError(Exception):
    """A schema has no strict form; the text says why."""


class Definitions:
    """The definitions of a written schema: what its references lead to, each under one name."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        """The name of each definition by the identity of its part."""
        self._taken: set[str] = set()
        self._waiting: dict[str, Schema] = {}

    def reference(self, target: Schema, reference: str) -> str:
        """Return the reference to a part, which is written later.

        Its name is the last key of the reference, in plain characters.

        Args:
            target: The part.
            reference: How the schema itself refers to it.
        """
        key = id(target)
        if key not in self._names:
            last = pointer_keys(reference[1:])[-1:] or ["root"]
            plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", last[0])[:64] or "part"
            name = plain
            number = len(self._taken)
            while name in self._taken:
                number += 1
                name = f"{plain}_{number}"
            self._taken.add(name)
            self._names[key] = name
            self._waiting[name] = target
        return f"{DEFINITION_PREFIX}{self._names[key]}"

    def written(self, write: Callable[[Schema], dict[str, Any]]) -> dict[str, Any]:
        """Write all parts that were referred to, and those that these refer to, by name."""
        found: dict[str, Any] = {}
        while self._waiting:
            name = next(iter(self._waiting))
            found[name] = write(self._waiting.pop(name))
        return found


class Reduction:
    """Writes one schema.

    Args:
        source: The schema.
        rules: What the result may have.
    """

    def __init__(self, source: ArgumentSchema, rules: Rules) -> None:
        self._source = source
        self._rules = rules
        self._merger = Merger(source)
        self._definitions = Definitions()
        self._in_place: list[frozenset[int]] = []
        """The parts, by identity, that are being written where a reference to them stands."""
        self._left = _MAX_PARTS

    def root(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Write the root, without unions and references, and all definitions.

        Raises `NoFormError` if the rules are strict.
        """
        written = self._object(schema)
        written.setdefault("properties", {})
        definitions = self._definitions.written(self._or_any)
        if self._rules.has_optional_cycles:
            _loosen_cycles(definitions)
        if definitions:
            written["$defs"] = definitions
        return written

    def part(self, schema: Schema) -> dict[str, Any]:
        """Write a part.

        Raises `NoFormError`, and `ImpossiblePart` if no value matches it.
        """
        self._left -= 1
        if self._left < 0 and self._rules.is_strict:
            raise NoFormError("it has too many parts")
        if schema is False:
            raise ImpossiblePart
        if not isinstance(schema, dict) or self._left < 0:
            return self._untyped({})
        if self._only(schema, "$ref"):
            return self._reference(schema)
        if self._only(schema, "allOf") and len(schema["allOf"]) == 1:
            (only,) = schema["allOf"]
            if isinstance(only, dict):
                only = {**only, **{name: schema[name] for name in schema if name != "allOf"}}
            return self.part(only)
        try:
            flat = self._merger.flat(schema)
            if flat.get("not", False) in (True, {}):
                raise ImpossiblePart
            with self._written_in_place(self._merger.targets(schema)):
                return self._union(flat) if _UNIONS & flat.keys() else self._typed(flat)
        except NotMergedError:
            return self._untyped(schema)

    @contextmanager
    def _written_in_place(self, targets: frozenset[int]) -> Iterator[None]:
        """Raise `NotMergedError` where parts are written within themselves, or too deep."""
        if not targets:
            yield
            return
        if len(self._in_place) >= _MAX_IN_PLACE or any(targets & outer for outer in self._in_place):
            raise NotMergedError
        self._in_place.append(targets)
        try:
            yield
        finally:
            self._in_place.pop()

    def _only(self, schema: dict[str, Any], keyword: str) -> bool:
        """Whether a keyword is all that asks something of a value."""
        return keyword in schema and schema.keys() - {keyword} <= NOT_ASKING

    # References

    def _reference(self, schema: dict[str, Any]) -> dict[str, Any]:
        target, reference = self._end_of(schema["$ref"])
        if not isinstance(target, dict):
            return self.part(target)
        description = described(schema.get("description"), notes_of(schema, (), ()))
        if description and not self._rules.wraps_references:
            try:
                with self._written_in_place(frozenset({id(target)})):
                    return {**self.part(target), **description}
            except NotMergedError:
                return self._untyped(schema)
        found: dict[str, Any] = {"$ref": self._definitions.reference(target, reference)}
        if description:
            found = {"anyOf": [found], **description}
        return found

    def _end_of(self, reference: str) -> tuple[Schema, str]:
        """Return the part where a chain of references ends, and the last of them."""
        seen: set[str] = set()
        while reference not in seen:
            seen.add(reference)
            target = self._source.target(reference)
            if not isinstance(target, dict) or not self._only(target, "$ref"):
                return target, reference
            reference = target["$ref"]
        return True, reference  # the chain is a circle, so it asks nothing

    # Unions

    def _union(self, schema: dict[str, Any]) -> dict[str, Any]:
        keyword = "anyOf" if "anyOf" in schema else "oneOf"
        base = {name: schema[name] for name in schema if name not in NOT_ASKING | {keyword}}
        different: dict[str, dict[str, Any]] = {}
        for branch in schema[keyword]:
            try:
                written = self._branch(base, branch)
            except ImpossiblePart:
                continue
            nested = [written]
            if written.keys() == {"anyOf"}:
                nested = written["anyOf"]
            different |= {json.dumps(part): part for part in nested}
        if not different:
            raise ImpossiblePart
        branches = _joined([*different.values()])
        notes = notes_of(schema, (), _NOTED_IN_BRANCHES)
        if keyword == "oneOf" and len(branches) > 1:
            notes.append("exactly one of these")
        description = described(_text(schema), notes)
        if len(branches) == 1 and not ("$ref" in branches[0] and description):
            return {**branches[0], **description}
        return {**description, "anyOf": branches}

    def _branch(self, base: dict[str, Any], branch: Schema) -> dict[str, Any]:
        if not base or self._left < 0:
            return self.part(branch)
        flat = self._merger.flat(branch)
        if base.keys() == {"type"} and flat.get("type") == base["type"]:
            return self.part(branch)  # a reference stays one
        with self._written_in_place(self._merger.targets(branch)):
            return self.part(self._merger.merged(flat, base))

    # Parts with types

    def _typed(self, schema: dict[str, Any]) -> dict[str, Any]:
        kinds = types_of(schema)
        if "const" in schema and not self._rules.has_const:
            schema = {**schema, "enum": [schema["const"]]}
        if "const" in schema or "enum" in schema:
            return self._listed(schema, kinds)
        kinds = (
            kinds or [kind for kind, names in _TYPED_BY if not schema.keys().isdisjoint(names)][:1]
        )
        if not kinds:
            return self._untyped(schema)
        if len(kinds) > 1 and not {"object", "array"}.isdisjoint(kinds):
            own = {name: schema[name] for name in schema if name not in NOT_ASKING}
            branches = [self.part({**own, "type": kind}) for kind in kinds]
            notes = notes_of(schema, (), _NOTED_IN_BRANCHES)
            return {**described(_text(schema), notes), "anyOf": branches}
        if kinds == ["object"]:
            return self._object(schema)
        if kinds == ["array"]:
            return self._array(schema)
        retained = self._retained(schema, kinds)
        text = described(_text(schema), notes_of(schema, kinds, retained))
        return {"type": one_or_all(kinds), **text, **retained}

    def _retained(self, schema: dict[str, Any], kinds: Iterable[str]) -> dict[str, Any]:
        """Return the keywords of a part that are retained as they are."""
        retained = {name: schema[name] for name in schema if name in self._rules.keywords}
        if retained.get("format") not in self._rules.formats:
            retained.pop("format", None)
        if "pattern" in retained and _NOT_SIMPLE.search(retained["pattern"]):
            del retained["pattern"]
        of_kinds = {name for kind in kinds for name in _KEYWORDS_OF.get(kind, ())}
        return {name: value for name, value in retained.items() if name in of_kinds}

    def _listed(self, schema: dict[str, Any], kinds: list[str]) -> dict[str, Any]:
        """Write a part whose values are listed."""
        values = schema.get("enum", [schema.get("const")])
        self._left -= len(values) // _VALUES_OF_PART
        if "const" in schema:
            values = [value for value in values if same_json(value, schema["const"])]
        fitting = (value for value in values if not kinds or _is_of(value, kinds))
        values = [*{json_key(value): value for value in fitting}.values()]
        if not values:
            raise ImpossiblePart
        of_values = [*dict.fromkeys(JSON_TYPES[type(value)] for value in values)]
        notes = notes_of(schema, of_values, ())
        if not {"object", "array"}.isdisjoint(of_values):
            if self._rules.is_strict:
                raise NoFormError("an enum has objects or lists")
            return described(_text(schema), [note("enum", values), *notes])
        if not self._rules.is_strict:
            return self._listed_by_type(schema, values, notes)
        text = described(_text(schema), notes)
        listed = {"const": values[0]} if "const" in schema else {"enum": values}
        return {"type": one_or_all(of_values), **text, **listed}

    def _listed_by_type(
        self, schema: dict[str, Any], values: list[Any], notes: list[str]
    ) -> dict[str, Any]:
        """Write listed values where an enum has texts or numbers alone."""
        branches: list[dict[str, Any]] = []
        for kind in dict.fromkeys(JSON_TYPES[type(value)] for value in values):
            same = [value for value in values if JSON_TYPES[type(value)] == kind]
            branch: dict[str, Any] = {"type": kind}
            # Gemini refuses an empty text in an enum. An enum of nothing else is not written.
            listed = [value for value in same if value != ""]
            if kind in ("string", "integer", "number") and listed:
                branch["enum"] = listed
                if len(listed) < len(same):
                    branch |= described("", [note("or", "")])
            elif kind == "string":
                branch |= described("", [note("only", "")])
            elif kind == "boolean" and len(same) == 1:
                branch |= described("", [note("enum", same)])
            branches.append(branch)
        text = described(_text(schema), notes)
        if len(branches) > 1:
            return {**text, "anyOf": branches}
        (only,) = branches
        own = [only["description"][1:-1]] if "description" in only else []
        return {**only, **described(_text(schema), [*notes, *own])}

    def _untyped(self, schema: dict[str, Any]) -> dict[str, Any]:
        if self._rules.is_strict:
            raise NoFormError("a part has no type")
        return described(_text(schema), notes_of(schema, (), ()))

    def _array(self, schema: dict[str, Any]) -> dict[str, Any]:
        retained = self._retained(schema, ("array",))
        first = schema.get("prefixItems", [])
        others: Any = schema.get("items", True)
        most: int | None = None
        if others is False:
            most = len(first)
        written: dict[str, Any] = {}
        if first and self._rules.has_prefix_items:
            written["prefixItems"] = [self._or_any(item) for item in first]
        elif first:
            others = {"anyOf": [*first]}
            if schema.get("maxItems", len(first) + 1) > len(first) and most is None:
                others["anyOf"].append(schema.get("items", True))
        try:
            written["items"] = self.part(others is False or others)
        except ImpossiblePart:
            most = 0
            written["items"] = {}
            if self._rules.is_strict:
                written["items"] = {"type": "null"}
        if most is not None and "maxItems" in self._rules.keywords:
            retained["maxItems"] = min(most, retained.get("maxItems", most))
        if retained.get("minItems", 0) > 1 and "maxItems" not in self._rules.keywords:
            del retained["minItems"]  # Anthropic takes 0 and 1
        notes = notes_of(schema, ("array",), {*retained, *written})
        return {"type": "array", **described(_text(schema), notes), **written, **retained}

    def _or_any(self, schema: Schema) -> dict[str, Any]:
        """Write a part; one that no value matches has no strict form, and else is any value."""
        try:
            return self.part(schema)
        except ImpossiblePart:
            return self._untyped({})

    def _object(self, schema: dict[str, Any]) -> dict[str, Any]:
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
        if self._rules.is_strict:
            _require_closed(schema, others)
        schema = declared(schema)
        needed = {*schema.get("required", ())}
        properties: dict[str, Any] = {}
        for name, asked in schema.get("properties", {}).items():
            try:
                properties[name] = self.part(asked)
            except ImpossiblePart:
                continue  # it can only be left out
            is_left_out = self._rules.requires_all and name not in needed
            if is_left_out and not self._source.takes_null(asked):
                properties[name] = _or_null(properties[name])
        required = [name for name in properties if self._rules.requires_all or name in needed]
        text = described(_text(schema), notes_of(schema, ("object",), ()))
        written: dict[str, Any] = {"type": "object", **text}
        if self._rules.is_strict:
            return {
                **written,
                "properties": properties,
                "required": required,
                "additionalProperties": False,
            }
        if properties:
            written["properties"] = properties
        if required:
            written["required"] = required
        if isinstance(others, dict):
            others = self._or_any(others)
        if others is not None:
            written["additionalProperties"] = others
        return written


_NOTED_IN_BRANCHES = frozenset({"not", "if", "then", "else", "allOf", "oneOf"})
_KEYWORDS_OF = {
    "string": ("pattern", "format"),
    **dict.fromkeys(("number", "integer"), _TYPED_BY[3][1]),
    "array": ("minItems", "maxItems"),
}


def _text(schema: dict[str, Any]) -> Any:
    """Return what a part is described by: a title says more than nothing."""
    return schema.get("description") or schema.get("title")


def _joined(branches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one enum for branches that are listed values of one type, as of a discriminator."""
    kinds = {json.dumps(branch.get("type")) for branch in branches}
    listed = all(branch.keys() in ({"type", "const"}, {"type", "enum"}) for branch in branches)
    if len(branches) == 1 or len(kinds) > 1 or not listed:
        return branches
    values = [value for branch in branches for value in branch.get("enum", [branch.get("const")])]
    return [{"type": branches[0]["type"], "enum": values}]


def _require_closed(schema: dict[str, Any], others: Any) -> None:
    if others not in (None, False) or schema.get("patternProperties"):
        raise NoFormError("an object is open")
    if "properties" not in schema and others is None:
        raise NoFormError("an object is free-form")
    if not {*schema.get("required", ())} <= {*schema.get("properties", ())}:
        raise NoFormError("a required property has no schema")


def _or_null(written: dict[str, Any]) -> dict[str, Any]:
    """Return a written part that takes null too."""
    if "anyOf" in written:
        return {**written, "anyOf": [*written["anyOf"], {"type": "null"}]}
    kinds = types_of(written)
    if not kinds or "const" in written or not {"object", "array"}.isdisjoint(kinds):
        rest = dict(written)
        text = described(rest.pop("description", ""), ())
        return {**text, "anyOf": [rest, {"type": "null"}]}
    nullable = {**written, "type": [*dict.fromkeys([*kinds, "null"])]}
    if None not in written.get("enum", (None,)):
        nullable["enum"] = [*written["enum"], None]
    return nullable


def _is_of(value: Any, kinds: list[str]) -> bool:
    also = {"integer": "number"}
    if isinstance(value, float) and value.is_integer():
        also = {"number": "integer"}
    kind = JSON_TYPES[type(value)]
    return kind in kinds or also.get(kind) in kinds


# Schemas that keep every keyword below the root


_GONE = DEFINITIONS.keys() | {"$schema", "$comment", "additionalItems", "dependencies"}
"""The last two are of older drafts: here they mean nothing, so nobody has checked their values."""
_OPEN_OR_CLOSED = ("additionalProperties", *UNEVALUATED)
"""Keywords that are kept where they are true or false."""


def plain_object(source: ArgumentSchema, root: dict[str, Any]) -> dict[str, Any]:
    """Write a root, as `root_object` returns it."""
    definitions = Definitions()

    def part(schema: Any) -> dict[str, Any]:
        """Write a part: an object, with `items` for an array, and references to definitions."""
        if schema is False:
            return {"not": {}}
        schema = declared(part_in(schema))
        written: dict[str, Any] = {}
        for keyword, value in schema.items():
            if keyword in _GONE:
                continue
            if keyword == "$ref":
                written[keyword] = definitions.reference(source.target(value), value)
            elif keyword in _OPEN_OR_CLOSED and isinstance(value, bool):
                written[keyword] = value
            else:
                written[keyword] = rewritten(keyword, value, part)
        if "array" in types_of(schema) and not isinstance(schema.get("items"), dict):
            # OpenAI refuses an array without `items`, and `items` that is a boolean.
            if schema.get("items") is False:
                most = len(schema.get("prefixItems", ()))
                written["maxItems"] = min(most, schema.get("maxItems", most))
            written["items"] = {}
        return written

    written = part({"type": "object", "properties": {}, **root})
    if held := definitions.written(part):
        written["$defs"] = held
    return written


# Cycles


class _Use(NamedTuple):
    """A reference that has to be followed."""

    part: dict[str, Any]
    owner: dict[str, Any] | None
    """The object whose required property the reference is in; None if it is in no property."""
    name: str

    @property
    def target(self) -> str:
        found: str = self.part["$ref"].removeprefix(DEFINITION_PREFIX)
        return found


def _loosen_cycles(definitions: dict[str, Any]) -> None:
    """Change definitions in place so that each cycle passes an optional property, as Gemini wants.

    It unrolls cyclic references to some depth. A required property with such a reference becomes an
    optional one; a reference in no property becomes a part without a type.
    """
    uses = {name: [*_required_uses(part, None, "")] for name, part in definitions.items()}
    edges = {name: {use.target for use in found} for name, found in uses.items()}
    leading = edges.keys() - in_order(edges)
    users: dict[str, set[str]] = {name: set() for name in leading}
    for name in leading:
        for target in edges[name] & leading:
            users[target].add(name)
    cyclic = leading.difference(in_order(users))  # on cycles, and between these
    for name in cyclic:
        for use in uses[name]:
            if use.target in cyclic:
                _loosen(use)


def _required_uses(part: dict[str, Any], owner: dict[str, Any] | None, name: str) -> Iterator[_Use]:
    """Yield the references of a part that are in no optional property."""
    if "$ref" in part:
        yield _Use(part, owner, name)
    for held in (*part.get("anyOf", ()), *part.get("prefixItems", ())):
        yield from _required_uses(held, owner, name)
    for keyword in ("items", "additionalProperties"):
        if isinstance(part.get(keyword), dict):
            yield from _required_uses(part[keyword], owner, name)
    required = {*part.get("required", ())}
    for own_name, held in part.get("properties", {}).items():
        if own_name in required:
            yield from _required_uses(held, part, own_name)


def _loosen(use: _Use) -> None:
    owner = use.owner
    if owner is None:
        use.part.clear()
        return
    if use.name in owner.get("required", ()):
        owner["required"] = [name for name in owner["required"] if name != use.name]
        text = f"{use.name} is required"
        owner |= described(owner.get("description"), [text])
    if not owner.get("required", True):
        del owner["required"]
