import asyncio

from toolbus import Turn
from toolbus_toolkits.memory import Memory


async def main() -> None:
    async with Turn(None, always=[Memory("notes.db")]) as turn:
        for note in await turn.call("memory.search", query="deploying"):
            print(f"note {note['id']}: {note['text']}")
        text = "The shop is deployed on Fridays."
        print("appended", await turn.call("memory.append", text=text, tags=["shop"]))


asyncio.run(main())
