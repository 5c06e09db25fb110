"""`toolbus lock` writes and checks a lock file; `--locked` refuses what differs from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes.command_line import CommandLine

KITS = '''
from toolbus import Toolkit, tool

@tool
def count(text: str) -> int:
    """Count words."""
    return len(text.split())

@tool(name="count")
def changed(text: str, top: int = 3) -> int:
    """Count words.\\x1b[2J"""
    return top

words = Toolkit("words", [count])
other = Toolkit("words", [changed], version="2")
notes = Toolkit("notes", [count])
'''
LINES = [
    "~ words of bob",
    '    version: "" -> "2"',
    '    ~ tool count: description: "Count words." -> "Count words.\\u001b[2J"',
    "toolbus.lock: 1 toolkit in the file, 1 different",
]


@pytest.fixture
def toolbus(tmp_path: Path) -> Iterator[CommandLine]:
    (tmp_path / "kits.py").write_text(KITS, encoding="utf-8")
    here = CommandLine(tmp_path)
    with here.serving() as (_, url):
        yield here.at(url)


def content(toolbus: CommandLine) -> list[str]:
    file = json.loads((toolbus.folder / "toolbus.lock").read_text(encoding="utf-8"))
    return [f"{each['name']} of {each['owner']}: {[*each['tools']]}" for each in file["toolkits"]]


def test_lock_follows_the_room_and_prints_what_changed(toolbus: CommandLine) -> None:
    with toolbus.hosting("kits:words", "--name", "bob"):
        with toolbus.hosting("kits:notes", "--private", "--share", "name:eve", "--name", "ann"):
            first = toolbus.run("lock", "--name", "eve")
            assert first.out.splitlines() == [
                "+ notes of ann",
                "+ words of bob",
                "toolbus.lock: 2 toolkits; 2 added, 0 changed, 0 removed",
            ]
            assert content(toolbus) == ["notes of ann: ['count']", "words of bob: ['count']"]
            before = (toolbus.folder / "toolbus.lock").read_bytes()
            assert toolbus.run_here("lock", "words", "--name", "eve").code == 0
            assert toolbus.run_here("lock", "--participant", "bob", "--name", "eve").code == 0
            assert (toolbus.folder / "toolbus.lock").read_bytes() == before
            assert toolbus.run_here("lock", "--check", "--name", "eve").code == 0
            hidden = toolbus.run_here("lock", "--check", "--name", "bob")
            assert (hidden.code, hidden.out.splitlines()[0]) == (3, "- notes of ann")
            assert toolbus.run_here("lock", "--name", "bob").out.splitlines()[0] == "- notes of ann"
            assert content(toolbus) == ["words of bob: ['count']"]


def test_check_and_locked_commands_refuse_a_changed_definition(toolbus: CommandLine) -> None:
    with toolbus.hosting("kits:words", "--name", "bob"):
        assert toolbus.run_here("lock").code == 0
        call = ("call", "words.count", "text=a b", "--locked", "toolbus.lock")
        assert toolbus.run_here(*call).out == "2\n"
        listed = toolbus.run_here("tools", "--locked", "toolbus.lock", "--json").value
        assert [each["name"] for each in listed] == ["words"]
    with toolbus.hosting("kits:other", "kits:notes", "--name", "bob"):
        check = toolbus.run_here("lock", "--check")
        assert (check.code, check.err.splitlines()[0]) == (
            3,
            "toolbus: the room differs from toolbus.lock",
        )
        assert [line for line in check.out.splitlines() if line in LINES] == LINES
        assert toolbus.run_here("lock", "--check", "notes").out.startswith("+ notes of bob\n")
        for command in (
            call,
            ("tools", *call[3:]),
            ("tools", "words", *call[3:]),
            (*call, "--explain"),
            (*call, "--assess"),
        ):
            refused = toolbus.run_here(*command, "--json")
            assert (refused.code, refused.error["code"]) == (3, "definition_changed"), command
            assert 'version: "" -> "2"' in refused.error["details"]["difference"]
        assert toolbus.run_here("tools", "notes", TOOLBUS_LOCK="toolbus.lock").code == 3
        assert toolbus.run_here("lock", "words").code == 0
        assert toolbus.run_here(*call).out == "3\n"
        listed = toolbus.run_here("tools", "--locked", "toolbus.lock", "--json").value
        assert [each["name"] for each in listed] == ["words"]  # not notes


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("lock", "--check"), 2, "the lock file toolbus.lock does not exist"),
        (("call", "words.count", "--locked", "no.lock"), 2, "the lock file no.lock does not exist"),
        (("host", "clock", "--locked", "no.lock"), 2, "the lock file no.lock does not exist"),
        (("lock", "word"), 4, "toolkit word not found"),
        (("lock", "--file", "no/toolbus.lock"), 2, "cannot write no/toolbus.lock"),
        (("lock", "--file", "a" * 300), 2, "File name too long"),
    ],
)
def test_wrong_file_or_name_is_refused(
    toolbus: CommandLine, arguments: tuple[str, ...], code: int, text: str
) -> None:
    outcome = toolbus.run_here(*arguments)
    assert (outcome.code, text in outcome.err) == (code, True), outcome.err
