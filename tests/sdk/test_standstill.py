"""An event loop that stands still: the log says so while it does, and which tool blocks it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from support.lone_host import Stage, echo
from toolbus import tool
from toolbus.standstill import Standstill


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    yield stage
    await stage.close()


class Log(logging.Handler):
    """Lets a test wait until something was logged, from any thread."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self.changed:
            self.lines.append(record.getMessage())
            self.changed.notify_all()

    def holds(self, lines: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: len(self.lines) >= lines, 10)


@pytest.fixture
def log() -> Iterator[Log]:
    handler, logger = Log(), logging.getLogger("toolbus.standstill")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_tool_that_blocks_the_loop_is_named_while_it_does_and_afterwards(
    stage: Stage, log: Log
) -> None:
    @tool
    async def block() -> bool:
        return log.holds(1)

    server = stage.server(block, echo)
    with Standstill(server.runner.alive, limit_s=0.1, look_s=0.02):
        server.dispatch(1, "block")
        assert await server.answer() is True
        assert await asyncio.to_thread(log.holds, 2)
    first, second = log.lines
    advice = " s: t.block blocks it; make it `def`, or use asyncio.to_thread"
    assert first.startswith("the event loop has stood still for 0.1")
    assert second.startswith("the event loop stood still for 0.")
    assert first.endswith(advice)
    assert second.endswith(advice)


async def test_what_is_no_calls_own_task_blocks_without_a_name(stage: Stage, log: Log) -> None:
    server = stage.server(echo)
    with Standstill(server.runner.alive, limit_s=0.1, look_s=0.02):
        assert log.holds(1)
        assert await asyncio.to_thread(log.holds, 2)
    assert log.lines[0].endswith(" s: a tool blocks it; make it `def`, or use asyncio.to_thread")


async def test_short_standstills_are_not_told(stage: Stage, log: Log) -> None:
    looks = threading.Semaphore(0)

    class Watched(Standstill):
        def _blocking(self) -> str:
            looks.release()
            return super()._blocking()

    server = stage.server(echo)
    with Watched(server.runner.alive, limit_s=1000, look_s=0.01):
        for _ in range(3):
            assert looks.acquire(timeout=10)  # it is seen to stand still
            await asyncio.to_thread(int)
    assert log.lines == []


async def test_watching_ends_with_its_block(stage: Stage) -> None:
    with Standstill(stage.server(echo).runner.alive, look_s=0.01):
        (watch,) = (each for each in threading.enumerate() if each.name == "toolbus-standstill")
    await asyncio.to_thread(watch.join, 10)
    assert not watch.is_alive()
