import asyncio
from collections.abc import AsyncIterator

from toolbus import (
    CallNext,
    Chunk,
    FunctionTool,
    RoomClient,
    ToolCall,
    ToolGroup,
    Toolkit,
    ToolUse,
    Turn,
)


def search(api_key: str, query: str) -> str:
    """Search the archive."""
    return f"{len(api_key)} letters of key, and results for {query}"


async def on_tool_call(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
    print("before", call.tool.name)
    async for chunk in next(call.replace(arguments={"query": "hats"})):
        yield chunk
    print("after", call.tool.name)


tools = [FunctionTool(search, preset={"api_key": "secret"}, read_only=True)]
archive = ToolGroup("archive", "Finds papers.", [Toolkit("papers", tools)], instructions="Cite.")


async def main() -> None:
    async with (
        RoomClient(name="agent") as room,
        Turn(room, groups=[archive], middlewares=[on_tool_call]) as turn,
    ):
        turn.activate("archive")
        (result,) = await turn.run([ToolUse("1", "papers__search", {"query": "shoes"})])
        print(result.state, result.text)


asyncio.run(main())
