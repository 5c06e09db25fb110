import asyncio

from toolbus import RoomClient


async def main() -> None:
    async with RoomClient() as room:
        print(await room.call("words.count", text="the cat and the hat", top=1))


asyncio.run(main())
