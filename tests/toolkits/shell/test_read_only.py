"""What is allowed as read-only changes nothing, and shows no variables of other processes.

Such lines run in a sandbox that sees each change and marks the variables of processes.

The lines are those of `cases.toml`, and what a grammar builds of the descriptions of commands.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from support.shell.deciding import Judge
from support.shell.folder import make_project
from support.shell.grammar import BuiltLine, CommandLines, names_to_try
from support.shell.sandbox import Sandbox, sandbox
from toolbus_toolkits.shell import commands
from toolbus_toolkits.shell.commands import Effect
from toolbus_toolkits.shell.commands.table import Command

BATCH = 5
RUNS = 2_000
SOAK_RUNS = 20_000
PS_RUNS = 100
LEAST_COMMANDS = 100
"""So many commands must be known to read, of those that this machine has."""
LEAST_SHARE = 0.35
"""Of the built lines so many must be read-only: what asks about everything is no proof."""


class Proof:
    """Runs those of many lines that are read-only, and counts them."""

    def __init__(self, judge: Judge, inside: Sandbox) -> None:
        self._judge = judge
        self._inside = inside
        self.built = 0
        self.run = 0
        self.names = Counter[str]()
        """How often each command was in a line that ran."""

    def examine(self, lines: Iterable[BuiltLine]) -> None:
        """Fail if a line is read-only, and changes something or shows what it must not."""
        allowed = []
        for line in lines:
            self.built += 1
            assessment = self._judge.assess(line.text)
            if assessment.read_only and assessment.behavior == "pass":
                allowed.append(line.text)
                self.names.update(line.names)
        outcomes = list(self._inside.run(allowed, timeout_s=2))
        self.run += len(outcomes)
        wrong = [f"{outcome.line!r}: {outcome.fault}" for outcome in outcomes if outcome.fault]
        assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge(make_project(tmp_path_factory.mktemp("project")))


@pytest.fixture(scope="module")
def inside(judge: Judge) -> Iterator[Sandbox]:
    with sandbox(judge.project.work, judge.environment) as inside:
        yield inside


def examine_built_lines(judge: Judge, inside: Sandbox, runs: int, *, same: bool) -> Proof:
    """Run so many lines, or more; `same` builds the same ones each time, of quick commands."""
    proof = Proof(judge, inside)
    names = names_to_try(slow=not same)
    reading = [
        name
        for name in names
        if any(judge.assess(f"{name} {rest}").read_only for rest in ("", "a.txt", "x a.txt", "-h"))
    ]
    weighted = reading * 4 + list(names)

    # Without shrinking: the message has the line.
    @settings(
        max_examples=round(runs / BATCH / LEAST_SHARE),
        derandomize=same,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def examine(random: Random) -> None:
        lines = CommandLines(random, weighted)
        built = [lines.line() for _ in range(BATCH)]
        if proof.run < runs:
            proof.examine(built)

    examine()
    assert proof.run >= runs, f"only {proof.run} of {proof.built} lines are read-only"
    missing = set(reading) - set(proof.names)
    assert len(reading) >= LEAST_COMMANDS
    assert len(missing) <= len(reading) / 20, f"never read-only: {sorted(missing)}"
    return proof


@pytest.mark.long
@pytest.mark.timeout(600)  # it takes some 20 s of a processor, and others may want that, too
def test_built_lines_that_only_read_change_nothing(judge: Judge, inside: Sandbox) -> None:
    examine_built_lines(judge, inside, RUNS, same=True)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_built_lines_that_only_read_change_nothing(judge: Judge, inside: Sandbox) -> None:
    examine_built_lines(judge, inside, SOAK_RUNS, same=False)


def test_listed_lines_that_only_read_change_nothing(judge: Judge, inside: Sandbox) -> None:
    text = Path(__file__).with_name("cases.toml").read_text(encoding="utf-8")
    lines = [line for group in tomllib.loads(text)["group"] for line in group.get("read", ())]
    proof = Proof(judge, inside)
    proof.examine(BuiltLine(line, frozenset()) for line in lines)
    assert proof.run == len(lines)


def test_a_wrong_description_is_found(
    judge: Judge, inside: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Command("tee")  # a mistake: it writes
    monkeypatch.setattr(commands, "ROWS", {**commands.ROWS, "tee": row})
    special = {name: read for name, read in commands.SPECIAL.items() if name != "tee"}
    monkeypatch.setattr(commands, "SPECIAL", special)
    lines = [BuiltLine(line, frozenset()) for line in ("ls", "tee < a.txt", "ls | tee found")]
    with pytest.raises(AssertionError, match=r"'ls | tee found': changed .*/work/found"):
        Proof(judge, inside).examine(lines)


def test_a_description_that_shows_other_processes_is_found(
    judge: Judge, inside: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        commands, "SPECIAL", {**commands.SPECIAL, "ps": lambda _: Effect(read_only=True, reads=())}
    )
    lines = [BuiltLine(line, frozenset()) for line in ("ps aux", "ps auxeww")]
    with pytest.raises(AssertionError, match=r"^'ps auxeww': showed the variables of a process"):
        Proof(judge, inside).examine(lines)


def test_built_lines_of_ps_show_no_variables(judge: Judge, inside: Sandbox) -> None:
    proof = Proof(judge, inside)
    lines = CommandLines(Random(1), ("ps",))
    while proof.run < PS_RUNS:
        proof.examine(lines.line() for _ in range(20))
