import asyncio
import sys

from toolbus import RoomClient, Turn, open_model


async def main() -> None:
    model = open_model(sys.argv[1])
    adapter = model.adapter
    async with RoomClient(name="agent") as room, Turn(room, required=["words"]) as turn:
        conversation = [adapter.user("Which word is the most frequent one: the cat and the hat")]
        while True:
            reply = await model.reply(adapter.request(turn, conversation, "Answer briefly."))
            results = await turn.run(adapter.uses(reply))
            conversation += adapter.messages(reply, results)
            if not results:
                print(adapter.text(reply))
                return


asyncio.run(main())
