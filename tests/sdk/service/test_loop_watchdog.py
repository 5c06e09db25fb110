"""A blocked event loop: its stack is printed while it blocks, and its calls are logged after."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from support.parts.isolated_host import HostStage, echo
from toolbus import tool
from toolbus.service import loop_watchdog
from toolbus.service.loop_watchdog import LoopWatchdog


async def test_tool_that_blocks_the_loop_is_shown_by_its_stack_and_logged_with_its_call(
    host_stage: HostStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "stacks"

    @tool
    async def block() -> bool:
        for _ in range(10_000):
            if "in block" in path.read_text(encoding="utf-8"):
                return True
            time.sleep(0.001)  # noqa: ASYNC251 - what is tested
        return False

    logged = asyncio.Event()
    monkeypatch.setattr(loop_watchdog._logger, "error", lambda *_: logged.set())
    server = host_stage.server(block)
    with path.open("w") as stacks:
        with LoopWatchdog(server.runner.running_calls, limit_s=0.1, stacks=stacks):
            server.dispatch(1, "block")
            assert await server.answer() is True
            await asyncio.wait_for(logged.wait(), 10)
    assert "Timeout (0:00:00.1" in path.read_text(encoding="utf-8")


async def test_loop_that_runs_is_not_reported(
    host_stage: HostStage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "stacks"
    server = host_stage.server(echo)
    with path.open("w") as stacks:
        watchdog = LoopWatchdog(server.runner.running_calls, limit_s=1000, stacks=stacks)
        with watchdog:
            watchdog._check()
    assert (path.read_text(encoding="utf-8"), caplog.text) == ("", "")
