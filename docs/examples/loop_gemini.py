import asyncio

from google import genai

from toolbus import RoomClient, Turn
from toolbus.models import gemini as adapter


async def main() -> None:
    client = genai.Client().aio
    async with RoomClient(name="agent") as room, Turn(room, required=["words"]) as turn:
        conversation = [adapter.user("Which word is the most frequent one: the cat and the hat")]
        while True:
            request = adapter.request(turn, conversation, "Answer briefly.")
            response = await client.models.generate_content(model="gemini-3-flash", **request)
            reply = response.model_dump(mode="json", exclude_none=True)
            results = await turn.run(adapter.uses(reply))
            conversation += adapter.messages(reply, results)
            if not results:
                print(adapter.text(reply))
                return


asyncio.run(main())
