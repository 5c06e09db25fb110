"""`toolbus bundle`: what it shows, asks and refuses, in a process of its own."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes.command_line import CommandLine, Outcome


@pytest.fixture
def toolbus(tmp_path: Path) -> CommandLine:
    folder = tmp_path / "office"
    (folder / "skills" / "pdf").mkdir(parents=True)
    (folder / "skills" / "pdf" / "SKILL.md").write_text("---\nname: pdf\ndescription: d\n---\n")
    (folder / "toolbus-bundle.yaml").write_text(
        'toolbus_bundle: "1"\nname: office\nversion: "1.0"\nskills: [skills/pdf]\n'
        'mcp_servers: {files: {command: no-such-program, args: ["a b", "\\e[31m"]}}\n'
    )
    return CommandLine(tmp_path, {"TOOLBUS_HOME": str(tmp_path / "home")})


def run(here: CommandLine, *arguments: str, answer: str | None = None) -> Outcome:
    """Run the command; with an answer, stdin is a terminal at which it is typed."""
    ours, theirs = pty.openpty()
    if answer is not None:
        os.write(ours, answer.encode())
    done = subprocess.run(
        [sys.executable, "-m", "toolbus", "bundle", *arguments],
        cwd=here.folder,
        env=here.environment(),
        stdin=subprocess.DEVNULL if answer is None else theirs,
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(ours)
    os.close(theirs)
    return Outcome(done.returncode, done.stdout, done.stderr)


def test_nothing_is_installed_without_a_yes(toolbus: CommandLine) -> None:
    home = toolbus.folder / "home"
    dry = run(toolbus, "install", "office", "--dry-run")
    assert dry.code == 0
    assert f"write    {home}/installed-skills/pdf/SKILL.md" in dry.out
    assert "command  MCP server files: no-such-program 'a b' '\\x1b[31m'" in dry.out
    assert "warning  MCP server files: the program no-such-program is not on" in dry.out
    unasked = run(toolbus, "install", "office")
    assert (unasked.code, "use --yes or --dry-run" in unasked.err) == (2, True)
    assert run(toolbus, "install", "office", answer="n\n").code == 0
    assert not (home / "installed-skills").exists()
    installed = run(toolbus, "install", "office", answer="y\n")
    assert "installed office 1.0" in installed.out
    assert f"toolbus host mcp --config {home}/mcp.json" in installed.err
    assert (home / "installed-skills" / "pdf" / "SKILL.md").exists()
    assert "is installed already" in run(toolbus, "install", "office").out


def test_a_bundle_is_listed_and_removed(toolbus: CommandLine) -> None:
    assert "there are no bundles" in run(toolbus, "list").err
    assert run(toolbus, "install", "office", "--yes").code == 0
    assert "skills: pdf; MCP servers: files" in run(toolbus, "list").out
    (listed,) = run(toolbus, "list", "--json").value
    assert (listed["name"], listed["skills"]) == ("office", ["pdf"])
    missing = run(toolbus, "uninstall", "ofice", "--yes")
    assert (missing.code, "did you mean office?" in missing.err) == (4, True)
    assert "remove   MCP server files" in run(toolbus, "uninstall", "office", "--dry-run").out
    assert "removed office" in run(toolbus, "uninstall", "office", "--yes").out
    assert run(toolbus, "list", "--json").value == []


def test_a_refused_bundle_is_reported_in_one_line(toolbus: CommandLine) -> None:
    (toolbus.folder / "office" / "link").symlink_to("/etc/passwd")
    refused = run(toolbus, "install", "office", "--yes")
    assert refused.code == 2
    assert refused.err.count("\n") == 1
    assert "is a link: a bundle has files alone" in refused.err
