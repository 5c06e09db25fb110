"""Work that is given up when its process is told to stop before it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

__all__ = ["unless_told"]


async def unless_told(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work, and say whether it was done; what it raises is raised here.

    Args:
        stop: Set when the process is to stop: then the work is cancelled.
        work: What is to be done.
    """
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    is_done = working.done()
    for task in (working, stopping):
        task.cancel()
        await asyncio.wait([task])
    if is_done:
        working.result()
    return is_done
