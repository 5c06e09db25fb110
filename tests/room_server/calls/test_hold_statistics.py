"""Waits for persons as a histogram: the bounds, and what is counted at all."""

from __future__ import annotations

from math import inf

from toolbus_server.calls.hold_statistics import Waits


def test_wait_counts_in_each_bucket_that_is_not_shorter() -> None:
    waits = Waits()
    for seconds in (0.0, 1.0, 1.1, 299.0, 300.5, 1e9):
        waits.add(seconds)
    found = dict(waits.buckets())
    assert (found[1.0], found[5.0], found[300.0], found[900.0], found[inf]) == (2, 3, 4, 5, 6)
    assert (waits.count, waits.total_s) == (6, 1e9 + 601.6)
