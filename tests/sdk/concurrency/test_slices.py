"""Long work of an event loop in slices: turns, errors and cancellation."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Generator

import pytest

from toolbus.concurrency import slices
from toolbus.concurrency.slices import run_in_slices


@pytest.fixture(autouse=True)
def one_step_in_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)


class Ticks:
    """Counts the iterations of the running loop."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self.count += 1
        self._handle = self._loop.call_soon(self._tick)

    def stop(self) -> None:
        self._handle.cancel()


@pytest.fixture
async def ticks() -> AsyncIterator[Ticks]:
    ticks = Ticks()
    yield ticks
    ticks.stop()


async def iterations(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def job(
    name: str, steps: int, log: list[tuple[str, int]], ticks: Ticks
) -> Generator[None, None, str]:
    """Note at each step in which iteration it ran."""
    try:
        for _ in range(steps):
            log.append((name, ticks.count))
            yield
    finally:
        log.append((f"{name} ended", ticks.count))
    return name


async def test_each_slice_has_an_iteration_of_its_own_also_with_many_jobs(ticks: Ticks) -> None:
    log: list[tuple[str, int]] = []
    jobs = [run_in_slices(job(str(n), 50, log, ticks), 1_000) for n in range(4)]
    assert await asyncio.gather(*jobs) == ["0", "1", "2", "3"]
    begun = [iteration for name, iteration in log if "ended" not in name]
    assert len(begun) == len({*begun}) == 200
    ended = [name for name, _ in log if "ended" in name]
    assert ended == [f"{number} ended" for number in range(4)]


async def test_a_job_that_continues_another_one_goes_before_those_that_began_later(
    ticks: Ticks,
) -> None:
    log: list[tuple[str, int]] = []
    first = asyncio.create_task(run_in_slices(job("first", 100, log, ticks), 9))
    await asyncio.sleep(0)
    more = asyncio.create_task(run_in_slices(job("more", 9, log, ticks), 9, continues=True))
    assert [await first, await more] == ["first", "more"]
    assert [name for name, _ in log if "ended" in name] == ["more ended", "first ended"]


async def test_a_small_job_overtakes_many_large_ones_which_all_end(ticks: Ticks) -> None:
    log: list[tuple[str, int]] = []
    large = [asyncio.create_task(run_in_slices(job("large", 100, log, ticks), 9)) for _ in range(9)]
    await iterations(20)
    before = len(log)
    assert await run_in_slices(job("small", 10, log, ticks), 1) == "small"
    assert len(log) - before <= 10 * 2 + 4
    assert await asyncio.gather(*large) == ["large"] * 9


async def test_a_cancelled_job_ends_between_two_steps_and_the_next_one_goes_on(
    ticks: Ticks,
) -> None:
    log: list[tuple[str, int]] = []
    tasks = [asyncio.create_task(run_in_slices(job(name, 1_000, log, ticks), 9)) for name in "abc"]
    await iterations(20)
    for task in tasks[:2]:  # one that has begun and one that waits
        task.cancel()
    assert await tasks[2] == "c"
    assert all(task.cancelled() for task in tasks[:2])
    assert [name for name, _ in log if "ended" in name] == ["a ended", "c ended"]
    assert sum(name in "ab" for name, _ in log) < 20


async def test_an_error_of_a_step_is_raised_and_the_next_job_runs(ticks: Ticks) -> None:
    def broken() -> Generator[None, None, None]:
        yield
        raise ValueError("broken")

    log: list[tuple[str, int]] = []
    ended = await asyncio.gather(
        run_in_slices(broken(), 1),
        run_in_slices(job("a", 3, log, ticks), 1),
        return_exceptions=True,
    )
    assert [str(each) for each in ended] == ["broken", "a"]


def test_a_loop_that_ran_jobs_is_freed_after_its_end() -> None:
    async def use() -> weakref.ref[asyncio.AbstractEventLoop]:
        await asyncio.gather(*(run_in_slices(iter_steps(), 1) for _ in range(2)))
        return weakref.ref(asyncio.get_running_loop())

    used = asyncio.run(use())
    gc.collect()
    assert used() is None


def iter_steps() -> Generator[None, None, None]:
    yield
