"""Whether a strict schema is within the limits of its provider, and what it costs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from toolbus.models.schema_reduction import NoFormError
from toolbus.models.schema_rules import Rules

__all__ = ["StrictCost", "strict_cost"]

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
    size = _Sizes(definitions).of(form)
    if rules.max_levels is not None and size.levels > rules.max_levels:
        raise NoFormError(f"it has more than {rules.max_levels} levels")
    return StrictCost(size.optional, size.unions)


class _Sizes:
    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._known: dict[str, _Size] = {}

    def of(self, part: dict[str, Any]) -> _Size:
        """Return the size of a written part."""
        if "$ref" in part:
            name = part["$ref"].removeprefix("#/$defs/")
            if name not in self._known:
                self._known[name] = _Size()  # of a use within itself
                self._known[name] = self.of(self._definitions[name])
            return self._known[name]
        held = [self.of(each) for each in _held(part)]
        properties = part.get("properties", {})
        optional = len(properties) - len(part.get("required", ()))
        is_union = "anyOf" in part or isinstance(part.get("type"), list)
        return _Size(
            optional * ("properties" in part) + sum(size.optional for size in held),
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
