"""Work of threads on the event loop of another thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType
from typing import Any

import pytest

from support.patience import PATIENCE_S
from toolbus.concurrency import loop_thread
from toolbus.concurrency.loop_thread import LoopEnded, LoopThread, LoopWork
from toolbus.sync import RoomClient

PLACE: ContextVar[str] = ContextVar("place", default="nowhere")


async def nothing() -> None:
    """End at once."""


async def place() -> str:
    return PLACE.get()


def test_work_has_the_context_of_its_thread_and_raises_its_own_errors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop_thread, "_CHECK_S", 0.001)  # also looks often whether the loop lives

    async def fail() -> None:
        raise TimeoutError("mine")

    async def end() -> None:
        raise SystemExit

    async def fail_at_end() -> None:
        raise OSError("at the end")

    PLACE.set("here")
    thread = LoopThread("worker", fail_at_end)
    assert thread.run(place) == "here"
    with pytest.raises(TimeoutError, match="mine"):
        thread.run(fail)
    with pytest.raises((SystemExit, LoopEnded, concurrent.futures.CancelledError)):
        thread.run(end)
    thread.stop(30)
    with pytest.raises(LoopEnded):
        thread.run(place)
    thread.request_stop()
    assert "thread worker did not end in order" in caplog.messages


class InterruptedAt:
    """Raises KeyboardInterrupt before the n-th bytecode of what runs or schedules the work.

    `is_waiting` is set before a bytecode that runs again: the thread waits for the work.
    """

    def __init__(self, number: int) -> None:
        self._left = number
        self._passed: set[tuple[str, int]] = set()
        self.is_waiting = False

    def call(self, use: Callable[[], Any]) -> None:
        former = sys.gettrace()
        sys.settrace(self._trace)
        try:
            use()
        finally:
            sys.settrace(former)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        module = frame.f_globals["__name__"]
        if module != loop_thread.__name__ and not module.startswith("asyncio."):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and self._left:
            place = frame.f_code.co_qualname, frame.f_lasti
            if frame.f_code is LoopWork._schedule_and_wait.__code__:
                self.is_waiting |= place in self._passed
                self._passed.add(place)
            self._left -= 1
            if not self._left:
                raise KeyboardInterrupt
        return self._trace


def test_ctrl_c_at_any_bytecode_leaves_no_work_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the first bytecode at which the thread waits for the second time."""
    monkeypatch.setattr(loop_thread, "_CHECK_S", 0.001)
    thread = LoopThread("worker", nothing)
    tasks: list[asyncio.Task[Any] | None] = []

    async def hold() -> None:
        tasks.append(asyncio.current_task())
        await asyncio.Event().wait()

    async def ends() -> list[bool]:
        """Return of each task whether it was cancelled."""
        begun = list(filter(None, tasks))
        if begun:
            await asyncio.wait(begun, timeout=PATIENCE_S)
        return [task.cancelled() for task in begun]

    number = 0
    interrupted = InterruptedAt(number)
    begun = set()
    while not interrupted.is_waiting:
        number += 1
        interrupted = InterruptedAt(number)
        tasks.clear()
        with pytest.raises(KeyboardInterrupt):
            interrupted.call(lambda: thread.run(hold))
        assert all(thread.run(ends)), number
        begun.add(bool(tasks))
    assert begun == {False, True}
    thread.stop(30)


class Greenlet(threading.Thread):
    """A thread as gevent makes it: its event loop runs in the thread that starts it."""

    def start(self) -> None:
        super().start()
        started = self._args[0]  # type: ignore[attr-defined]
        asyncio._set_running_loop(started.result())


@pytest.mark.parametrize(
    "use",
    [
        lambda: LoopThread("worker", nothing),
        lambda: loop_thread.run_on_shared_loop(nothing),
        lambda: RoomClient("ws://127.0.0.1:1", token="e30.e30.t").connect(),
    ],
)
def test_greenlets_in_the_place_of_threads_are_refused_in_words(
    use: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "Thread", Greenlet)
    monkeypatch.setattr(loop_thread, "_shared", None)
    try:
        with pytest.raises(RuntimeError, match=r"are greenlets.*patch_all\(thread=False"):
            use()
    finally:
        asyncio._set_running_loop(None)
