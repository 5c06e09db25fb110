"""The progress of a call, as a client that asked for it gets it."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest

from gateway.conftest import REVISIONS, Door
from toolbus import FileChunk, ToolContext, ToolFailed, Toolkit, tool
from toolbus_gateway.progress import ProgressSender

MAX = 1.7976931348623157e308
CALL = {"type": "tool_call", "id": "1", "tool": "kit.count", "arguments": {}}
RESULT = {"type": "tool_result", "id": "1", "tool": "kit.count", "state": "ok", "text": "3"}


class Sent:
    """What a client gets; it reads when it may."""

    def __init__(self) -> None:
        self.facts: list[tuple[float, float | None, str | None]] = []
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.is_reading = asyncio.Event()

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.is_reading.set()
        await self.may_read.wait()
        json.dumps([progress, total, message], allow_nan=False)
        self.facts.append((progress, total, message))


async def sent(*values: Any) -> list[tuple[float, float | None, str | None]]:
    """Return what a client gets of some values."""
    client = Sent()
    sender = ProgressSender(client)
    async with sender.sending():
        for value in values:
            sender.emit(value)
    return client.facts


@pytest.mark.parametrize(
    ("value", "facts"),
    [
        ({"progress": 0.5, "total": 2, "message": "half"}, (0.5, 2, "half")),
        ({"progress": -1}, (-1, None, None)),
        ({"progress": 2**64 - 1, "total": 2**64 - 1}, (2**64 - 1, 2**64 - 1, None)),
        ({"progress": 1, "total": "2", "message": 3}, (1, None, None)),
        ({"progress": True, "message": "done"}, (1, None, "done")),
        ({"progress": "1"}, (1, None, '{"progress": "1"}')),
        ("reads\u200b", (1, None, "reads\\u200b")),
        ("x" * 2_000, (1, None, "x" * 999 + "…")),
        ([1, None, "ü"], (1, None, '[1, null, "ü"]')),
        (3, (1, None, "3")),
        (True, (1, None, "true")),
        (FileChunk(b"abc", "a.txt"), (1, None, "\"FileChunk(3 bytes, name='a.txt', ")),
        (CALL, (1, None, "calls kit.count")),
        (RESULT, (1, None, "kit.count: ok")),
        (
            {"type": "progress", "id": "1", "tool": "kit.count", "value": {"message": "half"}},
            (1, None, "kit.count: half"),
        ),
        ({"type": "text", "text": "x" * 2_000 + "end"}, (1, None, "x" * 997 + "end")),
        ({"type": "restart"}, (1, None, "asks the model again")),
        ({"type": "tool_call", "tool": 3}, (1, None, '{"type": "tool_call", "tool": 3}')),
    ],
)
async def test_value_becomes_progress(value: Any, facts: tuple[Any, ...]) -> None:
    ((progress, total, message),) = await sent(value)
    assert (progress, total) == facts[:2]
    assert progress is not True
    assert message == facts[2] or (message is not None and message.startswith(f"{facts[2]}"))


@pytest.mark.parametrize(
    ("values", "sent_numbers"),
    [
        (["a", None, "b", None], [(1, None), (2, None), (3, None), (4, None)]),
        ([{"progress": 1, "total": 3}, "a", None], [(1, 3), (1.0001, 3), (1.0002, 3)]),
        ([{"progress": 3, "total": 3}, "a", None], [(3, 3), (3.0001, None), (3.0002, None)]),
        (
            [{"progress": 1 / 3}, None, {"progress": 0.5}],
            [(1 / 3, None), (0.3334, None), (0.5, None)],
        ),
        ([{"progress": -0.5}, None], [(-0.5, None), (-0.4999, None)]),
        ([{"progress": 2**63}, None], [(2**63, None), (math.nextafter(2**63, math.inf), None)]),
        (["a", {"progress": 0}, None], [(1, None), (0, None), (0.0001, None)]),
    ],
)
async def test_values_without_a_number_count_on(
    values: list[Any], sent_numbers: list[tuple[float, float | None]]
) -> None:
    assert [facts[:2] for facts in await sent(*values)] == sent_numbers


async def test_count_ends_where_json_does() -> None:
    assert [facts[0] for facts in await sent({"progress": MAX}, "a", None)] == [MAX] * 3


async def test_silent_tool_is_told_until_its_end() -> None:
    client = Sent()
    sender = ProgressSender(client, heartbeat_s=0.001)
    async with asyncio.timeout(60), sender.sending():
        sender.emit({"progress": 1, "total": 5})
        while len(client.facts) < 4:
            client.is_reading.clear()
            await client.is_reading.wait()
    assert client.facts[0] == (1, 5, None)
    numbers = [facts[0] for facts in client.facts]
    assert numbers == sorted({*numbers})
    assert numbers[-1] < 1.1
    assert {facts[1:] for facts in client.facts} == {(5, None)}
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_slow_client_gets_the_latest_values() -> None:
    client = Sent()
    client.may_read.clear()
    sender = ProgressSender(client)
    async with asyncio.timeout(60), sender.sending():
        sender.emit({"progress": 0})
        await client.is_reading.wait()
        for number in range(1, 10_000):
            sender.emit({"progress": number})
        client.may_read.set()
    numbers = [facts[0] for facts in client.facts]
    assert numbers == [0, *range(10_000 - 64, 10_000)]


@tool
async def steps(context: ToolContext, fails: bool) -> str:
    context.emit({"progress": 1, "total": 2, "message": "half"})
    if fails:
        raise ToolFailed("broke")
    return "done"


@pytest.mark.parametrize("mode", REVISIONS)
@pytest.mark.parametrize("fails", [False, True])
async def test_client_gets_progress_before_the_result(door: Door, mode: str, fails: bool) -> None:
    seen: list[Any] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with (
        door.server.room("host") as host,
        host.host(Toolkit("kit", [steps])),
        door.client(mode) as client,
    ):
        result = await client.call_tool(
            "kit__steps", {"fails": fails}, progress_callback=on_progress
        )
        assert result.is_error is fails
        assert seen == [(1, 2, "half")]
