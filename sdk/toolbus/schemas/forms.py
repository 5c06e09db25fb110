"""The schema of a tool in the form that a provider takes.

Where the provider has strict schemas, which a model cannot break, a tool has one if all of its
calls can be written so; else it is sent with a plain one, alone. A form may accept more than the
tool does, since the tool checks each call; what it says less is in its descriptions. The way back
is `Turn.run`: null for a parameter that is left out, and aliases of parameters, are undone there.
The sources of the providers' rules are in `toolbus.schemas.rules`. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from toolbus.schemas.argument_schema import argument_schema
from toolbus.schemas.identity_cache import IdentityCache
from toolbus.schemas.merging import ImpossiblePart, Merger, declared, root_object
from toolbus.schemas.notes import described, note
from toolbus.schemas.reduction import DEFINITION_PREFIX, NoFormError, Reduction, plain_object
from toolbus.schemas.rules import ANTHROPIC, GEMINI, OPENAI, Dialect, Rules, Totals
from toolbus.schemas.walker import Schema, held, in_order, part_in, parts_of

__all__ = [
    "ANTHROPIC",
    "GEMINI",
    "OPENAI",
    "Dialect",
    "SchemaForm",
    "schema_form",
    "strict_within_limits",
]

# Of all strict tools in one request to Anthropic: "Explicit limits" of its structured outputs.
MAX_STRICT_TOOLS = 20
MAX_OPTIONAL_PARAMETERS = 24
MAX_UNIONS = 16
_MANY_VALUES = 250


class StrictCost(NamedTuple):
    """What a strict schema adds to the limits of a request."""

    optional: int = 0
    """Properties that are not required."""
    unions: int = 0
    """Parts with `anyOf` or several types."""
    levels: int = 0
    """Objects, each within another, with properties."""


@dataclass(frozen=True, slots=True)
class SchemaForm:
    """The schema of a tool for a provider. Not to be changed."""

    schema: dict[str, Any]
    strict: bool
    """Whether it is a strict one."""
    cost: StrictCost = field(default=StrictCost(), repr=False)
    """What a strict one adds to the limits of a request."""
    plain: SchemaForm | None = field(default=None, repr=False)
    """The plain form, of a strict one."""


def schema_form(schema: dict[str, Any], dialect: Dialect) -> SchemaForm:
    """Return the form of a tool's schema for a provider; strict if there is a strict one.

    It is kept by the identity of the schema, which is not changed in place.

    Args:
        schema: JSON Schema of the arguments.
        dialect: The provider.

    Raises `ValueError` if no call can be written in any form.
    """
    found = _FORMS[dialect](schema)
    if isinstance(found, str):
        raise ValueError(found)
    return found


def strict_within_limits(forms: Iterable[SchemaForm]) -> list[SchemaForm]:
    """Return the forms for one request to Anthropic: those beyond its limits are plain ones.

    Those that come first are strict; one that does not fit leaves room for smaller ones.
    """
    tools = MAX_STRICT_TOOLS
    optional = MAX_OPTIONAL_PARAMETERS
    unions = MAX_UNIONS
    found: list[SchemaForm] = []
    for form in forms:
        cost = form.cost
        fits = tools > 0 and cost.optional <= optional and cost.unions <= unions
        if form.strict and fits:
            tools -= 1
            optional -= cost.optional
            unions -= cost.unions
        elif form.plain is not None:
            form = form.plain
        found.append(form)
    return found


def _form(dialect: Dialect, schema: dict[str, Any]) -> SchemaForm | str:
    """Return the form, or why there is none: else each request would read the schema anew."""
    source = argument_schema(schema)
    names = {
        name: alias
        for name, alias in source.aliases.items()
        if not dialect.parameter.fullmatch(name)
    }
    try:
        root = root_object(Merger(source), source.root)
    except ImpossiblePart:
        return "/: no object matches the schema"
    # A name that the schema only requires has no alias.
    if "required" in root:
        usable = {*source.names, *filter(dialect.parameter.fullmatch, root["required"])}
        root["required"] = [name for name in root["required"] if name in usable]
    root = _renamed(declared(root), names)
    root |= described(root.get("description"), source.dropped)
    if dialect.plain is None:
        plain = SchemaForm(plain_object(source, root), False)
    else:
        plain = SchemaForm(Reduction(source, dialect.plain).root(root), False)
    if dialect.strict is None:
        return plain
    try:
        strict = Reduction(source, dialect.strict).root(root)
        return SchemaForm(strict, True, _strict_cost(strict, dialect.strict), plain)
    except NoFormError:
        return plain


def _renamed(root: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Return a root with other names of its properties; each of these says its own one."""
    renamed = dict(root)
    if "properties" in root:  # without, it is free-form
        properties: dict[str, Schema] = {}
        for name, schema in root["properties"].items():
            if name in names and schema is not False:
                own = part_in(schema)
                schema = {**own, **described(own.get("description"), [note("name", name)])}
            properties[names.get(name, name)] = schema
        renamed["properties"] = properties
    if "required" in root:
        renamed["required"] = [names.get(name, name) for name in root["required"]]
    return renamed


