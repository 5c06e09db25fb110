"""The pause before a retry: exponential, with jitter, no shorter than the refusing side asked."""

from __future__ import annotations

import random

__all__ = ["backoff_pause_s"]

# A call may fail any number of times, and `float(2**1024)` is an OverflowError. 16 doublings are
# more than any caller has between its first and its longest backoff.
_MAX_DOUBLINGS = 16


def backoff_pause_s(
    number: int, retry_after_s: float | None, *, first_s: float, longest_s: float
) -> float:
    """Return the pause after a failure, in seconds.

    Args:
        number: Which failure it is, from 1.
        retry_after_s: The shortest pause, where the refusing side gave one; the jitter is added, so
            that refused callers spread out.
        first_s: The backoff after the first failure; it doubles with each further one.
        longest_s: The longest backoff. The jitter is at most as long as the backoff.
    """
    doublings = min(number - 1, _MAX_DOUBLINGS)
    backoff_s = min(first_s * float(2**doublings), longest_s)
    # The jitter comes on top of `retry_after_s` and is not taken from it: an earlier attempt would
    # be refused again, and callers that were refused together would return together.
    return max(backoff_s, retry_after_s or 0.0) + random.uniform(0, backoff_s)
