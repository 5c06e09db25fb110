"""An event loop on which waiting takes no time: the clock jumps when nothing else is left to do."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Instead of sleeping until the next timer, advances the clock to it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everything waits, and no timer is set: it would wait for ever")
        if timeout > 0:
            self.now += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock only timers move. Nothing on it may wait for sockets or threads."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def on_virtual_clock(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end; return the result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
