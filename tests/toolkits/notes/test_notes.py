"""What `tasks`, `todo` and `scratchpad` have in common in the process of an agent."""

from __future__ import annotations

from typing import Any

import pytest

from toolbus import AgentState, Permissions, ToolFailed, Toolkit, ToolUse, Turn, builder_of
from toolbus.permissions.modes import MODES, Mode
from toolbus_toolkits.notes import Scratchpad, Tasks, Todo, TodoItem, scratchpad, tasks, todo

TODOS = [{"content": "a", "status": "in_progress"}, {"content": "b", "active_form": "Doing b"}]
USES = [
    ToolUse("1", "tasks.create", {"subject": "x"}),
    ToolUse("2", "tasks.update", {"task_id": 1, "status": "in_progress"}),
    ToolUse("3", "tasks.get", {"task_id": 1}),
    ToolUse("4", "tasks.list", {}),
    ToolUse("5", "todo.write", {"todos": TODOS}),
    ToolUse("6", "todo.read", {}),
    ToolUse("7", "scratchpad.write", {"name": "plan", "text": "first"}),
    ToolUse("8", "scratchpad.read", {"name": "plan"}),
    ToolUse("9", "scratchpad.read", {}),
]
PAGES = {f"{number}": "x" * 4_000 for number in range(50)}


def toolkits(**options: Any) -> list[Toolkit]:
    return [Tasks(**options), Todo(**options), Scratchpad(**options)]


@pytest.mark.parametrize("mode", MODES)
async def test_each_mode_lets_an_agent_use_its_own_notes(mode: Mode) -> None:
    state = AgentState()
    permissions = Permissions(mode)
    async with Turn(None, always=toolkits(), state=state, permissions=permissions) as turn:
        results = await turn.run(USES)
    assert [result.state for result in results] == ["ok"] * len(USES)
    assert [task.status for task in Tasks.of(state)] == ["in_progress"]
    assert Todo.of(state)[1] == TodoItem(content="b", active_form="Doing b")
    assert Scratchpad.of(state) == {"plan": "first"}
    assert [result.value for result in results[4:]] == [
        {"pending": 1, "in_progress": 1, "completed": 0},
        [TodoItem(**item).model_dump() for item in TODOS],
        None,
        "first",
        [{"name": "plan", "chars": 5}],
    ]


async def test_notes_are_those_of_the_state_also_of_toolkits_built_for_a_turn() -> None:
    builders = [builder_of(factory) for factory in (tasks, todo, scratchpad)]
    requests = [builder.type() for builder in builders]
    state = AgentState()
    async with Turn(None, builders=builders, tools=requests, state=state) as turn:
        await turn.run(USES)
    state = AgentState.from_json(state.to_json())
    async with Turn(None, always=toolkits(prompt=True), state=state) as turn:
        assert turn.prompt("{toolkits}").split("\n\n") == [
            *("# Tasks", "- 1 (in_progress): x"),
            *("# Todo list", "- [>] a\n- [ ] b"),
            *("# Scratchpad", "- plan (5 characters)"),
        ]
    async with Turn(None, always=toolkits(prompt=True)) as turn:
        assert turn.prompt("{toolkits}") == ""


async def test_program_gives_the_first_notes_and_reads_them_by_the_name_in_the_turn() -> None:
    state = AgentState()
    pad = Scratchpad("pad", initial={"plan": "first", "empty": ""})
    todos = Todo("steps", initial=["a", TodoItem(content="b", status="completed")])
    async with Turn(None, always=[pad, todos], state=state) as turn:
        assert await turn.call("pad.read") == [{"name": "plan", "chars": 5}]
        await turn.call("steps.read")
    assert Scratchpad.of(state, "pad") == {"plan": "first"}
    assert [todo.content for todo in Todo.of(state, "steps")] == ["a", "b"]
    assert (Scratchpad.of(state), Todo.of(state), Tasks.of(state)) == ({}, [], [])


