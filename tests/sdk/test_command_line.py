"""How commands are found, and what is said of one that cannot be imported."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from typer.testing import CliRunner

import toolbus_command
from support.command_line import PATIENCE_S, CommandLine, heard_interrupts
from toolbus import command_line
from toolbus.command_line import COMMANDS, make_app, missing_extra
from toolbus.exit_codes import ExitCode
from toolbus.telemetry import toolbus_version

ROOT = Path(__file__).parents[2]

OURS = ["serve", "host", "tools", "call", "watch", "trace", "token", "key", "doctor", "demo"]


def announce(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    entries = [EntryPoint(name, value, COMMANDS) for name, value in values.items()]
    monkeypatch.setattr(command_line, "entry_points", lambda group: entries)


def test_help_names_every_command_in_the_order_people_meet_them() -> None:
    listed = CliRunner().invoke(make_app(), ["--help"], env={"COLUMNS": "200"}).stdout
    places = [listed.find(f"│ {name} ") for name in OURS]
    assert -1 not in places
    assert places == sorted(places)


def test_release_is_printed(tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome = CommandLine(tmp_path_factory.mktemp("version")).run("--version")
    assert (outcome.code, outcome.out) == (0, f"toolbus {toolbus_version()}\n")


def test_command_whose_extra_is_missing_says_which_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("extra")
    (folder / "needs_server.py").write_text(
        "raise ModuleNotFoundError('No module', name='rfc8785')"
    )
    monkeypatch.syspath_prepend(str(folder))
    announce(monkeypatch, fancy="needs_server:fancy")
    result = CliRunner().invoke(make_app(), ["fancy", "--any", "thing"])
    assert result.exit_code == 2
    assert result.stderr == "toolbus fancy: rfc8785 is missing: pip install 'toolbus[server]'\n"


def test_broken_command_of_others_leaves_ours_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("broken")
    (folder / "broken_command.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(folder))
    announce(monkeypatch, odd="broken_command:odd", token="toolbus.commands.token:token")
    listed = CliRunner().invoke(make_app(), ["--help"])
    assert listed.exit_code == 0
    assert "ZeroDivisionError" in listed.stdout
    assert CliRunner().invoke(make_app(), ["token", "create", "--help"]).exit_code == 0


_NEWCOMER = """
import gc

def look() -> None:
    print(gc.isenabled(), gc.get_freeze_count() > 10_000)
"""


def test_command_of_a_process_of_its_own_is_spared_a_search_of_what_was_loaded_for_garbage(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("garbage")
    (folder / "newcomer.py").write_text(_NEWCOMER)
    program = (
        "from importlib.metadata import EntryPoint; import toolbus.command_line as it; "
        "it.entry_points = lambda group: [EntryPoint('look', 'newcomer:look', group)]; it.main()"
    )
    told = subprocess.run(
        [sys.executable, "-c", program, "look"], cwd=folder, capture_output=True, text=True
    )
    assert (told.stdout, told.stderr) == ("True True\n", "")


def test_command_within_another_process_leaves_its_garbage_to_it() -> None:
    before = gc.get_freeze_count()
    assert CliRunner().invoke(make_app(), ["token", "--help"]).exit_code == 0
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, before)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["--json", "call", "a.b"], "--json comes after the command: toolbus call ... --json"),
        (["--url=ws://x:1", "call"], "--url comes after the command: toolbus call ... --url"),
        (["--room", "lab", "host", "x"], "--room comes after the command: toolbus host ... --room"),
        (["--dev", "serve"], "--dev comes after the command: toolbus serve ... --dev"),
    ],
)
def test_flag_before_its_command_is_told_where_it_goes(typed: list[str], words: str) -> None:
    result = CliRunner().invoke(make_app(), typed)
    assert (result.exit_code, result.stderr) == (2, f"toolbus: {words}\n")


@pytest.mark.parametrize("typed", [["--json"], ["--nope", "call"], ["--json", "--nope"]])
def test_flag_that_no_command_has_is_unknown(typed: list[str]) -> None:
    result = CliRunner().invoke(make_app(), typed, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert f"No such option: {typed[0]}" in result.stderr


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("rfc8785", "server"),
        ("uvicorn", "otel"),
        ("opentelemetry.sdk.trace", "otel"),
        ("pytest", None),
        ("nowhere", None),
    ],
)
def test_extra_is_found_by_the_module_that_is_missing(module: str, extra: str | None) -> None:
    assert missing_extra(ModuleNotFoundError(name=module)) == extra


def test_server_without_its_extra_says_which_to_install(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("bare")
    (folder / "rfc8785.py").write_text("raise ModuleNotFoundError('No module', name='rfc8785')")
    outcome = CommandLine(folder, {"PYTHONPATH": str(folder)}).run("serve", "--dev", "--port", "0")
    assert outcome.code == 2
    assert "rfc8785 is missing: pip install 'toolbus[server]'" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["call"],
        ["host"],
        ["serve"],
        ["watch"],
        ["token", "create"],
        ["key", "create"],
        ["demo"],
    ],
)
def test_help_shows_switches_without_a_value(command: list[str]) -> None:
    shown = CliRunner().invoke(make_app(), [*command, "--help"], env={"COLUMNS": "200"}).stdout
    assert "--help" in shown
    assert "-h" in shown
    assert "bool" not in shown


# Ctrl-C before a command has begun


def test_interrupt_while_it_is_imported_ends_it_with_one_line_and_exit_code_5(
    tmp_path: Path,
) -> None:
    """The interpreter tells each import that has ended, so that the signal comes within others."""
    start = "from toolbus_command import main; main()"
    with (
        heard_interrupts(),
        subprocess.Popen(
            [sys.executable, "-X", "importtime", "-c", start, "tools"],
            env=CommandLine(tmp_path).environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stderr is not None
        while not process.stderr.readline().endswith(" toolbus.errors\n"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    told = [line for line in err.splitlines() if not line.startswith("import time:")]
    assert (process.returncode, told) == (ExitCode.GIVEN_UP, ["toolbus: given up by Ctrl-C"])


def test_interrupt_while_a_command_is_imported_ends_it_the_same_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(EntryPoint):
        def load(self) -> None:
            raise KeyboardInterrupt

    entries = [Interrupted("slow", "nowhere:slow", COMMANDS)]
    monkeypatch.setattr(command_line, "entry_points", lambda group: entries)
    result = CliRunner().invoke(make_app(), ["slow"])
    assert (result.exit_code, result.stdout) == (ExitCode.GIVEN_UP, "")
    assert result.stderr == "toolbus: given up by Ctrl-C\n"


def test_command_that_is_installed_starts_where_interrupts_are_heard_from_the_first_import() -> (
    None
):
    written = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    name = f"{toolbus_command.main.__module__}:{toolbus_command.main.__name__}"
    assert written["project"]["scripts"] == {"toolbus": name}
