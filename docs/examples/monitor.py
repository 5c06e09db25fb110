import asyncio

from toolbus import RoomClient


async def main() -> None:
    async with RoomClient(name="ann") as ann, ann.watch_calls() as monitor:
        await ann.call("words.count", text="a b a")
        async for change in monitor:
            for call in change.calls:
                print(
                    call.caller, f"{call.toolkit}.{call.tool}", call.host, call.code, call.executed
                )
            if change.calls:
                break


asyncio.run(main())
