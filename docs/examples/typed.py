import asyncio
from typing import TYPE_CHECKING

from toolbus import RoomClient

if TYPE_CHECKING:
    from words_types import Words


async def main() -> None:
    async with RoomClient(name="ann") as room:
        words: Words = await room.toolkit("words")
        print(await words.count(text="a b a", top=1))


asyncio.run(main())
