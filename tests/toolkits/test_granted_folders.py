"""What a person allows from now on holds for the folders that the tool worked in alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolbus import (
    AgentState,
    ApprovalDecision,
    ApprovalRequest,
    LocalToolkit,
    Permissions,
    Toolkit,
    ToolUse,
    Turn,
    tool,
)
from toolbus_toolkits.files import Files
from toolbus_toolkits.shell import Shell

COMMAND = ToolUse("1", "shell.run", {"command": "touch x.txt"})
WRITE = ToolUse("1", "files.write", {"path": "x.txt", "text": "x"})


class Desk:
    """A person who allows everything from now on, and what was asked."""

    def __init__(self, *, exactly: bool) -> None:
        self.exactly = exactly
        self.asked: list[ApprovalRequest] = []

    async def ask(self, question: ApprovalRequest) -> ApprovalDecision:
        self.asked.append(question)
        if self.exactly:
            return ApprovalDecision.allow("state")
        return ApprovalDecision.allow("state", rule=question.decision.suggestions)

    async def run(
        self, kit: Toolkit | LocalToolkit, use: ToolUse, state: AgentState, *workdirs: Path
    ) -> AgentState:
        """Run a use in a turn; return the state as it is read again from its JSON."""
        permissions = Permissions(workdirs=workdirs)
        async with Turn(
            None, always=[kit], permissions=permissions, approve=self.ask, state=state
        ) as turn:
            (result,) = await turn.run([use])
            assert result.state != "denied", result.for_model()
        return AgentState.from_json(state.to_json())


@pytest.fixture
def top(tmp_path: Path) -> Path:
    tmp_path = tmp_path.resolve()
    for name in ("a", "b", "more"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("a")
    return tmp_path


def moved(top: Path) -> Path:
    return (top / "a").rename(top / "c")


def replaced(top: Path) -> Path:
    moved(top)
    (top / "a").mkdir()
    return top / "a"


KITS: list[tuple[Callable[..., Toolkit], ToolUse]] = [(Shell, COMMAND), (Files, WRITE)]
SECOND: list[tuple[str, Callable[[Path], Path], bool]] = [
    ("the same", lambda top: top / "a", True),
    ("another spelling", lambda top: top / "b" / ".." / "a", True),
    ("a symlink", lambda top: top / "link", True),
    ("another folder at this path", replaced, True),
    ("another folder", lambda top: top / "b", False),
    ("the folder above", lambda top: top, False),
    ("the folder, moved", moved, False),
]


@pytest.mark.parametrize("exactly", [True, False])
@pytest.mark.parametrize(("kit", "use"), KITS, ids=["shell", "files"])
@pytest.mark.parametrize(
    ("second", "holds"), [row[1:] for row in SECOND], ids=[r[0] for r in SECOND]
)
async def test_grant_of_a_folder_holds_there_alone_after_its_state_is_read(
    kit: Any, use: ToolUse, second: Any, holds: bool, exactly: bool, top: Path
) -> None:
    desk = Desk(exactly=exactly)
    state = await desk.run(kit(top / "a"), use, AgentState())
    assert desk.asked[0].tool.workdirs == (str(top / "a"),)
    (granted, *_) = state.rules
    assert f'in "{top / "a"}"' in str(granted)
    state = await desk.run(kit(second(top)), use, state)
    assert len(desk.asked) == (1 if holds else 2)
    await desk.run(kit(top / "more"), use, state)  # what was granted twice holds nowhere else
    assert len(desk.asked) == (2 if holds else 3)


async def test_order_of_roots_counts_and_working_directories_where_a_toolkit_has_none(
    top: Path,
) -> None:
    desk = Desk(exactly=True)
    a, b = top / "a", top / "b"
    state = await desk.run(Files(a, further_roots=[b]), WRITE, AgentState())
    state = await desk.run(Files(b, further_roots=[a]), WRITE, state, top / "more")
    assert len(desk.asked) == 2
    await desk.run(Files(a, further_roots=[b]), WRITE, state, top)
    assert len(desk.asked) == 2

    @tool
    async def note(text: str) -> str:
        return text

    kit, use = Toolkit("notes", [note]), ToolUse("1", "notes.note", {"text": "x"})
    state = await desk.run(kit, use, state, a)
    state = await desk.run(kit, use, state, top / "link")
    assert len(desk.asked) == 3
    await desk.run(kit, use, state, b)
    assert len(desk.asked) == 4


async def test_two_toolkits_of_one_turn_have_grants_of_their_own(top: Path) -> None:
    desk = Desk(exactly=True)
    a, b = Shell(top / "a"), Shell(top / "b")
    uses = [
        ToolUse(str(at), f"{name}.run", COMMAND.arguments)
        for at, name in enumerate(("shell", "other", "shell", "other"))
    ]
    state = AgentState()
    turns: list[list[Toolkit | LocalToolkit]] = [
        [a, LocalToolkit(b, alias="other")],
        [LocalToolkit(a, alias="other"), b],
    ]
    for always in turns:
        async with Turn(
            None, always=always, permissions=Permissions(), approve=desk.ask, state=state
        ) as turn:
            assert [result.state for result in await turn.run(uses)] == ["ok"] * 4
    assert [question.tool.name for question in desk.asked] == ["shell.run", "other.run"] * 2


async def test_grant_of_a_state_of_before_holds_for_no_folder_and_for_tools_without_one(
    top: Path,
) -> None:
    """It does not say for which folder it was given: asking once more harms least."""
    desk = Desk(exactly=True)
    state = await desk.run(Shell(top / "a"), COMMAND, AgentState())

    @tool
    async def note(text: str) -> str:
        return text

    kit, use = Toolkit("notes", [note]), ToolUse("1", "notes.note", {"text": "x"})
    state = await desk.run(kit, use, state)
    before = json.loads(state.to_json())
    before["version"] = 4
    before.pop("model", None)
    for rule in before["rules"]:
        rule.pop("workdirs", None)
    state = AgentState.from_json(json.dumps(before))
    assert len(state.rules) == 2
    state = await desk.run(kit, use, state)
    assert len(desk.asked) == 2
    await desk.run(Shell(top / "a"), COMMAND, state)
    assert len(desk.asked) == 3


@pytest.mark.parametrize("workdirs", ["/a", [1], ["\ud800"], ["x" * 5_000], {}])
def test_granted_rule_with_folders_that_are_none_is_refused(workdirs: Any) -> None:
    rule = {"tool": "a.b", "own_name": "a.b", "principal": "alice", "workdirs": workdirs}
    with pytest.raises(Exception, match="/rules/0"):
        AgentState.from_json(json.dumps({"version": 4, "rules": [rule]}))
