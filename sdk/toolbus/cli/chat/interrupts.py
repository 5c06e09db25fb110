"""What Ctrl-C and other signals do in a chat.

Signals reach the main thread. While it follows something, Ctrl-C cancels that and raises nothing,
so that no line of this program is left halfway; only at the prompt it raises.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import sleep
from types import FrameType

from toolbus.diagnostics.exit_codes import Terminated
from toolbus.errors import Cancelled, Executed

__all__ = ["Interrupted", "Interrupts"]

_SIGNALS = [signal.SIGINT, signal.SIGTERM]
if hasattr(signal, "SIGHUP"):
    _SIGNALS.append(signal.SIGHUP)
_END_S = 15.0
"""What a process that is to end may take: its stdout may be a pipe that nobody reads."""
_MAX_PENDING = 3
"""Signals that the main thread may let pass; at the next one it cannot be waited for."""
_NOTICED_S = 0.1
"""Within what time the main thread notices a signal, unless it waits in the line editor."""


class Interrupted(Cancelled):
    """Ctrl-C has ended what was followed."""

    next_step = ""


class Interrupts:
    """What the signals do, by what the main thread does."""

    def __init__(self) -> None:
        self.is_terminated: bool = False
        self._cancel: Callable[[], None] | None = None
        self._is_at_prompt = False
        self._handled = 0
        """Signals that the main thread has noticed."""
        self._pending = 0
        self._end: threading.Timer | None = None

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals during the block; elsewhere than in a main thread they stay."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            with self._repeated():
                yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if self._end is not None:
                self._end.cancel()

    @contextmanager
    def _repeated(self) -> Iterator[None]:
        """Send a signal again that the main thread has not noticed.

        The line editor looks for signals only where one interrupts its wait for a key: one that
        comes right before that wait would be handled after the next key.
        """
        if not hasattr(signal, "pthread_kill"):  # on Windows
            yield
            return
        read_fd, write_fd = os.pipe()
        os.set_blocking(write_fd, False)
        former = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        repeating = threading.Thread(target=self._repeat, args=(read_fd,), daemon=True)
        repeating.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(former)
            os.close(write_fd)  # ends the thread
            repeating.join()
            os.close(read_fd)

    def _repeat(self, read_fd: int) -> None:
        main = threading.main_thread().ident
        assert main is not None
        arrived = 0
        while numbers := os.read(read_fd, 64):
            arrived += sum(number in _SIGNALS for number in numbers)
            sleep(_NOTICED_S)
            # Counted, not timed: one may come right after another one that was noticed.
            if self._handled < arrived:
                arrived = self._handled  # those that are sent again arrive again
                for number in {*numbers} & {*_SIGNALS}:
                    signal.pthread_kill(main, number)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._handled += 1
        self._pending += 1
        if self._pending > _MAX_PENDING:
            # It writes to a terminal that is stopped, or a pipe that nobody reads.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if number != signal.SIGINT and not self.is_terminated:
            self.is_terminated = True
            self._end = threading.Timer(_END_S, os._exit, [128 + signal.SIGTERM])
            self._end.daemon = True
            self._end.start()
        if self._cancel is not None:
            self._cancel()
        elif self._is_at_prompt:
            self._is_at_prompt = False
            self.check()
            raise KeyboardInterrupt

    def check(self, executed: Executed = "no") -> None:
        """Raise `Terminated` if the process is to end."""
        if self.is_terminated:
            raise Terminated("ended by SIGTERM", executed=executed)

    @contextmanager
    def cancelling(self, cancel: Callable[[], None]) -> Iterator[None]:
        """Let a signal cancel something during the block."""
        self._cancel = cancel
        self._pending = 0
        if self.is_terminated:  # the signal came before there was anything to cancel
            cancel()
        try:
            yield
        finally:
            self._cancel = None

    @contextmanager
    def at_prompt(self) -> Iterator[None]:
        """Let a signal raise KeyboardInterrupt or Terminated during the block."""
        self.check()
        self._is_at_prompt = True
        self._pending = 0
        try:
            yield
        finally:
            self._is_at_prompt = False
