import asyncio

from toolbus import RoomClient, RoomException, ToolContext, ToolFailed, Toolkit, tool


@tool
async def summary(context: ToolContext, text: str) -> str:
    """Say which word of a text is the most frequent."""
    counts = await context.room.call("words.count", text=text, top=1)
    if not counts:
        raise ToolFailed("there are no words in this text")
    return f"{context.caller.name}, it is {next(iter(counts))!r}"


async def main() -> None:
    async with (
        RoomClient(name="ann") as room,
        room.host(Toolkit("reader", [summary]), public=False),
    ):
        print(await room.call("reader.summary", text="to be or not to be"))
        try:
            await room.call("reader.summary", text="")
        except RoomException as error:
            print(f"{error.code}, executed: {error.executed}, retryable: {error.retryable}")
            print(error)


asyncio.run(main())
