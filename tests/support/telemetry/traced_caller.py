"""A caller in its own process: it reads calls as JSON lines, and prints how each went.

An order has `tool`, `arguments`, and optionally `token` (join as another participant), `parent`
(the context in which the call is made), `within` (a span around it), `pipe` (cancel the call when
the tool reports that it runs), `stream` (read the chunks), `timeout_s`, `times`, and
`caller_context`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from opentelemetry import context, propagate, trace

from toolbus import RoomClient, RoomException
from toolbus.telemetry import configure


@contextmanager
def surroundings(order: dict[str, Any]) -> Iterator[str]:
    """Make the context in which the call is made, and return its trace id."""
    token = context.attach(propagate.extract(order.get("parent", {})))
    try:
        if "within" in order:
            with trace.get_tracer("caller").start_as_current_span(order["within"]) as span:
                yield f"{span.get_span_context().trace_id:032x}"
        else:
            yield f"{trace.get_current_span().get_span_context().trace_id:032x}"
    finally:
        context.detach(token)


@asynccontextmanager
async def room_for(order: dict[str, Any], room: RoomClient) -> AsyncIterator[RoomClient]:
    if "token" not in order:
        yield room
        return
    async with RoomClient(token=order["token"]) as other:
        yield other


async def invoke(room: RoomClient, order: dict[str, Any]) -> Any:
    if order.get("stream"):
        async with room.stream(order["tool"], order["arguments"]) as chunks:
            return [chunk.value async for chunk in chunks]
    call = room.invoke(
        order["tool"],
        order.get("arguments", {}),
        timeout_s=order.get("timeout_s"),
        caller_context=order.get("caller_context"),
    )
    if "pipe" not in order:
        return (await call).value
    task = asyncio.create_task(call)
    await asyncio.to_thread(Path(order["pipe"]).read_text, encoding="ascii")
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return "given up"


async def carry_out(home: RoomClient, order: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"calls": 0}
    async with room_for(order, home) as room:
        with surroundings(order) as answer["trace_id"]:
            for _ in range(order.get("times", 1)):
                try:
                    answer["value"] = await invoke(room, order)
                except RoomException as error:
                    answer["error"] = {"code": error.code, "executed": error.executed}
                answer["calls"] += 1
    return answer


async def main() -> None:
    async with RoomClient() as room:
        print("ready", flush=True)  # noqa: T201 - the parent reads it
        while line := await asyncio.to_thread(sys.stdin.readline):
            answer = await carry_out(room, json.loads(line))
            print(json.dumps(answer), flush=True)  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    close = configure("caller")
    try:
        asyncio.run(main())
    finally:
        if close is not None:
            close()
