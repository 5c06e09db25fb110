"""Calls that must fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from toolbus import RoomClient
from toolbus.errors import DeadlineExceeded, RoomException


async def error_of_call(
    room: RoomClient, tool: str, timeout_s: float | None = None, **arguments: Any
) -> Any:
    """Make a call without retries and return its error."""
    with pytest.raises(RoomException) as caught:
        await room.invoke(tool, arguments, timeout_s=timeout_s, retry=False)
    return caught.value


async def late_in_its_tool(
    call: Callable[[float], Awaitable[object]], has_begun: Callable[[], object]
) -> DeadlineExceeded:
    """Return the error of a call whose deadline passed while its tool ran.

    How long a call needs to reach its tool is the machine's: where the deadline passes before that,
    the call is made again with a longer one.

    Args:
        call: Makes the call with a deadline in seconds.
        has_begun: Whether the tool has begun.
    """
    for timeout_s in (0.2, 2.0, 20.0):
        with pytest.raises(DeadlineExceeded) as caught:
            await call(timeout_s)
        if has_begun():
            return caught.value
    pytest.fail("no call reached its tool")
