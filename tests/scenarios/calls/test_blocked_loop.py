"""What blocks an event loop that runs tools is named in one line of the log, with its place."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from support.patience import PATIENCE_S
from support.rooms.events import until
from toolbus import RoomClient, Tool, ToolContext, Toolkit, Turn, tool
from toolbus.hosting import loop_watchdog
from toolbus.hosting.loop_watchdog import watched_loop
from toolbus_server.testing import room_of

_LINES: list[str] = []
"""What was logged about the blocks of this test; a loaded machine may have others."""


class _Keep(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if re.search(r":\d+ in (block_until|counts)\b", record.getMessage()):
            _LINES.append(f"{record.levelname} {record.getMessage()}")


@pytest.fixture(autouse=True)
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make a tenth of a second a block, and return what is logged about it."""
    monkeypatch.setattr(loop_watchdog, "BLOCKED_S", 0.1)
    monkeypatch.setattr(loop_watchdog, "_TICK_S", 0.025)
    keep = _Keep()
    monkeypatch.setattr(loop_watchdog._logger, "handlers", [keep])
    _LINES.clear()
    return _LINES


def block_until(count: int = 1) -> None:
    """Block the thread until something is logged."""
    ends_at = time.monotonic() + PATIENCE_S
    while len(_LINES) < count and time.monotonic() < ends_at:
        time.sleep(0.001)


@tool
async def sleeps() -> None:
    block_until()


@tool
async def yields() -> AsyncIterator[int]:
    yield 1
    block_until()


@tool
async def counts() -> int:
    total = 0
    while not _LINES:
        total += sum(range(5_000_000))  # in C, without letting other threads run
    return total


async def child() -> None:
    block_until()


@tool
async def gathers() -> None:
    await asyncio.gather(asyncio.sleep(0), child())


@tool
async def groups() -> AsyncIterator[int]:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(child())
    yield 1


@tool
async def spawns() -> None:
    started = [asyncio.create_task(child())]
    await asyncio.wait(started)


@tool
async def nothing() -> None: ...


@tool
async def holds() -> None:
    await asyncio.Event().wait()


class Blocker(Tool):
    name = "blocker"
    input_schema = {"type": "object"}  # noqa: RUF012

    async def execute(self, context: ToolContext, /) -> None:
        await asyncio.sleep(0)
        block_until()


CHILDREN = [gathers, groups, spawns]
KIT = Toolkit("work", [sleeps, yields, counts, nothing, holds, *CHILDREN, Blocker()])
HERE = re.escape(f"{Path(__file__)}:")
TOOL = rf"WARNING tool work\.{{}} has blocked the event loop for [\d.]+ s, at {HERE}\d+ in {{}}; "
CASES = [
    ("sleeps", TOOL.format("sleeps", "block_until")),
    ("yields", TOOL.format("yields", "block_until")),
    ("counts", TOOL.format("counts", "counts")),
    ("blocker", TOOL.format("blocker", "block_until")),
]


async def called(room: RoomClient, name: str) -> None:
    async with room.stream(f"work.{name}") as chunks:
        async for _ in chunks:
            pass


async def called_hosted(room: RoomClient, name: str) -> None:
    async with room.host(KIT):
        await called(room, name)


async def called_in_turn(room: RoomClient, name: str) -> None:
    async with Turn(room, always=[KIT]) as turn:
        await turn.call(f"work.{name}")


@pytest.mark.parametrize("call", [called_hosted, called_in_turn])
async def test_blocked_loop_is_logged_in_one_line_with_tool_and_place(
    lines: list[str], call: Callable[..., Any]
) -> None:
    async with room_of("ann") as (ann,), asyncio.timeout(60):
        for name, line in CASES:
            lines.clear()
            await call(ann, name)
            assert len(lines) == 1
            assert re.match(line, lines[0]), lines[0]


@pytest.mark.parametrize("function", CHILDREN)
async def test_tool_of_a_task_that_blocks_is_named(lines: list[str], function: Any) -> None:
    async with room_of("ann") as (ann,), asyncio.timeout(60), ann.host(KIT):
        held = asyncio.create_task(ann.call("work.holds"))
        await called(ann, function.__name__)
        held.cancel()
    pattern = rf"WARNING the task 'Task-\d+' of tool work\.{function.__name__} has .* at {HERE}\d+"
    assert re.match(pattern, lines[0]), lines[0]


async def test_calls_beside_a_block_of_none_are_named(lines: list[str]) -> None:
    async with room_of("ann") as (ann,), asyncio.timeout(60), ann.host(KIT):
        held = asyncio.create_task(ann.call("work.holds"))
        await ann.call("work.nothing")
        asyncio.get_running_loop().call_soon(block_until)
        await asyncio.sleep(0.01)
        held.cancel()
    assert "WARNING a callback, beside 1 call (work.holds), has blocked" in lines[0]


async def test_long_block_is_logged_once_more_and_the_next_one_anew(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watchdog, "LONG_S", 0.2)
    with watched_loop():
        watchdog = loop_watchdog._watchdogs[asyncio.get_running_loop()]
        await asyncio.sleep(0)
        block_until(2)
        time.sleep(0.1)  # noqa: ASYNC251 - what is tested
        beat_at = watchdog._beat_at
        await until(lambda: watchdog._beat_at != beat_at)
        monkeypatch.setattr(loop_watchdog, "LONG_S", float("inf"))
        block_until(3)
    assert [line.split()[0] for line in lines] == ["WARNING", "ERROR", "WARNING"]


async def test_watching_ends_with_its_last_user_and_again_begins_with_the_next(
    lines: list[str],
) -> None:
    for _ in range(2):
        before = threading.enumerate()
        with watched_loop(), watched_loop():
            (thread,) = set(threading.enumerate()).difference(before)
        await until(lambda: not loop_watchdog._watchdogs)
        await asyncio.to_thread(thread.join, PATIENCE_S)
        assert not thread.is_alive()
    assert lines == []


@pytest.mark.parametrize(
    ("passed_s", "used_s", "counted_s"),
    [
        (0.25, 0.0, 0.25),  # an ordinary tick
        (3.0, 2.9, 2.9),  # something held the interpreter's lock
        (3600.0, 0.01, 0.5),  # the machine was asleep
    ],
)
def test_time_in_which_the_process_was_suspended_does_not_count(
    monkeypatch: pytest.MonkeyPatch, passed_s: float, used_s: float, counted_s: float
) -> None:
    monkeypatch.setattr(loop_watchdog, "_TICK_S", 0.25)
    at = {"monotonic": 100.0, "process_time": 10.0}
    for name in at:
        monkeypatch.setattr(time, name, lambda name=name: at[name])
    clock = loop_watchdog._RunningTime()
    at["monotonic"] += passed_s
    at["process_time"] += used_s
    assert clock.next() == pytest.approx(counted_s)
