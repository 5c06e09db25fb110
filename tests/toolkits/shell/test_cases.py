"""What is decided about command lines in each mode: `cases.toml` says what must be."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from support.shell.deciding import TOOL, Judge
from support.shell.folder import make_project
from toolbus import Permissions, Rule
from toolbus.permissions.modes import MODES
from toolbus_toolkits.shell.commands import ROWS, SPECIAL, shell_builtins
from toolbus_toolkits.shell.commands.table import by_name

GROUPS: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("cases.toml").read_text(encoding="utf-8")
)["group"]
ASKED = ("ask", "ask", "deny", "allow", "deny")
DECISIONS = {
    "read": ("allow", "allow", "allow", "allow", "allow"),
    "edit": ("ask", "allow", "deny", "allow", "deny"),
    "ask": ASKED,
    "immune": ASKED,
    "stopped": ASKED,
}
WITH_A_RULE = {"read": "allow", "edit": "allow", "ask": "allow", "immune": "ask"}
"""What the mode `default` decides where a rule allows the whole tool."""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge(make_project(tmp_path_factory.mktemp("project")))


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group["reason"])
def test_each_line_gets_its_decision_in_each_mode(judge: Judge, group: dict[str, Any]) -> None:
    allowed = Permissions(rules=[Rule(behavior="allow", tool=TOOL)])
    wrong = []
    for verdict, decisions in DECISIONS.items():
        for text in group.get(verdict, ()):
            line = text.replace("@WORK@", str(judge.project.work))
            found = tuple(judge.decide(line, Permissions(mode)) for mode in MODES)
            ruled = judge.decide(line, allowed)
            if found != decisions or ruled != WITH_A_RULE.get(verdict, ruled):
                assessment = judge.assess(line)
                wrong.append(f"{verdict}: {line!r}: {'/'.join(found)}, ruled {ruled}; {assessment}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("option", ["--no-such-option", "--no-such-option=x", "-@", "-\u20ac"])
def test_no_described_program_only_reads_with_an_option_that_is_not_listed(
    judge: Judge, option: str
) -> None:
    # What a builtin does ends with the line: `echo -@` is text.
    builtins = by_name(*shell_builtins.ROWS).keys()
    lines = [
        line
        for name in sorted({*ROWS, *SPECIAL} - builtins)
        for line in (f"{name} {option}", f"{name} {option} x")
    ]
    assert len(lines) > 500
    assert [line for line in lines if judge.assess(line).read_only] == []
