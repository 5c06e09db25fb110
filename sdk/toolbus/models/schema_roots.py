"""Writes the root of a tool's schema as one object, as every provider wants it. Pure.

A union at the root becomes one object that has the parameters of all its branches; those that all
branches require are required. The description says which belong together.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from toolbus.agents.argument_schemas import NOT_ASKING
from toolbus.models.schema_merging import (
    ImpossiblePart,
    Merger,
    NotMergedError,
    same_json,
    types_of,
)
from toolbus.models.schema_notes import described, note

__all__ = ["root_object"]

_NOT_AT_ROOT = ("anyOf", "oneOf", "not", "enum", "const", "allOf")
_MAX_UNIONS = 8
"""Unions of the root that are written as parameters, also those of their branches."""


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
        keyword = next((name for name in ("anyOf", "oneOf") if name in found), None)
        if keyword is None:
            break
        branches = _objects(merger, found[keyword])
        rest = {name: found[name] for name in found if name != keyword}
        whole, text = _union(branches, "exactly one" if keyword == "oneOf" else "at least one")
        notes.append(text)
        found = _merged_object(merger, rest, whole)
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


def _union(branches: Sequence[dict[str, Any]], how_many: str) -> tuple[dict[str, Any], str]:
    """Return one object for all branches, and a text that tells them apart."""
    asked: dict[str, dict[str, Any]] = {}
    for branch in branches:
        for name, schema in branch.get("properties", {}).items():
            if schema is not False:
                asked.setdefault(name, {})[json.dumps(schema, sort_keys=True)] = schema
    properties = {
        name: next(iter(found.values())) if len(found) == 1 else {"anyOf": [*found.values()]}
        for name, found in asked.items()
    }
    in_all = set.intersection(*({*branch.get("required", ())} for branch in branches))
    required = [name for name in branches[0].get("required", ()) if name in in_all]
    whole: dict[str, Any] = {"required": required}
    if any("properties" in branch for branch in branches):
        whole["properties"] = properties
    others = [branch.get("additionalProperties") for branch in branches]
    if all(each is False for each in others):
        whole["additionalProperties"] = False
    elif open_to := [each for each in others if each not in (None, False)]:
        whole["additionalProperties"] = open_to[0] if len(open_to) == 1 else True
    for keyword in {key for branch in branches for key in branch} - NOT_ASKING - {*whole, "type"}:
        values = [branch[keyword] for branch in branches if keyword in branch]
        if len(values) == len(branches) and all(same_json(each, values[0]) for each in values):
            whole[keyword] = values[0]
    told = " | ".join(_signature(branch) for branch in branches)
    return whole, f"{how_many} of: {told}"


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
            shown.append(name if name in required else f"{name}?")
    return f"{{{', '.join(shown)}}}"


def _merged_object(merger: Merger, base: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    try:
        found = merger.merged(base, whole)
    except NotMergedError:
        return base
    if not isinstance(found, dict):
        raise ImpossiblePart
    return found
