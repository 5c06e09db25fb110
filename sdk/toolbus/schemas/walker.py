"""The walk over a JSON Schema: which subschemas its parts hold, and where references lead. Pure.

Schemas are as others wrote them: a keyword whose value is of another type holds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote

from toolbus.chunks.json_values import pointer_keys
from toolbus.schemas.keywords import HELD, Holds

__all__ = [
    "Schema",
    "held",
    "held_by",
    "in_order",
    "joined",
    "others_of",
    "part_in",
    "parts_of",
    "rewritten",
    "target_of",
]

Schema: TypeAlias = dict[str, Any] | bool
"""A JSON Schema, or a part of one."""
_SchemaT = TypeVar("_SchemaT", bound=Schema)
_MAX_DIGITS = 9
"""Of an index in a reference: `int` raises for those of more than 4,300 digits."""


def held(part: Mapping[str, Any], keywords: Iterable[str] = HELD) -> Iterator[Any]:
    """Yield the subschemas that a part holds under some keywords."""
    for keyword in keywords:
        if keyword in part:
            yield from held_by(keyword, part[keyword])


def held_by(keyword: str, value: Any) -> Iterable[Any]:
    """Return the subschemas in the value of a keyword."""
    holds = HELD.get(keyword)
    if holds is Holds.ONE:
        return (value,)
    if holds is Holds.LIST and isinstance(value, list):
        return value
    if holds is Holds.NAMED and isinstance(value, dict):
        return value.values()
    return ()


def parts_of(schema: Schema) -> Iterator[dict[str, Any]]:
    """Yield a schema and all in it that are objects; references are not followed."""
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += held(part)


def rewritten(keyword: str, value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the value of a keyword with each subschema in it changed.

    In older drafts `items` may be a list, too.
    """
    if keyword not in HELD:
        return value
    if isinstance(value, list):
        return [change(item) for item in value]
    if HELD[keyword] is Holds.NAMED and isinstance(value, dict):
        return {name: change(item) for name, item in value.items()}
    return change(value)


def part_in(schema: Any) -> dict[str, Any]:
    """Return a schema that is an object; {}, which is the same as True, for anything else."""
    return schema if isinstance(schema, dict) else {}


def others_of(part: dict[str, Any]) -> Schema:
    """Return what a part asks of a property that it does not name."""
    if part.get("patternProperties"):
        return True
    others: Schema = part.get("additionalProperties", True)
    return others


def joined(keyword: str, schemas: Iterable[_SchemaT]) -> _SchemaT | dict[str, Any]:
    """Return the only one of some schemas, or all of them under a keyword."""
    found = [*schemas]
    return found[0] if len(found) == 1 else {keyword: found}


def target_of(root: Mapping[str, Any], reference: Any) -> Schema | None:
    """Return where a reference leads; None if it is not a JSON pointer to a part of this schema."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    found: Any = root
    for key in pointer_keys(unquote(reference[1:])):
        if isinstance(found, list) and key.isdecimal() and len(key) <= _MAX_DIGITS:
            found = next(islice(found, int(key), None), None)
        elif isinstance(found, Mapping) and key in found:
            found = found[key]
        else:
            return None
    return found if isinstance(found, dict | bool) else None


def in_order(uses: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the names of definitions, each after those that it uses.

    Those that lead to a cycle are not among them.
    """
    sorter = TopologicalSorter(uses)
    try:
        sorter.prepare()
    except CycleError:  # the sorter goes on up to the cycles
        pass
    ordered: list[str] = []
    while ready := sorter.get_ready():
        ordered += ready
        sorter.done(*ready)
    return ordered
