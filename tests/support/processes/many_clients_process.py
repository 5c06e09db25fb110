"""A thousand participants in one process, which lose their connections and reconnect together.

Run as `python many_clients_process.py COUNT`, with `TOOLBUS_*` set. It prints "ready" when all have
joined. The line "again" on stdin drops all connections; after "wait" it prints "waiting", and the
test drops them. When all have reconnected it prints the seconds that each took, as JSON. It ends
when stdin does.
"""

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack

from toolbus import RoomClient
from toolbus.client.connection import Connection
from toolbus.room.room import connection_of

_AT_ONCE = 50


def _line_of(room: RoomClient) -> Connection:
    line = connection_of(room).link._current
    assert line is not None
    return line


async def _is_back(room: RoomClient, line: Connection, began: float) -> float:
    """Return how many seconds it took until calls could be sent again."""
    await line.closed.wait()
    await connection_of(room).link.ready()
    return time.monotonic() - began


async def _first_lost(lines: list[Connection]) -> None:
    waits = [asyncio.ensure_future(line.closed.wait()) for line in lines]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for each in waits:
        each.cancel()


async def main() -> None:
    door = asyncio.Semaphore(_AT_ONCE)
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:

        async def join() -> RoomClient:
            async with door:
                return await stack.enter_async_context(RoomClient())

        rooms = await asyncio.gather(*(join() for _ in range(int(sys.argv[1]))))
        print("ready", flush=True)  # noqa: T201 - the parent reads it
        while word := await loop.run_in_executor(None, sys.stdin.readline):
            lines, began = [_line_of(room) for room in rooms], time.monotonic()
            if word.strip() == "wait":
                print("waiting", flush=True)  # noqa: T201 - the parent reads it
                await _first_lost(lines)
                began = time.monotonic()
            else:
                for line in lines:
                    line.abort()
            came = (_is_back(room, line, began) for room, line in zip(rooms, lines, strict=True))
            took = await asyncio.gather(*came)
            print(json.dumps(took), flush=True)  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    asyncio.run(main())
