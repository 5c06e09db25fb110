"""Participants that receive broadcasts."""

from __future__ import annotations

import asyncio

from toolbus import RoomClient

MIB = 1024 * 1024
LISTENERS = 100
ROUNDS = 40


class Listener:
    """A participant that keeps the numbers of the broadcasts named "tick" that it receives."""

    def __init__(self, room: RoomClient) -> None:
        self.room = room
        self.received: asyncio.Queue[int] = asyncio.Queue()

    async def listen(self, is_ready: asyncio.Event) -> None:
        async with self.room.events(["messages"]) as events:
            is_ready.set()
            async for event in events:
                if event.message is not None and event.message.name == "tick":
                    self.received.put_nowait(event.message.body["number"])


async def broadcast_to(sender: RoomClient, listeners: list[Listener]) -> None:
    """Broadcast repeatedly; each time wait until all of these have received it."""
    for number in range(ROUNDS):
        await sender.broadcast("tick", {"number": number, "words": "w" * 2_000})
        assert {await each.received.get() for each in listeners} == {number}
