"""The bus with a caller that takes turns: in one no call is recorded, in the next some are.

Server, host, caller and their connections are the same in all turns, set up to record and to send
as the `OTEL_*` variables say. Only the caller's sampling changes: in every other turn it is asked
of a sampler that takes no call.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import DEFAULT_OFF

from bench.measure import Call, call_for
from bench.role import Where, next_line, run_role, say
from bench.toolbus_leg import ROOM, host, route, send_spans, set_up_tracing
from toolbus import RoomClient
from toolbus.root_sampling import RootSampling
from toolbus.telemetry import CallSpan, Tracing


class SwitchedTracing(Tracing):
    """The process's own tracing, or one that takes no call; it costs both kinds of turns the same.

    Only what a caller asks of it is switched.
    """

    def __init__(self) -> None:
        super().__init__()
        self._by_turn = {False: Tracing(TracerProvider(sampler=DEFAULT_OFF)), True: Tracing()}
        self._current = self._by_turn[False]

    def switch(self, *, recorded: bool) -> None:
        """Begin a turn."""
        self._current = self._by_turn[recorded]

    @property
    def roots(self) -> RootSampling | None:
        """The sampler of this turn."""
        return self._current.roots

    @roots.setter
    def roots(self, roots: RootSampling | None) -> None:
        """Nothing is set: each turn has its own."""

    def start_client(self, method: str, call_id: str) -> CallSpan | None:
        """Begin a span where that sampler takes the call."""
        return self._current.start_client(method, call_id)


async def caller(where: Where) -> None:
    """Take the turn of each line, until there are no more."""
    set_up_tracing("caller")
    tracing = SwitchedTracing()
    joining = RoomClient(where["url"], room=ROOM, token=where["caller_token"], tracing=tracing)
    async with joining as room:

        async def call(a: int, b: int) -> dict[str, Any]:
            result: dict[str, Any] = await room.call("demo.add", a=a, b=b)
            return result

        say(ready=True)
        while line := await next_line():
            await _take(json.loads(line), call, tracing)


async def _take(turn: dict[str, Any], call: Call, tracing: SwitchedTracing) -> None:
    """Call for as long as the turn says, or send the spans that wait."""
    if "seconds" not in turn:
        await asyncio.to_thread(send_spans)
        return
    tracing.switch(recorded=turn["recorded"])
    say(calls=await call_for(call, turn["seconds"], turn["in_flight"]))


if __name__ == "__main__":
    run_role({"router": route, "host": host, "caller": caller})
