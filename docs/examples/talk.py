import asyncio

from toolbus import RoomClient


async def main() -> None:
    async with (
        RoomClient(name="ann") as ann,
        RoomClient(name="bob") as bob,
        bob.events(["messages"]) as events,
    ):
        await bob.set_attributes(status="busy")
        await ann.send("bob", "note", {"text": "the train is late"})
        async for event in events:
            if event.message is not None:
                print(event.message.sender.name, event.message.name, event.message.body)
                break
        print({each.name: each.attributes for each in await ann.participants() if each.attributes})


asyncio.run(main())
