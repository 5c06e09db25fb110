"""An agent of the room that a client of MCP asks: its last text, and its steps as progress."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import mcp_types as types
import pytest

from gateway.conftest import REVISIONS, Door
from support.models.prepared_model import PreparedModel, Reply, uses
from toolbus import Agent, FileChunk, ModelError, Toolkit, tool


@tool
async def count(text: str) -> int:
    return len(text.split())


@tool
async def draw() -> FileChunk:
    return FileChunk(b"\x89PNG\r\n\x1a\n", "a.png", "image/png")


async def breaking() -> AsyncGenerator[Any, None]:
    yield {"text": "so far"}
    raise ModelError("the model is gone", retryable=False)


def shown(result: types.CallToolResult) -> list[str]:
    """Return the texts of a result, and the types of its other blocks."""
    return [getattr(block, "text", block.type) for block in result.content]


@pytest.mark.parametrize("mode", REVISIONS)
@pytest.mark.parametrize(
    ("replies", "content", "steps", "fails"),
    [
        (["Hello."], ["Hello."], ["Hello."], False),
        (
            [uses("kit.count", text="a b"), "Two words."],
            ["Two words."],
            ["calls kit.count", "kit.count: ok", "Two words."],
            False,
        ),
        (
            [uses("kit.draw"), "See."],
            ["image", "See."],
            ["calls kit.draw", "kit.draw: ok", "See."],
            False,
        ),
        ([breaking], ["so far"], ["so far"], True),
        ([ModelError("no credit", retryable=False)], [], [], True),
    ],
)
async def test_answer_is_the_last_text_of_the_agent(
    door: Door,
    mode: str,
    replies: list[Reply],
    content: list[str],
    steps: list[str],
    fails: bool,
) -> None:
    seen: list[str | None] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        assert len(seen) < progress
        seen.append(message)

    async with (
        door.server.room("agent") as room,
        Agent(room, PreparedModel(*replies), name="helper", always=[Toolkit("kit", [count, draw])]),
        door.client(mode, toolkit="helper?participant=agent") as client,
    ):
        result = await client.call_tool("ask", {"text": "hi"}, progress_callback=on_progress)
    assert seen == steps
    assert result.structured_content is None
    assert result.is_error is fails
    assert shown(result)[: len(content)] == content
    if fails:
        (error,) = shown(result)[len(content) :]
        assert error.endswith("(tool_failed; executed: yes)")
    else:
        assert len(result.content) == len(content)
