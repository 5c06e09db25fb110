import asyncio

from toolbus import Toolkit, ToolUse, Turn, tool


@tool(read_only=True)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    async with Turn(None, always=[Toolkit("math", [add])]) as turn:
        print(turn.provider_name("math.add"), await turn.call("math.add", a=1, b=2))
        for result in await turn.run([ToolUse("1", "math__add", '{"a": 2, "b": "x"}')]):
            print(result.state, result.for_model())


asyncio.run(main())
