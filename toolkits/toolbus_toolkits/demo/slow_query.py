"""A query whose duration is calibrated to the speed of the machine: it counts."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["COUNT", "calibrated_count"]

COUNT = """
    WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
    SELECT count(*) FROM numbers
"""
"""Counts to its parameter."""
_SAMPLE_COUNT = 200_000
_SAMPLES = 3


async def calibrated_count(count_to: Callable[[int], Awaitable[Any]], long_s: float) -> int:
    """Measure how fast this machine counts, and return how far to count for a given duration.

    Args:
        count_to: Runs `COUNT`.
        long_s: The duration where a core is free.
    """
    took_s = []
    for _ in range(_SAMPLES):
        began_s = time.monotonic()
        await count_to(_SAMPLE_COUNT)
        took_s.append(time.monotonic() - began_s)
    rows = int(_SAMPLE_COUNT / min(took_s) * long_s)
    return max(_SAMPLE_COUNT, rows // 100_000 * 100_000)
