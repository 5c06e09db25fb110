"""Shell completion: existing names, and nothing on any failure."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from support.processes.command_line import CommandLine
from toolbus.cli import completion
from toolbus.cli.completion import complete_installed

KITS = """
from toolbus import Toolkit, tool

@tool
def file() -> None: ...

@tool
def fail() -> None: ...

lab = Toolkit("lab", [file, fail])
shop = Toolkit("shop", [file])
"""


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    folder = tmp_path_factory.mktemp("completion")
    (folder / "kits.py").write_text(KITS, encoding="utf-8")
    here = CommandLine(folder)
    with here.serving() as (_, url):
        there = here.at(url)
        with there.hosting("kits:lab", "kits:shop", "--name", "bob") as host:
            assert host.line()  # the second of them
            yield there


def offered(toolbus: CommandLine, typed: str, **variables: str) -> list[str]:
    """Return the completions of a typed line, which begins with the command."""
    outcome = toolbus.run_here(**pressing_tab(typed), **variables)
    assert outcome.err == ""
    return outcome.out.split()


def pressing_tab(typed: str) -> dict[str, str]:
    """The variables that bash sets."""
    return {
        "_TOOLBUS_COMPLETE": "complete_bash",
        "COMP_WORDS": f"toolbus {typed}",
        "COMP_CWORD": str(typed.count(" ") + 1),
    }


def test_completion_in_a_shell_prints_only_the_names(
    toolbus: CommandLine,
) -> None:
    outcome = toolbus.run(**pressing_tab("call lab.f"))
    assert (outcome.code, outcome.out.split(), outcome.err) == (0, ["lab.file", "lab.fail"], "")


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("call lab.f", ["lab.file", "lab.fail"]),
        ("tools ", ["lab", "lab.file", "lab.fail", "shop", "shop.file"]),
        ("tools s", ["shop", "shop.file"]),
        ("tools --participant ", ["bob"]),
        ("call shop.file --participant b", ["bob"]),
        ("token create --preset ", ["host", "agent", "user", "full"]),
        ("token create --preset u", ["user"]),
        ("host cl", ["clock"]),
        ("cal lab.f", []),
        ("send lab.f", []),
        ("--url x cont", ["context"]),
        ("--version cont", ["context"]),
    ],
)
def test_existing_names_are_completed(toolbus: CommandLine, typed: str, names: list[str]) -> None:
    assert offered(toolbus, typed) == names


@pytest.mark.parametrize("typed", ["call ", "tools ", "tools --participant "])
@pytest.mark.parametrize("url", ["ws://127.0.0.1:1", "no address"])
def test_nothing_is_completed_without_a_server(toolbus: CommandLine, typed: str, url: str) -> None:
    assert offered(toolbus, typed, TOOLBUS_URL=url) == []


def test_names_that_mean_something_to_a_shell_are_not_completed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Participants choose them; zsh evaluates what a completion prints."""
    names = ["a-b.c_1", "ann@example.org", "Zoë"]
    bad = [
        "$(id)",
        "`id`",
        "a;id",
        "a b",
        "a'b",
        'a"b',
        "a\nb",
        "--token",
        "~root",
        "a|b",
        "a\\b",
        "*",
    ]
    found = [EntryPoint(name, "kits:lab", "toolbus.toolkits") for name in (*names, *bad)]
    monkeypatch.setattr(completion, "entry_points", lambda group: found)
    assert complete_installed("") == sorted(names)


def test_nothing_is_completed_if_packages_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(group: str) -> list[EntryPoint]:
        raise OSError(group)

    monkeypatch.setattr(completion, "entry_points", fail)
    assert complete_installed("") == []
