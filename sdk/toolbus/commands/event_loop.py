"""Runs what serves for long: on uvloop where that is installed, else on asyncio's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["run_service"]

T = TypeVar("T")


def run_service(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on the fastest loop there is."""
    with asyncio.Runner(loop_factory=_fastest_loop()) as runner:
        return runner.run(main)


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