@pytest.mark.parametrize(
    ("toolkit", "call", "arguments", "words"),
    [
        (Tasks(initial=["x"] * 500), "create", {"subject": "y"}, "500 .*: delete some"),
        (Tasks(), "create", {"subject": "y" * 262_144}, "262,144 are stored: write less"),
        (Tasks(), "create", {"subject": "é" * 131_072}, "262,144 are stored: write less"),
        (Todo(), "write", {"todos": [{"content": "x"}] * 21}, "these are 21 todos, .*: leave out"),
        (Todo(), "write", {"todos": [TODOS[0]] * 2}, "2 todos are in_progress, .*: set the others"),
        (Scratchpad(), "write", {"name": "x", "text": "x" * 10_001}, "10,001 .*: write less"),
        (Scratchpad(initial=PAGES), "write", {"name": "x", "text": "x"}, "50 pages, .*: remove"),
        (
            Scratchpad(initial=dict.fromkeys("0123456789", "é" * 10_000)),
            "write",
            {"name": "x" * 1_000, "text": "é" * 10_000},
            None,
        ),
        (
            Scratchpad(initial=dict.fromkeys("0123456789abc", "é" * 10_000)),
            "write",
            {"name": "x", "text": "x" * 3_000},
            "262,144 are stored: write less, or remove",
        ),
        (Scratchpad(), "read", {"name": "x"}, "there is no page 'x'; the pages: none"),
        (
            Scratchpad(),
            "write",
            {"name": "x", "text": "\ud800"},
            "cannot be stored as JSON: .*surrogates",
        ),
        (Tasks(), "create", {"subject": "x", "metadata": {"a": float("nan")}}, "cannot be stored"),
    ],
)
async def test_beyond_a_limit_is_an_error_that_says_what_to_do(
    toolkit: Toolkit, call: str, arguments: dict[str, Any], words: str | None
) -> None:
    state = AgentState()
    async with Turn(None, always=[toolkit], state=state) as turn:
        if words is None:
            await turn.call(f"{toolkit.name}.{call}", arguments)
            return
        with pytest.raises(ToolFailed, match=words) as refused:
            await turn.call(f"{toolkit.name}.{call}", arguments)
    assert refused.value.executed == "no"
    again = AgentState()
    async with Turn(None, always=[toolkit], state=again) as turn:
        await turn.call(f"{toolkit.name}.{'list' if toolkit.name == 'tasks' else 'read'}")
    assert state.to_json() == again.to_json()


async def test_of_too_much_that_another_program_has_stored_some_can_be_removed() -> None:
    state = AgentState({"scratchpad": {"pages": dict.fromkeys("ab", "x" * 400_000)}})
    async with Turn(None, always=[Scratchpad()], state=state) as turn:
        with pytest.raises(ToolFailed, match="would have 800,"):
            await turn.call("scratchpad.write", name="c", text="x")
        await turn.call("scratchpad.write", name="a", text="")
    assert list(Scratchpad.of(state)) == ["b"]


@pytest.mark.parametrize(
    ("stored", "call", "words"),
    [
        ({"todos": "many"}, "todo.read", "not of this toolkit: /todos"),
        ({"todos": [{"content": "x", "status": "late"}]}, "todo.read", "/todos/0/status"),
        ({"pages": {"a": 1}}, "scratchpad.read", "not of this toolkit: /pages/a"),
    ],
)
async def test_state_of_another_shape_is_an_error(
    stored: dict[str, Any], call: str, words: str
) -> None:
    state = AgentState({call.partition(".")[0]: stored})
    async with Turn(None, always=toolkits(prompt=True), state=state) as turn:
        with pytest.raises(ToolFailed, match=words):
            await turn.call(call)
        assert "what is stored is not of this toolkit" in turn.prompt("{toolkits}")
    with pytest.raises(ValueError, match=r"state of .*not of this toolkit"):
        (Todo if call == "todo.read" else Scratchpad).of(state)
