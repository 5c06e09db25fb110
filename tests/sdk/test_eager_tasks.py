"""What is started runs at once up to where it first waits, and is one task from start to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any
from weakref import WeakKeyDictionary, ref

import pytest

from toolbus.eager_tasks import Starter, starter

Work = Callable[[], Coroutine[Any, Any, None]]
variable: ContextVar[str] = ContextVar("variable", default="outside")


class Desk:
    """Starts work as a connection does: in a callback of the loop, within no task."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.starter: Starter = starter(self.loop)

    async def start(
        self, *works: Work, then: Callable[[list[asyncio.Task[None] | None]], object] = len
    ) -> list[asyncio.Task[None] | None]:
        """Start some in one callback; give their tasks, None where they ended in it."""
        started: asyncio.Future[list[asyncio.Task[None] | None]] = self.loop.create_future()

        def callback() -> None:
            try:
                tasks = [self.starter.start(work(), Context()) for work in works]
                then(tasks)
                started.set_result(tasks)
            except BaseException as error:
                started.set_exception(error)

        self.loop.call_soon(callback)
        return await started

    async def ready(self) -> None:
        """Wait until what is started next begins at once: the first one is an ordinary task."""
        while (task := (await self.start(nothing))[0]) is not None:
            await task
            await asyncio.sleep(0)

    async def start_one(self, work: Work) -> asyncio.Task[None]:
        """Start what waits; give its task."""
        (task,) = await self.start(work)
        assert task is not None, "it did not wait"
        return task


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    """A desk at which what is started begins at once."""
    desk = Desk()
    await desk.ready()
    yield desk
    desk.starter.close()


async def nothing() -> None:
    """End at once."""


async def test_what_never_waits_has_ended_when_it_is_started(desk: Desk) -> None:
    seen: list[int] = []

    async def work() -> None:
        seen.append(len(seen))

    def look(_: object) -> None:
        seen.append(-1)

    assert await desk.start(work, work, work, then=look) == [None, None, None]
    assert seen == [0, 1, 2, -1]


async def test_a_task_is_the_same_before_and_after_it_waits_and_nobody_elses(desk: Desk) -> None:
    gate = asyncio.Event()
    seen: list[asyncio.Task[Any] | None] = []

    async def work() -> None:
        for _ in range(3):
            seen.append(asyncio.current_task())
            await gate.wait()
            await asyncio.sleep(0)

    first, second = await desk.start_one(work), await desk.start_one(work)
    gate.set()
    await asyncio.wait([first, second])
    assert first is not second
    assert {id(task) for task in seen} == {id(first), id(second)}
    assert sum(task is first for task in seen) == sum(task is second for task in seen) == 3


async def test_each_has_its_own_context_throughout(desk: Desk) -> None:
    gate = asyncio.Event()
    seen: list[str] = []

    async def work() -> None:
        seen.append(variable.get())
        variable.set("mine")
        await gate.wait()
        seen.append(variable.get())

    async def short() -> None:
        seen.append(variable.get())
        variable.set("short")

    task = await desk.start_one(work)
    others = [each for each in await desk.start(short, short, short) if each is not None]
    gate.set()
    await asyncio.wait([task, *others])
    assert sorted(seen) == ["mine", *["outside"] * 4]
    assert variable.get() == "outside"


async def test_a_time_limit_that_begins_before_the_first_wait_holds(desk: Desk) -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            seen.append("over")

    task = await desk.start_one(work)
    await task
    assert seen == ["over"]
    assert not task.cancelling()


async def test_groups_begun_before_the_first_wait_hold_too(desk: Desk) -> None:
    async def fail() -> None:
        raise ValueError("one of them")

    async def in_a_group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            await asyncio.Event().wait()

    async def work() -> None:
        with pytest.raises(ExceptionGroup):
            await in_a_group()

    task = await desk.start_one(work)
    await task
    assert not task.cancelling()


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_cancel_reaches_what_is_waited_for(desk: Desk, *, at_once: bool) -> None:
    child: asyncio.Future[None] = desk.loop.create_future()
    seen: list[str] = []

    async def work() -> None:
        try:
            await child
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    def cancel(tasks: list[asyncio.Task[None] | None]) -> None:
        if at_once:
            for task in tasks:
                assert task is not None
                task.cancel()

    (task,) = await desk.start(work, then=cancel)
    assert task is not None
    if not at_once:
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait([task])
    assert (seen, child.cancelled(), task.cancelled()) == (["cancelled"], True, True)


async def test_who_cancels_itself_stops_where_it_waits_next(desk: Desk) -> None:
    seen: list[str] = []

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        seen.append("goes on")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")

    await asyncio.wait([await desk.start_one(work)])
    assert seen == ["goes on", "cancelled"]


async def test_who_cancels_itself_and_never_waits_leaves_nothing_to_the_next(desk: Desk) -> None:
    seen: list[str] = []

    async def work_without_a_wait() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def other() -> None:
        task = asyncio.current_task()
        assert task is not None
        seen.append(f"cancelled {task.cancelling()} times")
        await asyncio.sleep(0)
        seen.append("ended")

    _, task = await desk.start(work_without_a_wait, other)
    assert task is not None
    await task
    assert seen == ["cancelled 0 times", "ended"]


