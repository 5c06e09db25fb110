"""Merges parts of a schema that hold for the same value into one part. Pure.

Providers take no `allOf`, and nothing beside `$ref` or `anyOf`; what a tool's schema says there is
merged. What cannot be merged stays in an `allOf` of the result.

The root of a tool's schema becomes one object, as every provider wants it: a union there becomes
one object with the parameters of all its branches, and the description says which belong together.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from typing import Any

from toolbus.schemas.argument_schema import NOT_ASKING, ArgumentSchema
from toolbus.schemas.keywords import one_or_all, types_of
from toolbus.schemas.notes import described, note
from toolbus.schemas.walker import Schema, joined, others_of, part_in

__all__ = [
    "ImpossiblePart",
    "Merger",
    "NotMergedError",
    "declared",
    "json_key",
    "root_object",
    "same_json",
]

_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_TOGETHER = (
    ("if", "then", "else"),
    ("contains", "minContains", "maxContains"),
    ("prefixItems", "items", "unevaluatedItems"),
)
"""Keywords that have a meaning together."""
_MERGED_TOGETHER = frozenset(name for group in _TOGETHER for name in group) | {
    "properties",
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
}
_NOT_AT_ROOT = ("anyOf", "oneOf", "not", "enum", "const", "allOf")
_HOW_MANY = {"anyOf": "at least one", "oneOf": "exactly one"}
_MAX_UNIONS = 8
"""Unions of the root that are written as parameters, also those of their branches."""
_MAX_MERGED = 100_000
"""Properties and values of all parts that are merged, each time they are: 100 ms at most."""


class NotMergedError(Exception):
    """A part applies itself in place, or there is too much to merge."""


class ImpossiblePart(Exception):
    """No value matches a part."""


def declared(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part in which each name of `required` is a property: APIs refuse another one.

    What holds for other properties holds for it. Where there may be no others, it is not required:
    no object matches such a part.
    """
    required = part.get("required", ())
    properties = part.get("properties", {})
    missing = [name for name in required if name not in properties]
    if not missing:
        return part
    others = part.get("additionalProperties", part.get("unevaluatedProperties", True))
    if others is False:
        return {**part, "required": [name for name in required if name in properties]}
    return {**part, "properties": {**properties, **dict.fromkeys(missing, others)}}


class Merger:
    """Merges the parts of one schema; each is merged once."""

    def __init__(self, source: ArgumentSchema) -> None:
        self._source = source
        self._flat: dict[int, tuple[Any, Schema, frozenset[int]]] = {}
        self._on_way: set[int] = set()
        self._left = _MAX_MERGED

    def flat(self, part: Schema) -> dict[str, Any]:
        """Return a part with what its `$ref` and `allOf` ask, and without these.

        An `allOf` in the result has what cannot be merged. Raises `NotMergedError`, and
        `ImpossiblePart`.
        """
        try:
            found, _ = self._flatten(part)
        except RecursionError:  # a chain of references, which may be as long as the schema
            raise NotMergedError from None
        if found is False:
            raise ImpossiblePart
        return part_in(found)

    def targets(self, part: Schema) -> frozenset[int]:
        """Return the parts, by identity, that were merged into a part by `flat`."""
        _, _, targets = self._flat.get(id(part), (None, True, frozenset()))
        return targets

    def _flatten(self, part: Any) -> tuple[Any, frozenset[int]]:
        if not isinstance(part, dict) or ("$ref" not in part and "allOf" not in part):
            return part, frozenset()
        key = id(part)
        if key in self._flat:
            return self._flat[key][1:]
        if key in self._on_way:
            raise NotMergedError
        self._on_way.add(key)
        try:
            own = {name: part[name] for name in part if name not in ("$ref", "allOf", "$defs")}
            held = list(part.get("allOf", ()))
            targets: set[int] = set()
            if "$ref" in part:
                held.insert(0, self._source.target(part["$ref"]))
                targets.add(id(held[0]))
            parts: dict[int, Any] = {id(own): own}
            for inner in held:
                flat, through = self._flatten(inner)
                parts[id(flat)] = flat
                targets |= through
        finally:
            self._on_way.discard(key)
        merged_part = reduce(self.merged, parts.values())
        # The part is kept too, so that no other one has its id.
        self._flat[key] = (part, merged_part, frozenset(targets))
        return self._flat[key][1:]

    def merged(self, first: Schema, second: Schema) -> Schema:
        """Return a part that asks what both ask, or raise `NotMergedError`.

        Annotations are those of the first.
        """
        for part in (part_in(first), part_in(second)):
            self._left -= len(part) + len(part.get("properties", ())) + len(part.get("enum", ()))
        if self._left < 0:
            raise NotMergedError
        if first is False or second is False:
            return False
        if not isinstance(first, dict) or not isinstance(second, dict):
            return second if first is True else first
        result = dict(first)
        _merge_objects(first, second, result)
        rest = _merge_groups(first, second, result)
        for name in [name for name in second if name not in _MERGED_TOGETHER]:
            value = second[name]
            if name not in result or same_json(result[name], value):
                result[name] = value
            elif name not in NOT_ASKING and not _merge_values(name, value, result):
                rest[name] = value
        if rest:
            result["allOf"] = [*result.get("allOf", ()), rest]
        if result.get("type") == [] or result.get("enum") == []:
            return False
        return result


