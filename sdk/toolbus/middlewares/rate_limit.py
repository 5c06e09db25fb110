"""Refuses calls beyond a rate. It counts in this process: replicas of a host count apart."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from fractions import Fraction
from typing import Literal, TypeAlias, get_args

from toolbus.chunks.chunk_types import Chunk
from toolbus.chunks.json_values import shown
from toolbus.errors import Overloaded
from toolbus.middlewares.outcomes import checked_count, checked_seconds, extra_named, own_error
from toolbus.tools.middleware import CallNext, ToolCall
from toolbus.tools.tool_run import Participant

__all__ = ["RateLimit"]

_By: TypeAlias = Literal["tool", "caller", "principal"]
_MAX_KEYS = 10_000
"""A host that runs for months would remember everybody who ever called it."""
_LEAST_S = 0.001
_MOST_S = 366 * 24 * 3_600


class RateLimit:
    """A middleware that refuses calls beyond a rate, as `Overloaded` with `retry_after_s`.

    `calls` may begin at once; then one may begin every `per_s / calls` seconds. A refused call did
    not run and does not count. Counts are kept in this process, for the last 10,000 keys.

    Needs the extra `toolbus[middlewares]`; raises `ModuleNotFoundError` without it.

    Args:
        calls: How many calls.
        per_s: In how many seconds, from 0.001 to 366 days.
        by: What is counted apart: each "tool", each "caller" for all tools together, or each
            "principal", which is the caller where a call is on behalf of no one else.

    Raises `TypeError` or `ValueError` for other values.
    """

    def __init__(self, calls: int, per_s: float, *, by: _By = "caller") -> None:
        if by not in get_args(_By):
            raise ValueError(f'by must be "tool", "caller" or "principal", not {shown(by)}')
        checked_count("calls", calls)
        if not _LEAST_S <= checked_seconds("per_s", per_s) <= _MOST_S:
            raise ValueError(f"per_s must be from {_LEAST_S} to {_MOST_S}, not {per_s}")
        self._key_of: Callable[[ToolCall], str] = _KEYS[by]
        number = f"{calls} call{'' if calls == 1 else 's'}"
        self._text = f"at most {number} of one {by} in {per_s:g} s"
        with extra_named("RateLimit"):
            from throttled import MemoryStore, RateLimiterType, Throttled
            from throttled.rate_limiter import per_duration
        # A quota has whole seconds: the same rate, written with them; `calls` is the burst.
        rate = calls / Fraction(per_s).limit_denominator(1_000)
        self._limiter = Throttled(
            using=RateLimiterType.GCRA.value,
            quota=per_duration(timedelta(seconds=rate.denominator), rate.numerator, burst=calls),
            store=MemoryStore(options={"MAX_SIZE": _MAX_KEYS}),
        )

    async def __call__(self, call: ToolCall, next: CallNext, /) -> AsyncGenerator[Chunk, None]:
        """Count the call, and run or refuse it."""
        found = self._limiter.limit(self._key_of(call))
        if found.limited:
            wait_s = max(found.state.retry_after, _LEAST_S)
            refusal = Overloaded(f"{self._text}: try again later", retry_after_s=wait_s)
            raise own_error(call, refusal, began=False)
        async for chunk in next(call):
            yield chunk


def _identity(participant: Participant) -> str:
    return f"{participant.issuer}\n{participant.name}"


_KEYS: dict[str, Callable[[ToolCall], str]] = {
    "tool": lambda call: call.tool.name,
    "caller": lambda call: _identity(call.context.caller),
    "principal": lambda call: _identity(call.context.on_behalf_of or call.context.caller),
}
