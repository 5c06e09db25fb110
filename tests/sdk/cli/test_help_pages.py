"""The pages of `--help` and `--help-all`: panels, folded options, and how lines are wrapped."""

from __future__ import annotations

import json
import re
from importlib.metadata import EntryPoint, PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from support.processes.command_line import CommandLine
from support.processes.pseudo_terminal import in_terminal
from toolbus.cli.app import COMMANDS, CommandGroup, make_app
from toolbus.cli.own_commands import LACKING, OWN_COMMANDS, PANELS, install_line

PAGES = [*([name] for name in OWN_COMMANDS), ["room", "send"], ["token", "create"]]


def page(*typed: str, columns: int = 80) -> str:
    shown = CliRunner().invoke(
        make_app(), [*typed], env={"COLUMNS": str(columns)}, prog_name="toolbus"
    )
    assert shown.exit_code == 0
    return shown.stdout


def panels(text: str) -> dict[str, list[str]]:
    """The names in each panel, with what stands beside them."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if heading := re.fullmatch(r"(\w[\w ]*):", line):
            found[heading[1]] = []
        elif found and re.match(r"  \w", line) and not line.startswith("  Options: "):
            found[[*found][-1]].append(" ".join(line.split()))
    return found


def test_page_of_toolbus_has_every_command_in_a_panel_and_fits_on_a_screen() -> None:
    text = page("--help")
    assert len(text.splitlines()) <= 45 - 2  # where an extra is missing there is a panel more
    found = panels(text)
    assert [*found] == [*PANELS]
    listed = [f"{name} {own.help}" for name, own in OWN_COMMANDS.items()]
    assert [line for lines in found.values() for line in lines] == listed
    assert "\n  Options: --version, " in text
    assert text.rstrip().endswith(" ... see --help-all")


def test_commands_that_lack_an_extra_stand_last_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolbus.cli.own_commands._is_installed", lambda _: False)
    text = page("--help", columns=200)
    found = panels(text)
    assert [*found] == [*PANELS, LACKING]
    lacking = {name: own.extras for name, own in OWN_COMMANDS.items() if own.extras}
    assert found[LACKING] == [f"{name} {install_line(of)}" for name, of in lacking.items()]
    assert "[server,otel,shell]'" in install_line(lacking["demo"])
    assert len(text.splitlines()) <= 45


def test_line_that_installs_an_extra_names_the_clone_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clone = tmp_path / "it's\x1b[31m here"
    clone.mkdir()

    def installed(text: str | None) -> None:
        monkeypatch.setattr(
            "toolbus.cli.own_commands.distribution",
            lambda _: SimpleNamespace(read_text=lambda _: text),
        )

    from_index = "pip install 'toolbus[otel]'"
    installed(None)
    assert install_line(["otel"]) == from_index
    installed(json.dumps({"url": clone.as_uri(), "dir_info": {}}))
    shown = f"{tmp_path}/it'\"'\"'s\\x1b[31m here[otel,server]"
    assert install_line(["otel", "server"]) == f"pip install '{shown}'"
    installed(json.dumps({"url": (tmp_path / "gone").as_uri(), "dir_info": {"editable": True}}))
    assert install_line(["otel"]) == from_index
    installed(json.dumps({"url": "https://host/toolbus.whl", "archive_info": {}}))
    assert install_line(["otel"]) == from_index

    def missing(_: str) -> NoReturn:
        raise PackageNotFoundError

    monkeypatch.setattr("toolbus.cli.own_commands.distribution", missing)
    assert install_line(["otel"]) == from_index


def test_options_of_room_and_log_are_one_line_of_a_page_and_all_of_them_on_the_other() -> None:
    text = page("call", "--help")
    assert "\n  Room and log options: --url, --room, --token ... see --help-all\n" in text
    assert "--json" in text
    assert "URL of the server" not in text
    everything = page("call", "--help-all")
    assert [*re.findall(r"^(\w+):$", everything, re.M)] == ["Arguments", "Options", "Room", "Log"]
    assert "URL of the server" in everything
    assert "see --help-all" not in everything
    assert "\n  Log options: --log-level, --verbose, --log-json ... see --help-all" in page(
        "token", "create", "--help"
    )
    assert "--install-completion" in page("--help-all")


@pytest.mark.parametrize("typed", PAGES, ids=" ".join)
@pytest.mark.parametrize("columns", [20, 40, 80])
def test_page_is_wrapped_without_cutting_a_word_and_has_no_blanks_at_line_ends(
    typed: list[str], columns: int
) -> None:
    whole = page(*typed, "--help-all", columns=1_000)
    text = page(*typed, "--help-all", columns=columns)
    assert text.split() == whole.split()
    assert not any(line.endswith(" ") for line in text.splitlines())
    assert "\x1b" not in text


def test_commands_of_other_packages_are_in_the_last_panel_and_cannot_steer_a_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = 'def run() -> None:\n    """Two\\nlines and \\x1b[31mred."""\n'
    (tmp_path / "steering.py").write_text(program)
    monkeypatch.syspath_prepend(str(tmp_path))
    entries = [EntryPoint(name, "steering:run", COMMANDS) for name in ("other", "a\n\x1b[2J")]
    monkeypatch.setattr("toolbus.cli.app.entry_points", lambda group: entries)
    last = panels(page("--help"))[PANELS[-1]]
    assert last[-2:] == [
        f"{name} Two lines and \\x1b[31mred." for name in ("a\\n\\x1b[2J", "other")
    ]


def test_folded_options_are_still_completed() -> None:
    group = get_command(make_app())
    assert isinstance(group, CommandGroup)
    root = typer.Context(group)
    command = group.import_command(root, "call")
    assert command is not None
    context = typer.Context(command, parent=root)
    context.get_help()
    assert {"--url", "--log-json"} <= {item.value for item in command.shell_complete(context, "--")}


def test_terminal_gets_the_same_page(tmp_path: Path) -> None:
    toolbus = CommandLine(tmp_path)
    with in_terminal(toolbus, "--help") as terminal:
        assert terminal.ended() == 0
    drawn = re.sub(r"\x1b\[\d*m", "", terminal.drawn.replace("\r\n", "\n"))
    assert drawn == page("--help", columns=100)
    assert "\x1b[1mRun:\x1b[0m" in terminal.drawn
