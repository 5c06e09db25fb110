import asyncio

from toolbus import RoomClient
from toolbus.telemetry import configure


async def main() -> None:
    async with RoomClient() as room:
        print(await room.call("words.count", text="a b a"))


configure("traced")
asyncio.run(main())
