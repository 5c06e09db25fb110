import asyncio

from toolbus import RemoteToolkit, RoomClient, tool
from toolbus_toolkits.clock import clock


@tool
async def greet(name: str) -> str:
    """Greet a person."""
    return f"Hello, {name}"


@tool
async def part(name: str) -> str:
    """Say goodbye to a person."""
    return f"Goodbye, {name}"


greeter = RemoteToolkit(name="greeter", tools=[greet])


async def main() -> None:
    async with RoomClient(name="services") as room:
        await greeter.start(room)  # a RemoteToolkit can also be started and stopped
        await room.replace(greeter.with_tools(part))  # in one step, while calls run
        print(await room.call("greeter.part", name="Ada"))
        await greeter.stop()

        async with room.host(clock(), public=False):  # as long as the block runs
            noon = "2026-03-01T12:00:00+00:00"
            print(await room.call("clock.convert", time=noon, to="Europe/Oslo"))
            await room.drain()  # no new calls; running calls finish


asyncio.run(main())
