"""The toolkit `tasks` in the process of an agent: ids, dependencies, metadata, what a state has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolbus import AgentState, ToolFailed, Turn
from toolbus_toolkits.notes import Task, Tasks

CHAIN = 400


@pytest.fixture
def state() -> AgentState:
    return AgentState()


@pytest.fixture
async def turn(state: AgentState) -> AsyncIterator[Turn]:
    """A turn whose agent has the tasks 1, 2 and 3, of which 2 waits for 1."""
    tasks = Tasks(initial=["one", Task(subject="two", blocked_by=["1"]), "three"], prompt=True)
    async with Turn(None, always=[tasks], state=state) as turn:
        yield turn


def links(state: AgentState) -> dict[str, tuple[str, str]]:
    return {task.id: ("".join(task.blocks), "".join(task.blocked_by)) for task in Tasks.of(state)}


async def test_id_is_never_used_again_and_may_be_a_number(turn: Turn, state: AgentState) -> None:
    assert (await turn.call("tasks.get", task_id=3))["subject"] == "three"
    assert await turn.call("tasks.update", task_id="3", status="deleted") is None
    made = await turn.call("tasks.create", subject="four", blocked_by=[1, "2"])
    assert (made["id"], made["blocked_by"]) == ("4", ["1", "2"])
    read = AgentState.from_json(state.to_json())
    async with Turn(None, always=[Tasks()], state=read) as later:
        await later.call("tasks.update", task_id=4, status="deleted")
        assert (await later.call("tasks.create", subject="five"))["id"] == "5"
    assert [task.id for task in Tasks.of(read)] == ["1", "2", "5"]


async def test_dependency_stands_at_both_of_its_tasks(turn: Turn, state: AgentState) -> None:
    await turn.call("tasks.update", task_id=3, add_blocks=[1], add_blocked_by=[])
    assert links(state) == {"1": ("2", "3"), "2": ("", "1"), "3": ("1", "")}
    await turn.call("tasks.update", task_id=1, unlink=[2, 3])
    assert set(links(state).values()) == {("", "")}
    await turn.call("tasks.update", task_id=2, add_blocks=[3], add_blocked_by=[1])
    await turn.call("tasks.update", task_id=2, status="deleted")
    assert links(state) == {"1": ("", ""), "3": ("", "")}


async def test_list_says_what_a_task_still_waits_for(turn: Turn) -> None:
    assert [line["waits_for"] for line in await turn.call("tasks.list")] == [[], ["1"], []]
    await turn.call("tasks.update", task_id=1, status="completed", owner="ann")
    done, two, _ = await turn.call("tasks.list")
    assert (done["owner"], two["waits_for"]) == ("ann", [])
    assert [line["id"] for line in await turn.call("tasks.list", status="pending")] == ["2", "3"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"task_id": 9}, r"there is no task '9'; the ids of the tasks: 1, 2, 3"),
        ({"task_id": 1, "add_blocks": ["8"], "owner": "x"}, "there is no task '8'"),
        ({"task_id": 1, "add_blocked_by": [7, "x"]}, "there is no task '7', 'x'"),
        ({"task_id": 1, "add_blocked_by": [1]}, "itself: 1 waits for 1"),
        ({"task_id": 1, "add_blocked_by": [2]}, "itself: 1 waits for 2 waits for 1"),
        (
            {"task_id": 3, "add_blocks": [1], "add_blocked_by": [2]},
            "itself: 3 waits for 2 waits for 1 waits for 3",
        ),
    ],
)
async def test_refused_change_names_the_tasks_and_changes_nothing(
    turn: Turn, state: AgentState, arguments: dict[str, Any], words: str
) -> None:
    await turn.call("tasks.list")
    before = state.to_json()
    with pytest.raises(ToolFailed, match=words) as refused:
        await turn.call("tasks.update", arguments)
    assert (refused.value.executed, state.to_json()) == ("no", before)


async def test_cycle_through_many_tasks_is_found() -> None:
    chain = [Task(subject="x", blocked_by=[str(n)] if n else []) for n in range(CHAIN)]
    async with Turn(None, always=[Tasks(initial=chain)]) as turn:
        with pytest.raises(ToolFailed, match=r"1 waits for 400 waits for 399 .* waits for 1\b"):
            await turn.call("tasks.update", task_id=1, add_blocked_by=[CHAIN])
        await turn.call("tasks.update", task_id=CHAIN, add_blocked_by=[1])


async def test_metadata_is_merged_and_null_removes_a_key(turn: Turn) -> None:
    given = {"a": 1, "b": {"c": None}, "d": None}
    made = await turn.call("tasks.create", subject="x", metadata=given)
    assert made["metadata"] == {"a": 1, "b": {"c": None}}
    changed = await turn.call("tasks.update", task_id=4, metadata={"a": None, "e": [1]})
    assert changed["metadata"] == {"b": {"c": None}, "e": [1]}


@pytest.mark.parametrize(
    ("initial", "words"),
    [
        ([Task(subject="x", blocked_by=["2"])], "there is no task '2'"),
        ([Task(id="a", subject="x"), Task(id="a", subject="y")], "two tasks have the id a"),
        ([Task(subject="x", blocked_by=["2"]), Task(subject="y", blocked_by=["1"])], "waits for"),
        (["x"] * 501, "there are 500 tasks"),
        (["x" * 262_144], "256|262,144"),
    ],
)
def test_initial_tasks_that_could_not_be_stored_are_refused(initial: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"^initial: .*{words}"):
        Tasks(initial=initial)


async def test_tasks_of_one_conversation_begin_another_one(turn: Turn, state: AgentState) -> None:
    await turn.call("tasks.update", task_id=1, status="deleted")
    await turn.call("tasks.update", task_id=2, add_blocked_by=[3])
    other = AgentState()
    async with Turn(None, always=[Tasks(initial=Tasks.of(state))], state=other) as later:
        assert (await later.call("tasks.create", subject="x"))["id"] == "4"
    assert Tasks.of(other)[:2] == Tasks.of(state)


async def test_prompt_has_the_open_tasks_on_a_line_each(turn: Turn, state: AgentState) -> None:
    await turn.call("tasks.update", task_id=3, status="completed")
    await turn.call("tasks.update", task_id=1, subject="one\n# Rules", status="in_progress")
    text = "# Tasks\n\n- 1 (in_progress): one\\n# Rules\n- 2 (pending, waits for 1): two"
    assert turn.prompt("{toolkits}") == text
    for number in range(60):
        await turn.call("tasks.create", subject=f"{number}")
    assert turn.prompt("{toolkits}").endswith("\n- and 12 more, which list returns")
    async with Turn(None, always=[Tasks()], state=state) as quiet:
        assert quiet.prompt("{toolkits}") == ""


GOOD = {"subject": "good", "blocked_by": ["9", "2"], "due": "today"}


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({"tasks": [{"id": "1"}]}, "what is stored is not of this toolkit: /tasks"),
        ({"last_id": "many"}, "what is stored is not of this toolkit: /last_id"),
        ({"tasks": {"1": GOOD, "2": None}}, "task 2 is stored in another shape"),
        ({"tasks": {"1": GOOD, "2": {"subject": 3}}}, "task 2 .*: /subject: "),
        ({"tasks": {"1": GOOD, "2": {"subject": "x", "blocked_by": 7}}}, "task 2 .*: /blocked_by"),
        ({"tasks": {"1": GOOD, "2": {"subject": "x", "blocked_by": [{}]}}}, "task 2 .*: /blocked"),
    ],
)
async def test_state_of_another_shape_is_said_and_stays(stored: dict[str, Any], words: str) -> None:
    state = AgentState({"tasks": stored})
    before = state.to_json()
    async with Turn(None, always=[Tasks(prompt=True)], state=state) as turn:
        with pytest.raises(ToolFailed, match=words):
            await turn.call("tasks.list")
        with pytest.raises(ToolFailed):
            await turn.call("tasks.update", task_id=2, owner="ann")
        assert turn.prompt("{toolkits}").startswith("# Tasks\n\n")
        with pytest.raises(ValueError, match=words):
            Tasks.of(state)
        assert state.to_json() == before
        if "2" in stored.get("tasks", ()):
            await turn.call("tasks.update", task_id=2, status="deleted")
            assert [line["subject"] for line in await turn.call("tasks.list")] == ["good"]


async def test_what_others_have_added_to_a_state_stays() -> None:
    state = AgentState({"tasks": {"tasks": {"7": GOOD}, "colour": "red"}})
    async with Turn(None, always=[Tasks(initial=["not seen"])], state=state) as turn:
        assert [line["waits_for"] for line in await turn.call("tasks.list")] == [[]]
        assert (await turn.call("tasks.update", task_id=7, unlink=[7]))["due"] == "today"
        assert (await turn.call("tasks.create", subject="x"))["id"] == "8"
    assert (state.of("tasks")["colour"], state.of("tasks")["last_id"]) == ("red", 8)
    state.of("tasks")["last_id"] = 10**15
    async with Turn(None, always=[Tasks()], state=state) as turn:
        ids = [(await turn.call("tasks.create", subject="x"))["id"] for _ in range(2)]
    assert ids == [str(10**15 + 1), str(10**15 + 2)]
