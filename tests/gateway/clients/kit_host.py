"""A program that hosts the toolkit `kit`, for clients of other processes.

Its server and token are in the variables `TOOLBUS_URL` and `TOOLBUS_TOKEN`. It prints a line when
the toolkit is hosted, and runs until it is killed.
"""

from __future__ import annotations

import asyncio
import base64
from contextlib import AsyncExitStack

from toolbus import FileChunk, RoomClient, ToolContext, ToolFailed, Toolkit, tool

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""A picture of one point."""


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def picture() -> FileChunk:
    """Return a picture."""
    return FileChunk(PIXEL, "point.png", "image/png")


@tool
async def step(context: ToolContext) -> str:
    """Send progress."""
    context.emit({"progress": 1, "total": 2, "message": "half"})
    return "done"


@tool
async def fail() -> str:
    """Fail."""
    raise ToolFailed("no such account")


@tool(approval=True)
async def pay(amount: int) -> str:
    """Wait for an approval."""
    return f"paid {amount}"


@tool
async def hello() -> str:
    """Greet."""
    return "hello"


def kit(host: RoomClient, guests: AsyncExitStack) -> Toolkit:
    """Return the toolkit.

    Args:
        host: Where its tools add a toolkit and remove it.
        guests: What ends that one.
    """
    started, cancelled = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> None:
        """Run until the call is cancelled."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    @tool
    async def until_waiting() -> bool:
        """Return when `wait` has begun."""
        return await started.wait()

    @tool
    async def until_cancelled() -> bool:
        """Return when `wait` was cancelled."""
        return await cancelled.wait()

    @tool
    async def bring() -> None:
        """Add the toolkit `guest` to the room."""
        await guests.enter_async_context(host.host(Toolkit("guest", [hello])))

    @tool
    async def leave() -> None:
        """Remove it."""
        await guests.aclose()

    return Toolkit(
        "kit", [add, picture, step, fail, pay, wait, until_waiting, until_cancelled, bring, leave]
    )


async def main() -> None:
    """Host until killed."""
    async with (
        RoomClient(room="lab") as host,
        AsyncExitStack() as guests,
        host.host(kit(host, guests)),
    ):
        print("hosting", flush=True)  # noqa: T201 - the test reads it
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
