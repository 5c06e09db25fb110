import asyncio

from toolbus import Agent, RequiredToolkit, RoomClient, open_model


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
            event = chunk.value
            print(event["type"], event.get("tool", event.get("text")))


asyncio.run(main())
