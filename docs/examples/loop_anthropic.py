import asyncio

from anthropic import AsyncAnthropic

from toolbus import RoomClient, Turn
from toolbus.models import anthropic as adapter


async def main() -> None:
    client = AsyncAnthropic()
    async with RoomClient(name="agent") as room, Turn(room, required=["words"]) as turn:
        conversation = [adapter.user("Which word is the most frequent one: the cat and the hat")]
        while True:
            request = adapter.request(turn, conversation, "Answer briefly.")
            events = []
            async for event in await client.messages.create(
                model="claude-sonnet-4-5", stream=True, **request
            ):
                events.append(event.to_dict())
                print(adapter.text_of(events[-1]), end="", flush=True)
            reply = adapter.collect(events)
            results = await turn.run(adapter.uses(reply))
            conversation += adapter.messages(reply, results)
            if not results:
                print()
                return


asyncio.run(main())
