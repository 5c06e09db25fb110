"""`toolbus registry`: sources in a file, searching them, and installing after a question."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from support.processes.command_line import CommandLine
from toolbus_toolkits.registries import RegistrySource, commands
from toolbus_toolkits.registries.hub import write_sources

SKILL = "---\nname: {0}\ndescription: about {0}\nversion: {1}\n---\nRead it.\n"
SERVER = {"command": "npx", "args": ["-y", "some-server"]}


@pytest.fixture
def toolbus(tmp_path: Path) -> CommandLine:
    for shop, version in (("ours", "1.0.0"), ("theirs", "2.0.0")):
        folder = tmp_path / shop / "pdf"
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(SKILL.format("pdf", version))
    (tmp_path / "theirs/web").mkdir()
    manifest = {"toolbus_bundle": "1", "name": "web", "version": "1.0.0"}
    manifest["mcp_servers"] = {"web": SERVER}  # type: ignore[assignment]
    (tmp_path / "theirs/web/toolbus-bundle.yaml").write_text(json.dumps(manifest))
    here = CommandLine(tmp_path)
    for shop in ("ours", "theirs"):
        assert here.run_here("registry", "add", shop, shop).code == 0
    return here


def test_sources_are_added_listed_and_removed(toolbus: CommandLine) -> None:
    url = "https://registry.example.org/index.json"
    added = toolbus.run_here("registry", "add", "work", url, "--credential", "acme/reg/token")
    assert added.out == "added work, of the type index\n"
    listed = toolbus.value_here("registry", "list", "--json")
    assert [each["name"] for each in listed] == ["ours", "theirs", "work"]
    assert (listed[2]["place"], listed[2]["headers"]) == (url, ["Authorization"])
    file = Path(toolbus.environment()["TOOLBUS_HOME"]) / "registries.json"
    assert "Bearer ${cred:acme/reg/token}" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert url in toolbus.run_here("registry", "list").out
    for name in ("ours", "theirs", "work"):
        assert toolbus.run_here("registry", "remove", name).code == 0
    assert "`toolbus registry add` adds one" in toolbus.run_here("registry", "search").err
    assert toolbus.run_here("registry", "remove", "ours").code == 4


@pytest.mark.parametrize("arguments", [("add", "new", "."), ("remove", "old")])
def test_one_process_at_a_time_changes_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TOOLBUS_HOME", str(tmp_path))
    write_sources(tmp_path / "registries.json", [RegistrySource("old", path=tmp_path)])
    held = []

    def write(path: Path, sources: list[RegistrySource]) -> None:
        with (path.parent / "bundles.lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(sources)

    monkeypatch.setattr(commands, "write_sources", write)
    assert CliRunner().invoke(commands.registry, arguments).exit_code == 0
    assert held


def test_search_shows_the_first_source_and_those_that_failed(toolbus: CommandLine) -> None:
    (toolbus.folder / "gone").mkdir()
    assert toolbus.run_here("registry", "add", "gone", "gone").code == 0
    (toolbus.folder / "gone").rmdir()
    found = toolbus.run_here("registry", "search", "pdf")
    assert [line.split() for line in found.out.splitlines()] == [
        ["name", "kind", "version", "source", "description"],
        ["pdf", "skill", "1.0.0", "ours,", "theirs", "about", "pdf"],
    ]
    assert "gone: its folder cannot be read" in found.err
    shown = toolbus.value_here("registry", "search", "--kind", "bundle", "--json")
    assert [each["name"] for each in shown["entries"]] == ["web"]
    assert shown["failures"][0]["source"] == "gone"
    assert toolbus.run_here("registry", "search", "--source", "gone").code == 6


def test_install_shows_every_command_and_asks(toolbus: CommandLine) -> None:
    home = Path(toolbus.environment()["TOOLBUS_HOME"])
    shown = toolbus.run("registry", "install", "web", "--dry-run")
    assert "npx -y some-server" in shown.out
    unasked = toolbus.run("registry", "install", "web")
    assert (unasked.code, "--yes" in unasked.err) == (2, True)
    assert not (home / "mcp.json").exists()
    assert toolbus.run("registry", "install", "web", "--yes").code == 0
    assert json.loads((home / "mcp.json").read_text())["mcpServers"]["web"]["command"] == "npx"
    assert "theirs:web@1.0.0" in toolbus.run_here("bundle", "list").out
    assert toolbus.run_here("registry", "install", "pdf", "--from", "theirs", "--yes").code == 0
    assert "version: 2.0.0" in (home / "installed-skills/pdf/SKILL.md").read_text()
    older = ("registry", "install", "pdf", "--version", "1.0.0", "--yes")
    assert "replace" in toolbus.run_here(*older).err
    assert toolbus.run_here(*older, "--replace").code == 0
    assert "version: 1.0.0" in (home / "installed-skills/pdf/SKILL.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("add", "ours", "ours"), 2, "there is a registry ours"),
        (("add", "../x", "ours"), 2, "name: must be 1 to 64 letters"),
        (("add", "new", "nowhere"), 2, "nowhere is no folder"),
        (("add", "new", "ours/pdf"), 2, "ours/pdf is one bundle"),
        (("add", "new", "https://a.org"), 2, "give the `type`"),
        (("add", "new", "ours", "--credential", "a/b"), 2, "write org/tool/key"),
        (("install", "nothing"), 4, "no source has 'nothing': `toolbus registry search`"),
        (("install", "pdf", "--from", "other"), 4, "no source 'other': ours, theirs"),
        (("install", "pdf", "--version", "7"), 4, "has 'pdf' in the version 7: ours: it does"),
        (("install", "pdf", "--from", "ours", "--version", "7"), 4, "it has 1.0.0"),
    ],
)
def test_bad_input_is_reported_with_its_exit_code(
    toolbus: CommandLine, arguments: tuple[str, ...], code: int, words: str
) -> None:
    outcome = toolbus.run_here("registry", *arguments)
    assert (outcome.code, words in outcome.err) == (code, True), outcome.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not JSON"),
        ("[]", 'must be {"sources": [...]}'),
        ('{"sources": [{"name": "a"}]}', "/sources/0: a source has a `url`"),
        ('{"sources": [{"name": "a", "path": "/", "token": "tops3cret"}]}', "/sources/0: token"),
    ],
)
def test_a_file_that_is_not_valid_is_a_usage_error(
    toolbus: CommandLine, content: str, words: str
) -> None:
    (Path(toolbus.environment()["TOOLBUS_HOME"]) / "registries.json").write_text(content)
    outcome = toolbus.run_here("registry", "search")
    assert (outcome.code, words in outcome.err) == (2, True), outcome.err
    assert "tops3cret" not in outcome.err


def test_a_missing_package_is_named_with_its_extra() -> None:
    code = "import sys; sys.modules['httpx2'] = None; import toolbus_toolkits.registries"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'toolbus[bundles]'" in done.stderr
