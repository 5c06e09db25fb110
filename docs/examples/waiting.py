import asyncio

from toolbus import RequiredToolkit, RoomClient
from toolbus.errors import NotFound


async def main() -> None:
    async with RoomClient() as room:
        try:
            await RequiredToolkit("deopt", timeout_s=2).find(room)
        except NotFound as error:
            print(error.code)


asyncio.run(main())
