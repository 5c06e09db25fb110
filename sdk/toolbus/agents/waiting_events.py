"""Tells the reader of the events of an answer that it goes on, while there are none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from toolbus.concurrency.tasks import retrieve_error

__all__ = ["WAITING_S", "with_waiting"]

WAITING_S = 10.0
"""Seconds without an event, after which there is one of the type `waiting`. By default a stream
ends as stalled after 30 s: so one of these may be late."""
_END = object()


async def with_waiting(
    events: AsyncGenerator[Any, None], every_s: float | None = None
) -> AsyncGenerator[Any, None]:
    """Yield events as they come, and `waiting` each time that none came for a while.

    All of `events` runs in one task, so that time-outs and spans in it may last over several
    events. It is at most two events ahead of the reader. Leaving this loop ends it.

    Args:
        events: The events.
        every_s: Seconds without an event; `WAITING_S` by default.
    """
    seconds = WAITING_S if every_s is None else every_s
    passed: asyncio.Queue[Any] = asyncio.Queue()
    # Not the limit of the queue: the end is put also where the reader is behind.
    free = asyncio.Semaphore(1)

    async def read() -> None:
        try:
            async with aclosing(events):
                async for event in events:
                    passed.put_nowait(event)
                    await free.acquire()
        except SystemExit as error:  # a task that raises it ends the event loop
            raise RuntimeError(f"SystemExit: {error.code}") from error

    reading = asyncio.create_task(read())
    reading.add_done_callback(lambda _: passed.put_nowait(_END))
    clock = asyncio.get_running_loop().time
    since = clock()
    try:
        while True:
            try:
                async with asyncio.timeout(seconds):
                    event = await passed.get()
            except TimeoutError:
                yield {"type": "waiting", "seconds": round(clock() - since, 1)}
                continue
            if event is _END:
                break
            free.release()
            yield event
            since = clock()
        await reading
    finally:
        reading.cancel()
        await asyncio.wait([reading])
        retrieve_error(reading)
