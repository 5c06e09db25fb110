"""`toolbus new` and `toolbus init`: what they write works, and they write over nothing."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.documents.pages import EXAMPLES, pages
from support.processes.command_line import CommandLine
from support.workspace.plain_user import as_plain_user
from toolbus.cli.commands import new as new_module

SCAFFOLD = EXAMPLES / "scaffold"
COMMANDS = (
    ("init", "--name", "stock"),
    ("new", "tool", "shorten"),
    ("new", "agent", "counter"),
    ("new", "workflow", "report"),
    ("new", "skill", "letters"),
)
GUIDE = next(page for page in pages() if page.name == "docs/guides/scaffolds.md")


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "cache" not in str(path)
    }


def test_what_is_written_is_an_example_of_the_documentation(tmp_path: Path) -> None:
    for command in COMMANDS:
        assert CommandLine(tmp_path).run_here(*command).code == 0
    written = files_below(tmp_path)
    assert written == files_below(SCAFFOLD)
    shown = [block.text.encode() for block in GUIDE.of("python") if not block.title]
    assert len(shown) == 3
    assert set(shown) <= set(written.values())


@pytest.mark.long
@pytest.mark.timeout(600)  # mypy reads all of the SDK
@pytest.mark.parametrize("name", ["a", "x-9_" + "y" * 59 + "z"])
def test_what_is_written_passes_its_test_and_all_checks(tmp_path: Path, name: str) -> None:
    assert CommandLine(tmp_path).run("init", "shop").code == 0
    project = CommandLine(tmp_path / "shop")
    for first, kind in zip("abcd", ("toolkit", "tool", "agent", "workflow"), strict=True):
        written = project.value_here("new", kind, f"{first}{name[1:]}", "--json")
        assert written["next"] == f"python -m pytest {written['written'][1]}"
    checks = ("pytest", "-q"), ("mypy", "."), ("ruff", "check"), ("ruff", "format", "--check")
    for check in checks:
        done = subprocess.run(
            [sys.executable, "-m", *check],
            cwd=project.folder,
            env=project.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("new", "toolkit", "Stock"), "'Stock' is not a name"),
        (("new", "toolkit", "../stock"), "is not a name"),
        (("new", "tool", ".."), "is not a name"),
        (("new", "agent", ""), "is not a name"),
        (("new", "skill", "letters-"), "is not a name"),
        (("new", "workflow", "x" * 10_000), "is not a name"),
        (("new", "toolkit", "class"), "is a keyword"),
        (("new", "toolkit", "json"), "name of another module"),
        (("new", "toolkit", "pluggy"), "name of another module"),
        (("new", "toolkit", "toolbus"), "name of another module"),
        (("new", "toolkit", "stock", "--path", "a file"), "cannot write a file/stock.py"),
        (("new", "toolkit", "stock", "--path", "closed/new"), "Permission denied"),
        (("init", "My Shop"), "--name NAME names another one"),
        (("new", "page", "stock"), "'toolkit', 'tool', 'agent', 'skill', 'workflow'"),
    ],
)
def test_what_cannot_be_written_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "a file").touch()
    (tmp_path / "closed").mkdir(0o555)
    outcome = as_plain_user(lambda: CommandLine(tmp_path).run_here(*arguments))
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert len(outcome.err) < 500
    assert {path.name for path in tmp_path.rglob("*")} == {"a file", "closed"}


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_nothing_is_written_where_one_of_the_files_is_there(tmp_path: Path, kind: str) -> None:
    there = tmp_path / "test_stock.py"
    if kind == "file":
        there.write_text("mine")
    elif kind == "folder":
        there.mkdir()
    else:
        there.symlink_to("nowhere")
    outcome = CommandLine(tmp_path).run_here("new", "toolkit", "stock", "--json")
    assert outcome.code == 2
    assert outcome.error["message"] == "test_stock.py is there already: nothing was written"
    assert [path.name for path in tmp_path.iterdir()] == ["test_stock.py"]
    assert kind != "file" or there.read_text() == "mine"


def test_nothing_is_left_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_until_full(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "test_stock.py":
            raise OSError(errno.ENOSPC, "No space left on device")
        return open(path, *arguments, **options)

    monkeypatch.setattr(new_module, "open", open_until_full, raising=False)
    outcome = CommandLine(tmp_path).run_here("new", "toolkit", "stock", "--path", "a/b")
    assert outcome.code == 2
    assert "cannot write a/b/test_stock.py: No space left" in outcome.err
    assert [*tmp_path.iterdir()] == []
