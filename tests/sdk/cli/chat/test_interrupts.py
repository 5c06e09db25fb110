"""Signals of a chat: none is lost that comes right after another one."""

from __future__ import annotations

import os
import signal
import threading

from support.patience import PATIENCE_S
from toolbus.cli.chat.interrupts import Interrupts


def test_signal_that_is_not_noticed_right_after_another_one_is_repeated() -> None:
    interrupts = Interrupts()
    came: list[int] = []
    has_come_twice = threading.Event()

    def cancel() -> None:
        came.append(signal.SIGINT)
        if len(came) == 2:
            has_come_twice.set()

    with interrupts.cancelling(cancel), interrupts.handled():
        signal.raise_signal(signal.SIGINT)
        # As Python tells of a signal; the line editor does not look for it before the next key.
        told = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        os.write(told, bytes([signal.SIGINT]))
        assert has_come_twice.wait(PATIENCE_S)
    # The thread that repeats them has ended: it has repeated one, and no more.
    assert len(came) == 2


def test_signal_that_comes_before_there_is_anything_to_cancel_cancels_what_comes_next() -> None:
    interrupts = Interrupts()
    cancelled: list[bool] = []
    with interrupts.handled():
        signal.raise_signal(signal.SIGTERM)
        with interrupts.cancelling(lambda: cancelled.append(True)):
            assert cancelled == [True]
