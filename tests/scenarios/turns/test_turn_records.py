"""The records of a turn: each call once, local and remote, refused ones too."""

from __future__ import annotations

import pytest

from support.rooms.turns import agent_and_host
from toolbus import (
    Records,
    RequiredToolkit,
    ToolFailed,
    ToolGroup,
    Toolkit,
    ToolUse,
    Turn,
    tool,
)


@tool
async def echo(text: str) -> str:
    if text == "bad":
        raise ToolFailed("bad text")
    return text


async def test_each_call_of_a_turn_is_recorded_with_its_outcome() -> None:
    records = Records.memory(arguments=True)
    async with (
        agent_and_host(Toolkit("far", [echo])) as (_, agent),
        Turn(
            agent,
            always=[Toolkit("near", [echo])],
            required=[RequiredToolkit("far")],
            groups=[ToolGroup("more", "Has more.", [Toolkit("late", [echo])])],
            records=records,
        ) as turn,
    ):
        uses = [
            ToolUse("1", "near.echo", {"text": "a"}),
            ToolUse("2", "far.echo", {"text": "bad"}),
            ToolUse("3", "late.echo", {"text": "a"}),
            ToolUse("4", "far.nothing", {}),
            ToolUse("5", "near.echo", {"text": 5}),
            ToolUse("6", "far.echo", {"text": "a"}, attachment="/no/such/file"),
        ]
        *_, unreadable = await turn.run(uses)
        assert unreadable.error is not None
        assert unreadable.error.details["path"] == "/attachment"
        assert await turn.call("far.echo", text="b") == "b"
        digest = {each.name: each.digest for each in turn.tools}["far.echo"]
    last, *others = records.calls()
    found = {each.call_id: (each.tool, each.outcome, each.executed) for each in others}
    assert found == {
        "1": ("near.echo", "ok", "yes"),
        "2": ("far.echo", "tool_failed", "yes"),
        "3": ("late.echo", "tool_inactive", "no"),
        "4": ("far.nothing", "not_found", "no"),
        "5": ("near.echo", "invalid_arguments", "no"),
        "6": ("far.echo", "invalid_arguments", "no"),
    }
    assert (last.caller, last.owner, last.digest) == ("agent", "host", digest)
    assert last.arguments == '{"text": "b"}'


async def test_anything_but_records_is_refused() -> None:
    async with agent_and_host() as (_, agent):
        with pytest.raises(TypeError, match=r"turn: records must be Records\.memory"):
            Turn(agent, records="calls.db")  # type: ignore[arg-type]
