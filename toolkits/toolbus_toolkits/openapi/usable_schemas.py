"""The schemas of the tools of one description, as far as they can be checked here. Pure.

Tools repeat each other's definitions: a thousand tools may each reach hundreds. So definitions are
checked together, in large sets, and what holds for a set holds for each part of it that refers to
nothing outside. The own schema of a tool is checked apart from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from toolbus.schemas.foreign import UsableSchema, usable_schema
from toolbus.schemas.keywords import IN_PLACE
from toolbus_toolkits.openapi.arguments import Arguments
from toolbus_toolkits.openapi.schemas import MAPS, Definitions

__all__ = ["usable_schemas"]

_DEFINITION = re.compile(r"/\$defs/([A-Za-z0-9_.-]+)")
_LOST = {"pattern": "(?=.)"}
"""Stands for a definition that has lost a check: this one is lost, too, so that keywords which
would accept less for it, such as `oneOf`, are loosened."""
_MAX_PARTS = 2_500
"""Objects in definitions that are read together; `usable_schema` takes as many subschemas, and does
not count the objects that hold them."""
_MAX_ADDED = 500
"""Objects that are added to a set which is large alone: `usable_schema` keeps the outer ones."""
_MAX_ANEW = 50
"""Sets and schemas that are read alone; 100 ms for each of the largest."""
_MAX_REFERENCES = 100
"""References that are applied to one value, for a schema that is read apart from its definitions:
each of those may take 0.1 ms."""


class _CheckedSet(NamedTuple):
    names: frozenset[str]
    definitions: dict[str, dict[str, Any]]
    dropped: tuple[str, ...]
    lost: frozenset[str]
    """Definitions that accept more than the description says, or refer to one that does."""

    def of(self, names: frozenset[str]) -> _CheckedSet:
        """Return what is known about a part of the set."""
        dropped = tuple(line for line in self.dropped if _name_in(line) in names | {""})
        definitions = {name: self.definitions[name] for name in sorted(names)}
        return _CheckedSet(names, definitions, dropped, self.lost & names)


def usable_schemas(plans: Iterable[Arguments], definitions: Definitions) -> list[UsableSchema]:
    """Return the schema of the arguments of each tool, with its `$defs`.

    Equal sets of definitions are one object for all tools. Not to be changed.
    """
    plans = list(plans)
    closures = [definitions.closure(plan.definitions) for plan in plans]
    known = _known_sets(closures, definitions)
    usable: list[UsableSchema] = []
    wide = 0
    for plan, names in zip(plans, closures, strict=True):
        if _references(plan.schema) > _MAX_REFERENCES:
            wide += 1
            usable.append(_read_together(plan, names, definitions, wide))
        else:
            usable.append(_read_apart(plan, known[names]))
    return usable


def _read_apart(plan: Arguments, checked: _CheckedSet) -> UsableSchema:
    """Return the schema of a tool: its own part is read with a stub for each definition."""
    stubs = {name: _LOST if name in checked.lost else {} for name in sorted(plan.definitions)}
    own = usable_schema({**plan.schema, "$defs": stubs} if stubs else plan.schema)
    if not checked.names:
        return own
    lines = (line for line in own.dropped if not _name_in(line))
    schema = {**own.schema, "$defs": checked.definitions}
    return UsableSchema(schema, (*lines, *checked.dropped))


def _read_together(
    plan: Arguments, names: frozenset[str], definitions: Definitions, number: int
) -> UsableSchema:
    """Return the schema of a tool whose own part could apply costly definitions too often."""
    if number > _MAX_ANEW:
        text = f"/: more than {_MAX_ANEW} schemas of the description apply many others at one place"
        return UsableSchema({"type": "object"}, (text,))
    written = {name: definitions.definition(name) for name in sorted(names)}
    return usable_schema({**plan.schema, "$defs": written})


def _known_sets(
    closures: Iterable[frozenset[str]], definitions: Definitions
) -> dict[frozenset[str], _CheckedSet]:
    """Check the definitions of each tool: those of many tools together.

    What a set loses together with others it may keep alone, so it is read once more, while that
    does not take too long. The order is that of the description: replicas have equal schemas.
    """
    ordered = sorted(dict.fromkeys(closures), key=len, reverse=True)
    sizes: dict[str, int] = {}
    groups: list[set[str]] = []
    left = 0
    for names in ordered:
        for name in names - sizes.keys():
            sizes[name] = _parts(definitions.definition(name))
        if any(names <= group for group in groups):
            continue
        size = sum(sizes[name] for name in names)
        added = sum(sizes[name] for name in names.difference(*groups[-1:]))
        if groups and added <= left:
            groups[-1] |= names
            left -= added
        else:
            groups.append(set(names))
            left = max(_MAX_PARTS - size, _MAX_ADDED)
    checked = [_checked(frozenset(group), definitions) for group in groups]
    known: dict[frozenset[str], _CheckedSet] = {}
    anew = 0
    for names in ordered:
        found = next(group for group in checked if names <= group.names)
        known[names] = found.of(names)
        is_small = sum(sizes[name] for name in names) <= _MAX_PARTS
        is_part = names != found.names and is_small
        if known[names].dropped and is_part and anew < _MAX_ANEW:
            anew += 1
            known[names] = _checked(names, definitions)
    return known


def _checked(names: frozenset[str], definitions: Definitions) -> _CheckedSet:
    """Check definitions together."""
    written = {name: definitions.definition(name) for name in sorted(names)}
    if not written:
        return _CheckedSet(names, {}, (), frozenset())
    # As properties, each applies to a value of its own: together they cost no more than apart.
    referred = {name: {"$ref": f"#/$defs/{name}"} for name in written}
    usable = usable_schema({"properties": referred, "$defs": written})
    if not usable.dropped:
        return _CheckedSet(names, written, (), frozenset())
    usable_definitions = usable.schema.get("$defs", {})
    lines = tuple(line for line in usable.dropped if not line.startswith("/properties"))
    lost = {_name_in(line) for line in lines}
    if "" in lost:  # a line about no definition: it may be about any
        lost = set(names)
    users: dict[str, list[str]] = {}
    for name in names:
        for used in definitions.references(name):
            users.setdefault(used, []).append(name)
    waiting = list(lost)
    while waiting:
        for user in users.get(waiting.pop(), ()):
            if user not in lost:
                lost.add(user)
                waiting.append(user)
    checked = {name: usable_definitions.get(name, {}) for name in written}
    return _CheckedSet(names, checked, lines, frozenset(lost))


def _references(schema: Any) -> int:
    """Return how many references are applied to one value, at the place with most of them."""
    most = 0
    places = [schema]
    while places:
        count = 0
        waiting = [places.pop()]
        while waiting:
            value = waiting.pop()
            if isinstance(value, list):
                waiting.extend(value)
            elif isinstance(value, dict):
                count += "$ref" in value
                for key, part in value.items():
                    if key in IN_PLACE and not (key in MAPS and isinstance(part, dict)):
                        waiting.append(part)
                    elif key in IN_PLACE:
                        waiting.extend(part.values())
                    elif key in MAPS and isinstance(part, dict):
                        places.extend(part.values())
                    else:
                        places.append(part)
        most = max(most, count)
    return most


def _parts(schema: Any) -> int:
    """Return the number of objects in a schema, of which most are subschemas."""
    count = 0
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            count += 1
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return count


def _name_in(line: str) -> str:
    """Return the name of the definition that a line is about; empty if it is about none."""
    found = _DEFINITION.match(line)
    return found.group(1) if found is not None else ""
