"""Whether a strict schema is within the limits of its provider, and what it costs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from toolbus.models.schema_reduction import NoFormError
from toolbus.models.schema_rules import Rules

__all__ = ["StrictCost", "strict_cost"]

_PREFIX = "#/$defs/"
_MANY_VALUES = 250


class StrictCost(NamedTuple):
    """What a strict schema adds to the limits of a request."""

    optional: int = 0
    """Properties that are not required."""
    unions: int = 0
    """Parts with `anyOf` or several types."""


class _Size(NamedTuple):
    optional: int = 0
    unions: int = 0
    levels: int = 0


def strict_cost(form: dict[str, Any], rules: Rules) -> StrictCost:
    """Return what a strict form costs; raises `NoFormError` if it is beyond the limits.

    A definition counts each time it is used, except within itself.
    """
    definitions = form.get("$defs", {})
    _check_totals(form, definitions, rules)
    sizes: dict[str, _Size] = {}
    for name, is_recursive in _in_order(definitions):
        if is_recursive and not rules.has_recursion:
            raise NoFormError("it is recursive")
        sizes[name] = _size(definitions[name], sizes)
    size = _size(form, sizes)
    if rules.max_levels is not None and size.levels > rules.max_levels:
        raise NoFormError(f"it has more than {rules.max_levels} levels")
    return StrictCost(size.optional, size.unions)


def _in_order(definitions: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield the names of definitions, each after those that it uses, and whether it uses itself.

    Of definitions that use each other, one comes first.
    """
    uses = {name: [*_uses(part)] for name, part in definitions.items()}
    state: dict[str, str] = {}
    for first in definitions:
        stack = [first]
        while stack:
            name = stack[-1]
            if name not in state:
                state[name] = "begun"
                stack += [each for each in uses[name] if each not in state]
                continue
            stack.pop()
            if state[name] == "begun":
                state[name] = "done"
                yield name, any(state[each] != "done" or each == name for each in uses[name])


def _uses(part: dict[str, Any]) -> Iterator[str]:
    if "$ref" in part:
        yield part["$ref"].removeprefix(_PREFIX)
    for held in _held(part):
        yield from _uses(held)


def _size(part: dict[str, Any], known: dict[str, _Size]) -> _Size:
    """Return the size of a written part; a definition that is not known is within itself."""
    if "$ref" in part:
        return known.get(part["$ref"].removeprefix(_PREFIX), _Size())
    held = [_size(each, known) for each in _held(part)]
    properties = part.get("properties", {})
    optional = len(properties.keys() - part.get("required", ()))
    is_union = "anyOf" in part or isinstance(part.get("type"), list)
    return _Size(
        optional + sum(size.optional for size in held),
        is_union + sum(size.unions for size in held),
        ("properties" in part) + max((size.levels for size in held), default=0),
    )


def _held(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from part.get("properties", {}).values()
    yield from part.get("anyOf", ())
    if "items" in part:
        yield part["items"]


def _check_totals(form: dict[str, Any], definitions: dict[str, Any], rules: Rules) -> None:
    properties = 0
    values = 0
    chars = sum(len(name) for name in definitions)
    waiting = [form, *definitions.values()]
    while waiting:
        part = waiting.pop()
        waiting += _held(part)
        names = part.get("properties", ())
        properties += len(names)
        listed = part.get("enum", ())
        values += len(listed)
        texts = [each for each in (*listed, part.get("const")) if isinstance(each, str)]
        listed_chars = sum(len(text) for text in texts)
        chars += listed_chars + sum(len(name) for name in names)
        if len(listed) > _MANY_VALUES:
            _require(listed_chars, rules.max_long_enum_chars, "characters in one enum")
    _require(properties, rules.max_properties, "properties")
    _require(values, rules.max_enum_values, "values in enums")
    _require(chars, rules.max_chars, "characters of names and values")


def _require(count: int, limit: int | None, what: str) -> None:
    if limit is not None and count > limit:
        raise NoFormError(f"it has more than {limit:,} {what}")
