import asyncio
from typing import Any

from toolbus import (
    RequiredToolkit,
    Room,
    RoomClient,
    ToolContext,
    Toolkit,
    ToolkitBuilder,
    ToolkitConfig,
    Turn,
    tool,
)


class FrequentConfig(ToolkitConfig):
    """The most frequent words."""

    top: int = 3


class Frequent(ToolkitBuilder[FrequentConfig]):
    async def make(self, room: Room, model: Any, config: FrequentConfig) -> Toolkit:
        @tool
        async def words(context: ToolContext, text: str) -> str:
            """Name the most frequent words."""
            return " ".join(await context.room.call("words.count", text=text, top=config.top))

        return Toolkit("frequent", [words])


async def main() -> None:
    async with (
        RoomClient(name="agent") as room,
        Turn(
            room,
            required=[RequiredToolkit("words")],
            builders=[Frequent("frequent", FrequentConfig), Toolkit("unused")],
            tools=[FrequentConfig(name="frequent", top=2)],
        ) as turn,
    ):
        print(*(each.name for each in turn.tools))
        print(await turn.call("frequent.words", text="a b a c b a"))


asyncio.run(main())
