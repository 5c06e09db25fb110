import asyncio
from collections.abc import AsyncIterator

from toolbus import (
    AgentState,
    CallNext,
    Chunk,
    RequiredToolkit,
    RoomClient,
    ToolCall,
    ToolContext,
    Toolkit,
    ToolResult,
    ToolUse,
    Turn,
    tool,
)


@tool
async def note(context: ToolContext, text: str) -> int:
    """Keep a note, and count the notes."""
    assert context.state is not None
    notes: list[str] = context.state.setdefault("notes", [])
    notes.append(text)
    return len(notes)


@tool(read_only=True)
async def spell(text: str) -> AsyncIterator[str]:
    """Give a text letter by letter."""
    for letter in text:
        yield letter


async def log(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
    print("call", call.id, call.tool.name)
    async for chunk in next(call):
        yield chunk


async def main() -> None:
    state = AgentState()
    async with (
        RoomClient(name="agent") as room,
        Turn(
            room,
            always=[Toolkit("local", [note, spell])],
            required=[RequiredToolkit("words")],
            middlewares=[log],
            state=state,
        ) as turn,
    ):
        asked = [
            ToolUse("1", "local__note", {"text": "buy a hat"}),
            ToolUse("2", "words__count", '{"text": "the cat and the hat", "top": 1}'),
            ToolUse("3", "words__count", {"text": 7}),
        ]
        for result in await turn.run(asked):
            print(result.id, result.tool, result.state, result.value)
        print(turn.results[2].for_model())

        async for each in turn.stream(ToolUse("4", "local.spell", {"text": "hat"})):
            print(each.state if isinstance(each, ToolResult) else each.value)

    print(state.to_json())


asyncio.run(main())
