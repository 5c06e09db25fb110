"""`Turn(None)`: tools of this process, without a room and without a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from support.rooms.turns import Diary, Recorded, message_of, names
from toolbus import (
    AgentState,
    ApprovalDecision,
    ApprovalRequest,
    CallNext,
    Chunk,
    Permissions,
    Records,
    Rule,
    SkillEntry,
    SkillText,
    ToolCall,
    ToolContext,
    ToolGroup,
    Toolkit,
    ToolkitConfig,
    ToolUse,
    Turn,
    Unavailable,
    tool,
)
from toolbus.errors import InvalidArguments, PermissionDenied, ToolInactive
from toolbus.telemetry.tracing import Tracing


@tool
async def facts(context: ToolContext) -> list[Any]:
    """Return who calls, and what there is of a room."""
    assert context.state is not None
    context.state["calls"] = context.state.get("calls", 0) + 1
    with pytest.raises(Unavailable, match="this call has no room"):
        _ = context.room
    caller = context.caller
    return [caller.name, caller.issuer, context.on_behalf_of, context.is_hosted, context.builders]


@tool(read_only=True)
async def letters(text: str) -> AsyncIterator[str]:
    """Give a text letter by letter."""
    for letter in text:
        yield letter


class OneSkill:
    def entries(self) -> list[SkillEntry]:
        return [SkillEntry("write", "how to write", "here", True)]

    def view(self, name: str, file: str | None = None) -> SkillText:
        return SkillText(name, "Be brief.", "here", True)

    def prompt(self) -> str:
        return "# Skills\n- write"


async def test_turn_without_a_room_has_all_that_needs_no_other_participant() -> None:
    state, records, diary = AgentState(), Records.memory(), list[str]()
    seen: list[str] = []

    async def note(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        seen.append(call.tool.name)
        async for chunk in next(call):
            yield chunk

    recorded = Recorded("write", diary)
    async with Turn(
        None,
        always=[Toolkit("own", [facts, letters, recorded])],
        groups=[ToolGroup("more", "For more.", [Toolkit("extra", [letters])])],
        skills=[OneSkill()],
        builders=[Diary("made", diary)],
        tools=[ToolkitConfig(name="made")],
        middlewares=[note],
        state=state,
        records=records,
    ) as turn:
        assert {"own.facts", "own.letters", "groups.reset_tools", "made.made"} <= {*names(turn)}
        assert "# Skills" in turn.prompt()
        assert await turn.call("own.facts") == ["local", "", None, False, []]
        assert recorded.room is None  # it was started without one
        assert await turn.call("made.made") == "made for local"
        with pytest.raises(ToolInactive):
            await turn.call("extra.letters", text="ab")
        turn.activate("more")
        (result,) = await turn.run([ToolUse("1", "extra__letters", {"text": "ab"})])
        assert result.value == ["a", "b"]
    assert diary == ["+write", "+made", "-made", "-write"]
    assert seen == ["own.facts", "made.made", "extra.letters"]
    assert state.state["own"] == {"calls": 1}
    assert [each.caller for each in records.calls()] == ["local"] * 4


async def test_permissions_without_a_room_name_neither_principal_nor_owner() -> None:
    asked: list[ApprovalRequest] = []

    async def ask(question: ApprovalRequest) -> ApprovalDecision:
        asked.append(question)
        return ApprovalDecision.allow(scope="state")

    people = [
        Rule(behavior=behavior, tool="own.facts", **{who: "local"})
        for behavior in ("deny", "allow")
        for who in ("principal", "owner")
    ]
    rules = [*people, Rule(behavior="deny", tool="own.write")]
    async with Turn(
        None,
        always=[Toolkit("own", [facts, letters, Recorded("write", [])])],
        permissions=Permissions("default", rules),
        approve=ask,
    ) as turn:
        for _ in range(2):  # the second is covered by what was granted
            assert (await turn.call("own.facts"))[0] == "local"
        assert await turn.call("own.letters", text="a") == ["a"]
        with pytest.raises(PermissionDenied):
            await turn.call("own.write")
    assert [each.tool.name for each in asked] == ["own.facts"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"required": ["words"]}, r"has no room, so that nobody else hosts .*\(words\)"),
        ({"groups": [ToolGroup("g", "For g.", required=["far"])]}, r"hosts .*\(far\)"),
        ({"available": True}, "no toolkit is available"),
        ({"message": message_of("bob")}, "on behalf of the sender"),
    ],
)
def test_what_needs_others_is_refused_without_a_room(options: Any, words: str) -> None:
    for room in ({"room": None}, {"context": ToolContext()}):
        with pytest.raises(ValueError, match="message= is for|" + words):
            Turn(**room, **options)


def test_turn_says_what_it_is_made_with() -> None:
    cases: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((), {}, r"Turn\(room\); with Turn\(None\) .* Turn\(context=context\)"),
        ((None,), {"context": ToolContext()}, "a room or context=, not both"),
        ((ToolContext(),), {}, r"use Turn\(context=context\)"),
        ((), {"context": "call"}, "context must be the ToolContext"),
        ((), {"context": ToolContext(object())}, "toolbus.Room as context.room, not object"),  # type: ignore[arg-type]
        ((None,), {"tools": [{"name": "made"}]}, "tools must be ToolkitConfig objects"),
    ]
    for given, named, words in cases:
        with pytest.raises(TypeError, match=words):
            Turn(*given, **named)


async def test_turn_without_a_room_is_traced_as_this_process_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    provider, exporter = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("toolbus.turns.turn_options.Tracing", lambda: Tracing(provider))
    async with Turn(None, always=[Toolkit("own", [letters])]) as turn:
        with pytest.raises(InvalidArguments):
            await turn.call("own.letters", letter="a")
    spans = exporter.get_finished_spans()
    assert [each.name for each in spans] == ["execute_tool letters", "invoke_agent local"]
    assert "toolbus.room" not in (spans[1].attributes or {})
