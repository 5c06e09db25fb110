"""A query that takes as long as a scene needs, on a machine of whatever speed: it counts."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["COUNT", "how_far"]

COUNT = """
    WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
    SELECT count(*) FROM numbers
"""
"""Counts to its parameter."""
_SAMPLE_COUNT = 200_000
_SAMPLES = 3


async def how_far(count_to: Callable[[int], Awaitable[Any]], long_s: float) -> int:
    """Count a little, and tell from the best of a few tries how far to count.

    Args:
        count_to: Has `COUNT` run.
        long_s: How long it shall take where a core is free.
    """
    took_s = []
    for _ in range(_SAMPLES):
        began_s = time.monotonic()
        await count_to(_SAMPLE_COUNT)
        took_s.append(time.monotonic() - began_s)
    rows = int(_SAMPLE_COUNT / min(took_s) * long_s)
    return max(_SAMPLE_COUNT, rows // 100_000 * 100_000)
