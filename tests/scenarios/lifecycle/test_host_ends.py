"""How a host process ends, whatever its tools do: real processes, ended by real signals."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.patience import PATIENCE_S
from support.processes.logged_host import Host, host_of
from support.rooms.events import until_hosts
from toolbus import RoomClient
from toolbus.errors import DeadlineExceeded, HostLost, ToolFailed
from toolbus_server.testing import TestServer, running_server

PROGRAM = Path(__file__).parents[2] / "support/processes/ending_host.py"
COMMAND = ["-m", "toolbus", "host", "support.processes.ending_host:work"]
STARTING = [*COMMAND, "support.processes.ending_host:late"]
RUN = [str(PROGRAM), "run"]
AROUND = [str(PROGRAM), "around"]


@asynccontextmanager
async def hosting(
    command: list[str], *, drain: str = "60"
) -> AsyncIterator[tuple[TestServer, RoomClient, Host]]:
    """Run a server, a host, and a caller that sees its toolkit."""
    async with (
        running_server() as server,
        server.room("alice") as alice,
        host_of(server.url, server.token("host"), command, TOOLBUS_DRAIN=drain) as host,
    ):
        await until_hosts(alice, "work", 1)
        yield server, alice, host


def calling(alice: RoomClient, tool: str) -> asyncio.Task[object]:
    return asyncio.create_task(alice.call(f"work.{tool}"))


async def assert_may_have_run(call: asyncio.Task[object]) -> None:
    with pytest.raises(HostLost) as lost:
        async with asyncio.timeout(PATIENCE_S):
            await call
    assert lost.value.executed == "maybe"


# The time limit


@pytest.mark.parametrize(
    ("tool", "left"),
    [
        ("hold", None),
        ("swallow", "1 call (work.swallow)"),
        ("in_thread", "1 call (work.in_thread)"),
        ("beside", "a task or a thread"),
        ("block", "1 call (work.block)"),
    ],
)
async def test_one_signal_ends_a_host_after_its_limit_whatever_its_tool_does(
    tool: str, left: str | None
) -> None:
    """LEAVE-1, CALL-13, guarantee "host drains": the log names the calls that still run."""
    async with hosting(RUN, drain="0.3") as (_, alice, host):
        call = calling(alice, tool)
        await host.entered()
        host.signal(signal.SIGTERM)
        assert await host.ended() == 0
        await assert_may_have_run(call)
    assert (f"exiting without {left}" in host.output) is (left is not None)
    assert "Traceback" not in host.output


@pytest.mark.parametrize("tool", ["block", "hold"])
async def test_signal_ends_a_host_whose_call_began_before_all_was_hosted(tool: str) -> None:
    async with hosting(STARTING, drain="0.3") as (_, alice, host):
        call = calling(alice, tool)
        await host.entered()
        host.signal(signal.SIGTERM)
        if tool == "hold":
            await until_hosts(alice, "work", 0)
            call.cancel()
        assert await host.ended() == 0
    assert ("exiting without 1 call (work.block)" in host.output) is (tool == "block")
    assert "Traceback" not in host.output


async def test_call_that_was_given_up_and_does_not_end_keeps_no_host() -> None:
    async with hosting(RUN, drain="0.3") as (_, alice, host):
        call = asyncio.create_task(alice.invoke("work.swallow", timeout_s=3))
        await host.entered()
        await host.cancelled()
        with pytest.raises(DeadlineExceeded):
            await call
        host.signal(signal.SIGTERM)
        assert await host.ended() == 0
    assert "exiting without 1 call (work.swallow)" in host.output


@pytest.mark.parametrize("command", [RUN, COMMAND])
async def test_host_logs_how_long_it_waits_for_how_many_calls(command: list[str]) -> None:
    async with hosting(command, drain="0.3") as (_, alice, host):
        calls = [calling(alice, "hold"), calling(alice, "hold"), calling(alice, "turn")]
        for _ in calls:
            await host.entered()
        host.signal(signal.SIGINT)
        await host.wait_for_log(
            "stopping: waiting up to 0.3 s for 3 calls (work.hold x2, work.turn); "
        )
        assert await host.ended() == 0
        for call in calls:
            await assert_may_have_run(call)
    assert "a second signal stops at once" in host.output


# A second signal


@pytest.mark.parametrize("command", [RUN, COMMAND])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("tool", ["hold", "turn", "in_thread"])
async def test_second_signal_ends_a_host_at_once_and_its_calls_may_have_run(
    command: list[str], second: signal.Signals, tool: str
) -> None:
    async with hosting(command) as (_, alice, host):
        call = calling(alice, tool)
        await host.entered()
        host.signal(signal.SIGINT)
        await host.wait_for_log("stopping: waiting")
        host.signal(second)
        assert await host.ended() == 5
        await assert_may_have_run(call)
    last = f"toolbus: stopped by a second signal, 1 call (work.{tool}) lost"
    assert host.output.splitlines()[-1] == last
    assert len(host.output.splitlines()) == 2


async def test_second_signal_ends_a_host_whose_event_loop_is_blocked() -> None:
    async with hosting(RUN) as (_, alice, host):
        call = calling(alice, "block")
        await host.entered()
        host.signal(signal.SIGTERM)
        host.signal(signal.SIGINT)
        assert await host.ended() == 5
        await assert_may_have_run(call)


# Other ends


@pytest.mark.parametrize("tool", ["hold", "turn", "in_thread"])
async def test_program_that_python_interrupts_does_not_say_that_its_tools_ended(tool: str) -> None:
    """The first Ctrl-C waits for the call, the second ends every task of the event loop."""
    async with hosting(AROUND) as (_, alice, host):
        call = calling(alice, tool)
        await host.entered()
        host.signal(signal.SIGINT)
        await until_hosts(alice, "work", 0)
        host.signal(signal.SIGINT)
        await assert_may_have_run(call)


@pytest.mark.parametrize("command", [RUN, COMMAND, AROUND])
async def test_a_tool_that_raises_what_ends_programs_fails_alone(command: list[str]) -> None:
    async with hosting(command, drain="0.3") as (_, alice, host):
        other = calling(alice, "hold")
        await host.entered()
        for tool in ("interrupt", "interrupt_in_thread", "leave", "leave_in_thread"):
            with pytest.raises(ToolFailed) as failed:
                await calling(alice, tool)
            kind = "KeyboardInterrupt" if tool.startswith("interrupt") else "SystemExit"
            assert failed.value.message.startswith(f"the tool raised {kind}")
            assert failed.value.executed == "yes"
        assert not other.done(), "another call ended with it"
        for _ in range(1 + (command is AROUND)):
            host.signal(signal.SIGINT)
            await until_hosts(alice, "work", 0)
        await host.ended()
        await assert_may_have_run(other)


async def test_ctrl_c_within_a_tool_ends_its_program() -> None:
    """A second one while its event loop is blocked: Python raises in the tool."""
    async with hosting(AROUND) as (_, alice, host):
        call = calling(alice, "ctrl_c_twice")
        await host.ended()
        await assert_may_have_run(call)
    assert host.output.endswith("KeyboardInterrupt\n")


async def test_host_that_is_sent_away_ends_without_a_tool_that_does_not() -> None:
    async with hosting(RUN) as (server, alice, host), server.room("boss") as boss:
        call = calling(alice, "swallow")
        await host.entered()
        await boss.admin("kick", room="lab", participant="host")
        assert await host.ended() == 3
        await assert_may_have_run(call)
    assert "permission_denied: an administrator removed this participant" in host.output
    assert "Traceback" not in host.output


@pytest.mark.parametrize("command", [RUN, COMMAND])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_host_that_is_stopped_while_it_connects_stops_connecting(
    command: list[str], number: signal.Signals
) -> None:
    connected = asyncio.Event()

    async def keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(keep_silent, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with (
        silent,
        running_server() as server,
        host_of(f"ws://127.0.0.1:{port}", server.token("host"), command) as host,
    ):
        async with asyncio.timeout(PATIENCE_S):
            await connected.wait()
        host.signal(number)
        assert await host.ended() == 5
    assert host.output == "toolbus: stopped by a signal before anything was hosted\n"
