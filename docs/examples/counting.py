import asyncio

from toolbus import RoomClient, ToolContext, Toolkit, Turn, tool


@tool(read_only=True)
async def shorten(context: ToolContext, text: str) -> str:
    """Keep the first line of a text."""
    principal = context.on_behalf_of
    print("shorten, for", "nobody else" if principal is None else principal.name)
    return text.partition("\n")[0]


@tool
async def ask(context: ToolContext, text: str) -> dict[str, int]:
    """Count the words of the first line."""
    tools = [Toolkit("text", [shorten])]
    async with Turn(context=context, always=tools, required=["words"]) as turn:
        line = await turn.call("text.shorten", text=text)
        counts: dict[str, int] = await turn.call("words.count", text=line)
        return counts


async def main() -> None:
    async with (
        RoomClient(name="counter") as agent,
        agent.host(Toolkit("counter", [ask])),
        RoomClient(name="ann") as ann,
    ):
        print(await ann.call("counter.ask", text="the cat the hat\nand more"))


asyncio.run(main())
