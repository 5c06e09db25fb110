"""How commands are found, and the message for one that cannot be imported."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint, packages_distributions
from pathlib import Path

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

import toolbus.__main__
from support.patience import PATIENCE_S
from support.processes.command_line import CommandLine, heard_interrupts, hosted_sums
from toolbus.cli import app as command_line
from toolbus.cli.app import COMMANDS, CommandGroup, make_app, missing_extra
from toolbus.cli.own_commands import OWN_COMMANDS, install_line
from toolbus.diagnostics.exit_codes import ExitCode
from toolbus.telemetry.tracing import toolbus_version

ROOT = Path(__file__).parents[3]


def announce(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    entries = [EntryPoint(name, value, COMMANDS) for name, value in values.items()]
    monkeypatch.setattr(command_line, "entry_points", lambda group: entries)


def test_version_is_printed(tmp_path_factory: pytest.TempPathFactory) -> None:
    outcome = CommandLine(tmp_path_factory.mktemp("version")).run("--version")
    assert (outcome.code, outcome.out) == (0, f"toolbus {toolbus_version()}\n")


def test_command_without_its_extra_names_the_extra(
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
    assert result.stderr == f"toolbus fancy: rfc8785 is missing: {install_line(['server'])}\n"


@pytest.mark.parametrize("code", ["1 / 0", "raise SystemExit"])
def test_broken_command_of_another_package_does_not_affect_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str
) -> None:
    (tmp_path / "broken_command.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    announce(monkeypatch, odd="broken_command:odd", token="toolbus.cli.commands.token:token")
    listed = CliRunner().invoke(make_app(), ["--help"])
    assert listed.exit_code == 0
    assert "odd          (cannot be loaded: " in listed.stdout
    assert CliRunner().invoke(make_app(), ["token", "create", "--help"]).exit_code == 0


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        (["--json", "call", "a.b"], "--json must follow the command: toolbus call ... --json"),
        (["--url=ws://x:1", "call"], "--url must follow the command: toolbus call ... --url"),
        (["--room", "lab", "host", "x"], "--room must follow the command: toolbus host ... --room"),
        (["--dev", "serve"], "--dev must follow the command: toolbus serve ... --dev"),
    ],
)
def test_flag_before_its_command_is_refused_with_a_hint(typed: list[str], text: str) -> None:
    result = CliRunner().invoke(make_app(), typed)
    assert (result.exit_code, result.stderr) == (2, f"toolbus: {text}\n")


@pytest.mark.parametrize("typed", [["--json"], ["--nope", "call"], ["--json", "--nope"]])
def test_unknown_flag_is_refused(typed: list[str]) -> None:
    result = CliRunner().invoke(make_app(), typed, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert f"No such option: {typed[0]}" in result.stderr


@pytest.mark.parametrize(
    "typed",
    [
        "admin kick ?",
        "builders ?",
        "call a.b x=?",
        "call a.b --pin ?",
        "host ?",
        "key create --kid ?",
        "token create --name a --allow ?",
        "tools ?",
        "tools --url ws://?:1",
    ],
)
def test_text_that_is_not_utf_8_is_refused(typed: str) -> None:
    arguments = typed.replace("?", "\udcff").split()  # what Python makes of other bytes
    result = CliRunner().invoke(make_app(), arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert f"{arguments[-1]!r} is not valid UTF-8" in result.stderr


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("cal", "No such command 'cal'. Did you mean 'call'?"),
        ("tool", "No such command 'tool'. Did you mean 'tools'?"),
        ("qqq", "No such command 'qqq'.\n"),
        ("status", "No such command 'status'.\n"),
        ("tools --jsn", "No such option: --jsn (Possible options: --json)"),
        (
            "call orders.list --status open",
            "No such option: --status; an argument of the tool is written NAME=VALUE: status=...\n",
        ),
    ],
)
def test_unknown_command_or_option_is_refused_with_a_similar_one(typed: str, text: str) -> None:
    result = CliRunner().invoke(make_app(), typed.split(), env={"COLUMNS": "200"})
    assert (result.exit_code, text in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("calls --json", "there is no `toolbus calls`: write `toolbus records`"),
        ("send bob note", "there is no `toolbus send`: write `toolbus room send`"),
        ("listen", "there is no `toolbus listen`: write `toolbus room listen`"),
        ("participants --help", "write `toolbus room participants`"),
        ("list", "there is no `toolbus list`: write `toolbus tools`"),
        ("version", "there is no `toolbus version`: write `toolbus --version`"),
        ("run x", "write `toolbus host` to host a toolkit, or `toolbus serve` to run a server"),
    ],
)
def test_former_and_expected_commands_are_refused_with_what_to_write(typed: str, text: str) -> None:
    result = CliRunner().invoke(make_app(), typed.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("toolbus: ")
    assert result.stderr.endswith(f"{text}\n")


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("rfc8785", "server"),
        ("redis", "server"),
        ("hiredis", "server"),
        ("starlette", "gateway"),
        ("opentelemetry.sdk.trace", "otel"),
        ("pytest", None),
        ("nowhere", None),
    ],
)
def test_extra_is_found_by_its_missing_module(module: str, extra: str | None) -> None:
    assert missing_extra(ModuleNotFoundError(name=module)) == extra


LIST_WITHOUT_EXTRAS = """
import sys
from importlib.abc import MetaPathFinder
from toolbus.cli.app import CommandGroup, make_app
from toolbus.cli.own_commands import OWN_COMMANDS
from typer import Context
from typer.main import get_command

