"""What the model of an agent reads of another agent's answer, and what people see meanwhile."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from support.models.prepared_model import PreparedModel, uses
from toolbus import Agent, FileChunk, Tool, ToolContext, ToolFailed, Toolkit

END = {"type": "end", "text": "the answer", "reason": "done"}
BIG = FileChunk(b"\xff" * (512 * 1024), "big.bin")
BIG_TOLD = "[file 'big.bin', application/octet-stream, 524288 bytes]"


class Claims(Tool):
    """Yields what it is made with, as if it were the `ask` of an agent."""

    name = "ask"

    def __init__(self, *items: Any, conversation: str = "string") -> None:
        properties: Any = {"text": {"type": "string"}, "conversation": {"type": conversation}}
        super().__init__(input_schema={"properties": properties})
        self._items = items
        self.asked: list[dict[str, Any]] = []

    async def execute(self, context: ToolContext, /, **arguments: Any) -> AsyncGenerator[Any, None]:
        self.asked.append(arguments)
        for item in self._items:
            if isinstance(item, Exception):
                raise item
            yield item


async def asked(*items: Any) -> tuple[str, list[Any], Claims]:
    """Return the result that the model reads, the progress that people see, and the tool."""
    tool = Claims(*items)
    kit = Toolkit("other", [tool], annotations={"agent": True})
    async with Agent(
        None, PreparedModel(uses("other.ask", text="?"), "done"), always=[kit]
    ) as agent:
        events = [event async for event in agent.run_stream_events("hi") if isinstance(event, dict)]
    (result,) = [event for event in events if event["type"] == "tool_result"]
    return result["text"], [e["value"] for e in events if e["type"] == "progress"], tool


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([{"type": "text", "text": "the "}, {"type": "text", "text": "answer"}, END], "the answer"),
        ([{**END, "text": ""}], "(no output)"),
        ([{**END, "reason": "max_steps"}], "the answer\n[the agent ended early: max_steps]"),
        ([{**END, "omitted": 7}], "the answer\n[7 more characters]"),
        ([{"type": "text", "text": "a"}, {"type": "restart"}, {"type": "text", "text": "b"}], "b"),
        (
            [{"type": "text", "text": "so far"}, ToolFailed("broke")],
            "so far\n[the output ends here]\nerror tool_failed: broke. The tool ran.",
        ),
        # No events of an agent: as they are.
        (["plain", " text"], "plain text"),
        ([3, [1], {"type": 3}, {"type": "other"}], '3\n[1]\n{"type": 3}\n{"type": "other"}'),
        ([{"type": "end", "text": 3}], '{"type": "end", "text": 3}'),
        ([{"type": "text", "text": 3}, {"type": "tool_call"}, {"type": "progress"}], "(no output)"),
        ([{"type": "text", "text": "x" * 70_000}], "x" * 16_384),
        (
            [FileChunk(b"abc", "a.txt"), END],
            "[file 'a.txt', application/octet-stream, 3 bytes]\nthe answer",
        ),
        ([BIG, BIG, END], f"{BIG_TOLD}\nthe answer\n[files that are left out: 1]"),
    ],
)
async def test_model_reads_the_answer(items: list[Any], text: str) -> None:
    result, _, _ = await asked(*items)
    assert result == text


async def test_people_see_what_the_other_agent_does() -> None:
    call = {"type": "tool_call", "id": "1", "tool": "kit.count", "arguments": {}}
    large = {"type": "tool_call", "id": "2", "tool": "x" * 20_000}
    long = {"type": "tool_result", "id": "1", "text": "x" * 20_000}
    _, seen, _ = await asked({"type": "text", "text": "I "}, {"type": "text", "text": "see"}, END)
    assert seen[-1] == {"type": "text", "text": "I see"}
    _, seen, _ = await asked(call, large, {"type": "waiting", "seconds": 10}, END)
    assert seen == [call]
    _, seen, _ = await asked(long, END)
    assert seen == [{**long, "text": "x" * 2_000}]


async def test_each_conversation_has_its_own_with_the_other_agent() -> None:
    tool = Claims(END)
    kit = Toolkit("other", [tool], annotations={"agent": True})
    plain = Toolkit("plain", [tool])
    number = Claims(END, conversation="integer")
    odd = Toolkit("odd", [number], annotations={"agent": True})
    calls = [
        *uses("other.ask", "plain.ask"),
        *uses("other.ask", conversation="notes"),
        *uses("odd.ask", text="?"),
    ]
    async with Agent(None, PreparedModel(calls, "done"), always=[kit, plain, odd]) as agent:
        for name in ("a", "b", "a"):
            agent.model = PreparedModel(calls, "done")
            _ = [event async for event in agent.run_stream_events("hi", conversation=name)]
    names = [arguments.get("conversation") for arguments in tool.asked]
    assert number.asked == [{"text": "?"}] * 3
    of_a, unnamed, notes = names[:3]
    assert unnamed is None
    assert names[6:] == [of_a, None, notes]
    assert len({*names}) == 5
