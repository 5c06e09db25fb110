import asyncio
from collections.abc import AsyncIterator

from toolbus import FileChunk, InputStream, RoomClient, ToolContext, Toolkit, tool


@tool
async def countdown(context: ToolContext, start: int) -> AsyncIterator[int]:
    """Count down."""
    for number in range(start, 0, -1):
        context.emit(f"{number} to go")
        yield number


@tool
async def total(numbers: InputStream[int]) -> int:
    """Add up numbers as they arrive."""
    return sum([number async for number in numbers])


@tool
async def keep(attachment: FileChunk) -> FileChunk:
    """Store a file and return it."""
    await attachment.save("kept.py")
    return FileChunk.from_path("kept.py")


async def main() -> None:
    pieces = Toolkit("pieces", [countdown, total, keep])
    async with RoomClient(name="ann") as room, room.host(pieces, public=False):
        async with room.stream("pieces.countdown", {"start": 3}) as chunks:
            async for chunk in chunks:
                print(chunk.value)

        proxy = await room.toolkit("pieces")
        async with proxy.countdown(start=2) as chunks:
            print([chunk.value async for chunk in chunks])

        async with room.stream("pieces.total", input=range(1_000)) as chunks:
            print([chunk.value async for chunk in chunks])

        file = await room.invoke("pieces.keep", attachment="words.py")
        await file.save("back.py")


asyncio.run(main())
