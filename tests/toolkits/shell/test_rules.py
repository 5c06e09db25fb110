"""What rules decide about command lines: `rules.toml` says what must be."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.shell.deciding import TOOL, Judge
from support.shell.folder import make_project
from toolbus import Permissions, Rule


def groups(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]]
    found = tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))["group"]
    return found


GROUPS = groups("rules.toml")
DENIALS = groups("denials.toml")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge(make_project(tmp_path_factory.mktemp("project")))


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group["reason"])
def test_rules_decide_about_each_command_of_a_line(judge: Judge, group: dict[str, Any]) -> None:
    wrong = []
    for behavior in ("allow", "ask", "deny"):
        for line in group.get(behavior, ()):
            found = judge.decide_by_rules(line, *group["rules"])
            if found != behavior:
                wrong.append(f"{behavior}: {line!r}: {found}; {judge.assess(line)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("group", DENIALS, ids=lambda group: group["reason"])
def test_a_denial_sees_what_a_line_runs_and_no_texts(judge: Judge, group: dict[str, Any]) -> None:
    permissions = Permissions("bypass", [Rule(behavior="deny", tool=TOOL, match="rm:*")])
    wrong = []
    for behavior in ("allow", "deny"):
        for line in group.get(behavior, ()):
            if judge.decide(line, permissions) != behavior:
                wrong.append(f"{behavior}: {line!r}")
    assert not wrong, "\n".join(wrong)


# A context takes a command, and bash runs the command in it, or may do so. What takes the text of
# a program is apart: it needs the command in quotes.
CONTEXTS = (
    "{}",
    " {} ",
    "ls; {}",
    "ls && {}",
    "ls || {}; pwd",
    "ls | {}",
    "{} | cat",
    "ls & {} &",
    "ls\n{}\n",
    "! {}",
    "time {}",
    "({})",
    "{{ {}; }}",
    "if {}; then ls; fi",
    "if ls; then {}; else pwd; fi",
    "if ls; then pwd; else {}; fi",
    "while ls; do {}; done",
    "for x in a b; do {}; done",
    "case a in a) {} ;; esac",
    "f() {{ {}; }}; f",
    "echo $({})",
    'echo "a $({}) b"',
    "cat <({})",
    "X=$({}) ls",
    "ls > /dev/null 2>&1; {}",
    "cat <<EOF\n$({})\nEOF\n",
    'cat <<EOF\na `echo b` "$({}) c\nEOF\n',
    "bash -l <<'EOF'\n{}\nEOF\n",
    "ssh host <<'EOF'\n{}\nEOF\n",
    'cat <<< "$({})"',
    "cd src && {}",
)
PREFIXES = (
    "nice ",
    "nice -n 3 ",
    "timeout 5 ",
    "nohup ",
    "env ",
    "env A=1 ",
    "A=1 ",
    "LC_ALL=C ",
    "command ",
    "exec ",
    "sudo ",
    "sudo -u ann ",
    "xargs -n1 ",
    "stdbuf -o0 ",
    "setsid ",
    "2>/dev/null ",
    "no-such-wrapper ",
)
NAMES = ("rm", "/bin/rm", "./rm", r"\rm", "'rm'", 'r""m', "$'rm'", "r\\\nm", "{rm,-f}")
REST = ("x", "-rf x", "-- x", '"$X"', "$(ls)", "x > y", "< a.txt", "*")


@st.composite
def denied_lines(draw: st.DrawFn) -> str:
    """A line that runs `rm`, or may."""
    line = f"{draw(st.sampled_from(NAMES))} {draw(st.sampled_from(REST))}"
    for _ in range(draw(st.integers(0, 2))):
        prefix = draw(st.sampled_from(PREFIXES))
        if not line.startswith(("A=", "LC_ALL=", "2>")):  # no words of a command
            line = prefix + line
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.integers(0, 5)) == 0 and "\n" not in line and "'" not in line:
            line = f"{draw(st.sampled_from(('bash', 'sh', 'bash -e')))} -c '{line}'"
        else:
            line = draw(st.sampled_from(CONTEXTS)).format(line)
    return line


@settings(max_examples=300, derandomize=True, database=None)
@given(denied_lines())
@example("echo $(echo $(echo $(echo $(echo $(rm x)))))")
@example("; ".join(["ls"] * 300 + ["rm x"]))
@example("; ".join(["ls"] * 10_000 + ["rm x"]))
@example("ls " + "x" * 1_000_000 + "; rm x")
@example("(" * 400 + "rm x" + ")" * 400)
@example("$(" * 400 + "rm x" + ")" * 400)
@example("env " * 400 + "rm x")
def test_no_context_of_a_command_loses_its_denial(judge: Judge, line: str) -> None:
    assert judge.decide_by_rules(line, "deny rm:*", "allow *") == "deny"
