"""Work of threads on the event loop of another thread."""

from __future__ import annotations

import concurrent.futures
from contextvars import ContextVar

import pytest

from toolbus.concurrency import loop_thread
from toolbus.concurrency.loop_thread import LoopEnded, LoopThread

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
