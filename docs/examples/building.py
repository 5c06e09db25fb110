import asyncio

from toolbus import Agent, NotFound, RoomClient, Toolkit, open_model, tool


@tool(read_only=True)
async def upper(text: str) -> str:
    """Write a text in capital letters."""
    return text.upper()


async def ask(ann: RoomClient, text: str, *tools: str) -> str:
    """Ask the writer, with these toolkits built for it."""
    arguments = {"text": text, "tools": [{"name": name} for name in tools]}
    async with ann.stream("writer.ask", arguments, participant="writer") as chunks:
        async for chunk in chunks:
            match chunk.value:
                case {"type": "end", "text": str(answer)}:
                    return answer
    return ""


async def main() -> None:
    model = open_model("scripted:case.jsonl")
    async with (
        RoomClient(name="writer") as room,
        Agent(room, model, name="writer", builders=[Toolkit("case", [upper])]),
        RoomClient(name="ann") as ann,
    ):
        print(*(builder.name for builder in await ann.list_builders("writer")))
        print(await ask(ann, "Good day, in capital letters.", "case"))
        try:
            await ask(ann, "List the files.", "shell")
        except NotFound as error:
            print(error.message)


asyncio.run(main())
