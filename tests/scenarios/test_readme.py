"""What README.md shows is what happens: its snippets run, its tables are those of the code."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from support.room_watch import next_toolkit_event
from support.snippets import Block, Step, blocks_of, steps_of
from support.terminals import Service, Terminals
from toolbus import AgentsGrant, ApiScope, RoomClient
from toolbus.command_line import CommandGroup, make_app
from toolbus.errors import ERRORS
from toolbus.exit_codes import ExitCode, exit_code
from toolbus.settings import PRESETS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = list(blocks_of(README))
DOCUMENTS = (
    "README.md",
    "sdk/README.md",
    "sdk/toolbus/wire/PROTOCOL.md",
    "room_server/README.md",
    "room_server/NODES.md",
    "toolkits/README.md",
    "deploy/README.md",
    "deploy/SCALING.md",
    "deploy/k8s/README.md",
    "tests/browser/README.md",
    "tests/bench/README.md",
    "CHANGELOG.md",
)
PICTURE = "text"
SERVICES = ("toolbus serve", "toolbus host", "toolbus trace", "python words.py")


def blocks(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def programs() -> dict[str, Block]:
    return {block.title: block for block in blocks("python")}


# Snippets


def test_every_block_is_of_a_language_that_is_checked_here() -> None:
    assert {block.language for block in BLOCKS} == {"python", "console", PICTURE}


def test_tool_takes_12_lines_and_caller_8() -> None:
    # blank lines, which the formatter sets, are not counted
    assert len([*filter(None, programs()["words.py"].lines)]) <= 12
    assert len([*filter(None, programs()["ask.py"].lines)]) <= 8


def test_every_program_has_a_name_and_a_console_line_that_runs_it() -> None:
    typed = [step.command for block in blocks("console") for step in steps_of(block)]
    for name in programs():
        assert f"python {name}" in typed


def is_service(command: str) -> bool:
    return re.sub(r"^(?:\w+=\S+ )+", "", command).startswith(SERVICES)


def is_for_a_clone(block: Block) -> bool:
    return steps_of(block)[0].command.startswith(("make ", "docker "))


class Reader:
    """Somebody who types a document's console blocks, on ports that are free on this machine."""

    def __init__(self, terminals: Terminals) -> None:
        self._terminals = terminals
        self._ports: dict[str, str] = {}

    def trace_first(self, block: Block) -> None:
        """Receive the spans of everything that is started afterwards."""
        (step,) = steps_of(block)
        service = self._terminals.start(f"{step.command} --port 0", step.prints)
        found = service.wait_for(re.compile(r"OTEL_EXPORTER_OTLP_ENDPOINT=(\S+)"))
        self._terminals.variables["OTEL_EXPORTER_OTLP_ENDPOINT"] = found[1]

    def type(self, block: Block) -> None:
        """Type one block; a service that ends it goes on."""
        steps = [Step(self._on_free_ports(s.command), s.prints) for s in steps_of(block)]
        services = [step for step in steps if is_service(step.command)]
        assert services in ([], steps[-1:]), f"line {block.line_number}: a service ends its block"
        if services:
            steps.pop()
        if steps:
            self._terminals.type(steps)
        for step in services:
            self._start(step)

    def _start(self, step: Step) -> None:
        if "toolbus serve" in step.command:
            self._serve(step)
        elif step.prints:
            self._terminals.start(step.command, step.prints).shows(step.prints)
        else:
            url = self._terminals.variables["TOOLBUS_URL"]
            asyncio.run(_until_hosted(url, lambda: self._terminals.start(step.command, ())))

    def _serve(self, step: Step) -> None:
        port = re.search(r"--port (\d+)", step.command)
        shown = port[1] if port else "7717"
        command = step.command.replace(port[0], "") if port else step.command
        service = self._terminals.start(f"{command} --port 0", step.prints)
        found = service.wait_for(re.compile(r"listening on (ws://[\d.]+:(\d+))"))
        self._ports[shown] = found[2]
        if port is None:
            self._terminals.variables["TOOLBUS_URL"] = found[1]

    def _on_free_ports(self, command: str) -> str:
        for shown, real in self._ports.items():
            command = command.replace(f":{shown}", f":{real}")
        return command


async def _until_hosted(url: str, start: Callable[[], Service]) -> None:
    """Start a service that prints nothing, and wait until the room tells of its toolkit."""
    async with RoomClient(url) as room, room.events(["toolkits"]) as events:
        assert [each.name async for each in room.toolkits()] == []
        start()
        async with asyncio.timeout(60):
            assert (await next_toolkit_event(events)).name == "toolkit_added"


