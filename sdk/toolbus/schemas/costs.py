"""Bounds how often the subschemas of a JSON Schema are applied to one place of a value.

A schema of few lines may apply a subschema a billion times: thirty definitions that each refer
twice to the next one, or one that refers twice to itself, for a value of thirty levels. Without
`$ref` a subschema is applied at most once to each place of a value, and so are all together at most
as often as there are subschemas. With it, the paths that lead to a place are counted here, and
where there are too many a `$ref` is dropped. It takes time linear in the schema.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

from toolbus.schemas.keywords import CHILDREN, IN_PLACE, SUBSCHEMAS
from toolbus.schemas.walker import held_by

__all__ = ["Part", "bound_costs"]

_MAX_APPLIED = 2_500
"""How often subschemas may be applied to one place: as many as a schema without `$ref` may have.
They take 0.1 ms."""
# To compile `anyOf` and `oneOf`, what their branches require and choose from is copied, 10 ns for
# each character; what a `$ref` leads to is copied for each of them.
_MAX_COPIED = 2_000_000
"""Characters that are copied for all branches."""
# A step takes 2 us. An ordinary schema takes one or two for each subschema.
_MAX_STEPS = 10_000
_MAX_ROUNDS = 4
# Without cycles one pass is enough, and a harmless cycle takes three.
_MAX_PASSES = 8


@dataclass(slots=True, eq=False)
class Part:
    """A subschema that is an object."""

    parent: Part | None
    """The subschema that it is in; None for the whole schema."""
    steps: tuple[str, ...]
    """The keyword of the parent that holds it, and its index or its name in there, if any."""
    level: int
    """How many objects and lists it is in, with itself."""
    fields: dict[str, Any] = field(default_factory=dict)
    """What is kept of it. Subschemas in it are a `Part` or a boolean."""
    children: dict[tuple[str, ...], Part] = field(default_factory=dict)
    """The subschemas by their steps."""
    target: Part | None = None
    """Where its `$ref` leads."""
    referrers: list[Part] = field(default_factory=list)
    is_gone: bool = False
    """Whether it is in a keyword that was dropped."""
    accepts_more: bool = False
    """Whether something of it is not checked."""

    @property
    def path(self) -> tuple[str, ...]:
        """The keys that lead to it in the schema as it is now."""
        path: tuple[str, ...] = ()
        part = self
        while part.parent is not None:
            path = part.steps + path
            part = part.parent
        return path

    def under(self, *keywords: str) -> Iterator[Part]:
        """Yield the subschemas of some keywords, those that are objects."""
        for keyword in keywords:
            if keyword in self.fields:
                for item in held_by(keyword, self.fields[keyword]):
                    if type(item) is Part:
                        yield item

    def in_place(self) -> Iterator[Part]:
        """Yield the subschemas that are applied to the same value."""
        if self.target is not None:
            yield self.target
        yield from self.under(*(keyword for keyword in self.fields if keyword in IN_PLACE))


Drop: TypeAlias = Callable[[Part, str, str], None]
"""Drops a keyword of a subschema for a reason."""
_Counts: TypeAlias = Counter[Part]
_Starts: TypeAlias = dict[Part, Part]
_REASON = "the schema would be applied too often to one value"


class _TooCostlyError(Exception):
    """Dropping single references does not help, or finding them takes too long."""


def bound_costs(parts: Sequence[Part], drop: Drop) -> None:
    """Drop references until a value of any depth is quick to check.

    Args:
        parts: All subschemas; the first one is the whole schema.
        drop: Called for each `$ref` to drop.
    """
    if all(part.target is None for part in parts):
        return
    budget = _Budget()
    try:
        for _ in range(_MAX_ROUNDS):
            ordered, loops = _in_order([part for part in parts if not part.is_gone], Part.in_place)
            for part in loops:
                drop(part, "$ref", "it leads back to itself")
            if loops:
                continue
            visits = _visits(ordered)
            _bound_copied(visits, drop)
            if not _bound_places(parts[0], visits, drop, budget):
                return
    except _TooCostlyError:
        pass
    # What is left is a tree: see above.
    for part in parts:
        if "$ref" in part.fields and not part.is_gone:
            drop(part, "$ref", _REASON)


class _Budget:
    """The steps that counting may take."""

    def __init__(self) -> None:
        self._left = _MAX_STEPS

    def spend(self, steps: int) -> None:
        """Take steps. Raises `_TooCostlyError` if there are none left."""
        self._left -= steps
        if self._left < 0:
            raise _TooCostlyError


def _in_order(
    parts: Iterable[Part], led_to: Callable[[Part], Iterable[Part]]
) -> tuple[list[Part], list[Part]]:
    """Return the parts, each after those that it leads to, and a part with a `$ref` in each cycle.

    Without recursion, because a chain of references may be long. In a cycle the order is any.
    """
    ordered: list[Part] = []
    loops: list[Part] = []
    done: set[Part] = set()
    for first in parts:
        if first in done:
            continue
        done.add(first)
        path: dict[Part, Iterator[Part]] = {first: iter(led_to(first))}
        while path:
            last = next(reversed(path))
            after = next(path[last], None)
            if after is None:
                ordered.append(last)
                del path[last]
            elif after in path:
                # The other edges lead deeper into the schema, so that this is a short way back.
                for part in reversed(path):
                    if part.target is after:
                        loops.append(part)
                        break
                    after = part
            elif after not in done:
                done.add(after)
                path[after] = iter(led_to(after))
    return ordered, loops


def _visits(ordered: Iterable[Part]) -> _Counts:
    """Return how often subschemas are applied in place for each, with itself.

    Args:
        ordered: All subschemas, each after those that are applied to the same place.
    """
    visits = _Counts()
    for part in ordered:
        visits[part] = 1 + sum(visits[inner] for inner in part.in_place())
        if visits[part] > _MAX_APPLIED:
            raise _TooCostlyError
    return visits


def _bound_copied(ordered: Iterable[Part], drop: Drop) -> None:
    """Bound what is copied for branches."""
    chars = {part: _chars_of(part) for part in ordered}
    copied = _Counts()
    left = _MAX_COPIED
    for part in chars:
        if part.is_gone:
            continue
        for keyword in ("anyOf", "oneOf"):
            left -= sum(copied[branch] for branch in part.under(keyword))
            if left < 0 and keyword in part.fields:
                drop(part, keyword, "what its branches refer to is too large together")
        children = [*part.under(*CHILDREN)]
        chosen = [child.target for child in children if child.target is not None]
        own = sum(chars[other] for other in (part, *children, *chosen))
        copied[part] = min(own + sum(copied[other] for other in part.in_place()), _MAX_COPIED)


def _chars_of(part: Part) -> int:
    """Return how many characters a subschema has about, without those in it."""
    values = [value for keyword, value in part.fields.items() if keyword not in SUBSCHEMAS]
    names = [*part.fields.get("properties", ())]
    return 10 + len(str(names)) + sum(map(len, map(str, values)))


def _starts(ordered: Iterable[Part]) -> _Starts:
    """Return for each subschema where to start in place of it: what leads deeper into a value.

    A subschema that only has a `$ref`, or one among simple ones, is where that leads, so that a
    definition with many references is gone through once. One with nothing deeper is not among them.
    """
    starts: _Starts = {}
    for part in ordered:
        deeper = [starts[other] for other in part.in_place() if other in starts]
        if len(deeper) > 1 or not CHILDREN.keys().isdisjoint(part.fields):
            starts[part] = part
        elif deeper:
            starts[part] = deeper[0]
    return starts


_PLACE_OF = {
    "patternProperties": 0,
    "additionalProperties": 0,
    "items": 1,
    "contains": 1,
    "propertyNames": 2,
}
"""To what a keyword applies its subschemas: each property, each item, each name of a property."""
_OTHERS = {"properties": "additionalProperties", "prefixItems": "items"}
"""Keywords for some properties or items, and those that apply to all others."""


def _places(closure: _Counts, starts: _Starts, budget: _Budget) -> list[_Counts]:
    """Return what is applied to each place one level deeper in a value, and how often.

    Args:
        closure: The subschemas that are applied to the place above, and how often.
        starts: Where to start for each subschema.
        budget: The steps that are left.
    """
    places = [_Counts(), _Counts(), _Counts()]
    named: dict[tuple[int, tuple[str, ...]], _Counts] = {}
    """What is applied to properties and to items of some names, beside what is to all. A subschema
    with nothing deeper is not counted: it is applied no more often than the one that it is in."""
    for part, times in closure.items():
        for keyword in part.fields:
            if keyword in _PLACE_OF:
                for child in part.under(keyword):
                    places[_PLACE_OF[keyword]][child] += times
            elif keyword in _OTHERS:
                others = part.fields.get(_OTHERS[keyword])
                for child in part.under(keyword):
                    place = named.setdefault(
                        (_PLACE_OF[_OTHERS[keyword]], child.steps[1:]), _Counts()
                    )
                    if child in starts:
                        place[child] += times
                    if isinstance(others, Part):
                        place[others] -= times
    for (index, _), counts in named.items():
        budget.spend(len(places[index]))
        places.append(places[index].copy())
        places[-1].update(counts)
    return places


def _bound_places(root: Part, visits: _Counts, drop: Drop, budget: _Budget) -> bool:
    """Bound how often subschemas are applied to places of any depth; return whether some dropped.

    The cost of a start is that of the most expensive place below it. It grows without end along a
    cycle that comes back to one place twice.

    Args:
        root: The whole schema.
        visits: How often each subschema is applied in place, in the order of `_in_order`.
        drop: Drops a keyword.
        budget: The steps that are left.
    """
    starts = _starts(visits)
    places: dict[Part, list[_Counts]] = {}
    deeper: dict[Part, list[Part]] = {}
    waiting = [starts.get(root, root)]
    while waiting:
        start = waiting.pop()
        if start not in places:
            places[start] = _places(_closure(start, budget), starts, budget)
            below = chain.from_iterable(places[start])
            deeper[start] = [starts[part] for part in below if part in starts]
            waiting += deeper[start]
    ordered, _ = _in_order(places, deeper.__getitem__)
    costs = visits.copy()
    growing: list[Part] = []
    for _ in range(_MAX_PASSES):
        growing = []
        for start in ordered:
            cost = max(
                sum(costs[starts.get(part, part)] * times for part, times in place.items())
                for place in places[start]
            )
            if cost > costs[start]:
                growing.append(start)
                costs[start] = min(cost, _MAX_APPLIED + 1)
        if not growing:
            break
    growing = growing or [start for start in ordered if costs[start] > _MAX_APPLIED]
    return bool(growing) and _cut(growing, places, drop)


def _cut(growing: Sequence[Part], places: dict[Part, list[_Counts]], drop: Drop) -> bool:
    """Drop the references that lead to places which others share, where the cost grows."""
    shared = [
        part
        for start in growing
        for place in places[start]
        if sum(place.values()) > 1
        for part in place
        if place[part] > 0
    ]
    found = False
    for part in shared:
        for applied in (part, *part.in_place()):
            if "$ref" in applied.fields:
                drop(applied, "$ref", _REASON)
                found = True
    if not found:
        raise _TooCostlyError
    return True


def _closure(start: Part, budget: _Budget) -> _Counts:
    """Return what is applied to the place of a subschema, and how often: in place."""
    closure = _Counts()
    waiting = [start]
    while waiting:
        part = waiting.pop()
        budget.spend(1 if part in closure else 1 + len(part.children))
        closure[part] += 1
        waiting += part.in_place()
    return closure
