"""A standby is void when Redis has said nothing about other nodes for the time of a lease."""

from __future__ import annotations

import asyncio

from toolbus_server.cluster.lease import ExchangeDiffers
from toolbus_server.cluster.standby import Standby


async def test_a_standby_ends_when_nothing_was_heard_of_the_others_for_a_lease() -> None:
    changes: asyncio.Queue[bool] = asyncio.Queue()
    standby = Standby("one")
    standby.on_change = changes.put_nowait
    for valid_s in (60.0, 0.01):
        standby.begin(ExchangeDiffers("other 1", ""), valid_s)
    async with asyncio.timeout(60):
        assert [await changes.get() for _ in range(2)] == [True, False]
    assert not standby.is_active
