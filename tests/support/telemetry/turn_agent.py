"""An agent in its own process: one turn over toolkits of each kind, for the test of its trace.

`toolbus host` hosts the toolkits `one`, `two`, `three`, `tides` (which streams) and `files` (which
takes uploads) of this module. As a program it is the agent: it prints its results as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from toolbus import (
    FileChunk,
    RequiredToolkit,
    Room,
    RoomClient,
    ToolContext,
    Toolkit,
    ToolkitBuilder,
    ToolkitConfig,
    ToolUse,
    Turn,
    tool,
)
from toolbus.telemetry import configure


def named(name: str) -> Toolkit:
    @tool(read_only=True)
    async def say(context: ToolContext) -> str:
        """Return the name of the toolkit and of the caller."""
        return f"{name} for {context.caller.name}"

    return Toolkit(name, [say])


@tool
async def rise(days: int) -> AsyncIterator[int]:
    """Yield a number for each day."""
    for day in range(days):
        yield day


@tool
async def size(attachment: FileChunk) -> int:
    """Count the bytes of an upload."""
    return len(await attachment.read())


one, two, three = named("one"), named("two"), named("three")
tides, files = Toolkit("tides", [rise]), Toolkit("files", [size])


class Built(ToolkitBuilder[ToolkitConfig]):
    async def make(self, room: Room, model: Any, config: ToolkitConfig) -> Toolkit:
        @tool
        async def ask(context: ToolContext) -> str:
            """Ask a toolkit elsewhere."""
            return str(await context.room.call("one.say"))

        return Toolkit("built", [ask])


async def main() -> list[Any]:
    local = [named(name) for name in ("first", "second", "third")]
    names = ("one", "two", "three", "tides", "files")
    async with (
        RoomClient(name="helper") as room,
        Turn(
            room,
            always=local,
            required=[RequiredToolkit(name) for name in names],
            builders=[Built("built", ToolkitConfig)],
            tools=[ToolkitConfig(name="built")],
        ) as turn,
    ):
        asked = [ToolUse(f"use-{index}", each.name) for index, each in enumerate(turn.tools)]
        sent: dict[str, Any] = {
            "tides.rise": {"arguments": {"days": 3}},
            "files.size": {"attachment": b"x" * 100_000},
        }
        asked = [ToolUse(each.id, each.name, **sent.get(each.name, {})) for each in asked]
        return [[each.tool, each.state, each.value] for each in await turn.run(asked)]


if __name__ == "__main__":
    close = configure("helper")
    try:
        json.dump(asyncio.run(main()), sys.stdout)
    finally:
        if close is not None:
            close()
