"""A program with a name of before 0.1 says what it is now, until 0.2."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolbus.public_names import _RENAMED

NAMES = [
    ("from toolbus import Answer", "toolbus.ApprovalDecision"),
    ("from toolbus import Explanation", "toolbus.CallExplanation"),
    ("from toolbus import LeftOut", "toolbus.Omission"),
    ("from toolbus import ModelCall", "toolbus.RequestToModel"),
    ("from toolbus import ModelRetry", "toolbus.ModelRetries"),
    ("from toolbus import Next", "toolbus.CallNext"),
    ("from toolbus import NextModel", "toolbus.CallNextModel"),
    ("from toolbus import Permit", "toolbus.PermissionDecision"),
    ("from toolbus import Question", "toolbus.ApprovalRequest"),
    ("from toolbus import RoomTools", "toolbus.ToolSearch"),
    ("from toolbus import SqliteStates", "toolbus.SqliteStateStore"),
    ("from toolbus import StatesUnavailable", "toolbus.StateStoreUnavailable"),
    ("from toolbus import answer", "toolbus.agent_loop"),
    ("from toolbus import ask_in_terminal", "toolbus.approve_in_terminal"),
    ("from toolbus import builder_infos", "toolbus.turns.builders.builder_infos"),
    ("from toolbus.permissions import Permit", "toolbus.permissions.PermissionDecision"),
    ("from toolbus.tool_search import RoomTools", "toolbus.tool_search.ToolSearch"),
    ("from toolbus.agents import Turn", "toolbus.turns.Turn"),
    ("from toolbus.agents import Question", "toolbus.turns.ApprovalRequest"),
    ("from toolbus.agents import builder_infos", "toolbus.turns.builders.builder_infos"),
    ("from toolbus.agents import Answer as A", "toolbus.turns.ApprovalDecision"),
    ("import toolbus.conversations", "toolbus.agents"),
    ("from toolbus.conversations import Agent", "toolbus.agents"),
    ("from toolbus.conversations.loop import answer", "toolbus.agents"),
    ("from toolbus_toolkits.shell import RunResult", "CommandResult"),
]
USES = [
    ("Turn(None, permissions=Permissions(), ask=print)", TypeError, "it is now approve="),
    ("Turn(None, permission=Permissions())", TypeError, "did you mean permissions=?"),
    ("Agent(None, model, permissions=Permissions(), ask=print)", TypeError, "it is now approve="),
    ("Agent(None, model, max_step=3)", TypeError, "did you mean max_steps=?"),
    ("Agent(None, model).answer('hi')", AttributeError, "it is now run_stream_events"),
    ("Agent(None, model).ask('hi')", AttributeError, "it is now run"),
    ("Agent(None, model).other", AttributeError, "has no attribute 'other'$"),
    ("ApprovalRequest(*[None] * 5).permit", AttributeError, "it is now decision"),
    ("ApprovalRequest(*[None] * 5).other", AttributeError, "has no attribute 'other'$"),
    ("toolbus.turns.Agent", AttributeError, "no attribute 'Agent'$"),
]
SETUP = """
import toolbus.turns
from support.models.prepared_model import PreparedModel
from toolbus import Agent, ApprovalRequest, Permissions, Turn
model = PreparedModel("hi")
"""


@pytest.mark.parametrize(("program", "new"), NAMES, ids=[program for program, _ in NAMES])
def test_import_of_an_old_name_says_the_new_one(program: str, new: str) -> None:
    with pytest.raises(ImportError, match=rf" is now {new}(?![\w.])"):
        exec(program, {})


@pytest.mark.parametrize(("program", "kind", "hint"), USES, ids=[program for program, *_ in USES])
def test_use_of_an_old_name_says_the_new_one(
    program: str, kind: type[Exception], hint: str
) -> None:
    names: dict[str, object] = {}
    exec(SETUP, names)
    with pytest.raises(kind, match=hint):
        exec(program, names)


def test_each_old_name_is_tried_and_stands_in_the_changelog() -> None:
    tried = {
        program.split()[3] for program, _ in NAMES if program.startswith("from toolbus import")
    }
    assert tried == set(_RENAMED)
    changelog = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
    assert [name for name in _RENAMED if f"`{name}`" not in changelog] == []
