"""Calls that must fail."""

from __future__ import annotations

from typing import Any

import pytest

from toolbus import RoomClient
from toolbus.errors import RoomException


async def error_of_call(
    room: RoomClient, tool: str, timeout_s: float | None = None, **arguments: Any
) -> Any:
    """Make a call without retries and return its error."""
    with pytest.raises(RoomException) as caught:
        await room.invoke(tool, arguments, timeout_s=timeout_s, retry=False)
    return caught.value
