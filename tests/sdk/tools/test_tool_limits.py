"""Which call gets the next slot of a tool."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from toolbus.hosting.hosted_toolkit import HostedToolkit
from toolbus.tools.execution import Identity, SlotUser, ToolSlots
from toolbus.tools.function_tool import FunctionTool
from toolbus.tools.toolkit import Toolkit


class _Call:
    def __init__(self, identity: Identity) -> None:
        self.identity = identity


class Queue:
    """Calls that wait for slots, and the order in which they get them."""

    def __init__(self, count: int) -> None:
        self.slots = ToolSlots(count)
        self.got: list[str] = []
        self.calls: dict[str, SlotUser] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, *names: str) -> None:
        for name in names:
            self.calls[name] = _Call(("acme", name[0]))
            self.tasks[name] = asyncio.create_task(self._wait(name))
        await asyncio.sleep(0)

    async def _wait(self, name: str) -> None:
        await self.slots.acquire(self.calls[name])
        self.got.append(name)

    async def end(self, *names: str) -> None:
        for name in names:
            self.slots.release(self.calls[name])
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("count", "asked", "ended", "got"),
    [
        (1, "a1 a2 a3", "a1 a2", "a1 a2 a3"),
        (1, "a1 a2 a3 b1", "a1 b1", "a1 b1 a2"),
        (1, "a1 a2 a3 b1 c1 b2", "a1 b1 c1 a2 b2", "a1 b1 c1 a2 b2 a3"),
        (3, "a1 a2 a3 a4", "", "a1 a2 a3"),  # alone, it may hold all
        (3, "a1 a2 a3 a4 b1 b2 b3", "a1 a2 a3 b1", "a1 a2 a3 b1 b2 a4 b3"),
    ],
)
async def test_the_next_slot_goes_to_the_caller_with_the_fewest(
    count: int, asked: str, ended: str, got: str
) -> None:
    queue = Queue(count)
    await queue.ask(*asked.split())
    await queue.end(*ended.split())
    assert queue.got == got.split()
    for task in queue.tasks.values():
        task.cancel()


@pytest.mark.parametrize("has_slot", [False, True])
async def test_a_cancelled_call_passes_its_turn_on(has_slot: bool) -> None:
    """Before it was given a slot, or after that and before it continued."""
    queue = Queue(1)
    await queue.ask("a1", "a2", "b1")
    if has_slot:
        queue.slots.release(queue.calls["a1"])
    queue.tasks["a2"].cancel()
    queue.tasks["b1"].cancel()
    await queue.ask("c1", "c2")
    if not has_slot:
        await queue.end("a1")
    assert queue.got == ["a1", "c1"]
    await queue.end("c1", "c2")
    await queue.ask("d1")
    assert queue.got == ["a1", "c1", "c2", "d1"]


async def test_a_call_that_is_cancelled_as_a_slot_becomes_free_does_not_get_it() -> None:
    queue = Queue(1)
    await queue.ask("a1", "b1", "c1")
    queue.tasks["b1"].cancel()
    await queue.end("a1")
    assert queue.got == ["a1", "c1"]


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 8),
        ({"read_only": True}, 8),
        ({"concurrency_safe": False}, 1),
        ({"concurrency_safe": False, "max_concurrency": 2}, 2),
        ({"concurrency_safe": True}, 8),
        ({"read_only": True, "concurrency_safe": False}, 1),
        ({"read_only": True, "max_concurrency": 3}, 3),
    ],
)
async def test_sync_tool_has_eight_slots_unless_its_author_says_otherwise(
    options: Any, count: int
) -> None:
    def work() -> None: ...

    hosted = HostedToolkit(Toolkit("t", [FunctionTool(work, **options)]), public=False)
    queue = Queue(0)
    queue.slots = cast(ToolSlots, hosted.limits["work"].slots)
    await queue.ask(*"abcdefghij")
    assert len(queue.got) == count
    await queue.end(*queue.got, *"abcdefghij"[count:])
    assert len(queue.got) == 10
