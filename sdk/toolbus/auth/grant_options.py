"""Grants as people write them: a preset, patterns of tools, and names of grants with values.

`toolbus token create` reads them from flags, a `[[rule]]` of a key file from its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, NamedTuple

from toolbus.auth.grants import GRANTS, AgentsGrant, ApiScope
from toolbus.untrusted_text import SHOWN_CHARS, shortened

__all__ = ["FIELDS", "FLAGS", "PRESETS", "GrantSyntax", "read_scope"]

PRESETS: dict[str, Callable[[], ApiScope]] = {
    "host": ApiScope.host_default,
    "agent": ApiScope.agent_default,
    "user": ApiScope.user_default,
    "full": ApiScope.full,
}
"""The named sets of grants."""


class GrantSyntax(NamedTuple):
    """How the place that is read writes grants, for messages."""

    bare: str
    """A grant without a value."""
    valued: str
    """A grant with a value."""
    usual: str
    """The ways to give grants at all."""


FLAGS = GrantSyntax(
    "--grant {}",
    "--grant {}='{}'",
    f"--preset {', '.join(PRESETS)}, --allow 'toolkit.*', or --grant NAME",
)
"""The flags of `toolbus token create`."""
FIELDS = GrantSyntax(
    'grants = ["{}"]',
    'grants = ["{}={}"]',
    'preset = "agent", allow = ["toolkit.*"], or grants = ["NAME"]',
)
"""The fields of a `[[rule]]`."""


_TOOLKITS = ("patterns of toolkit names", "my*")
_TOOLS = ("patterns of tools", "files.*")
_VALUES = {
    "agents.act_for": ("names of participants, or alias/name", "*"),
    "agents.register": _TOOLKITS,
    "agents.builders": _TOOLKITS,
}
"""What a grant has as values, and an example; for other grants `_TOOLS`."""
_AGENTS = "agents."


def read_scope(
    preset: str | None,
    given: Iterable[str],
    allow: Sequence[str],
    deny: Sequence[str],
    *,
    syntax: GrantSyntax,
) -> ApiScope:
    """Return the scope of a preset with further grants.

    Args:
        preset: A name of `PRESETS`; None for no grants but the others.
        given: Further grants, as `NAME` or `NAME=VALUE`, one value each.
        allow: Patterns of tools that may be seen and called.
        deny: Patterns of tools that may be neither seen nor called.
        syntax: How the messages write grants.

    Raises:
        ValueError: Nothing is granted, there is no such preset or grant, or a value is missing or
            not allowed.
    """
    given = list(given)
    grants = _read_grants(given, allow, deny, syntax)
    if preset is not None and preset not in PRESETS:
        raise ValueError(f"preset {preset!r} does not exist: use one of {', '.join(PRESETS)}")
    if preset is None and not (allow or given):
        raise ValueError(f"a token needs grants: {syntax.usual}")
    return _add_grants(ApiScope() if preset is None else PRESETS[preset](), grants)


def _read_grants(
    given: Iterable[str], allow: Sequence[str], deny: Sequence[str], syntax: GrantSyntax
) -> dict[str, tuple[str, ...]]:
    """Return the values of each grant, in the order given; none for a grant that has no values.

    `allow` implies to list and to call.

    Raises:
        ValueError: There is no such grant, or its value is missing or not allowed.
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in given:
        name, equals, value = text.partition("=")
        _check_grant(name, equals, value, syntax)
        found.setdefault(name, ())
        if equals:
            found[name] += (value,)
    if allow:
        found |= {"agents.use_tools": (), "agents.call": ()}
    for name, patterns in (("agents.allow", allow), ("agents.deny", deny)):
        if patterns:
            found[name] = (*patterns, *found.get(name, ()))
    return found


def _check_grant(name: str, equals: str, value: str, syntax: GrantSyntax) -> None:
    if name not in GRANTS:
        raise ValueError(
            f"there is no grant {shortened(repr(name), SHOWN_CHARS)}: {_suggestion(name)}"
        )
    if not GRANTS[name]:
        if equals:
            raise ValueError(f"the grant {name} has no value: write {syntax.bare.format(name)}")
        return
    kind, example = _VALUES.get(name, _TOOLS)
    if not value:
        written = syntax.valued.format(name, example)
        raise ValueError(f"the grant {name} has {kind}: write for example {written}")
    if "," in value and name != "agents.act_for":
        first = shortened(value.partition(",")[0], SHOWN_CHARS)
        raise ValueError(f"write a grant for each value: {syntax.valued.format(name, first)}")


def _suggestion(name: str) -> str:
    if _AGENTS + name in GRANTS:
        return f"did you mean {_AGENTS}{name}?"
    names = {grant: grant for grant in GRANTS}
    short = {grant.removeprefix(_AGENTS): grant for grant in GRANTS if grant.startswith(_AGENTS)}
    for known in (names, short):
        # A lower cutoff suggests grants that are not similar. The time grows with the length.
        if near := get_close_matches(name[:SHOWN_CHARS], known, n=1, cutoff=0.75):
            return f"did you mean {known[near[0]]}?"
    return f"the grants are {', '.join(sorted(GRANTS))}"


def _add_grants(scope: ApiScope, grants: Mapping[str, tuple[str, ...]]) -> ApiScope:
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
        if not GRANTS[name]:
            changes[short] = True
            continue
        present = getattr(owner, short)
        if present == getattr(AgentsGrant(), short, ()):
            present = ()
        changes[short] = tuple(dict.fromkeys((*present, *values)))
    return replace(scope, agents=replace(scope.agents, **agents), **others)
