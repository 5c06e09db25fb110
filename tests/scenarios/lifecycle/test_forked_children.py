"""Tools that start processes by fork: real processes, in the event loops of both kinds."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from support.patience import PATIENCE_S
from support.processes.logged_host import host_of
from support.rooms.events import until_hosts
from support.telemetry.otlp_collector import collecting
from toolbus import KeyRing, RoomClient
from toolbus.errors import HostLost
from toolbus_server import ServerSettings
from toolbus_server.testing import running_server

PROGRAM = str(Path(__file__).parents[2] / "support/processes/forking_host.py")
COMMAND = ["-m", "toolbus", "host", "support.processes.forking_host:kit"]
# Without pings only the end of its socket tells that a host is lost.
SETTINGS = ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0, ping_interval_s=3_600.0)


async def assert_lost_while_a_child_lives(alice: RoomClient, host_pid: int) -> None:
    held = asyncio.create_task(alice.call("kit.hold"))
    child = await alice.call("kit.leave_child")
    try:
        os.kill(host_pid, signal.SIGKILL)
        with pytest.raises(HostLost) as lost:
            await held
        assert lost.value.executed == "maybe"
        os.kill(child, 0)  # it lives
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("command", [[PROGRAM, "asyncio"], [PROGRAM, "uvloop"], COMMAND])
async def test_a_forked_child_has_no_signal_handler_and_no_socket_of_its_host(
    command: list[str],
) -> None:
    """Guarantee "host is killed": a child that it forked does not hide that."""
    with collecting() as collector:
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "3600000",
        }
        async with (
            asyncio.timeout(PATIENCE_S),
            running_server(settings=SETTINGS) as server,
            server.room("alice") as alice,
            host_of(server.url, server.token("host"), command, **variables) as host,
        ):
            await until_hosts(alice, "kit", 1)
            for tool in ("end_child", "end_child_of_loop"):
                assert await alice.call(f"kit.{tool}") == -signal.SIGTERM
            assert await alice.call("kit.record_in_child") == 0
            assert [span.name for span in collector.spans] == ["in the child"]
            assert await alice.call("kit.exit_in_child") == 7
            assert await alice.call("kit.return_in_child") == 0
            assert await alice.call("kit.return_in_child_of_loop") == 0
            assert await alice.call("kit.end_child") == -signal.SIGTERM
            await assert_lost_while_a_child_lives(alice, host._process.pid)
