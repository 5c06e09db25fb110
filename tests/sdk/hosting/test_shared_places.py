"""Which caller gets a place of a host."""

from __future__ import annotations

from collections import Counter

import pytest

from toolbus.hosting.shared_places import SharedPlaces

PLACES = SharedPlaces()


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
    assert PLACES.may_take(used, held) is gets_one


def test_callers_that_take_all_they_can_leave_places_for_eight_others() -> None:
    held: Counter[str] = Counter()
    for caller in "abcdefghij":
        while PLACES.may_take(held.total(), held[caller]):
            held[caller] += 1
    assert [held[caller] for caller in "abcdefghij"] == [256, 64, 32, 16, 8, 4, 2, 1, 1, 0]


def test_a_caller_that_held_all_gives_way_as_its_calls_end() -> None:
    """It gets a new place only while the common ones are not all taken."""
    held = Counter(hog=256, other=64)
    for _ in range(64):  # each time a call of the hog ends, both ask for its place
        held["hog"] -= 1
        for caller in ("hog", "other"):
            if PLACES.may_take(held.total(), held[caller]):
                held[caller] += 1
    assert held["other"] > 64
    assert held["hog"] <= 192 + 1


@pytest.mark.parametrize(("common", "reserved"), [(1, 1), (2, 1), (256, 128)])
def test_every_host_has_a_reserve(common: int, reserved: int) -> None:
    assert SharedPlaces.of(common) == (common, reserved)
