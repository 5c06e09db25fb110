"""The values of `toolbus token create --grant`: the name of a grant, with a value where it has one.

Names are those of `toolbus.auth.grants.GRANTS`. Patterns and names in values are checked when they
become part of an `ApiScope`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from toolbus.auth.grants import GRANTS, AgentsGrant, ApiScope
from toolbus.chunks.json_values import cut, shown

__all__ = ["add_grants", "read_grants"]

_TOOLKITS = ("patterns of toolkit names", "'my*'")
_TOOLS = ("patterns of tools", "'files.*'")
_VALUES = {
    "agents.act_for": ("names of participants, or alias/name", "'*'"),
    "agents.register": _TOOLKITS,
    "agents.builders": _TOOLKITS,
}
"""What a grant has as values, and an example; for other grants `_TOOLS`."""
_AGENTS = "agents."


def read_grants(given: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of each grant, in the order given; none for a grant that has no values.

    Raises:
        ValueError: There is no such grant, or its value is missing or not allowed.
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in given:
        name, equals, value = text.partition("=")
        _check(name, equals, value)
        found[name] = (*found.get(name, ()), *((value,) if equals else ()))
    return found


def _check(name: str, equals: str, value: str) -> None:
    if name not in GRANTS:
        raise ValueError(f"there is no grant {shown(name)}: {_suggestion(name)}")
    if not GRANTS[name]:
        if equals:
            raise ValueError(f"the grant {name} has no value: write --grant {name}")
        return
    kind, example = _VALUES.get(name, _TOOLS)
    if not value:
        raise ValueError(f"the grant {name} has {kind}: write for example {_form(name, example)}")
    if "," in value and name != "agents.act_for":
        first = cut(value.partition(",")[0])
        raise ValueError(f"give each value its own --grant: {_form(name, first)} --grant ...")


def _form(name: str, value: str) -> str:
    return f"--grant {name}={value}"


def _suggestion(name: str) -> str:
    if _AGENTS + name in GRANTS:
        return f"did you mean {_AGENTS}{name}?"
    near = get_close_matches(name[:64], GRANTS, n=1) or [
        _AGENTS + short for short in get_close_matches(name[:64], _short_names(), n=1)
    ]
    return f"did you mean {near[0]}?" if near else f"the grants are {', '.join(sorted(GRANTS))}"


def _short_names() -> list[str]:
    return [name.removeprefix(_AGENTS) for name in GRANTS if name.startswith(_AGENTS)]


def add_grants(scope: ApiScope, grants: Mapping[str, tuple[str, ...]]) -> ApiScope:
    """Return a scope with further grants.

    Values are added to those that the scope has. They replace the default `*` of `agents.allow` and
    `agents.register`, so that they narrow it.

    Raises:
        ValueError: A pattern or name is invalid.
    """
    agents: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, values in grants.items():
        short = name.removeprefix(_AGENTS)
        owner, changes = (scope.agents, agents) if short != name else (scope, others)
        changes[short] = _merged(getattr(owner, short), values, short) if GRANTS[name] else True
    return replace(scope, agents=replace(scope.agents, **agents), **others)


def _merged(present: tuple[str, ...], new: tuple[str, ...], name: str) -> tuple[str, ...]:
    is_default = present == getattr(AgentsGrant(), name, ())
    return tuple(dict.fromkeys(new if is_default else (*present, *new)))
