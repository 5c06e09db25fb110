"""Keeps the signals that stop a program away from threads.

Python acts on a signal in the main thread, and a blocking call there, such as `time.sleep`, ends
only for a signal that the system gives to that thread. It gives a second one to any other thread
that does not block it, and then the program would not stop before the call has ended.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["STOP_SIGNALS", "stop_signals_blocked"]

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Block SIGTERM and SIGINT on this thread while the block runs.

    Start no program in it: the program would ignore these signals, too.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
