"""`toolbus host shell` in a process of its own: what it runs ends with it, however that ends."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from support.patience import PATIENCE_S
from support.processes.held_pipe import held_pipe
from support.processes.logged_host import host_of
from support.rooms.events import until_hosts
from toolbus_server.testing import running_server

COMMAND = ["-m", "toolbus", "host", "shell", "--workdir"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_jobs_end_with_their_host(tmp_path: Path, number: signal.Signals) -> None:
    line = "exec >held; trap '' TERM HUP; setsid sleep 600 & sleep 600 & echo ready; cat"
    async with (
        asyncio.timeout(PATIENCE_S),
        running_server() as server,
        server.room("alice") as alice,
        host_of(server.url, server.token("host"), [*COMMAND, str(tmp_path)]) as host,
        held_pipe(tmp_path / "held") as held,
    ):
        await until_hosts(alice, "shell", 1)
        await host.wait_for_log("toolkit shell has no policy: whoever may call it runs any")
        started = await alice.call("shell.run", command=line, background=True)
        assert started["job"] == "1"
        assert await held.readline() == b"ready\n"
        host.signal(number)
        assert await host.ended() == (0 if number == signal.SIGTERM else -number)
        assert await held.read() == b""
