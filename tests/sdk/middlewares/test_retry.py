"""Retry: when a call is tried again, and what its final error says."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from support.parts.wrapped_calls import REMOTE, Scripted, execute, run_chain
from toolbus.chunks.chunk_types import TextChunk
from toolbus.errors import HostLost, InvalidArguments, NoHost, RoomException, ToolFailed
from toolbus.middlewares import Retry
from toolbus.tools.function_tool import FunctionTool
from toolbus.tools.toolkit import Toolkit

RETRY = Retry(backoff_s=0)
FINE = [TextChunk("fine")]


def lost(executed: Any = "maybe", *, retryable: bool = True) -> RoomException:
    return HostLost("lost", executed=executed, retryable=retryable)


@pytest.mark.parametrize(
    ("steps", "idempotent", "attempts", "values", "executed"),
    [
        ((NoHost(), FINE), False, 2, ["fine"], ""),
        ((NoHost(), NoHost(), NoHost(), FINE), False, 3, [], "no"),
        ((lost(), FINE), False, 1, [], "maybe"),
        ((lost(), FINE), True, 2, ["fine"], ""),
        ((lost(), NoHost()), True, 3, [], "maybe"),
        ((lost(retryable=False), FINE), True, 1, [], "maybe"),
        ((InvalidArguments("bad"), FINE), True, 1, [], "no"),
        (([TextChunk("a"), lost("maybe")], FINE), True, 1, ["a"], "maybe"),
    ],
)
async def test_only_harmless_attempts_follow(
    steps: Any, idempotent: bool, attempts: int, values: Any, executed: str
) -> None:
    innermost = Scripted(*steps)
    found = await run_chain([RETRY], innermost, replace(REMOTE, idempotent=idempotent))
    assert (innermost.attempts, found.values, found.executed) == (attempts, values, executed)
    assert found.code != "tool_failed"  # that of a second call of `next` after a chunk
    if executed == "maybe" and len(steps) == 2 and idempotent and attempts == 3:
        assert found.error is not None
        assert not found.error.retryable


@pytest.mark.parametrize(
    ("error", "idempotent", "attempts"),
    [
        (ToolFailed("busy", retryable=True), True, 3),
        (ToolFailed("busy", retryable=True), False, 1),
        (NoHost("of a nested call"), True, 1),
        (RuntimeError("a bug"), True, 1),
    ],
)
async def test_errors_of_a_tool_are_tried_again_only_if_it_asks_for_it(
    error: Exception, idempotent: bool, attempts: int
) -> None:
    count = 0

    async def work() -> str:
        nonlocal count
        count += 1
        raise error

    kit = Toolkit("t", [FunctionTool(work, idempotent=idempotent)], middlewares=[RETRY])
    found = await execute(kit)
    assert (count, found.code, found.executed) == (attempts, "tool_failed", "yes")


async def test_a_tool_that_takes_an_input_is_tried_once() -> None:
    innermost = Scripted(NoHost(), FINE)
    await run_chain([RETRY], innermost, replace(REMOTE, takes="input"))
    assert innermost.attempts == 1


async def test_pauses_are_no_shorter_than_asked_for_and_keep_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await run_chain([Retry()], Scripted(NoHost(retry_after_s=7), NoHost(), FINE))
    assert 7 <= pauses[0] <= 7.05
    assert 0.1 <= pauses[1] <= 0.2
    innermost = Scripted(NoHost(retry_after_s=7), FINE)
    found = await run_chain([Retry()], innermost, deadline_at=105.0, clock=lambda: 100.0)
    assert (found.code, innermost.attempts, len(pauses)) == ("no_host", 1, 2)