def _merge_groups(
    first: dict[str, Any], second: dict[str, Any], result: dict[str, Any]
) -> dict[str, Any]:
    """Merge keywords that have a meaning together; return those that cannot be merged."""
    rest: dict[str, Any] = {}
    for group in _TOGETHER:
        names = [name for name in group if name in second]
        if not any(name in first for name in group):
            result.update({name: second[name] for name in names})
        elif names == ["items"] and "prefixItems" not in first:
            result["items"] = _both(first.get("items", True), second["items"])
        elif not all(same_json(first.get(name), second[name]) for name in names):
            rest |= {name: second[name] for name in names}
    return rest


def _merge_values(name: str, value: Any, result: dict[str, Any]) -> bool:
    """Merge two values of a keyword that differ; return whether that is possible."""
    own = result[name]
    if name == "type":
        result[name] = one_or_all(_common_types(types_of(result), types_of({"type": value})))
    elif name == "required":
        result[name] = [*dict.fromkeys([*own, *value])]
    elif name == "enum":
        others = {json_key(entry) for entry in value}
        result[name] = [entry for entry in own if json_key(entry) in others]
    elif name == "allOf":
        result[name] = [*own, *value]
    elif name in _LEAST:
        result[name] = max(own, value)
    elif name in _MOST:
        result[name] = min(own, value)
    elif name == "uniqueItems":
        result[name] = own or value
    else:
        return False
    return True


def _merge_objects(first: dict[str, Any], second: dict[str, Any], result: dict[str, Any]) -> None:
    """Merge the properties of two parts. A property that one forbids is gone."""
    own = first.get("properties", {})
    other = second.get("properties", {})
    properties: dict[str, Any] = {}
    for name in {**own, **other}:
        both = _both(own.get(name, others_of(first)), other.get(name, others_of(second)))
        if both is not False:
            properties[name] = both
    if properties or "properties" in first or "properties" in second:
        result["properties"] = properties
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if keyword in second:
            result[keyword] = _both(first.get(keyword, True), second[keyword])
    if "patternProperties" in second:
        patterns = dict(first.get("patternProperties", {}))
        for pattern, schema in second["patternProperties"].items():
            patterns[pattern] = _both(patterns.get(pattern, True), schema)
        result["patternProperties"] = patterns


def _both(first: Schema, second: Schema) -> Schema:
    if first is False or second is False:
        return False
    if first is True or first is second or same_json(first, second):
        return second
    return first if second is True else {"allOf": [first, second]}


def same_json(first: Any, second: Any) -> bool:
    """Whether two JSON values are the same; true and 1 are not, though Python has them equal."""
    return first is second or (first == second and json_key(first) == json_key(second))


