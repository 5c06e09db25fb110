"""Calls of a toolkit whose only host is away: they wait for its next process, within a limit."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from support.processes.host_process import HostProcess, host_process
from support.processes.launch import clean_environment
from support.rooms.call_watching import until_refused
from support.rooms.events import until_hosts
from toolbus import RoomClient
from toolbus.auth.tokens import KeyRing
from toolbus.errors import InvalidArguments, NoHost, NotFound
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer, running_server

PATIENT: Any = {"wait_for_host_s": 90, "timeout_s": 100}


async def end(host: HostProcess, how: str) -> None:
    await (host.kill() if how == "killed" else host.terminate())


@pytest.mark.parametrize("how", ["killed", "terminated"])
@pytest.mark.parametrize("tool", ["wait", "wait_again"])
async def test_call_runs_once_at_the_next_process_of_the_only_host(
    tmp_path: Path, how: str, tool: str
) -> None:
    """RETRY-4, REG-18: killed or terminated, and whether the tool is idempotent or not."""
    async with running_server() as server, server.room("alice") as alice:
        async with host_process(server, tmp_path / "first") as first:
            await end(first, how)
        await until_hosts(alice, "work", 0)
        async with alice.watch_calls() as reports:
            calling = asyncio.create_task(alice.invoke(f"work.{tool}", **PATIENT))
            await until_refused(reports, "no_host", 4)
        async with host_process(server, tmp_path / "next") as second:
            assert (await calling).value == "free"
            assert second.count(f"began {tool}") == 1


@pytest.mark.parametrize("how", ["killed", "terminated"])
async def test_idempotent_call_in_flight_runs_again_at_the_next_process_of_its_host(
    tmp_path: Path, how: str
) -> None:
    """RETRY-2, RETRY-4."""
    async with (
        running_server() as server,
        server.room("alice") as alice,
        alice.watch_calls() as reports,
        host_process(server, tmp_path / "first", hold=True, TOOLBUS_DRAIN="0.1") as first,
    ):
        calling = asyncio.create_task(alice.invoke("work.wait_again", **PATIENT))
        await first.wrote("began wait_again")
        await end(first, how)
        await until_refused(reports, "no_host", 1)
        async with host_process(server, tmp_path / "next") as second:
            assert (await calling).value == "free"
            assert second.count("began wait_again") == 1


async def test_call_ends_with_no_host_after_the_limit_of_the_call_or_the_room(
    tmp_path: Path,
) -> None:
    """RETRY-4."""
    async with running_server() as server, server.room("alice") as alice:
        async with host_process(server, tmp_path / "w") as host:
            await host.kill()
        await until_hosts(alice, "work", 0)
        brief = RoomClient(server.url, room="lab", token=server.token("bob"), wait_for_host_s=0.5)
        work = (await alice.toolkit("work")).with_options(wait_for_host_s=0.5)
        async with brief:
            for calling in (work.call("wait"), brief.call("work.wait")):
                with pytest.raises(
                    NoHost, match=r"no host now \(waited 0\.[2-5] s for one\)\n"
                ) as e:
                    await calling
                assert (e.value.executed, e.value.retryable) == ("no", True)
            with pytest.raises(NoHost, match=r"no host now\n"):
                await brief.invoke("work.wait", wait_for_host_s=0)
        assert host.count("began wait") == 0


async def test_call_waits_for_hosts_that_reconnect_to_a_server_that_has_just_started(
    tmp_path: Path,
) -> None:
    """CALL-24, RETRY-4: also where the caller has never seen the toolkit."""
    settings = ServerSettings(keys=KeyRing([]), port=0, drain_s=1.0, hosts_return_s=100.0)
    async with (
        running_server(settings=settings) as server,
        server.room("alice") as alice,
        alice.watch_calls() as reports,
    ):
        with pytest.raises(NotFound, match="this server has just started"):
            await alice.invoke("work.wait", wait_for_host_s=0)
        calling = asyncio.create_task(alice.invoke("work.wait", **PATIENT))
        await until_refused(reports, "not_found", 3)
        async with host_process(server, tmp_path / "w") as host:
            assert (await calling).value == "free"
            assert host.count("began wait") == 1


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 2**31, "1", True])
async def test_limit_that_is_not_a_number_of_seconds_is_refused(
    server: TestServer, seconds: Any
) -> None:
    async with server.room("alice") as alice:
        with pytest.raises(InvalidArguments, match="wait_for_host_s must be a number of seconds"):
            await alice.invoke("work.wait", wait_for_host_s=seconds)
    with pytest.raises(ValueError, match="wait_for_host_s must be a number of seconds"):
        async with RoomClient(server.url, token="e30.e30.t", wait_for_host_s=seconds):
            pass


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--no-retry",), "no_host: work has no host now (executed: no)\n"),
        (("--no-retry", "--wait-for-host", "90"), "work has no host now (executed: no)\n"),
        (("--wait-for-host", "0.5"), "work has no host now (waited 0."),
    ],
    ids=str,
)
async def test_command_waits_for_a_host_as_its_options_say(
    server: TestServer, tmp_path: Path, flags: tuple[str, ...], text: str
) -> None:
    async with server.room("alice") as alice:
        async with host_process(server, tmp_path / "w") as host:
            await host.kill()
        await until_hosts(alice, "work", 0)
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "toolbus", "call", "work.wait", "--url", server.url),
            *("--room", "lab", "--token", server.token("bob"), *flags),
            env=clean_environment(),
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            _, errors = await command.communicate()
    assert command.returncode == 6
    assert text in errors.decode()
