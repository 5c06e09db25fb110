"""Limits what compiling the schemas of one tool may cost, before any of them is compiled. Pure.

A unit of cost is about a microsecond. Each value of a schema costs one, whatever it means there,
and each different pattern what `pattern_cost` says: the compiler compiles equal patterns once.
Patterns are counted wherever they are, among examples too, since a reference may lead there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from toolbus_server.registry.pattern_cost import pattern_cost

__all__ = ["MAX_SCHEMA_COST", "MAX_TOOL_VALUES", "OverBudget", "SchemaSize", "measure_schema"]

MAX_TOOL_VALUES = 4_096
"""Maps, lists and plain values in one tool of a manifest, or in the offers of one participant."""
MAX_SCHEMA_COST = 5_000
"""What compiling one schema may cost: 4 ms at most of what was measured."""


_VALUES = frozenset({"enum", "const", "default", "examples"})
_NAMES = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)


class _Place(Enum):
    """What a map is by its place in a schema."""

    SCHEMA = auto()
    NAMES = auto()
    """A map from names to schemas: its keys are no keywords."""
    VALUE = auto()
    """An example or another value that validation does not read as a schema."""


class OverBudget(Exception):
    """A schema has too many values, or patterns that cost too much; `str` says which."""


@dataclass(frozen=True, slots=True)
class SchemaSize:
    """What was counted in a schema."""

    parts: list[dict[str, Any]]
    """All maps in it, those among examples too."""
    subschemas: list[dict[str, Any]]
    """The maps that are schemas by their place."""
    cost: int
    """What compiling it costs."""


def measure_schema(schema: dict[str, Any]) -> SchemaSize:
    """Count the values of a schema, and estimate the cost of its patterns.

    Raises:
        OverBudget: It has more than `MAX_TOOL_VALUES` values, or costs more than `MAX_SCHEMA_COST`.
    """
    parts: list[dict[str, Any]] = []
    subschemas: list[dict[str, Any]] = []
    patterns: set[str] = set()
    waiting: list[tuple[Any, _Place]] = [(schema, _Place.SCHEMA)]
    values = 1
    while waiting:
        part, place = waiting.pop()
        values += len(part)
        if values > MAX_TOOL_VALUES:
            raise OverBudget(f"more than {MAX_TOOL_VALUES} values in one schema")
        if type(part) is dict:
            parts.append(part)
            patterns.update(_patterns_of(part))
            if place is _Place.SCHEMA:
                subschemas.append(part)
            waiting += [
                (item, _place_below(place, name))
                for name, item in part.items()
                if type(item) is dict or type(item) is list
            ]
        else:
            waiting += [(item, place) for item in part if type(item) is dict or type(item) is list]
    cost = values + _cost_of(patterns, MAX_SCHEMA_COST - values)
    return SchemaSize(parts, subschemas, cost)


def _place_below(place: _Place, name: str) -> _Place:
    if place is not _Place.SCHEMA:
        return _Place.SCHEMA if place is _Place.NAMES else _Place.VALUE
    if name in _VALUES:
        return _Place.VALUE
    return _Place.NAMES if name in _NAMES else _Place.SCHEMA


def _patterns_of(part: dict[str, Any]) -> list[str]:
    by_pattern = part.get("patternProperties")
    found = list(by_pattern) if type(by_pattern) is dict else []
    if type(pattern := part.get("pattern")) is str:
        found.append(pattern)
    return found


def _cost_of(patterns: set[str], limit: int) -> int:
    """Add up what different patterns cost. Raises OverBudget."""
    cost = 0.0
    for pattern in patterns:
        # A pattern costs at least its length, so a long one is not even read.
        cost += len(pattern) if len(pattern) > limit else pattern_cost(pattern)
        if cost > limit:
            raise OverBudget(
                f"patterns, with their repeats, that cost more than the {MAX_SCHEMA_COST} units of"
                " one schema: use fewer or shorter repeats, or maxLength"
            )
    return int(cost)
