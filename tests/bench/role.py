"""The process side of a leg: one role (router, host, caller) that carries out orders.

Facts and orders are lines of JSON: stdin brings the facts of the roles started before, then orders;
stdout takes one line for each. A role ends when its stdin ends. Standard library only, because
rivals import it in virtual environments of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeAlias

Facts: TypeAlias = dict[str, Any]
Role: TypeAlias = Callable[[Facts], Coroutine[Any, Any, None]]
Order: TypeAlias = Callable[..., Awaitable[Facts]]
Call: TypeAlias = Callable[[int, int], Awaitable[dict[str, Any]]]
"""One call of `demo.add`; its result is `{"sum": ...}`."""
ORDER_TIMEOUT_S = 150.0


def run_role(roles: Mapping[str, Role]) -> None:
    """Run the role and the event loop that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=sorted(roles))
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    arguments = parser.parse_args()
    role = roles[arguments.role](json.loads(sys.stdin.readline()))
    uses_uvloop = arguments.loop == "uvloop"
    factory = importlib.import_module("uvloop").new_event_loop if uses_uvloop else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(role)


async def serve_orders(orders: Mapping[str, Order] | None = None, /, **facts: Any) -> None:
    """Report that this role is ready, then carry out one order at a time until stdin ends."""
    _send(facts)
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        async with asyncio.timeout(ORDER_TIMEOUT_S):
            _send(await (orders or {})[order.pop("order")](**order))


def _send(facts: Facts) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def serve_calls(call: Call) -> None:
    """Be a caller whose only order is to call."""
    await serve_orders({"call": measured_calls(call)}, ready=True)


def measured_calls(call: Call) -> Order:
    """Make the order that keeps a number of calls in flight for a time."""

    async def order(seconds: float, in_flight: int) -> Facts:
        result = await call(35, 7)
        if result != {"sum": 42}:
            raise AssertionError(f"the result is {result!r}")
        return await keep_calling(call, seconds, in_flight)

    return order


async def keep_calling(call: Call, seconds: float, in_flight: int) -> Facts:
    clock = time.perf_counter
    durations_s: list[float] = []
    began_s = clock()
    ends_s = began_s + seconds

    async def call_repeatedly() -> None:
        started_s = clock()
        while started_s < ends_s:
            await call(len(durations_s), 7)
            ended_s = clock()
            durations_s.append(ended_s - started_s)
            started_s = ended_s

    async with asyncio.TaskGroup() as callers:
        for _ in range(in_flight):
            callers.create_task(call_repeatedly())
    took_s = clock() - began_s
    return {
        "amount": len(durations_s),
        "took_s": took_s,
        "p50_us": statistics.median(durations_s) * 1e6,
    }


def measured_transfer(transfer: Callable[[], Awaitable[int]]) -> Order:
    """Make the order that moves one file; `transfer` returns how many bytes arrived."""

    async def order(expected: int) -> Facts:
        began_s = time.perf_counter()
        size = await transfer()
        took_s = time.perf_counter() - began_s
        if size != expected:
            raise AssertionError(f"{size} bytes arrived, not {expected}")
        return {"amount": size / 1e6, "took_s": took_s, "p50_us": 0.0}

    return order
