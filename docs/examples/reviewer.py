import asyncio

from toolbus import RoomClient


async def main() -> None:
    async with RoomClient() as room, room.events(["holds"]) as events:
        print("reviewing payments")
        async for event in events:
            if event.name != "hold_added" or event.hold is None:
                continue
            hold = await room.hold(event.hold.id)  # with all that would run
            if hold.tool != "payments.pay" or hold.is_own or hold.body is None:
                continue
            if hold.body.arguments["amount"] <= 10:
                await room.approve(hold)


asyncio.run(main())
