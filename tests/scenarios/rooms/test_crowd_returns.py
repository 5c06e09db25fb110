"""A thousand participants that reconnect at once: all join within bounds, and calls continue."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.processes.many_clients import PEOPLE, Caller, ManyClients, echo, many_clients
from support.processes.server_process import server_process
from toolbus import Toolkit


async def come_back(gathered: ManyClients) -> list[float]:
    """Let all lose their connections at once; return how long each took to reconnect."""
    await gathered.say("again")
    return sorted(await gathered.until_reconnected())


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_thousand_come_back_at_once_and_calls_of_others_go_on(tmp_path: Path) -> None:
    """CONN-16, LEAVE-4: by jitter, and by a server that accepts a few at a time."""
    async with (
        server_process(tmp_path) as server,
        server.room("host") as host,
        host.host(Toolkit("t", [echo])),
        server.room("alice") as alice,
        many_clients(server) as gathered,
        asyncio.timeout(200),
    ):
        for _ in range(2):
            caller = Caller(alice)
            async with asyncio.TaskGroup() as group:
                group.create_task(caller.run())
                took = await come_back(gathered)
                caller.is_over = True
            assert len(took) == PEOPLE
            assert caller.calls > 100
