import asyncio
import sys

from toolbus import Agent, RoomClient, open_model


async def main() -> None:
    model = open_model(sys.argv[1])
    async with (
        RoomClient(name="helper") as room,
        Agent(room, model, name="helper", instructions="Answer briefly.", required=["words"]),
    ):
        await room.closed()


asyncio.run(main())
