"""Waits for what no event tells of, such as a fact in another part of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["until"]


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so; the caller bounds the time."""
    while not is_so():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.01)
