"""A thousand participants in one process, who lose their connections and come back at one time.

Run as `python crowd_process.py COUNT`, with `TOOLBUS_*` set; it prints "ready" when all are there.
Each line on stdin lets all connections go at once; when all are back it prints, as JSON, how long
each took. It ends when stdin does.
"""

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack

from toolbus import RoomClient
from toolbus.lines import Line

_AT_ONCE = 50


def _line_of(room: RoomClient) -> Line:
    assert room._parts is not None
    line = room._parts.link._line
    assert line is not None
    return line


async def _is_back(room: RoomClient) -> float:
    """Lose a connection, and say after how many seconds calls could be sent again."""
    assert room._parts is not None
    line, began = _line_of(room), time.monotonic()
    line.abort()
    await line.closed.wait()
    await room._parts.link.ready()
    return time.monotonic() - began


async def main() -> None:
    door = asyncio.Semaphore(_AT_ONCE)
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:

        async def join() -> RoomClient:
            async with door:
                return await stack.enter_async_context(RoomClient())

        rooms = await asyncio.gather(*(join() for _ in range(int(sys.argv[1]))))
        print("ready", flush=True)  # noqa: T201 - the parent reads it
        while await loop.run_in_executor(None, sys.stdin.readline):
            took = await asyncio.gather(*(_is_back(room) for room in rooms))
            print(json.dumps(took), flush=True)  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    asyncio.run(main())
