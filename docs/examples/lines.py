import asyncio
from collections.abc import AsyncIterator

from toolbus import Chunk, FileChunk, InputStream, RemoteToolkit, ToolContext, tool


@tool(read_only=True)
async def numbered(texts: InputStream[str], start: int = 1) -> AsyncIterator[str]:
    """Number texts as they arrive."""
    async for text in texts:
        yield f"{start} {text}"
        start += 1


@tool(read_only=True)
async def count(context: ToolContext, attachment: FileChunk) -> int:
    """Count the lines of a file of any size."""
    lines = 0
    async for piece in attachment.pieces():
        lines += piece.count(b"\n")
        context.emit({"lines": lines})
    return lines


lines = RemoteToolkit(name="lines", tools=[numbered, count])


async def main() -> None:  # runs the tools without a room, as a unit test does
    async def show(chunk: Chunk) -> None:
        print(chunk.value)

    texts: InputStream[str] = InputStream(["to be", "or not to be"])
    await lines.execute(ToolContext(on_chunk=show), "numbered", {"start": 7}, texts)
    context = ToolContext(on_progress=print)
    print((await lines.execute(context, "count", {}, b"to be\nor not to be\n")).value)


if __name__ == "__main__":
    asyncio.run(main())
