import asyncio

from openai import AsyncOpenAI

from toolbus import RoomClient, Turn
from toolbus.models import openai_chat as adapter


async def main() -> None:
    client = AsyncOpenAI()  # base_url="http://localhost:11434/v1" for a server of your own
    async with RoomClient(name="agent") as room, Turn(room, required=["words"]) as turn:
        conversation = [adapter.user("Which word is the most frequent one: the cat and the hat")]
        while True:
            request = adapter.request(turn, conversation, "Answer briefly.")
            response = await client.chat.completions.create(model="gpt-5.6", **request)
            reply = response.to_dict()
            results = await turn.run(adapter.uses(reply))
            conversation += adapter.messages(reply, results)
            if not results:
                print(adapter.text(reply))
                return


asyncio.run(main())
