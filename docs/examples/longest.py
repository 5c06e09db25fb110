import asyncio

from toolbus import RoomClient, ToolContext, Toolkit, tool


@tool
def longest(context: ToolContext, texts: list[str]) -> str:
    """Return the text with the most different words."""
    return max(texts, key=lambda text: len(context.call_sync("words.count", text=text, top=1000)))


async def main() -> None:
    async with RoomClient(name="ann") as room, room.host(Toolkit("texts", [longest])):
        print(await room.call("texts.longest", texts=["a b a", "a b c", "a a a"]))


asyncio.run(main())
