"""`RemoteToolkit.run()` as a program: its messages and exit codes when it cannot run."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.patience import PATIENCE_S
from support.processes.command_line import CommandLine, Outcome
from toolbus import RemoteToolkit

WORDS = """
from toolbus import RemoteToolkit, Tool, tool

@tool
def count(text: str) -> int:
    return len(text)

class Opened(Tool):
    name = "opened"
    input_schema = {}

    async def start(self, room):
        print("joined", flush=True)

    async def execute(self, context, /):
        return None

class Broken(Opened):
    async def start(self, room):
        raise ValueError("a bug")

words = RemoteToolkit("words", [count, Opened()])
broken = RemoteToolkit("broken", [Broken()])

if __name__ == "__main__":
    words.run()
"""
NOWHERE = "ws://127.0.0.1:1"


@pytest.fixture(scope="module")
def toolbus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    folder = tmp_path_factory.mktemp("run")
    (folder / "words.py").write_text(WORDS, encoding="utf-8")
    here = CommandLine(folder)
    with here.serving() as (_, url):
        yield here.at(url)


@pytest.fixture(autouse=True)
def _words(toolbus: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the module importable for commands in this process, and remove it afterwards."""
    monkeypatch.syspath_prepend(toolbus.folder)
    yield
    sys.modules.pop("words", None)