@pytest.fixture
def variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables of a person called "you", who has an empty home and has set nothing."""
    for name in list(os.environ):
        if name.startswith(("TOOLBUS_", "OTEL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TOOLBUS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOGNAME", "you")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return dict(os.environ)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_programs_and_commands_do_what_the_readme_shows(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    for name, program in programs().items():
        (tmp_path / name).write_text(program.text, encoding="utf-8")
    typed = [block for block in blocks("console") if not is_for_a_clone(block)]
    traces = [block for block in typed if steps_of(block)[0].command == "toolbus trace"]
    assert len(traces) == 1
    with Terminals(tmp_path, variables) as terminals:
        reader = Reader(terminals)
        reader.trace_first(traces[0])
        for block in typed:
            if block not in traces:
                reader.type(block)
        terminals.end_all()


def test_commands_for_a_clone_are_there_to_be_typed() -> None:
    """`make test` cannot run within itself, nor can what needs a Docker engine."""
    for block in filter(is_for_a_clone, blocks("console")):
        for step in steps_of(block):
            assert not step.prints
            match step.command.split():
                case ["make", target]:
                    # -B: also where everything is set up already.
                    made = subprocess.run(
                        ["make", "-n", "-B", target], cwd=ROOT, capture_output=True, check=False
                    )
                    assert made.returncode == 0, made.stderr
                    assert b"-m venv .venv" in made.stdout
                case [".", ".venv/bin/activate"]:
                    pass
                case ["docker", "run", *rest]:
                    assert "-p" in rest
                    assert "4318:4318" in rest
                case _:
                    pytest.fail(f"nothing here checks {step.command!r}")


# Tables


def rows(heading: str) -> list[list[str]]:
    """The cells of the table whose first column has this heading."""
    found, is_inside = list[list[str]](), False
    for line in README.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith(f"| {heading} |"):
            is_inside = True
        elif is_inside and line.startswith("|"):
            found += [] if line.startswith("|---") else [cells]
        elif is_inside:
            return found
    raise AssertionError(f"no table begins with {heading}")


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_grants_table_has_every_field_with_its_default() -> None:
    fields = {
        **{f"agents.{name}": value for name, value in vars(AgentsGrant()).items()},
        **{name: value for name, value in vars(ApiScope()).items() if name != "agents"},
    }
    words = {False: "no", (): "none", ("*",): "`*`"}
    shown = {codes(row[0])[0]: row[1] for row in rows("field")}
    assert shown == {name: words[value] for name, value in fields.items()}


def test_presets_table_has_every_preset() -> None:
    shown = [codes(row[0]) for row in rows("preset")]
    assert shown == [
        [f"ApiScope.{make.__name__}()", f"--preset {name}"] for name, make in PRESETS.items()
    ]


def test_errors_table_has_every_code_with_its_class_rules() -> None:
    table = {code: row for row in rows("code") for code in codes(row[0])}
    assert table.keys() == ERRORS.keys()
    for code, kind in ERRORS.items():
        said, tried = table[code][1], table[code][2]
        error = kind()
        if said in {"no", "yes"}:
            assert error.executed == said, code
        else:
            assert error.executed == "maybe", code
        assert tried.startswith("yes") == error.retryable, code
        assert tried.startswith("if no") == (
            not error.retryable and kind("", executed="no").retryable
        ), code


def test_commands_table_has_every_command() -> None:
    group = get_command(make_app())
    assert isinstance(group, CommandGroup)
    installed = group.list_commands(None)
    assert [codes(row[0])[0] for row in rows("command")] == [
        f"toolbus {name}" for name in installed
    ]


def test_every_exit_code_is_explained() -> None:
    sentence = README.partition("\nExit codes: ")[2].partition("\n\n")[0]
    assert [int(code) for code in codes(sentence)] == list(ExitCode)
    assert {exit_code(kind()) for kind in ERRORS.values()} == set(ExitCode) - {ExitCode.OK}


def sources() -> Iterator[str]:
    for folder in ("sdk", "room_server", "toolkits"):
        for path in (ROOT / folder).rglob("*.py"):
            yield path.read_text(encoding="utf-8")


def test_settings_table_has_every_variable() -> None:
    shown = [name for row in rows("variable") for name in codes(row[0])]
    read = {name for text in sources() for name in re.findall(r"TOOLBUS_[A-Z_]+\b", text)}
    # Two that a comment names to say why they are not read.
    assert set(shown) == read - {"TOOLBUS_HOST", "TOOLBUS_PORT"}


# The documents together


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files_that_are_there(document: str) -> None:
    path = ROOT / document
    prose = re.sub(r"`[^`]*`", "", path.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#\s]+)", prose):
        if not target.startswith("https://"):
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize(
    ("document", "folder"),
    [("sdk/README.md", "sdk/toolbus"), ("room_server/README.md", "room_server/toolbus_server")],
)
def test_folder_readme_names_every_file(document: str, folder: str) -> None:
    named = set(re.findall(r"[\w/]+\.py\b", (ROOT / document).read_text(encoding="utf-8")))
    there = {
        path.relative_to(ROOT / folder).as_posix()
        for path in (ROOT / folder).rglob("*.py")
        if path.name not in {"__init__.py", "__main__.py"}
    }
    assert named == there


def test_changelog_begins_with_unreleased() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert headings[0] == "[Unreleased]"
