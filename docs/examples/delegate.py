import asyncio

from toolbus import Agent, JsonChunk, RequiredToolkit, RoomClient, open_model


async def main() -> None:
    model = open_model("scripted:delegate.jsonl")
    helper = RequiredToolkit("helper", participant="helper", tools=["ask"])
    async with (
        RoomClient(name="editor") as room,
        Agent(room, model, name="editor", required=[helper], available=False),
        RoomClient(name="ann") as ann,
        ann.stream("editor.ask", {"text": "Ask the helper."}, participant="editor") as chunks,
    ):
        async for chunk in chunks:
            assert isinstance(chunk, JsonChunk)
            match chunk.json:
                case {"type": "tool_result", "tool": tool, "text": text}:
                    print(tool, "returned", text)
                case {"type": "end", "text": text}:
                    print(text)


asyncio.run(main())
