"""Threads of toolbus: their limit, cancellation, and what is logged."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.patience import PATIENCE_S
from support.rooms.events import until
from toolbus import FileChunk
from toolbus.chunks.file_io import FILE_THREADS
from toolbus.concurrency import worker_threads
from toolbus.concurrency.worker_threads import WorkerThreads


class Gate:
    """Functions that are on threads until the gate opens."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._entered = threading.Semaphore(0)
        self.open = self._open.set
        self.ran: list[Any] = []

    def hold(self, result: Any = None) -> Any:
        self._entered.release()
        assert self._open.wait(PATIENCE_S)
        self.ran.append(result)
        return result

    async def entered(self) -> None:
        assert await asyncio.to_thread(self._entered.acquire, timeout=PATIENCE_S)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


async def test_work_beyond_the_limit_waits_and_keeps_its_order(gate: Gate) -> None:
    threads = WorkerThreads("limited", 2)
    freed = Gate()
    running = [asyncio.create_task(threads.run(each.hold, "held")) for each in (gate, freed)]
    await gate.entered()
    await freed.entered()
    order: list[int] = []
    waiting = [asyncio.create_task(threads.run(order.append, number)) for number in range(20)]
    await asyncio.sleep(0)
    assert order == []
    freed.open()  # one thread, so that its work ends in the order in which it began
    await asyncio.gather(*waiting)
    assert order == list(range(20))
    names = [each.name for each in threading.enumerate()]
    assert names.count("toolbus-limited") == 2
    gate.open()
    assert await asyncio.gather(*running) == ["held", "held"]


async def test_cancelled_work_that_waits_does_not_run_and_that_runs_is_undone(gate: Gate) -> None:
    threads = WorkerThreads("test", 1)
    undone: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def undo(result: int) -> None:
        loop.call_soon_threadsafe(undone.put_nowait, result)

    running = asyncio.create_task(threads.run(gate.hold, 1, undo=undo))
    await gate.entered()
    waiting = asyncio.create_task(threads.run(gate.hold, 2, undo=undo))
    await asyncio.sleep(0)
    for task in (waiting, running):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(PATIENCE_S):  # the thread is blocked yet
                await task
    gate.open()
    async with asyncio.timeout(PATIENCE_S):
        assert await undone.get() == 1
        await threads.run(int)
    assert gate.ran == [1]


@pytest.mark.parametrize("ends_first", [True, False])
async def test_result_of_cancelled_work_is_undone_where_its_loop_ends_at_once(
    gate: Gate, ends_first: bool
) -> None:
    threads = WorkerThreads("test", 1)
    ran, undone = threading.Event(), threading.Event()
    running = asyncio.create_task(threads.run(gate.hold, 1, undo=lambda result: undone.set()))
    await gate.entered()
    # The loop stands still where the thread goes on: it runs nothing that the thread schedules.
    if ends_first:
        gate.open()
        other = asyncio.create_task(threads.run(ran.set))
        await asyncio.sleep(0)
        assert ran.wait(PATIENCE_S)
        other.cancel()
    running.cancel()
    await asyncio.sleep(0)
    gate.open()
    assert undone.wait(PATIENCE_S)
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("error", [KeyError("a"), StopIteration(1), SystemExit(1)])
async def test_error_of_the_function_is_raised(error: BaseException) -> None:
    def fail() -> None:
        raise error

    expected = RuntimeError if isinstance(error, StopIteration) else type(error)
    with pytest.raises(expected):
        await WorkerThreads("test", 1).run(fail)


async def test_work_that_takes_long_is_logged(
    gate: Gate, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_threads, "_LONG_S", 0.0)
    running = asyncio.create_task(WorkerThreads("test", 1).run(gate.hold))
    await until(lambda: "test: Gate.hold has not ended after " in caplog.text)
    gate.open()
    await running


@pytest.mark.parametrize(
    ("may_take_long", "has_begun", "count"),
    [(False, False, 1), (False, True, 1), (True, False, 1), (True, True, 0)],
)
async def test_log_has_one_line_a_minute_and_none_for_user_code_that_runs(
    caplog: pytest.LogCaptureFixture, may_take_long: bool, has_begun: bool, count: int
) -> None:
    threads = WorkerThreads("test", 1, may_take_long=may_take_long)
    work = worker_threads._Work(int, None)
    work.has_begun = has_begun
    for _ in range(3):
        threads._report(work)
    assert len(caplog.records) == count


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forked children here")
async def test_forked_child_has_threads_of_its_own(gate: Gate) -> None:
    threads = WorkerThreads("test", 1)
    running = asyncio.create_task(threads.run(gate.hold))
    await gate.entered()
    threads._reset()  # as after a fork, where the only thread is gone
    assert await threads.run(int) == 0
    gate.open()
    await running


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
async def test_save_to_a_disk_that_hangs_ends_with_its_time_limit(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # nobody reads it: opening it takes for ever
    for data in (FileChunk(b"a"), FileChunk.from_path(pipe)):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await data.save(pipe)
    reader = await FILE_THREADS.run(os.open, pipe, os.O_RDWR)  # lets the threads go on
    os.close(reader)
