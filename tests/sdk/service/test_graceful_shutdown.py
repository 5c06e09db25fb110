"""Tools that abandon threads or do not end, and users who do not wait for them."""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.parts.isolated_host import HostStage, echo
from support.patience import PATIENCE_S
from support.rooms.events import until_hosts
from toolbus import RoomClient, Tool, ToolContext, Toolkit, tool
from toolbus.hosting import runner
from toolbus.service import remote_toolkit
from toolbus.settings import DEV_KEYS_FILE, RoomSettings
from toolbus.tools.context import run_of
from toolbus_server.testing import running_server


def impatient(host_stage: HostStage, *, then_hold: bool = False) -> Any:
    """Make a tool that abandons its thread at once."""

    @tool(max_concurrency=1)
    async def impatient(context: ToolContext) -> str:
        try:
            async with asyncio.timeout(0):
                await run_of(context).run_sync(lambda: host_stage.gate.wait(PATIENCE_S))
        finally:
            host_stage.enter()
            if then_hold:
                await asyncio.Event().wait()
        return "ok"

    return impatient


async def test_abandoned_thread_keeps_its_slot_and_may_have_run(host_stage: HostStage) -> None:
    server = host_stage.server(impatient(host_stage), echo, max_in_flight=2)
    server.dispatch(1, "impatient")
    await host_stage.wait_entered()
    error = await server.error()
    assert (error.code, error.executed) == ("tool_failed", "maybe")
    server.dispatch(2, "impatient")
    server.dispatch(3, "echo", text="x")
    assert (await server.error()).code == "overloaded"
    assert not host_stage.entered.is_set()
    host_stage.gate.set()
    await host_stage.wait_entered()
    await server.error()


async def test_tool_whose_thread_has_ended_can_be_stopped(host_stage: HostStage) -> None:
    server = host_stage.server(impatient(host_stage, then_hold=True))
    server.dispatch(1, "impatient")
    await host_stage.wait_entered()
    (run,) = server.runner._running
    assert run.task is not None
    server.cancel(1)
    async with asyncio.timeout(60):
        await asyncio.wait([run.task])
    assert server.runner._running == {run}


# Tools that do not end


class Stubborn:
    """A tool that does not end when it is cancelled."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.released = asyncio.Event()

    async def stay(self) -> str:
        self.entered.set()
        while not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
        return ""


async def test_tool_that_ignores_its_cancellation_is_abandoned(
    host_stage: HostStage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "_STOP_TIMEOUT_S", 0.05)
    stubborn = Stubborn()
    server = host_stage.server(stubborn.stay)
    server.dispatch(1, "stay")
    await stubborn.entered.wait()
    try:
        async with asyncio.timeout(60):
            await server.runner.stop()
        assert "left behind" in caplog.text
    finally:
        stubborn.released.set()


async def test_room_is_left_even_if_waiting_for_its_end_is_cancelled() -> None:
    stubborn = Stubborn()
    async with running_server() as server, server.room("alice") as alice, asyncio.timeout(60):
        host = server.room("host")
        await host.__aenter__()
        hosting = host.host(Toolkit("t", [stubborn.stay]))
        await hosting.__aenter__()
        call = asyncio.create_task(alice.invoke("t.stay", retry=False))
        await stubborn.entered.wait()
        leaving = asyncio.create_task(host.__aexit__(None, None, None))
        await stubborn.cancelled.wait()
        leaving.cancel()
        try:
            with pytest.raises(asyncio.CancelledError):
                await leaving
            await until_hosts(alice, "t", 0)
        finally:
            stubborn.released.set()
            await asyncio.wait([call])
            await hosting.__aexit__(None, None, None)


async def test_second_signal_is_handled_until_serving_ends_and_not_afterwards() -> None:
    started = asyncio.Event()
    seen: list[Any] = []
    before = [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)]

    class Watcher(Tool):
        def __init__(self) -> None:
            super().__init__(name="watch", input_schema={"type": "object"})

        async def execute(self, context: ToolContext, **arguments: Any) -> None:
            """Do nothing."""

        async def stop(self) -> None:
            seen.append(signal.getsignal(signal.SIGTERM))
            seen.append(signal.getsignal(signal.SIGINT))

    class Announced(RoomClient):
        @asynccontextmanager
        async def host(self, toolkit: Toolkit, **options: Any) -> AsyncIterator[Toolkit]:
            async with super().host(toolkit, **options):
                started.set()
                yield toolkit

    async with running_server() as server, asyncio.timeout(60):
        toolkit = Toolkit("t", [Watcher()])
        room = Announced(server.url, room="lab", token=server.token("host"))
        task = asyncio.create_task(remote_toolkit.serve_toolkits([toolkit], room))
        await started.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await task
    term, interrupt = seen
    assert term == interrupt
    assert term not in before
    assert [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)] == before


# Questions to the user


@pytest.mark.parametrize("error", [KeyError("uid 1000"), OSError("no name")])
def test_error_for_a_user_without_a_name_names_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def absent() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", absent)
    (tmp_path / DEV_KEYS_FILE).write_text("")
    with pytest.raises(ValueError, match="TOOLBUS_NAME"):
        RoomSettings.resolve(environ={"TOOLBUS_HOME": str(tmp_path)})
