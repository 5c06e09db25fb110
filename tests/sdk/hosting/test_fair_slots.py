"""Which caller gets a place of a host."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from toolbus.hosting.fair_slots import FairSlots, HeldSlots

PLACES = FairSlots()


@pytest.mark.parametrize(
    ("used", "held", "gets_one"),
    [
        (0, 0, True),
        (255, 255, True),  # alone, it may hold all
        (256, 256, False),
        (256, 129, False),
        (256, 128, False),
        (256, 127, True),
        (256, 0, True),
        (320, 64, False),
        (320, 63, True),
        (383, 1, False),
        (383, 0, True),  # the last one is for a caller that has none
        (384, 0, False),
    ],
)
def test_beyond_the_common_places_a_caller_holds_fewer_than_are_free(
    used: int, held: int, gets_one: bool
) -> None:
    """CALL-19."""
    assert PLACES.may_take(used, held) is gets_one


def test_callers_that_take_all_they_can_leave_places_for_eight_others() -> None:
    held: Counter[str] = Counter()
    for caller in "abcdefghij":
        while PLACES.may_take(held.total(), held[caller]):
            held[caller] += 1
    assert [held[caller] for caller in "abcdefghij"] == [256, 64, 32, 16, 8, 4, 2, 1, 1, 0]


def test_calls_are_counted_by_caller_while_places_are_scarce() -> None:
    a, b, c = (SimpleNamespace(identity=("acme", name)) for name in "abc")
    held = HeldSlots()
    held.begin(c)
    assert held.counts is None
    assert held.of(a.identity, [a, a, b]) == 2
    held.begin(c)
    held.end(a, is_scarce=True)
    held.end(b, is_scarce=True)
    assert held.counts == {a.identity: 1, c.identity: 1}
    held.end(a, is_scarce=False)
    assert held.counts is None
