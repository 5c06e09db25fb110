"""What a caller of files is told to do, and how it says what that took.

An order is a line with its `name`. One that is begun goes on until `end`, meanwhile others are
taken: so files pass, or calls flood, beside what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from bench.role import next_line, say

SETTLE_S = 0.5
"""After that what goes on is in full swing."""
FILE_BYTES = 64 * 1024 * 1024
Order: TypeAlias = Callable[[], Awaitable[int]]
"""Does something once, and says how much that was: bytes, items, calls."""


async def take_orders(orders: Mapping[str, Order]) -> None:
    """Say that this caller is ready, then do what each line says, until stdin ends."""
    going_on: asyncio.Task[None] | None = None
    say(ready=True)
    try:
        while line := await next_line():
            order = json.loads(line)
            if order.get("goes_on"):
                going_on = asyncio.create_task(_again_and_again(orders[order["name"]]))
                await asyncio.sleep(SETTLE_S)
                say(begun=True)
            elif order["name"] == "end":
                await _end(going_on)
                going_on = None
                say(ended=True)
            elif order["name"] == "delays":
                say(delays_us=await _delays_us(orders["call"], order["calls"]))
            else:
                began_s = time.perf_counter()
                amount = await orders[order["name"]]()
                say(amount=amount, took_s=time.perf_counter() - began_s)
    finally:
        await _end(going_on)


async def _again_and_again(order: Order) -> None:
    while True:
        await order()


async def _delays_us(call: Order, calls: int) -> list[float]:
    delays_us = []
    for _ in range(calls):
        began_ns = time.perf_counter_ns()
        await call()
        delays_us.append((time.perf_counter_ns() - began_ns) / 1e3)
    return delays_us


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
