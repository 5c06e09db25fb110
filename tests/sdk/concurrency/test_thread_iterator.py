"""A synchronous iterable on a thread: when it runs, how it ends, and what is left."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

from support.patience import PATIENCE_S
from toolbus.concurrency.thread_iterator import ThreadIterator


class Steps:
    """An iterable that makes one item each time the test allows it."""

    def __init__(self, *, end: BaseException | None = None) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.closed = threading.Event()
        self.threads: list[threading.Thread] = []
        self._end = end

    def __iter__(self) -> Iterator[int]:
        try:
            for number in range(1000):
                self.threads.append(threading.current_thread())
                self.begun.release()
                assert self.go.acquire(timeout=PATIENCE_S)
                yield number
        finally:
            self.closed.set()
            if self._end is not None:
                raise self._end

    def release(self, items: int = 1000) -> None:
        self.go.release(items)

    async def has_begun(self, *, within_s: float = 5) -> bool:
        """Wait for the next item; return whether it was started."""
        return await asyncio.to_thread(self.begun.acquire, timeout=within_s)


async def test_thread_works_only_while_an_item_is_requested() -> None:
    steps = Steps()
    steps.release()
    items = ThreadIterator(lambda: steps)
    assert steps.threads == []
    assert [await anext(items) for _ in range(3)] == [0, 1, 2]
    assert [await steps.has_begun() for _ in range(3)] == [True] * 3
    assert not await steps.has_begun(within_s=0.05)
    items.stop()
    assert await asyncio.to_thread(steps.closed.wait, 5)


async def test_cancelled_wait_for_an_item_loses_none_and_requests_no_other() -> None:
    steps = Steps()
    items = ThreadIterator(lambda: steps)
    for _ in range(3):
        waiting = asyncio.ensure_future(anext(items))
        await asyncio.wait([waiting], timeout=0.01)
        waiting.cancel()
        await asyncio.wait([waiting])
    steps.release()
    assert [await anext(items), await anext(items)] == [0, 1]
    assert [await steps.has_begun() for _ in range(2)] == [True] * 2
    assert not await steps.has_begun(within_s=0.05)
    await items.aclose()


async def test_blocked_thread_closes_its_generator_after_its_current_item() -> None:
    steps = Steps()
    items = ThreadIterator(lambda: steps)
    waiting = asyncio.ensure_future(anext(items))
    assert await steps.has_begun()
    waiting.cancel()
    items.stop()
    assert steps.threads[0].daemon  # it does not keep the program from ending
    assert not steps.closed.is_set()
    steps.release()
    assert await asyncio.to_thread(steps.closed.wait, 5)
    await asyncio.to_thread(steps.threads[0].join, 5)
    assert len(steps.threads) == 1
    assert [item async for item in items] == [0]


@pytest.mark.parametrize("is_waited_for", [True, False])
async def test_error_while_closing_is_raised_if_awaited_and_logged_otherwise(
    is_waited_for: bool, caplog: pytest.LogCaptureFixture
) -> None:
    steps = Steps(end=OSError("at the end"))
    steps.release()
    items = ThreadIterator(lambda: steps, asyncio.to_thread, ahead=3)
    assert await anext(items) == 0
    with caplog.at_level(logging.ERROR):
        if is_waited_for:
            with pytest.raises(RuntimeError, match="while it was closed") as raised:
                await items.aclose()
            assert isinstance(raised.value.__cause__, OSError)
        else:
            items.stop()
            with pytest.raises(OSError, match="at the end"):
                [_ async for _ in items]
    logged = ["at the end" in (record.exc_text or "") for record in caplog.records]
    assert logged == [True] * (not is_waited_for)


async def test_error_of_the_iterable_is_raised_after_its_items_and_again() -> None:
    def rows() -> Iterator[int]:
        yield 1
        raise ValueError("mine")

    items = ThreadIterator(rows, asyncio.to_thread, ahead=3)
    assert await anext(items) == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="mine"):
            await anext(items)
    await items.aclose()


async def test_iterator_closed_before_its_first_item_never_starts() -> None:
    begun: list[str] = []

    def start() -> list[int]:
        begun.append("begun")
        return [1]

    items = ThreadIterator(start)
    await items.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(items)
    assert begun == []
