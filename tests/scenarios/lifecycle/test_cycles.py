"""Thousands of clients that join, register, call and leave, with or without a goodbye, leave
nothing.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.patience import PATIENCE_S
from support.processes.launch import ChildProcess
from support.processes.short_lived_clients import WAYS
from support.rooms.leftovers import entries_of, forget_ended
from support.rooms.unharmed_server import connections_of, no_logged_errors, say, until_new_tasks_end
from toolbus import KeyRing, RoomClient, Toolkit, tool
from toolbus_server import ServerSettings
from toolbus_server.limits import Limits
from toolbus_server.registry.models import Identity
from toolbus_server.testing import TestServer, running_server

PROCESSES, TASKS = 2, 8
SCRIPT = Path(__file__).parents[2] / "support/processes/short_lived_clients.py"


class Standing:
    """A host whose tool never ends by itself; it records its callers, and cancels."""

    def __init__(self) -> None:
        self.began = 0
        self.gone = 0
        self.over = asyncio.Event()
        """Set when the test is over: what runs then would hold its end up."""

    def toolkit(self) -> Toolkit:
        @tool
        async def wait() -> None:
            self.began += 1
            try:
                await self.over.wait()
            finally:
                self.gone += 1

        return Toolkit("slow", [wait, say])


@asynccontextmanager
async def ended(standing: Standing) -> AsyncIterator[None]:
    """Let what still runs end with the block."""
    try:
        yield
    finally:
        standing.over.set()


async def run_cycles(server: TestServer, first: int, cycles: int) -> None:
    """Let processes run some cycles, and wait for their end."""
    share = cycles // PROCESSES
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    processes = []
    for number in range(PROCESSES):
        numbers = [str(first + number * share + number), str(share), str(TASKS)]
        token = server.token(f"client-{number}")
        command = [sys.executable, str(SCRIPT), server.url, token, *numbers]
        processes.append(await ChildProcess.start(command, environment))
    for process in processes:
        assert await process.process.wait() == 0


def ours(server: TestServer, host: RoomClient) -> Counter[str]:
    """Count the objects of our own types that exist; equal identities are one.

    Two tables may have equal keys, or the same one: that depends on when their entries were made.
    """
    hub = server.server.hub
    for deadlines in (hub.router._deadlines, hub.router.streams._stalls, hub._reservations):
        forget_ended(deadlines)
    assert entries_of(host) == 0
    gc.collect()
    objects = gc.get_objects()
    identities = {found for found in objects if isinstance(found, Identity)}
    kinds = [type(found) for found in objects if not isinstance(found, Identity)]
    kinds += [Identity] * len(identities)
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
    return Counter(name for name in names if name.startswith("toolbus"))


def memory_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cycles", [2_000, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_thousands_of_joins_and_leaves_leave_no_state(cycles: int) -> None:
    """CALL-12, guarantee "caller is killed": the host is notified once of each lost caller."""
    half = cycles // 2 // len(WAYS) // PROCESSES * len(WAYS) * PROCESSES
    # A reserved name would still exist at the end.
    chosen = ServerSettings(keys=KeyRing([]), port=0, limits=Limits(reservation_ms=1))
    standing = Standing()
    with no_logged_errors():
        async with (
            running_server(settings=chosen) as server,
            server.room("host") as host,
            host.host(standing.toolkit()),
            ended(standing),
        ):
            alone = asyncio.all_tasks()
            await run_cycles(server, 0, half // 5)  # fills caches and pools
            await all_gone(server, host, alone)
            objects, descriptors = ours(server, host), psutil.Process().num_fds()
            received, memory = standing.gone, []
            for first in (0, half):
                await run_cycles(server, first, half)
                await all_gone(server, host, alone)
                memory.append(memory_bytes())
                assert psutil.Process().num_fds() == descriptors
                assert ours(server, host) - objects == Counter(), "more than before"
            assert memory[1] <= memory[0] * 1.05, f"memory grew: {memory} bytes"
            assert standing.gone == standing.began
            assert standing.gone - received == 2 * half // len(WAYS)


async def all_gone(server: TestServer, host: RoomClient, alone: set[asyncio.Task[Any]]) -> None:
    """Wait until only the standing host is left, and no name is reserved."""
    hub = server.server.hub
    async with asyncio.timeout(PATIENCE_S):
        await until_new_tasks_end(alone)
        while hub.rooms["lab"].routed.state.toolkit_count > 1:
            await host.call("slow.say", text="still here")
        await until_new_tasks_end(alone)
        while hub.rooms["lab"].feeds._changes._timer is not None or hub.scheduler.is_busy:
            await host.call("slow.say", text="changes are still published")
    assert connections_of(server) == {"lab": ["host"]}
    assert hub.router.in_flight == 0
    assert hub.rooms["lab"].feeds._feeds == {}
