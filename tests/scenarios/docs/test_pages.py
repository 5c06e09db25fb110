"""What README.md and docs/ show is what happens: programs run, commands print what is shown."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shlex
import subprocess
import sysconfig
import textwrap
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.main import get_command

from support.documents.pages import ROOT, Page, examples, pages
from support.documents.reader import Reader, is_service, is_trace
from support.documents.snippets import Block, Step, steps_of
from support.documents.terminals import Terminals
from toolbus.cli.app import make_app
from toolbus.cli.toolkit_options import HostCommand

README = next(page for page in pages() if page.name == "README.md")
TYPED = [page for page in pages() if page.running is not None]
EACH_PAGE = pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
ELSEWHERE = ("make ", "docker ", "kubectl ", "python3 -m venv ")
"""Commands that cannot be typed here: `make test` within itself, those that need a container
engine, and those that install a release.
"""
FIRST_PAGES = ("README.md", "docs/tutorial.md")
"""They are typed from their first line on, in an empty folder."""
MAX_README_LINES = 160
VARIABLE = re.compile(r"\bTOOLBUS_[A-Z_]+\b")
DIAGRAMS = ("flowchart", "sequenceDiagram", "stateDiagram")
UNCHECKED = {"", "text", "html", "js", "javascript", "dockerfile", "ini", "http"}


def is_typed(block: Block) -> bool:
    return not (
        block.note.startswith("checked by ") or steps_of(block)[0].command.startswith(ELSEWHERE)
    )


# Programs


def test_each_program_of_a_page_is_the_file_of_that_name() -> None:
    for page in pages():
        for block in page.blocks:
            if block.title and block.language in ("python", "jsonl"):
                assert block.text == examples()[block.title], f"{page.name}: {block.title}"


def test_each_example_is_shown_by_a_page_and_run_by_a_page() -> None:
    shown = {block.title for page in pages() for block in page.blocks if block.title}
    typed = [
        step.command
        for page in TYPED
        for block in page.of("console")
        if is_typed(block)
        for step in steps_of(block)
    ] + [command for page in TYPED for command in page.running or ()]
    typed += [text for name, text in examples().items() if name.endswith(".json")]
    # A block that another test runs is run all the same.
    typed += [
        step.command
        for page in pages()
        for block in page.of("console")
        if block.note.startswith("checked by ")
        for step in steps_of(block)
    ]
    programs = [text for name, text in examples().items() if name.endswith(".py")]
    for name in examples():
        assert name in shown
        if any(f":{name}" in program for program in programs):
            continue  # a program, which is run, opens it as a scripted model
        module = name.removesuffix(".py")
        assert any(name in each or f" {module}:" in each for each in typed), name


@EACH_PAGE
def test_piece_of_a_program_is_taken_from_an_example_or_compiles(page: Page) -> None:
    for block in page.of("python"):
        if block.title or any(_is_in(block.lines, program) for program in examples().values()):
            continue
        if block.note.startswith("checked by "):
            continue
        if block.note == "theirs":  # a program of another system, which is not installed here
            compile(block.text, page.name, "exec")
            continue
        assert page.running is None, f"{page.name}:{block.line_number} is in no example"
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        compile(textwrap.dedent(block.text), page.name, "exec", flags=flags)
        for node in ast.walk(ast.parse(textwrap.dedent(block.text))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("toolbus"):
                module = importlib.import_module(node.module or "")
                assert all(hasattr(module, each.name) for each in node.names), block.text


def _is_in(lines: tuple[str, ...], program: str) -> bool:
    wanted = textwrap.dedent("\n".join(lines)).splitlines()
    there = program.splitlines()
    return any(
        textwrap.dedent("\n".join(there[at : at + len(wanted)])).splitlines() == wanted
        for at in range(len(there))
    )


def test_tool_takes_12_lines_and_caller_8() -> None:
    # blank lines, which the formatter sets, are not counted
    assert len([*filter(None, examples()["words.py"].splitlines())]) <= 12
    assert len([*filter(None, examples()["ask.py"].splitlines())]) <= 8


# Commands


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", TYPED, ids=lambda page: page.name)
def test_commands_of_a_page_print_the_output_that_it_shows(
    page: Page, tmp_path: Path, variables: dict[str, str]
) -> None:
    for name, program in files_before(page).items():
        (tmp_path / name).write_text(program, encoding="utf-8")
    blocks = [block for block in page.of("console") if is_typed(block)]
    traces = [block for block in blocks if is_trace(block)]
    assert len(traces) <= 1
    with Terminals(tmp_path, variables) as terminals:
        reader = Reader(terminals)
        if page.name in FIRST_PAGES:
            install(page, terminals)
        for block in traces:
            reader.trace_first(block)
        for command in page.running or ():
            hosts = command.startswith("toolbus host ")
            prints = ("hosting ...",) if hosts else ("...",)
            reader.start(Step(command, prints if command.startswith("toolbus ") else ()))
        for block in blocks:
            if block not in traces:
                # The clone that a reader has.
                lines = tuple(line.replace("/path/to/a/clone", str(ROOT)) for line in block.lines)
                reader.type(replace(block, lines=lines))
        terminals.end_all()


def files_before(page: Page) -> dict[str, str]:
    """Return the files that a reader has: those of the page, or of all pages where it is not one of
    the first.
    """
    if page.name not in FIRST_PAGES:
        return examples()
    return {block.title: block.text for block in page.blocks if block.title}


def install(page: Page, terminals: Terminals) -> None:
    """Type the commands that install, with this clone and packages that are here already."""
    (block,) = (block for block in page.of("console") if "pip install" in block.text)
    folder = terminals.folder
    here = sysconfig.get_path("purelib")
    terminals.variables |= {
        "PYTHONPATH": here,
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # which says no to it
        "PIP_QUIET": "3",
    }
    clone = re.compile(r"'/path/to/a/clone\[")
    terminals.type([Step(clone.sub(f"'{ROOT}[", s.command), s.prints) for s in steps_of(block)])
    (packages,) = folder.glob(".venv/lib/*/site-packages")
    (packages / "here.pth").write_text(here, encoding="utf-8")
    del terminals.variables["PYTHONPATH"]
    terminals.variables["PATH"] = f"{folder}/.venv/bin{os.pathsep}{terminals.variables['PATH']}"


@EACH_PAGE
def test_toolbus_commands_have_the_flags_that_a_page_shows(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT / "docs/examples")
    monkeypatch.syspath_prepend(ROOT / "docs/examples")
    group = get_command(make_app())
    for block in page.of("console"):
        for step in steps_of(block):
            words = shlex.split(re.sub(r"(?:\b\d)?[|>&]+ .*", "", step.command), comments=True)
            while words and re.fullmatch(r"\w+=.*", words[0]):
                words.pop(0)
            if words[:1] == ["toolbus"]:
                _check_flags(group, words[1:], f"{page.name}: {step.command}")


def _check_flags(command: Any, words: list[str], where: str) -> None:
    while hasattr(command, "resolve_command") and words and not words[0].startswith("-"):
        _, command, words = command.resolve_command(typer.Context(command), words)
    parameters = command.params
    if isinstance(command, HostCommand):  # it has those of its toolkits too
        parameters = command.get_params(command.make_context("host", list(words)))
    known = {flag for each in parameters for flag in (*each.opts, *each.secondary_opts)}
    shown = {word.partition("=")[0] for word in words if re.match(r"--\w", word)}
    assert shown <= known | {"--help"}, where


def test_commands_for_a_clone_are_there_to_be_typed() -> None:
    for page in pages():
        for block in page.of("console"):
            if steps_of(block)[0].command.startswith("make "):
                for step in steps_of(block):
                    _check_clone_command(step.command)


def _check_clone_command(command: str) -> None:
    match shlex.split(command):
        case ["make", target, *settings] if all("=" in each for each in settings):
            # -B: also if everything is set up already.
            made = subprocess.run(
                ["make", "-n", "-B", target], cwd=ROOT, capture_output=True, check=False
            )
            assert made.returncode == 0, made.stderr
        case [".", ".venv/bin/activate"]:
            pass
        case _:
            pytest.fail(f"nothing here checks {command!r}")


def test_extras_that_a_page_installs_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = {
        extra
        for page in pages()
        for extras in re.findall(
            r"pip install '?(?:toolbus|/path/to/a/clone)\[([^]]*)\]", page.text
        )
        for extra in extras.split(",")
    }
    assert {"server", "mcp"} <= found <= set(project["optional-dependencies"])


@pytest.mark.long
@pytest.mark.timeout(600)
def test_demo_prints_what_the_readme_shows(tmp_path: Path, variables: dict[str, str]) -> None:
    (step,) = (
        step
        for block in README.of("console")
        for step in steps_of(block)
        if step.command == "make demo"
    )
    assert step.prints[-1].startswith("all ")
    with Terminals(tmp_path, variables) as terminals:
        terminals.type([Step("toolbus demo", step.prints)])


# Pages


def test_readme_is_short() -> None:
    assert len(README.text.splitlines()) <= MAX_README_LINES


def test_readme_and_first_page_of_the_documentation_say_the_same() -> None:
    index = next(page for page in pages() if page.name == "docs/index.md").text
    texts = re.findall(
        r"^toolbus is a .*?\n\n|^- as a job.*?\n\n", README.text, re.DOTALL | re.MULTILINE
    )
    assert len(texts) == 2
    assert all(text in index for text in texts)


@EACH_PAGE
def test_every_block_is_of_a_language_that_is_checked_here(page: Page) -> None:
    for block in page.blocks:
        match block.language:
            case "python" | "console":
                pass
            case "mermaid":
                assert block.lines[0].startswith(DIAGRAMS), block.text
            case "jsonl":
                for line in block.lines:
                    json.loads(line)
            case "json":
                json.loads(block.text)
            case "toml":
                tomllib.loads(block.text)
            case "yaml":
                list(yaml.safe_load_all(block.text))
            case language:
                assert language in UNCHECKED, f"{page.name}:{block.line_number}: {language}"


@EACH_PAGE
def test_block_that_is_checked_elsewhere_names_a_test_that_reads_this_page(page: Page) -> None:
    for block in page.blocks:
        if block.note.startswith("checked by "):
            test = ROOT / block.note.removeprefix("checked by ")
            assert page.path.name in test.read_text(encoding="utf-8"), block.note


def test_every_variable_that_a_page_names_is_read_somewhere() -> None:
    folders = ("sdk", "room_server", "toolkits", "tests/support")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    sources += (ROOT / "deploy").glob("compose*.yaml")
    read = {name for path in sources for name in VARIABLE.findall(path.read_text(encoding="utf-8"))}
    for page in pages():
        assert {*VARIABLE.findall(page.text)} <= read, page.name


def test_services_of_a_session_are_known() -> None:
    for page in TYPED:
        assert all(is_service(command) for command in page.running or ()), page.name