async def test_what_was_waited_for_may_come_before_the_task_looks(desk: Desk) -> None:
    come: asyncio.Future[str] = desk.loop.create_future()
    seen: list[str] = []

    async def work() -> None:
        seen.append(await come)

    def answer(_: object) -> None:
        come.set_result("here")

    (task,) = await desk.start(work, then=answer)
    assert task is not None
    await task
    assert seen == ["here"]


async def test_others_may_wait_for_the_same(desk: Desk) -> None:
    come: asyncio.Future[str] = desk.loop.create_future()
    seen: list[str] = []
    others: list[asyncio.Task[None]] = []

    async def beside() -> None:
        seen.append(await come)

    async def work() -> None:
        others.append(asyncio.ensure_future(beside()))
        seen.append(await come)

    task = await desk.start_one(work)
    await asyncio.sleep(0)
    come.set_result("here")
    await asyncio.gather(task, *others)
    assert seen == ["here", "here"]


async def test_a_cancel_reaches_what_only_lets_others_run(desk: Desk) -> None:
    seen: list[int] = []

    async def work() -> None:
        for turn in range(100):
            await asyncio.sleep(0)
            seen.append(turn)

    task = await desk.start_one(work)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert len(seen) < 100


async def test_one_that_waits_long_does_not_keep_the_next_from_running_at_once(desk: Desk) -> None:
    gate = asyncio.Event()

    async def wait() -> None:
        await gate.wait()

    long = await desk.start_one(wait)
    (later,) = await desk.start(nothing)
    if later is not None:
        await later
    assert await desk.start(nothing) == [None]
    gate.set()
    await long


async def test_what_it_raises_ends_its_task(desk: Desk) -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        raise ValueError("in the end")

    task = await desk.start_one(work)
    await asyncio.wait([task])
    assert isinstance(task.exception(), ValueError)


async def test_cancelled_before_the_first_wait_is_an_end_like_another(desk: Desk) -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    assert await desk.start(work, nothing) == [None, None]


async def test_what_is_started_within_a_task_runs_too(desk: Desk) -> None:
    seen: list[str] = []

    async def work() -> None:
        seen.append("ran")

    task = desk.starter.start(work(), Context())
    if task is not None:
        await task
    assert seen == ["ran"]


async def test_who_is_remembered_after_its_end_is_nobody_else(desk: Desk) -> None:
    """Its task may be cancelled late, told of its end, or what somebody keeps things by."""
    kept: list[asyncio.Task[Any]] = []
    known: WeakKeyDictionary[asyncio.Task[Any], str] = WeakKeyDictionary()
    seen: list[str] = []

    def task() -> asyncio.Task[Any]:
        current = asyncio.current_task()
        assert current is not None
        return current

    async def is_kept() -> None:
        kept.append(task())

    async def is_told() -> None:
        task().add_done_callback(lambda _: seen.append("told"))

    async def is_known() -> None:
        known[task()] = "first"

    async def other() -> None:
        seen.append(known.get(task(), "new"))
        await asyncio.sleep(0)
        seen.append("ended")

    for work in (is_kept, is_told, is_known):
        seen.clear()
        (late,) = await desk.start(work)
        for each in kept:
            each.cancel()
        await asyncio.sleep(0)
        second = (await desk.start(other))[0] or late
        assert second is not None
        await second
        assert seen == [*(["told"] if work is is_told else []), "new", "ended"]
        await desk.ready()


async def test_what_a_tool_no_longer_holds_is_held_by_nobody(desk: Desk) -> None:
    class Large:
        pass

    first: asyncio.Future[Large] = desk.loop.create_future()
    gate = asyncio.Event()

    async def work(first: list[asyncio.Future[Large]]) -> None:
        await first.pop()
        await gate.wait()

    firsts = [first]
    task = await desk.start_one(lambda: work(firsts))
    large = Large()
    gone = ref(large)
    first.set_result(large)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    del large, first
    assert gone() is None
    gate.set()
    await task


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_ends_the_event_loop(error: type[BaseException]) -> None:
    async def work() -> None:
        raise error

    async def main() -> None:
        desk = Desk()
        await desk.ready()
        await desk.start(work, nothing)
        await asyncio.Event().wait()

    with pytest.raises(error):
        asyncio.run(main())


async def test_nothing_is_left_once_it_is_closed(desk: Desk) -> None:
    before = asyncio.all_tasks()
    task = await desk.start_one(lambda: asyncio.sleep(0.01))
    await task
    await desk.start(nothing)
    desk.starter.close()
    (late,) = await desk.start(nothing)
    if late is not None:
        await late
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before


async def test_what_is_kept_for_later_is_not_among_the_tasks_and_what_waits_is(desk: Desk) -> None:
    gate = asyncio.Event()

    async def work() -> None:
        await gate.wait()

    await desk.ready()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    task = await desk.start_one(work)
    assert asyncio.all_tasks() == {asyncio.current_task(), task}
    gate.set()
    await task
