"""What the guide "Shell" says of deny rules is what they do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.shell.deciding import Judge
from support.shell.folder import make_project

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "shell.md"
HEAD = "| where `rm` stands |"


def lines_of(column: int) -> list[str]:
    """The command lines of a column; a pipe of them stands behind a backslash."""
    table = GUIDE.read_text(encoding="utf-8").partition(HEAD)[2].partition("\n\n")[0]
    rows = [re.split(r"(?<!\\)\|", row) for row in table.splitlines()[2:]]
    found = [code for row in rows for code in re.findall("`([^`]+)`", row[column])]
    assert len(found) > 15
    return [line.replace(r"\|", "|") for line in found]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge(make_project(tmp_path_factory.mktemp("project")))


@pytest.mark.parametrize(("column", "is_seen"), [(2, True), (3, False)])
def test_table_of_the_guide_says_what_a_deny_rule_sees(
    judge: Judge, column: int, is_seen: bool
) -> None:
    decisions = {line: judge.decide_by_rules(line, "deny rm:*") for line in lines_of(column)}
    wrong = {line: found for line, found in decisions.items() if (found == "deny") != is_seen}
    assert wrong == {}