def _strict_cost(form: dict[str, Any], rules: Rules) -> StrictCost:
    """Return what a strict form costs; raises `NoFormError` if it is beyond the limits.

    A definition counts each time it is used, except within itself.
    """
    definitions = form.get("$defs", {})
    uses = {name: {*_uses(part)} for name, part in definitions.items()}
    if len(in_order(uses)) < len(uses) and not rules.has_recursion:
        raise NoFormError("it is recursive")
    costs: dict[str, StrictCost] = {}
    for name in _after_used(uses):
        costs[name] = _cost(definitions[name], costs)
    cost = _cost(form, costs)
    if rules.most is not None:
        totals = _totals(form, cost.levels)
        if any(count > most for count, most in zip(totals, rules.most, strict=True)):
            raise NoFormError("it is larger than a strict schema may be")
    return cost


def _after_used(uses: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yield the names of definitions, each after those that it uses; on a cycle one comes first."""
    begun: set[str] = set()
    for first in uses:
        stack = [(first, False)]
        while stack:
            name, is_used = stack.pop()
            if is_used:
                yield name
            elif name not in begun:
                begun.add(name)
                stack += [(name, True), *((used, False) for used in uses[name])]


def _uses(part: dict[str, Any]) -> Iterator[str]:
    for inner in parts_of(part):
        if "$ref" in inner:
            yield inner["$ref"].removeprefix(DEFINITION_PREFIX)


def _cost(part: dict[str, Any], known: dict[str, StrictCost]) -> StrictCost:
    """Return the cost of a written part; a definition that is not known is within itself."""
    if "$ref" in part:
        return known.get(part["$ref"].removeprefix(DEFINITION_PREFIX), StrictCost())
    costs = [_cost(inner, known) for inner in held(part, ("properties", "anyOf", "items"))]
    properties = part.get("properties", {})
    optional = len(properties.keys() - part.get("required", ()))
    is_union = "anyOf" in part or isinstance(part.get("type"), list)
    return StrictCost(
        optional + sum(cost.optional for cost in costs),
        is_union + sum(cost.unions for cost in costs),
        ("properties" in part) + max((cost.levels for cost in costs), default=0),
    )


def _totals(form: dict[str, Any], levels: int) -> Totals:
    parts = [*parts_of(form)]
    enums = [part.get("enum", ()) for part in parts]
    constants = [part["const"] for part in parts if "const" in part]
    names = [name for part in parts for name in part.get("properties", ())]
    return Totals(
        len(names),
        levels,
        sum(map(len, (*names, *form.get("$defs", ()))))
        + sum(map(_chars, enums))
        + _chars(constants),
        sum(map(len, enums)),
        max((_chars(values) for values in enums if len(values) > _MANY_VALUES), default=0),
    )


def _chars(values: Iterable[Any]) -> int:
    return sum(len(value) for value in values if isinstance(value, str))


_FORMS = {
    dialect: IdentityCache(partial(_form, dialect)) for dialect in (OPENAI, ANTHROPIC, GEMINI)
}
