"""The bus while calls wait for persons: `BENCH_HOLDS` calls at the host that others call too.

`person` calls a tool that waits, and approves each call itself, over another connection. Measured
is the time from the approval until the caller has the result.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from contextlib import AsyncExitStack
from typing import Any

from bench.role import Facts, Order, run_role, serve_orders
from bench.toolbus_leg import ROOM, add, calls_in, set_up_tracing
from toolbus import ApiScope, RemoteToolkit, RoomClient, RoomEvent, tool
from toolbus_server.testing import running_server

HOLDS = int(os.environ.get("BENCH_HOLDS", "0"))
HOLDS_OF_ONE = 50
"""Of one identity, which may have 64."""
PAUSE_S = 0.006
"""After each approval: an identity may decide 2,000 times within 10 s."""
WAITING = [f"waiting{number}" for number in range(HOLDS // HOLDS_OF_ONE)]


@tool(approval=True, approval_timeout_s=None)
async def change(a: int, b: int) -> dict[str, int]:
    """Add two numbers, as soon as a person approves it."""
    return {"sum": a + b}


async def route(facts: Facts) -> None:
    """Run the server."""
    set_up_tracing("server", facts)
    async with running_server() as server:
        names = ("host", "caller", "person", *WAITING)
        tokens = {name: server.token(name, room=ROOM, api=ApiScope.full()) for name in names}
        await serve_orders(url=server.url, tokens=tokens)


def _room(facts: Facts, name: str) -> RoomClient:
    return RoomClient(facts["url"], room=ROOM, token=facts["tokens"][name])


async def host(facts: Facts) -> None:
    """Host a tool that waits, and one that does not."""
    set_up_tracing("host", facts)
    async with _room(facts, "host") as room:
        demo = RemoteToolkit("demo", [add, change])
        await demo.start(room)
        await serve_orders(ready=True)
        await demo.stop()


async def waiting(facts: Facts) -> None:
    """Make calls that wait for as long as this process runs."""
    held = asyncio.Semaphore(0)
    async with AsyncExitStack() as stack:
        calls: list[asyncio.Task[Any]] = []
        for name in WAITING:
            room = await stack.enter_async_context(_room(facts, name))
            for number in range(HOLDS_OF_ONE):
                calling = room.invoke(
                    "demo.change",
                    {"a": number, "b": 7},
                    approval_timeout_s=None,
                    on_held=lambda _: held.release(),
                )
                calls.append(asyncio.create_task(calling))
        for _ in calls:
            await held.acquire()
        await serve_orders(ready=len(calls))
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def caller(facts: Facts) -> None:
    """Call the tool that does not wait."""
    set_up_tracing("caller", facts)
    async with _room(facts, "caller") as room:
        await serve_orders({"call": calls_in(room)}, ready=True)


async def person(facts: Facts) -> None:
    """Approve calls of its own."""
    set_up_tracing("person", facts)
    async with _room(facts, "person") as room, _room(facts, "person") as approver:
        await serve_orders({"approve": measured_approvals(room, approver)}, ready=True)


def measured_approvals(room: RoomClient, approver: RoomClient) -> Order:
    """Make the order that approves one call after the other."""

    async def order(seconds: float, in_flight: int) -> Facts:
        durations_s: list[float] = []
        began_s = time.perf_counter()
        async with approver.events(["holds"]) as events:
            while time.perf_counter() - began_s < seconds:
                call = asyncio.ensure_future(room.invoke("demo.change", {"a": 35, "b": 7}))
                event: RoomEvent = await anext(events)
                assert event.hold is not None
                approved_s = time.perf_counter()
                await approver.approve(event.hold)
                value: dict[str, Any] = (await call).value
                durations_s.append(time.perf_counter() - approved_s)
                assert value == {"sum": 42}
                await anext(events)  # that it was settled
                await asyncio.sleep(PAUSE_S)
        return {
            "amount": len(durations_s),
            "took_s": time.perf_counter() - began_s,
            "p50_us": statistics.median(durations_s) * 1e6,
        }

    return order


if __name__ == "__main__":
    run_role(
        {"router": route, "host": host, "waiting": waiting, "caller": caller, "person": person}
    )