class Nowhere(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in sys.argv[1:]:
            raise ModuleNotFoundError("No module", name=name)

sys.meta_path.insert(0, Nowhere())
group = get_command(make_app())
for name in OWN_COMMANDS:
    command = group.import_command(Context(group), name)
    if command.callback is not None and command.callback.__name__ == "explain":
        print(name)
"""


def test_every_extra_without_which_a_command_cannot_be_imported_is_in_the_list(
    tmp_path: Path,
) -> None:
    optional = {
        module
        for module, names in packages_distributions().items()
        if any(missing_extra(ModuleNotFoundError(name=name)) for name in names)
    }
    optional -= {"cryptography", "opentelemetry"}  # parts of these are there without an extra
    with CommandLine(tmp_path).running(
        "-c", LIST_WITHOUT_EXTRAS, *optional, "opentelemetry.sdk"
    ) as running:
        outcome = running.ended()
    assert outcome.err == ""
    cannot = set(outcome.out.split())
    assert {"serve", "bundle"} <= cannot
    assert cannot <= {name for name, own in OWN_COMMANDS.items() if own.extras}


def test_list_of_commands_says_in_one_line_what_each_command_says_of_itself() -> None:
    group = get_command(make_app())
    assert isinstance(group, CommandGroup)
    for name, own in OWN_COMMANDS.items():
        command = group.import_command(typer.Context(group), name)
        assert command is not None
        first, _, _ = (command.help or "").partition("\n\n")
        assert (name, own.help) == (name, " ".join(first.split()))
        assert len(own.help) <= 63


# Imports: what a command does not need, it does not import, because people wait for it.

SLOW = {
    *("cryptography", "griffe", "httpx2", "jwt", "keyring", "mcp", "opentelemetry.sdk", "redis"),
    *("requests", "sqlite3", "toolbus_server", "toolbus_toolkits", "uvicorn", "yaml"),
}
TAB = {"_TOOLBUS_COMPLETE": "complete_bash", "COMP_WORDS": "toolbus ", "COMP_CWORD": "1"}
A_ROOM = {"asyncio", "jsonschema_rs", "msgspec", "opentelemetry", "toolbus.client", "websockets"}
IMPORTED = """
import atexit, sys
from toolbus.__main__ import main

atexit.register(lambda: print(*sys.modules, file=sys.stderr))
main()
"""


@pytest.mark.parametrize(
    ("arguments", "variables", "unneeded"),
    [
        (["--help"], {}, SLOW | A_ROOM | {"rich"}),
        (["--version"], {}, SLOW | {"rich", "pydantic", "toolbus.client"}),
        ([], TAB, SLOW | A_ROOM | {"rich"}),
        (["call", "--help"], {}, SLOW),
        (["host", "--help"], {}, SLOW - {"sqlite3"}),
        (["serve", "--help"], {}, SLOW - {"cryptography", "jwt", "toolbus_server"}),
    ],
)
def test_command_imports_only_what_it_needs(
    arguments: list[str], variables: dict[str, str], unneeded: set[str], tmp_path: Path
) -> None:
    with CommandLine(tmp_path).running("-c", IMPORTED, *arguments, **variables) as running:
        imported = set(running.ended().err.split())
    assert "toolbus.cli.app" in imported
    assert unneeded & imported == set()


UNCALLED = {"rich", "toolbus.cli.call_trace", "toolbus.room.calls", "toolbus.room.lock_file"}


def test_call_and_tools_into_a_pipe_import_only_what_they_need(tmp_path: Path) -> None:
    with hosted_sums(tmp_path) as there:
        for arguments in (("call", "sums.add", "a=1"), ("tools",), ("tools", "sums")):
            with there.running("-c", IMPORTED, *arguments) as running:
                outcome = running.ended()
            assert outcome.code == 0, outcome.err
            assert (SLOW | UNCALLED) & set(outcome.err.split()) == set()


def without(package: str, folder: Path) -> CommandLine:
    """Processes that do not find this package."""
    missing = f"raise ModuleNotFoundError('No module', name={package!r})"
    (folder / f"{package}.py").write_text(missing)
    return CommandLine(folder, {"PYTHONPATH": str(folder)})


@pytest.mark.parametrize("command", ["bundle", "registry"])
def test_command_that_names_its_extra_itself_is_reported_in_its_words(
    command: str, tmp_path: Path
) -> None:
    outcome = without("packaging", tmp_path).run(command, "list")
    assert outcome.code == 2
    assert outcome.err.startswith(f"toolbus {command}: ")
    assert "Error" not in outcome.err
    assert outcome.err.endswith(f"{install_line(['bundles'])}\n")


@pytest.mark.parametrize(("flags", "code"), [((), 2), (("--json",), 2), (("--help",), 0)])
def test_toolkit_that_lacks_its_extra_is_reported_with_the_line_that_installs_it_here(
    flags: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    outcome = without("tree_sitter", tmp_path).run("host", "shell", *flags)
    assert (outcome.code, install_line(["shell"]) in outcome.err) == (code, True), outcome.err


@pytest.mark.parametrize("command", ["mcp", "gateway"])
def test_command_that_lacks_a_package_of_no_extra_names_its_own_extra(
    command: str, tmp_path: Path
) -> None:
    outcome = without("anyio", tmp_path).run(command)
    assert outcome.code == 2
    assert outcome.err == f"toolbus {command}: anyio is missing: {install_line(['gateway'])}\n"


@pytest.mark.parametrize("package", ["packaging", "rfc8785", "redis", "hiredis"])
def test_server_without_its_extra_names_the_extra(package: str, tmp_path: Path) -> None:
    options = ["--dev", "--port", "0", "--redis", "redis://127.0.0.1:1"]
    outcome = without(package, tmp_path).run("serve", *options)
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    assert package in outcome.err
    assert outcome.err.endswith(f"{install_line(['server'])}\n")


NODE = """
import asyncio, toolbus, toolbus_server
keys = toolbus.KeyRing([toolbus.Key.generate(kid="a", iss="a")])
settings = toolbus_server.ServerSettings(keys=keys, port=0, redis="redis://127.0.0.1:1")
asyncio.run(toolbus_server.RoomServer(settings).start())
"""


@pytest.mark.parametrize(
    ("package", "program"),
    [
        ("rfc8785", "import toolbus_server"),
        ("rfc8785", "import toolbus_server.testing"),
        ("redis", NODE),
        ("hiredis", NODE),
    ],
)
def test_program_without_the_extra_names_the_extra(
    package: str, program: str, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=without(package, tmp_path).environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.stderr.count("Traceback") == 1
    assert ended.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: the server needs {package}, which is not installed: "
        "pip install 'toolbus[server]'"
    )


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


def test_ctrl_c_during_import_prints_one_line_and_exits_with_5(
    tmp_path: Path,
) -> None:
    """The interpreter reports each finished import, so the signal arrives during a later one."""
    start = "from toolbus.__main__ import main; main()"
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
    received = [line for line in err.splitlines() if not line.startswith("import time:")]
    assert (process.returncode, received) == (
        ExitCode.CANCELLED,
        ["toolbus: cancelled with Ctrl-C"],
    )


def test_ctrl_c_while_a_command_is_imported_does_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(EntryPoint):
        def load(self) -> None:
            raise KeyboardInterrupt

    entries = [Interrupted("slow", "nowhere:slow", COMMANDS)]
    monkeypatch.setattr(command_line, "entry_points", lambda group: entries)
    result = CliRunner().invoke(make_app(), ["slow"])
    assert (result.exit_code, result.stdout) == (ExitCode.CANCELLED, "")
    assert result.stderr == "toolbus: cancelled with Ctrl-C\n"


def test_ctrl_c_at_a_question_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask() -> None:
        typer.prompt("value", err=True)

    class Asking(EntryPoint):
        def load(self) -> Callable[[], None]:
            return ask

    monkeypatch.setattr(command_line, "entry_points", lambda group: [Asking("ask", "", COMMANDS)])
    result = CliRunner().invoke(make_app(), ["ask"], input="")
    assert result.exit_code == ExitCode.CANCELLED
    assert result.stderr.endswith("toolbus: cancelled with Ctrl-C\n")


def test_ctrl_c_that_an_import_turns_into_another_error_does_the_same(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, signal\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    while True: pass\n"
        "except KeyboardInterrupt: raise ImportError('slow')"
    )
    start = (
        "from importlib.metadata import EntryPoint; import toolbus.cli.app as app;"
        "app.entry_points = lambda group: [EntryPoint('slow', 'slow:slow', group)];"
        "from toolbus.__main__ import main; main()"
    )
    with heard_interrupts():
        done = subprocess.run(
            [sys.executable, "-c", start, "slow"],
            env={**CommandLine(tmp_path).environment(), "PYTHONPATH": str(tmp_path)},
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert (done.returncode, done.stderr) == (5, "toolbus: cancelled with Ctrl-C\n")


def test_installed_script_handles_ctrl_c_from_its_first_import() -> None:
    written = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    name = f"{toolbus.__main__.main.__module__}:{toolbus.__main__.main.__name__}"
    assert written["project"]["scripts"] == {"toolbus": name}
