"""Tools that tests of nodes host: sums, streams, files, and one that runs until it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from toolbus import (
    FileChunk,
    InputStream,
    ToolContext,
    tool,
)
from toolbus.errors import ToolFailed


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def fail() -> int:
    """Fail."""
    raise ToolFailed("no luck")


@tool
async def numbers(count: int) -> AsyncIterator[int]:
    """Give numbers."""
    for number in range(count):
        yield number


@tool
async def total(rows: InputStream[int]) -> int:
    """Add what comes."""
    return sum([row async for row in rows])


@tool
async def size(attachment: FileChunk) -> int:
    """Count bytes."""
    return sum([len(piece) async for piece in attachment.pieces()])


@tool
async def who(context: ToolContext) -> list[str | None]:
    """Return the principal of this call."""
    principal = context.on_behalf_of
    return [context.caller.name, None if principal is None else principal.name]


class Holding:
    """A tool that runs until it is cancelled, or released; it reports both."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.ended = asyncio.Event()
        self.is_over = asyncio.Event()
        """What a host that leaves waits for; to be set where a test may fail before the cancel."""

        @tool
        async def hold() -> None:
            """Run until cancelled."""
            self.began.set()
            try:
                await self.is_over.wait()
            finally:
                self.ended.set()

        self.tool = hold
