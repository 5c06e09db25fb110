"""Clocks that stand still while a person is waited for; all here run on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from support.parts.virtual_clock import on_virtual_clock
from toolbus.concurrency.pausable_clock import PausableClock, PausableTimer


def test_clock_stands_still_until_as_many_resume_as_have_paused() -> None:
    async def scenario() -> None:
        clock = PausableClock()
        start = clock.time()
        clock.pause()
        await asyncio.sleep(5)
        clock.pause()
        clock.resume()
        await asyncio.sleep(5)
        assert (clock.is_paused, clock.time() - start) == (True, 0)
        clock.resume()
        await asyncio.sleep(1)
        assert (clock.is_paused, clock.time() - start) == (False, 1)
        with clock.paused():
            await asyncio.sleep(3)
        await asyncio.sleep(1)
        assert clock.time() - start == 2
        assert clock.loop_time(start + 3) == asyncio.get_running_loop().time() + 1

    on_virtual_clock(scenario())


@pytest.mark.parametrize(
    ("pauses", "took"),
    [
        ([], 2),  # seconds from the start: when it is paused, and when it goes on
        ([(1, 11)], 12),
        ([(1, 2), (2.5, 10)], 10.5),
        ([(1, 5), (3, 9)], 10),
        ([(0, 7)], 9),
    ],
)
def test_limits_and_timers_end_without_the_time_of_pauses(
    pauses: list[tuple[float, float]], took: float
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        start, clock, ends = loop.time(), PausableClock(), list[float]()
        timer = PausableTimer(2, lambda: ends.append(loop.time() - start))
        for pause_s, resume_s in pauses:
            for part in (clock, timer):
                loop.call_at(start + pause_s, part.pause)
                loop.call_at(start + resume_s, part.resume)
        with pytest.raises(TimeoutError):
            async with clock.timeout_at(clock.time() + 2) as limit:
                await asyncio.sleep(100)
        assert limit.expired()
        assert [loop.time() - start, *ends] == pytest.approx([took, took])

    on_virtual_clock(scenario())


def test_limit_that_begins_while_the_clock_stands_still_begins_with_it() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        start, clock = loop.time(), PausableClock()
        clock.pause()
        loop.call_at(start + 10, clock.resume)
        with pytest.raises(TimeoutError):
            async with clock.timeout_at(clock.time() + 2):
                await asyncio.sleep(100)
        assert loop.time() - start == 12

    on_virtual_clock(scenario())


def test_limit_and_timer_that_have_ended_are_not_moved() -> None:
    async def scenario() -> None:
        loop, clock, ends = asyncio.get_running_loop(), PausableClock(), list[float]()
        timer = PausableTimer(1, lambda: ends.append(loop.time()))
        cancelled = PausableTimer(1, lambda: ends.append(-1))
        async with clock.timeout_at(clock.time() + 1):
            pass
        cancelled.pause()
        cancelled.cancel()
        cancelled.resume()
        await asyncio.sleep(2)
        for part in (clock, timer):
            part.pause()
            part.resume()
        await asyncio.sleep(2)
        assert len(ends) == 1

    on_virtual_clock(scenario())


@pytest.mark.parametrize(("paused", "passed"), [(True, 0), (False, 3_600)])
def test_jump_of_the_clock_below_counts_unless_the_clock_stands_still(
    paused: bool, passed: float
) -> None:
    """As after a laptop was closed."""

    async def scenario() -> None:
        now = 50.0
        clock = PausableClock(lambda: now)
        start = clock.time()
        if paused:
            clock.pause()
        now += 3_600
        if paused:
            clock.resume()
        assert clock.time() - start == passed
        limit = clock.timeout_at(start + 3_600)
        if paused:
            async with limit:
                await asyncio.sleep(10)
            return
        with pytest.raises(TimeoutError):
            async with limit:
                await asyncio.sleep(10)

    on_virtual_clock(scenario())
