import asyncio

from toolbus import JsonChunk, RoomClient

QUESTION = "Which word is the most frequent one: the cat and the hat"


async def main() -> None:
    async with (
        RoomClient(name="ann") as room,
        room.stream("helper.ask", {"text": QUESTION}, participant="helper") as chunks,
    ):
        async for chunk in chunks:
            assert isinstance(chunk, JsonChunk)
            match chunk.json:
                case {"type": "tool_call", "tool": tool, "arguments": arguments}:
                    print("calls", tool, arguments)
                case {"type": "tool_result", "text": text}:
                    print("gets", text)
                case {"type": "text", "text": text}:
                    print(text, end="", flush=True)
    print()


asyncio.run(main())
