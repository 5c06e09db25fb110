"""Large arguments and results: other calls in the same loops are answered meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from toolbus import RoomClient, Toolkit, tool
from toolbus.concurrency import slices
from toolbus_server.testing import running_server

ROWS = [{"a": 1}] * 60_000


@tool
async def say(text: str) -> str:
    return text


@tool
async def load(rows: list[dict[str, int]]) -> int:
    return len(rows)


@tool
async def fetch() -> list[dict[str, int]]:
    return ROWS


async def answered_during(room: RoomClient, call: asyncio.Task[Any]) -> int:
    """Make small calls until another one has ended; return how many were answered before."""
    count = 0
    while not call.done():
        assert await room.call("kit.say", text="x") == "x"
        count += 1
    return count


@pytest.mark.parametrize(
    ("name", "arguments", "result"), [("load", {"rows": ROWS}, len(ROWS)), ("fetch", {}, ROWS)]
)
async def test_small_calls_are_answered_while_a_large_value_is_read(
    monkeypatch: pytest.MonkeyPatch, name: str, arguments: dict[str, Any], result: Any
) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    async with running_server() as server, server.room("host") as host, server.room("ann") as ann:
        async with host.host(Toolkit("kit", [say, load, fetch])):
            assert await ann.call("kit.say", text="x") == "x"
            call = asyncio.create_task(ann.call(f"kit.{name}", **arguments))
            # 30 pieces to unpack and 15 steps to check at least, two iterations for each.
            assert await answered_during(ann, call) >= 20
            assert await call == result
