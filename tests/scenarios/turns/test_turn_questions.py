"""Who answers what tools in the process of a turn ask: `Turn(answer=...)`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.rooms.approvals import person_in
from toolbus import (
    ApprovalDenied,
    ExternalTool,
    HeldCall,
    Permissions,
    Records,
    ToolContext,
    ToolFailed,
    Toolkit,
    ToolQuestion,
    Turn,
    Unavailable,
    tool,
)
from toolbus_server.testing import TestServer, running_server


@tool
async def order(context: ToolContext) -> str:
    """Order something."""
    size = await context.ask("Which size?", options=["small", "large"])
    return f"ordered {size}"


DESK = Toolkit("desk", [order, ExternalTool("review", {})])


async def large(question: ToolQuestion) -> str:
    assert question.options == ("small", "large")
    return "large"


async def refuse(_: ToolQuestion) -> str:
    raise ApprovalDenied("not today")


async def hang(_: ToolQuestion) -> None:
    await asyncio.Event().wait()


async def test_function_answers_what_tools_of_a_turn_ask() -> None:
    records = Records.memory()
    async with Turn(None, always=[DESK], answer=large, records=records) as turn:
        assert await turn.call("desk.order") == "ordered large"
    for answer, code in ((refuse, "approval_denied"), (None, "unavailable")):
        async with Turn(None, always=[DESK], answer=answer, records=records) as turn:
            with pytest.raises(ToolFailed) as failed:
                await turn.call("desk.order")
            assert (failed.value.details["code"], failed.value.executed) == (code, "yes")
    assert [call.settled for call in records.calls()] == ["", "denied", "answered"]
    async with Turn(None, always=[DESK]) as turn:
        with pytest.raises(Unavailable, match="answer=") as refused:
            await turn.call("desk.review")
        assert refused.value.executed == "no"


@tool
async def can_ask(context: ToolContext) -> bool:
    return context.can_ask


async def test_tool_knows_before_whether_somebody_can_be_asked(server: TestServer) -> None:
    kit = Toolkit("one", [can_ask])
    for answer in (None, large):
        alone = await kit.execute(ToolContext(answer=answer), "can_ask", {})
        assert alone.value == (answer is large)
        async with Turn(None, always=[kit], answer=answer) as turn:
            assert await turn.call("one.can_ask") == (answer is large)
    async with server.room("host") as host, host.host(kit), server.room("ann") as ann:
        assert await ann.call("one.can_ask") is True


async def test_time_of_a_call_stands_still_while_a_function_answers() -> None:
    """Its own limit goes on."""

    @tool
    async def ask(context: ToolContext, seconds: float) -> Any:
        return await context.ask("Which?", timeout_s=seconds)

    async with Turn(None, always=[Toolkit("one", [ask])], answer=hang, timeout_s=0.1) as turn:
        with pytest.raises(ToolFailed) as failed:
            await turn.call("one.ask", seconds=0.4)
    assert failed.value.details["code"] == "approval_expired"


@pytest.mark.parametrize(
    "options", [{"answer": "room"}, {"approve": "room", "permissions": Permissions("bypass")}]
)
async def test_room_answers_what_tools_of_a_turn_ask(options: dict[str, Any]) -> None:
    held: list[HeldCall] = []
    records = Records.memory()
    async with (
        running_server() as server,
        server.room("ann") as ann,
        server.room("ann") as beside,
        person_in(beside) as person,
        Turn(ann, always=[DESK], purpose="to try it", records=records, **options) as turn,
    ):
        call = asyncio.ensure_future(turn.invoke("desk.order", {}, on_held=held.append))
        hold = await person.asked()
        assert hold.body is not None
        assert (hold.is_own, hold.tool, hold.purpose) == (True, "desk.order", "to try it")
        assert (hold.body.question, hold.body.options) == ("Which size?", ("small", "large"))
        await beside.answer(hold, "small")
        assert (await call).value == "ordered small"
    assert [(waits.kind, waits.outcome) for waits in held] == [("answer", "open"), ("", "answered")]
    (record,) = records.calls()
    assert (record.settled, record.settled_by) == ("answered", "ann")


@pytest.mark.parametrize(
    ("answer", "error"), [("room", ValueError), ("ann", TypeError), (3, TypeError)]
)
def test_answer_that_a_turn_cannot_use_is_refused(answer: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="answer"):
        Turn(None, answer=answer)
