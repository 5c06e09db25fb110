"""Ctrl-C, and code that raises KeyboardInterrupt: which is which."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest

from toolbus.concurrency.interrupts import is_ctrl_c


def raised_by(function: Callable[[], Any]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("it raised nothing")


def interrupt() -> None:
    raise KeyboardInterrupt


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@contextmanager
def handled_by(handler: Any) -> Iterator[None]:
    former = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


def test_the_interrupt_of_a_handler_is_ctrl_c_and_one_that_code_raises_is_not() -> None:
    def own(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    with handled_by(own):
        assert is_ctrl_c(raised_by(press))
        assert not is_ctrl_c(raised_by(interrupt))
        assert not is_ctrl_c(KeyboardInterrupt())
        assert not is_ctrl_c(raised_by(lambda: 1 / 0))


def test_with_the_handler_of_python_any_interrupt_of_the_main_thread_may_be_ctrl_c() -> None:
    with handled_by(signal.default_int_handler):
        assert is_ctrl_c(raised_by(press))
        assert is_ctrl_c(raised_by(interrupt))
        found: list[bool] = []
        thread = Thread(target=lambda: found.append(is_ctrl_c(raised_by(interrupt))))
        thread.start()
        thread.join()
        assert found == [False]


def test_the_second_ctrl_c_of_asyncio_is_one() -> None:
    found: list[bool] = []

    async def main() -> None:
        press()  # cancels this task
        found.append(is_ctrl_c(raised_by(press)))
        found.append(is_ctrl_c(raised_by(interrupt)))

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert found == [True, False]