@contextmanager
def python(
    toolbus: CommandLine, *arguments: str, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """Run a program for as long as the block runs."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=toolbus.folder,
        env=toolbus.environment(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> Outcome:
    out, err = process.communicate(timeout=PATIENCE_S)
    return Outcome(process.returncode, out, err)


def run(toolbus: CommandLine, *arguments: str, **variables: str) -> Outcome:
    with python(toolbus, *arguments, **variables) as process:
        return ended(process)


def token(toolbus: CommandLine, *arguments: str) -> str:
    made = toolbus.run_here("token", "create", "--name", "eve", *arguments)
    assert made.code == 0, made.err
    return made.out.strip()


# Expected errors


def assert_ends_as_the_command_does(
    toolbus: CommandLine, variables: Mapping[str, str], code: int
) -> str:
    with python(toolbus, "words.py", **variables) as program:
        by_command = toolbus.run_here("host", "words:words", **variables)
        by_itself = ended(program)
    assert (by_itself.code, by_itself.err) == (by_command.code, by_command.err)
    assert by_itself.code == code
    assert "Traceback" not in by_itself.err
    first, *others = by_itself.err.splitlines()
    assert all(line.startswith("  next: ") for line in others)
    assert len(others) <= 1
    return first


@pytest.mark.parametrize(
    ("variables", "code", "message"),
    [
        (
            {"TOOLBUS_URL": NOWHERE, "TOOLBUS_WAIT": "off"},
            6,
            "unavailable: cannot connect to ws://127.0.0.1:1",
        ),
        ({"TOOLBUS_URL": "http://x"}, 2, "'http://x' is not a server address"),
        ({"TOOLBUS_WAIT": "no"}, 2, "TOOLBUS_WAIT must be 'on' or 'off'"),
        ({"TOOLBUS_ROOM": "A B"}, 2, "'A B' is not a room name"),
        (
            {"TOOLBUS_HOME": "/nowhere"},
            2,
            "no token: TOOLBUS_HOME is /nowhere, which has no dev-keys.toml: set TOOLBUS_TOKEN or",
        ),
        (
            {"TOOLBUS_TOKEN": "a token"},
            2,
            "the token (TOOLBUS_TOKEN) is neither a signed token nor the name of a file with one: ",
        ),
        ({"TOOLBUS_TOKEN_FILE": "nowhere"}, 2, "cannot read the token (TOOLBUS_TOKEN_FILE)"),
        ({"TOOLBUS_TOKEN_FILE": "e30.e30.t"}, 2, "this is the token itself, not the name of its"),
        (
            {"TOOLBUS_KEYS": "nowhere", "TOOLBUS_NAME": "eve"},
            2,
            "cannot read the keys (TOOLBUS_KEYS)",
        ),
        ({"TOOLBUS_KEYS": "nowhere"}, 2, "set TOOLBUS_NAME"),
        ({"TOOLBUS_TOKEN": "e30.e30.t"}, 3, "permission_denied: the server refuses the token"),
    ],
)
def test_invalid_setting_ends_run_with_one_line(
    toolbus: CommandLine, variables: dict[str, str], code: int, message: str
) -> None:
    assert message in assert_ends_as_the_command_does(toolbus, variables, code)


def test_missing_grant_ends_run_with_one_line(toolbus: CommandLine) -> None:
    variables = {"TOOLBUS_TOKEN": token(toolbus, "--allow", "words")}
    first = assert_ends_as_the_command_does(toolbus, variables, 3)
    assert first.startswith("toolbus: permission_denied: no grant to register")


def test_token_for_another_room_ends_run_with_both_names(toolbus: CommandLine) -> None:
    variables = {"TOOLBUS_TOKEN": token(toolbus, "--preset", "host", "--room", "lab")}
    first = assert_ends_as_the_command_does(toolbus, variables, 3)
    assert "the token is for room lab, not for room main" in first


def test_taken_name_ends_run_with_one_line(toolbus: CommandLine) -> None:
    eve = {"TOOLBUS_NAME": "eve", "TOOLBUS_ROOM": "taken"}  # where the name stays reserved for bob
    with toolbus.hosting("words:words", "--name", "bob", "--room", "taken"):
        first = assert_ends_as_the_command_does(toolbus, eve, 3)
    assert first.startswith("toolbus: already_exists: toolkit words belongs to another")


def test_room_closed_by_the_server_ends_run_with_one_line(toolbus: CommandLine) -> None:
    variables = {"TOOLBUS_INSTANCE": "the-one"}
    with python(toolbus, "words.py", **variables) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "joined\n"
        with python(toolbus, "words.py", **variables) as second:
            outcome = ended(first)
            # The call waits for the host: before it is registered, a signal ends it with 5.
            assert run(toolbus, "-m", "toolbus", "call", "words.count", "text=ab").out == "2\n"
            second.send_signal(signal.SIGTERM)
            assert ended(second).code == 0
    assert outcome.code == 3
    assert "toolbus: permission_denied: a newer connection of this instance" in outcome.err
    assert "Traceback" not in outcome.err


# Everything else


def test_exception_of_a_start_ends_run_with_its_tool_and_line(toolbus: CommandLine) -> None:
    outcome = run(toolbus, "-c", "import words; words.broken.run()")
    assert outcome.code == 1
    assert outcome.err.splitlines()[0] == (
        "toolbus: tool_failed: toolkit broken cannot start: ValueError: a bug (words.py:20); "
        "raised by the start of tool opened (executed: no)"
    )
    assert "Traceback" not in outcome.err


def test_program_can_catch_the_exit(toolbus: CommandLine) -> None:
    program = (
        "import words\ntry: words.words.run(wait=False)\nexcept SystemExit as end: print(end.code)"
    )
    outcome = run(toolbus, "-c", program, TOOLBUS_URL=NOWHERE)
    assert (outcome.code, outcome.out) == (0, "6\n")


async def test_run_in_an_event_loop_says_what_to_write() -> None:
    with pytest.raises(RuntimeError, match="in an async program write `async with RoomClient"):
        RemoteToolkit("words").run()


def test_import_of_the_sdk_loads_nothing_of_the_command_line(tmp_path: Path) -> None:
    program = """
import sys, toolbus, toolbus.service.remote_toolkit
brought = {"typer", "rich", "toolbus.cli", "toolbus.cli.app"} & sys.modules.keys()
print(sorted(brought))
"""
    assert run(CommandLine(tmp_path), "-c", program).out == "[]\n"
