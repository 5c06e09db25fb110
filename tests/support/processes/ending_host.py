"""A host whose tools are hard to stop: each prints that it began, and then does not end.

Run as `python ending_host.py run`, hosted by `RemoteToolkit.run`, or as `python ending_host.py
around`, by a program with `asyncio.run` around `room.host`. As a module it has `work`, for `toolbus
host`, and `late`, a toolkit that does not start.
"""

import asyncio
import signal
import sys
import threading
import time
from typing import Any

from toolbus import RemoteToolkit, RoomClient, Tool, ToolContext, ToolFailed, tool


def _say(words: str) -> None:
    print(words, flush=True)  # noqa: T201 - the parent reads it


@tool
async def hold() -> str:
    _say("entered")
    await asyncio.Event().wait()
    return ""


@tool
async def swallow() -> str:
    """Swallow every cancel."""
    _say("entered")
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            _say("cancelled")


@tool
async def turn() -> str:
    """Return a result when it is cancelled."""
    _say("entered")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ToolFailed("cancelled") from None
    return ""


@tool
def in_thread() -> str:
    _say("entered")
    threading.Event().wait(60)
    return ""


@tool
async def beside() -> str:
    """Leave a thread that the host does not know."""
    await asyncio.to_thread(in_thread)
    return ""


@tool
async def block() -> str:
    """Block the event loop."""
    _say("entered")
    # Not in one sleep: a signal that comes right before it would be handled after it.
    for _ in range(600):
        time.sleep(0.1)  # noqa: ASYNC251 - a mistake that authors make
    return ""


@tool
async def interrupt() -> str:
    raise KeyboardInterrupt


@tool
def interrupt_in_thread() -> str:
    raise KeyboardInterrupt


@tool
async def leave() -> str:
    sys.exit(7)


@tool
def leave_in_thread() -> str:
    sys.exit(7)


@tool
async def ctrl_c_twice() -> str:
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    return ""


class Late(Tool):
    async def start(self, room: Any) -> None:
        await asyncio.Event().wait()

    async def execute(self, context: ToolContext, /, **arguments: Any) -> str:
        return ""


raising = [interrupt, interrupt_in_thread, leave, leave_in_thread, ctrl_c_twice]
work = RemoteToolkit("work", [hold, swallow, turn, in_thread, beside, block, *raising])
late = RemoteToolkit("late", [Late("late", {"type": "object"})])


async def around() -> None:
    async with RoomClient() as room, room.host(work):
        await room.closed()


if __name__ == "__main__":
    if sys.argv[1] == "run":
        work.run()
    else:
        asyncio.run(around())
