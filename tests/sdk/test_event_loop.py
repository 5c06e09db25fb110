"""A program's event loop: how it ends where something keeps it from ending."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys

import pytest

from support.command_line import PATIENCE_S
from toolbus import event_loop

SWALLOWS = """
import asyncio
from toolbus import event_loop

async def swallow():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

async def main():
    global kept
    kept = asyncio.create_task(swallow())
    await asyncio.sleep(0)
    return "ended"

event_loop._PATIENCE_S = 0.1
print(event_loop.run(main()))
"""


def test_task_that_swallows_its_cancel_does_not_keep_a_program_from_ending() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SWALLOWS],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout == "ended\n"
    assert done.stderr == "1 tasks do not end when cancelled: left behind\n"


def test_tasks_that_are_left_are_cancelled_and_waited_for() -> None:
    ended: list[str] = []

    async def clean_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    async def main() -> None:
        ended.append(asyncio.create_task(clean_up()).get_name())
        await asyncio.sleep(0)

    event_loop.run(main())
    assert ended[1:] == ["cleaned up"]


def test_interrupt_before_the_loop_leaves_no_coroutine_that_was_never_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        """Never begin."""

    monkeypatch.setattr(event_loop, "_loop_factory", interrupted)
    with pytest.raises(KeyboardInterrupt):
        event_loop.run(main())
    gc.collect()  # a warning of it would fail the test
