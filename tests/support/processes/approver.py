"""A person in a process of its own, to be killed at any moment: decides at random what waits."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

from toolbus import ApiScope, HoldInfo, RoomClient, RoomException
from toolbus.concurrency import event_loop

NAME = "approver"
SCOPE = ApiScope(approve_all=["*"], approve=["*"])
_PAUSES_S = (0.0, 0.0, 0.005, 0.05)
_WAYS = ("approve", "approve twice", "change", "deny", "leave it open")
_WEIGHTS = (10, 2, 4, 3, 1)


async def decide(room: RoomClient, hold: HoldInfo) -> None:
    """Decide about one call that waits, after a short time, or not at all."""
    await asyncio.sleep(random.choice(_PAUSES_S))
    [way] = random.choices(_WAYS, _WEIGHTS)
    with suppress(RoomException):  # it has ended meanwhile, or the server has
        if way == "deny":
            await room.deny(hold, "as drawn")
        elif way == "change":
            hold = await room.hold(hold.id)
            assert hold.body is not None or not hold.is_open
            await room.approve(hold, {**hold.body.arguments, "work_s": 0.0} if hold.body else None)
        elif way != "leave it open":
            await room.approve(hold)
        if way == "approve twice":
            await room.approve(hold)


class Approver:
    """One participant, and what it is about to decide."""

    def __init__(self, room: RoomClient) -> None:
        self._room = room
        self._deciding: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Decide about all that waits, until the connection ends for good."""
        async with self._room as room, room.events(["holds"]) as events:
            await self._decide_all()
            async for event in events:
                if event.hold is None:  # "reconnected" or "missed"
                    await self._decide_all()
                elif event.name == "hold_added":
                    self._begin(event.hold)

    async def _decide_all(self) -> None:
        with suppress(RoomException):  # the connection was lost: then there is another event
            for hold in await self._room.holds():
                self._begin(hold)

    def _begin(self, hold: HoldInfo) -> None:
        task = asyncio.create_task(decide(self._room, hold))
        self._deciding.add(task)
        task.add_done_callback(self._deciding.discard)


async def main() -> None:
    """Decide until killed."""
    while True:
        with suppress(RoomException):  # it came while the server was down
            await Approver(RoomClient()).run()
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    event_loop.run(main())
