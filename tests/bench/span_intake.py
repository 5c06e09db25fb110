"""The receiver that traced legs send their spans to: `toolbus trace`'s own, in its own process."""

from __future__ import annotations

from bench.role import Where, next_line, run_role, say
from toolbus.otlp_receiver import ReceiverLimits, SpanReceiver
from toolbus.span_store import StoreLimits

LIMITS = ReceiverLimits(store=StoreLimits(max_traces=1_000_000, max_bytes=2**31))


async def receive(_where: Where) -> None:
    """Say where to send spans, then, at each line, how many have come."""
    async with SpanReceiver(port=0, limits=LIMITS) as receiver:
        say(url=receiver.endpoint)
        while await next_line():
            say(spans=len(receiver.spans()))


if __name__ == "__main__":
    run_role({"receiver": receive})
