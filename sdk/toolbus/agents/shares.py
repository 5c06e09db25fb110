"""What each asker may have of what an agent keeps for all of them, so that nobody has it alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Entry", "asker_of", "beyond_shares"]

_Key = TypeVar("_Key")


class Entry(NamedTuple, Generic[_Key]):
    """Something that is held for an asker."""

    key: _Key
    asker: str
    size: int


def asker_of(key: str) -> str:
    """Return who asks and for whom, from the key of a conversation.

    That is all but the name at the end. Quotes within a name have a backslash before them, so that
    the separator occurs in it only with the quote that ends the name.
    """
    return key[:-2].rpartition(', "')[0]


def beyond_shares(entries: Sequence[Entry[_Key]], most: int, most_bytes: int) -> list[Entry[_Key]]:
    """Return the entries that have to go so that the others are within two limits.

    As long as there is too much, the asker who has the most loses an entry, its oldest one. Of
    askers who have as much, the one loses whose entry is the oldest.

    Args:
        entries: All of them, the newest first.
        most: How many may stay.
        most_bytes: Of which size together.
    """
    too_large = _beyond(entries, lambda entry: entry.size, most_bytes)
    left = [entry for at, entry in enumerate(entries) if at not in too_large]
    too_many = _beyond(left, lambda entry: 1, most)
    return [entries[at] for at in too_large] + [left[at] for at in too_many]


def _beyond(
    entries: Sequence[Entry[_Key]], weight: Callable[[Entry[_Key]], int], limit: int
) -> set[int]:
    """Return the indices of the entries beyond one limit.

    The rank of an entry is what its asker has of it and of all that is newer. It goes before those
    of lower rank: these stay longest, so they are counted first.
    """
    if sum(map(weight, entries)) <= limit:
        return set()
    shares: Counter[str] = Counter()
    ranked: list[tuple[int, int]] = []
    for at, entry in enumerate(entries):
        shares[entry.asker] += weight(entry)
        ranked.append((shares[entry.asker], at))
    total = 0
    beyond: set[int] = set()
    for _, at in sorted(ranked):
        total += weight(entries[at])
        if total > limit:
            beyond.add(at)
    return beyond
