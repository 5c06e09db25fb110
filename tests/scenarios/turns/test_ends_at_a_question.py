"""However a call ends while a person is asked about it: the tool did not run, and all say so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolbus import (
    ApprovalDecision,
    ApprovalRequest,
    CallNext,
    Chunk,
    Permissions,
    Records,
    ToolCall,
    Toolkit,
    ToolUse,
    Turn,
    Unavailable,
    tool,
)

NO_ANSWER: dict[str, BaseException] = {
    "the input ends": EOFError(),
    "the terminal is closed": Unavailable("the terminal was closed"),
    "the question is cancelled": asyncio.CancelledError(),
    "it exits": SystemExit(1),
}
ENDS = {
    "the turn's caller is cancelled": ("interrupted", "cancelled"),
    "the use is interrupted": ("interrupted", "cancelled"),
    "the turn is left": ("interrupted", "cancelled"),
    "no answer in time": ("denied", "approval_expired"),
    "a person denies it": ("denied", "approval_denied"),
    **dict.fromkeys(NO_ANSWER, ("denied", "permission_denied")),
}


async def passing(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
    async for chunk in next(call):
        yield chunk


@pytest.mark.parametrize("middlewares", [[], [passing]], ids=["", "in a middleware"])
@pytest.mark.parametrize("way", ENDS)
async def test_call_that_ends_while_a_person_is_asked_did_not_run(
    way: str, middlewares: list[Any]
) -> None:
    asked = asyncio.Event()
    ran: list[str] = []

    @tool
    async def remove(path: str) -> None:
        ran.append(path)

    async def ask(_: ApprovalRequest) -> ApprovalDecision:
        asked.set()
        if way in NO_ANSWER:
            raise NO_ANSWER[way]
        if way != "a person denies it":
            await asyncio.Event().wait()
        return ApprovalDecision.deny()

    records = Records.memory()
    turn = Turn(
        None,
        always=[Toolkit("disk", [remove])],
        permissions=Permissions(),
        approve=ask,
        records=records,
        middlewares=middlewares,
        approval_timeout_s=0.01 if way == "no answer in time" else 300,
    )
    async with turn:
        running = asyncio.create_task(turn.run([ToolUse("1", "disk.remove", {"path": "a"})]))
        await asked.wait()
        if way == "the turn's caller is cancelled":
            running.cancel()
        elif way == "the use is interrupted":
            await turn.interrupt("1")
        if way != "the turn is left":
            await asyncio.wait([running])
    await asyncio.gather(running, return_exceptions=True)
    (result,) = turn.results
    state, code = ENDS[way]
    assert result.error is not None
    assert (result.state, result.error.code) == (state, code)
    assert result.executed == result.error.executed == "no"
    assert "The tool did not run." in result.for_model()
    (record,) = records.calls()
    assert (record.outcome, record.executed, record.decision) == (code, "no", "denied")
    assert not ran
