"""The event loop of a program, also when a task does not end."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys

import pytest

from support.patience import PATIENCE_S
from toolbus.concurrency import event_loop

SWALLOWS = """
import asyncio
from toolbus.concurrency import event_loop

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

event_loop._CANCEL_TIMEOUT_S = 0.1
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
    assert done.stderr == "1 tasks did not end after they were cancelled: abandoned\n"


def test_remaining_tasks_are_cancelled_and_awaited() -> None:
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
        """Never start."""

    monkeypatch.setattr(event_loop, "_loop_factory", interrupted)
    with pytest.raises(KeyboardInterrupt):
        event_loop.run(main())
    gc.collect()  # a warning about it would fail the test
