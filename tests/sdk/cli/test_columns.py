"""Rows on terminals of any width, and in a pipe."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from support.processes.command_line import CommandLine
from support.processes.pseudo_terminal import in_terminal
from toolbus.cli import columns
from toolbus.cli.columns import show_columns

ROWS = [
    ("toolkit", "tools", "description"),
    ("warehouse", "count_all, take_one", "What is in the house, and where it stands."),
    ("clock", "now", "Tells\x1b[31m the\ntime."),
]
PIPE = """\
toolkit    tools                description
warehouse  count_all, take_one  What is in the house, and where it stands.
clock      now                  Tells\\x1b[31m the\\ntime.
"""
TERMINAL = """\
toolkit    tools                description
warehouse  count_all, take_one  What is in the house,
                                and where it stands.
clock      now                  Tells\\x1b[31m
                                the\\ntime.
"""
NARROW = """\
toolkit    tools         description
warehouse  count_all,    What is in
           take_one      the house,
                         and where it
                         stands.
clock      now           Tells\\x1b[31m
                         the\\ntime.
"""
TINY = """\
toolkit: warehouse
  tools: count_all,
    take_one
  description: What
    is in the house,
    and where it
    stands.
toolkit: clock
  tools: now
  description:
    Tells\\x1b[31m
    the\\ntime.
"""


@pytest.mark.parametrize(
    ("width", "shown"),
    [(None, PIPE), (74, PIPE), (54, TERMINAL), (38, NARROW), (20, TINY)],
)
def test_rows_are_wrapped_to_the_terminal_and_keep_every_name(
    width: int | None,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(columns, "terminal_columns", lambda: width)
    show_columns(ROWS)
    assert capsys.readouterr().out == shown


def test_word_that_is_longer_than_the_terminal_is_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(columns, "terminal_columns", lambda: 20)
    show_columns([("name", "of"), ("x" * 30, "ann")])
    assert capsys.readouterr().out == f"name:\n    {'x' * 30}\n  of: ann\n"


KITS = """
from toolbus import Toolkit, tool

@tool
def count_all_shelves(text: str) -> str:
    "Count what stands on the shelves of the warehouse."
    return text

inventory = Toolkit("warehouse_inventory", [count_all_shelves])
"""
TOOL = "warehouse_inventory.count_all_shelves"


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    folder = tmp_path_factory.mktemp("narrow")
    (folder / "narrow_kits.py").write_text(KITS, encoding="utf-8")
    here = CommandLine(folder)
    with here.serving() as (_, url):
        there = here.at(url)
        added = there.run("context", "add", "the_laboratory", "--url", url, "--room", "main")
        assert added.code == 0, added.err
        with there.hosting("narrow_kits:inventory", "--name", "bob-the-builder", "--records"):
            assert there.run_here("call", TOOL, "text=x").code == 0
            yield there


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("tools", {"warehouse_inventory", "count_all_shelves", "bob-the-builder"}),
        ("tools warehouse_inventory", {TOOL, "bob-the-builder,"}),
        ("records", {TOOL}),
        ("room participants", {"bob-the-builder", "warehouse_inventory"}),
        ("context list", {"the_laboratory"}),
        ("watch --once", {"bob-the-builder,", "warehouse_inventory"}),
    ],
)
def test_names_are_whole_on_a_narrow_terminal_and_lines_in_a_pipe_are_not_padded(
    toolbus: CommandLine, typed: str, names: set[str]
) -> None:
    for width in (20, 40):
        with in_terminal(toolbus, *typed.split(), columns=width) as terminal:
            assert terminal.ended() == 0
        drawn = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", terminal.drawn)
        assert names <= {*drawn.split()}, drawn
        assert "…" not in drawn
    piped = toolbus.run(*typed.split()).out
    assert not any(line.endswith(" ") for line in piped.splitlines())
    assert "\x1b" not in piped
    assert names <= {*piped.split()}
