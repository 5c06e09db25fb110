import asyncio

from toolbus import Agent, NotFound, RoomClient, Toolkit, open_model, tool


@tool(read_only=True)
async def upper(text: str) -> str:
    """Write a text in capital letters."""
    return text.upper()


async def main() -> None:
    model = open_model("scripted:case.jsonl")
    async with (
        RoomClient(name="writer") as room,
        Agent(room, model, name="writer", builders=[Toolkit("case", [upper])]),
        RoomClient(name="ann") as ann,
    ):
        print(*(builder.name for builder in await ann.list_builders("writer")))
        arguments = {"text": "Good day, in capital letters.", "tools": [{"name": "case"}]}
        async with ann.stream("writer.ask", arguments, participant="writer") as chunks:
            print([chunk.value async for chunk in chunks][-1]["text"])
        arguments = {"text": "Good day.", "tools": [{"name": "shell"}]}
        try:
            async with ann.stream("writer.ask", arguments, participant="writer") as chunks:
                print([chunk.value async for chunk in chunks])
        except NotFound as error:
            print(error.message, error.executed)


asyncio.run(main())
