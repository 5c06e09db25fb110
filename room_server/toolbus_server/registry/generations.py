"""The order in which the generations of a toolkit serve, and the place of a new one in it.

Pure, and the same at every node: the order depends only on the generations that are present, not on
how they arrived (PROTOCOL.md, REG-9 and REG-22).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from packaging.version import InvalidVersion, Version

from toolbus_server.registry.models import Generation, Participant, RegisteredToolkit

__all__ = ["NO_CLAIM", "Claim", "ServingChange", "place", "settle"]

_VersionKey: TypeAlias = tuple[()] | tuple[Version]
_Rank: TypeAlias = tuple[int, _VersionKey, int, str]


class Claim(NamedTuple):
    """What a registration says about the place of its generation."""

    number: int | None = None
    """The number that an earlier registration of this definition returned."""
    base: int | None = None
    """The base that it returned."""
    supersede: bool = False
    """Whether it precedes all generations that are there."""


NO_CLAIM = Claim()
"""Of a host that registers a definition for the first time."""


class ServingChange(NamedTuple):
    """Another generation of a toolkit serves now."""

    before: Generation
    """The one that served; it has no hosts if it is gone."""
    now: Generation
    by: Participant | None
    """The participant whose registration caused it; None if it was a host that left."""


# Versions are compared at each change of the hosts of a toolkit, and a room has few different ones.
# Bounded, as their texts come from manifests.
@lru_cache(maxsize=1024)
def _version_key(text: str) -> _VersionKey:
    """Return the sort key of a version: one that is not PEP 440 is lower than all others."""
    try:
        return (Version(text),)
    except InvalidVersion:
        return ()


def _ranked(generations: Sequence[Generation]) -> list[Generation]:
    """Return the generations that have hosts, the one that serves last."""
    # Sorted when asked and not kept in order: the floor of one depends on the bases of all that are
    # present, so one host that leaves may change the order of the others. One without hosts counts
    # for nothing, and neither does its base: one that superseded and left gives way to those before
    # it.
    present = [generation for generation in generations if generation.hosts]
    if len(present) < 2:
        return present
    bases = [0, *sorted(generation.base for generation in present)]

    def rank(generation: Generation) -> _Rank:
        # What was registered before a `supersede` is below it whatever its version is; what came
        # later has the same floor, and its version decides.
        floor = bases[bisect_right(bases, generation.number) - 1]
        definition = generation.definition
        # Of equal versions the first serves, so that a definition that is merely different takes
        # over nothing. If two claim one number, the digest decides: every node has to choose the
        # same.
        return floor, _version_key(definition.version), -generation.number, definition.digest

    return sorted(present, key=rank)


def settle(
    toolkit: RegisteredToolkit, generations: list[Generation], by: Participant | None = None
) -> ServingChange | None:
    """Keep the generations that have hosts, and let the highest of them serve.

    `by` is the participant that registers, if one does. Returns what changed, if another definition
    serves now.
    """
    before = toolkit.generations[-1] if toolkit.generations else None
    toolkit.generations = _ranked(generations)
    if not toolkit.generations:
        return None
    toolkit.serving = toolkit.generations[-1]
    if before is None or before is toolkit.serving:
        return None
    return ServingChange(before, toolkit.serving, by)


def place(
    generations: Sequence[Generation], known: Generation | None, claim: Claim, last: int
) -> tuple[int, int]:
    """Choose number and base of the generation that a host joins.

    Args:
        generations: All of the toolkit; those that have just lost their last host count too.
        known: The one of the host's definition, if it is among them.
        claim: What the host says.
        last: The highest number that the owner has used.
    """
    # The same rule as `place` in `publish_change.lua`: where nodes share the room, Redis decides.
    number = claim.number
    if number is None:
        if known is not None and not claim.supersede:
            return known.number, known.base
        # `last` too: the number of a generation that is gone is not given again, as its hosts may
        # return with it (REG-10).
        number = max([last, *(generation.number for generation in generations)]) + 1
    base = number if claim.supersede else claim.base
    # Hosts of one digest may come back with different claims, in any order: the higher ones count,
    # so that the end is the same in every order.
    if known is not None:
        return max(number, known.number), max(base or 0, known.base)
    # Only bases up to its number: one that superseded later is above it, as before a restart.
    if base is None:
        base = max(
            (generation.base for generation in generations if generation.base <= number), default=0
        )
    return number, base