def json_key(value: Any) -> tuple[bool, Any]:
    """Return a key that two JSON values have in common if they are the same."""
    if isinstance(value, dict | list):
        return False, json.dumps(value, sort_keys=True)
    return isinstance(value, bool), value


def _common_types(first: list[str], second: list[str]) -> list[str]:
    common = [kind for kind in first if kind in second]
    for one, other in ((first, second), (second, first)):
        if "integer" in one and "number" in other and "integer" not in common:
            common.append("integer")
    return common


# Roots


def root_object(merger: Merger, root: dict[str, Any]) -> dict[str, Any]:
    """Return the root without a union, a reference, and what else no provider takes there.

    Raises `ImpossiblePart` if no object matches it.
    """
    try:
        found = merger.flat(root)
    except NotMergedError:
        found = {name: root[name] for name in root if name not in ("$ref", "allOf")}
    notes: list[str] = []
    for _ in range(_MAX_UNIONS):
        keyword = next((name for name in _HOW_MANY if name in found), None)
        if keyword is None:
            break
        branches = _objects(merger, found[keyword])
        rest = {name: found[name] for name in found if name != keyword}
        whole, text = _union(branches)
        notes.append(f"{_HOW_MANY[keyword]} of: {text}")
        try:
            both = merger.merged(rest, whole)
        except NotMergedError:
            both = rest
        if not isinstance(both, dict):
            raise ImpossiblePart
        found = both
    if found.get("not", False) in (True, {}) or "object" not in (types_of(found) or ["object"]):
        raise ImpossiblePart
    found = {**found, "type": "object"}
    notes += [note(name, found.pop(name)) for name in _NOT_AT_ROOT if name in found]
    if notes:
        found |= described(found.get("description"), notes)
    return found


def _objects(merger: Merger, branches: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the branches that an object may match."""
    found: list[dict[str, Any]] = []
    for branch in branches:
        try:
            flat = merger.flat(branch)
        except ImpossiblePart:
            continue
        except NotMergedError:
            flat = {}
        if "object" in (types_of(flat) or ["object"]):
            found.append(flat)
    if not found:
        raise ImpossiblePart
    return found


def _union(branches: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Return one object for all branches, and a text that tells them apart."""
    asked: dict[str, dict[str, Any]] = {}
    for branch in branches:
        for name, schema in branch.get("properties", {}).items():
            if schema is not False:
                asked.setdefault(name, {})[json.dumps(schema, sort_keys=True)] = schema
    properties = {name: joined("anyOf", found.values()) for name, found in asked.items()}
    in_all = set.intersection(*({*branch.get("required", ())} for branch in branches))
    required = [name for name in branches[0].get("required", ()) if name in in_all]
    whole: dict[str, Any] = {"required": required}
    if any("properties" in branch for branch in branches):
        whole["properties"] = properties
    others = [branch.get("additionalProperties") for branch in branches]
    if all(other is False for other in others):
        whole["additionalProperties"] = False
    elif open_to := [other for other in others if other not in (None, False)]:
        whole["additionalProperties"] = len(open_to) > 1 or open_to[0]
    for keyword in {key for branch in branches for key in branch} - NOT_ASKING - {*whole, "type"}:
        values = [branch[keyword] for branch in branches if keyword in branch]
        if len(values) == len(branches) and all(same_json(value, values[0]) for value in values):
            whole[keyword] = values[0]
    return whole, " | ".join(map(_signature, branches))


def _signature(branch: dict[str, Any]) -> str:
    """Return the parameters of a branch in short: `{kind: "a", path, mode?}`."""
    required = dict.fromkeys(branch.get("required", ()))
    shown: list[str] = []
    properties = branch.get("properties", {})
    for name in dict.fromkeys([*properties, *required]):
        asked = properties.get(name, True)
        if isinstance(asked, dict) and "const" in asked:
            shown.append(note(name, asked["const"]))
        elif asked is not False:
            shown.append(name + "?" * (name not in required))
    return f"{{{', '.join(shown)}}}"
