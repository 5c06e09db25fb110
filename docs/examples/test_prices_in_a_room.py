import asyncio

import pytest

from prices import prices
from toolbus import ApiScope, PermissionDenied, ToolFailed
from toolbus_server.testing import ThreadedServer, room_of


def test_a_call(toolbus_room: ThreadedServer) -> None:
    toolbus_room.host(prices)
    assert toolbus_room.connect("ann").call("prices.total", items={"pen": 3}) == 6


def test_a_participant_without_grants(toolbus_room: ThreadedServer) -> None:
    toolbus_room.host(prices)
    guest = toolbus_room.connect("guest", api=ApiScope())
    with pytest.raises(PermissionDenied):
        guest.call("prices.total", items={})


@pytest.mark.asyncio
async def test_two_calls_at_a_time() -> None:
    async with room_of("host", "ann") as lab, lab["host"].host(prices):
        call = lab["ann"].call
        two = [call("prices.total", items={item: 1}) for item in ("pen", "hat")]
        assert await asyncio.gather(*two) == [2, 30]
        with pytest.raises(ToolFailed):
            await call("prices.total", items={"cup": 1})
