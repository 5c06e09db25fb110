"""The schema of a tool in the form that a provider takes.

Where the provider has strict schemas, which a model cannot break, a tool has one if all of its
calls can be written so; else it is sent with a plain one, alone. A form may accept more than the
tool does, since the tool checks each call; what it says less is in its descriptions. The way back
is `Turn.run`: null for a parameter that is left out, and aliases of parameters, are undone there.
The sources of the providers' rules are in `toolbus.models.schema_rules`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from toolbus.agents.argument_schemas import ArgumentSchema, KeptByIdentity, argument_schema
from toolbus.models.plain_schemas import plain_object
from toolbus.models.schema_cycles import loosen_cycles
from toolbus.models.schema_limits import StrictCost, strict_cost
from toolbus.models.schema_merging import ImpossiblePart, Merger
from toolbus.models.schema_notes import described
from toolbus.models.schema_reduction import NoFormError, Reduction
from toolbus.models.schema_roots import root_object
from toolbus.models.schema_rules import ANTHROPIC, GEMINI, OPENAI, Dialect, Rules

__all__ = [
    "ANTHROPIC",
    "GEMINI",
    "OPENAI",
    "Dialect",
    "SchemaForm",
    "schema_form",
    "strict_within_limits",
]

MAX_STRICT_TOOLS = 20
MAX_OPTIONAL_PARAMETERS = 24
MAX_UNIONS = 16
"""Of all strict tools in one request to Anthropic: "Explicit limits" of its structured outputs."""


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
    return _FORMS[dialect](schema)


def strict_within_limits(forms: Iterable[SchemaForm]) -> list[SchemaForm]:
    """Return the forms for one request to Anthropic: those beyond its limits are plain ones.

    Those that come first are strict; one that does not fit leaves room for smaller ones.
    """
    tools, optional, unions = MAX_STRICT_TOOLS, MAX_OPTIONAL_PARAMETERS, MAX_UNIONS
    found: list[SchemaForm] = []
    for form in forms:
        cost = form.cost
        fits = tools > 0 and cost.optional <= optional and cost.unions <= unions
        if form.strict and fits:
            tools -= 1
            optional -= cost.optional
            unions -= cost.unions
        found.append(form if fits or form.plain is None else form.plain)
    return found


def _form(dialect: Dialect, schema: dict[str, Any]) -> SchemaForm:
    source = argument_schema(schema)
    names = {
        name: alias
        for name, alias in source.aliases.items()
        if not dialect.parameter.fullmatch(name)
    }
    try:
        root = root_object(Merger(source), source.root)
    except ImpossiblePart:
        raise ValueError("/: no object matches the schema") from None
    root |= described(root.get("description"), source.dropped)
    if dialect.plain is None:
        plain = SchemaForm(plain_object(source, root, names), False)
    else:
        plain = SchemaForm(_reduced(source, root, names, dialect.plain), False)
    if dialect.strict is None:
        return plain
    try:
        strict = _reduced(source, root, names, dialect.strict)
        return SchemaForm(strict, True, strict_cost(strict, dialect.strict), plain)
    except NoFormError:
        return plain


def _reduced(
    source: ArgumentSchema, root: dict[str, Any], names: dict[str, str], rules: Rules
) -> dict[str, Any]:
    written = Reduction(source, rules).root(root, names)
    if rules.has_optional_cycles:
        loosen_cycles(written.get("$defs", {}))
    return written


_FORMS = {
    dialect: KeptByIdentity(partial(_form, dialect)) for dialect in (OPENAI, ANTHROPIC, GEMINI)
}
