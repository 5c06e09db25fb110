"""Large results over a slow connection: no caller is cut off, and no other caller waits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from support.patience import PATIENCE_S
from support.rooms.large_results import MANY_LARGE, SLOW, arrives, raw_host, sdk_host
from toolbus import KeyRing, RoomException
from toolbus.client import reconnecting_connection
from toolbus.hosting.fair_slots import MAX_IN_FLIGHT
from toolbus.transport import websocket
from toolbus_server import ServerSettings
from toolbus_server.testing import FaultProxy, Faults, TestServer, running_server

HOSTS = [sdk_host, raw_host]
NO_PINGS = ServerSettings(KeyRing([]), port=0, ping_interval_s=None)


@pytest.fixture(autouse=True)
def nobody_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a line stand still for as long as this machine needs for what is sent meanwhile."""
    monkeypatch.setattr(reconnecting_connection, "PING_INTERVAL_S", None)
    monkeypatch.setattr(websocket, "_STALL_TIMEOUT_S", PATIENCE_S)


@pytest.mark.parametrize(("count", "size"), MANY_LARGE)
@pytest.mark.parametrize("hosting", HOSTS)
async def test_a_caller_that_reads_as_fast_as_its_line_gets_every_large_result(
    hosting: Callable[[TestServer], Any], count: int, size: int
) -> None:
    """CONN-14, STREAM-11."""
    async with (
        running_server(settings=NO_PINGS) as server,
        FaultProxy(server.url) as proxy,
        hosting(server),
    ):
        async with server.room("ann", via=proxy) as ann:
            proxy.to_participant = SLOW
            assert all(await asyncio.gather(*(arrives(ann, n, size) for n in range(count))))


async def test_a_flood_of_results_neither_cuts_its_caller_off_nor_fills_the_server() -> None:
    """CALL-28: what does not fit is an error of its own call."""
    async with (
        running_server(settings=NO_PINGS) as server,
        FaultProxy(server.url) as proxy,
        raw_host(server),
        server.room("ann", via=proxy) as ann,
        server.room("ben") as ben,
    ):
        before = psutil.Process().memory_info().rss
        proxy.to_participant = Faults(stalled=True)
        flood = [asyncio.create_task(arrives(ann, number, 1_000_000)) for number in range(300)]
        for number in range(20):  # between and after the unread results
            assert await arrives(ben, number, 8)
        assert psutil.Process().memory_info().rss - before < 150_000_000
        proxy.to_participant = Faults()
        ends = await asyncio.gather(*flood, return_exceptions=True)
        lost = [end for end in ends if isinstance(end, RoomException)]
        codes = Counter((end.code, end.executed, end.retryable) for end in lost)
        assert codes.keys() == {("overloaded", "yes", False)}
        assert ends.count(True) == 300 - len(lost) >= 16
        assert await arrives(ann, 1, 8)


async def test_callers_of_a_host_do_not_wait_for_a_caller_that_does_not_read() -> None:
    """STREAM-11: results that wait at the host take no place there."""
    count = MAX_IN_FLIGHT + 44
    async with (
        running_server(settings=NO_PINGS) as server,
        FaultProxy(server.url) as proxy,
        sdk_host(server),
        server.room("ann", via=proxy) as ann,
        server.room("ben") as ben,
    ):
        proxy.to_participant = Faults(stalled=True)
        calls = []
        for number in range(count):
            calls.append(asyncio.create_task(arrives(ann, number, 100_000)))
            if number % 50 == 49:
                assert await arrives(ben, number, 8)
        assert await arrives(ben, 1, 200_000)
        assert not any(call.done() for call in calls)
        proxy.to_participant = Faults()
        assert all(await asyncio.gather(*calls))
