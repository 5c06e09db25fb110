"""Makes the cyclic references of a written schema such as Gemini takes them. Pure.

It unrolls them to some depth, so they may stand in optional properties alone. A required property
with such a reference becomes an optional one; a reference in no property becomes a part without
a type.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from toolbus.models.schema_notes import described

__all__ = ["loosen_cycles"]

_PREFIX = "#/$defs/"


class _Use(NamedTuple):
    """A reference that has to be followed."""

    part: dict[str, Any]
    owner: dict[str, Any] | None
    """The object whose required property the reference is in; None if it is in no property."""
    name: str

    @property
    def target(self) -> str:
        found: str = self.part["$ref"].removeprefix(_PREFIX)
        return found


def loosen_cycles(definitions: dict[str, Any]) -> None:
    """Change definitions in place so that each cycle passes an optional property."""
    uses = {name: [*_required_uses(part, None, "")] for name, part in definitions.items()}
    cyclic = _on_cycles({name: {use.target for use in found} for name, found in uses.items()})
    for name in cyclic:
        for use in uses[name]:
            if use.target in cyclic:
                _loosen(use)


def _required_uses(part: dict[str, Any], owner: dict[str, Any] | None, name: str) -> Iterator[_Use]:
    """Yield the references of a part that are in no optional property."""
    if "$ref" in part:
        yield _Use(part, owner, name)
    for held in (*part.get("anyOf", ()), *part.get("prefixItems", ())):
        yield from _required_uses(held, owner, name)
    for keyword in ("items", "additionalProperties"):
        if isinstance(part.get(keyword), dict):
            yield from _required_uses(part[keyword], owner, name)
    required = {*part.get("required", ())}
    for own_name, held in part.get("properties", {}).items():
        if own_name in required:
            yield from _required_uses(held, part, own_name)


def _on_cycles(edges: dict[str, set[str]]) -> set[str]:
    """Return the names on cycles, and between these."""
    left = edges
    for _ in range(2):  # those that lead to no cycle, then those that none leads to
        left = _without_ends(left)
        turned: dict[str, set[str]] = {name: set() for name in left}
        for name, targets in left.items():
            for target in targets:
                turned[target].add(name)
        left = turned
    return set(left)


def _without_ends(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the names that lead to a cycle, and where they lead."""
    users: dict[str, list[str]] = {name: [] for name in edges}
    for name, targets in edges.items():
        for target in targets:
            users[target].append(name)
    counts = {name: len(targets) for name, targets in edges.items()}
    ends = [name for name, count in counts.items() if not count]
    while ends:
        name = ends.pop()
        del counts[name]
        for user in users[name]:
            counts[user] -= 1
            if not counts[user]:
                ends.append(user)
    return {name: edges[name] & counts.keys() for name in counts}


def _loosen(use: _Use) -> None:
    owner = use.owner
    if owner is None:
        use.part.clear()
        return
    if use.name in owner.get("required", ()):
        owner["required"] = [name for name in owner["required"] if name != use.name]
        text = f"{use.name} is required"
        owner |= described(owner.get("description"), [text])
    if not owner.get("required", True):
        del owner["required"]
