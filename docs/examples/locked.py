import asyncio

from toolbus import DefinitionChanged, RoomClient


async def main() -> None:
    async with RoomClient(name="ann", locked="toolbus.lock") as room:
        print(await room.call("words.count", text="a b a"))
        try:
            await room.call("clock.now")
        except DefinitionChanged as error:
            print(error)


asyncio.run(main())
