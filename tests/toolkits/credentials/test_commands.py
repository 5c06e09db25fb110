"""`toolbus credential`: values come from stdin alone, and are never printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.processes.command_line import CommandLine, Outcome

SECRET = "tops3cret-value"
FAIL = {"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}


@pytest.fixture
def toolbus(tmp_path: Path) -> CommandLine:
    key = {"TOOLBUS_CREDENTIALS_KEY_FILE": str(tmp_path / "key"), **FAIL}
    here = CommandLine(tmp_path, key)
    assert run(here, "key", "key").code == 0
    return here


def run(here: CommandLine, *arguments: str, value: str = "") -> Outcome:
    done = subprocess.run(
        [sys.executable, "-m", "toolbus", "credential", *arguments],
        cwd=here.folder,
        env=here.environment(),
        input=value,
        capture_output=True,
        text=True,
        check=False,
    )
    assert SECRET not in done.stdout + done.stderr
    return Outcome(done.returncode, done.stdout, done.stderr)


def test_credential_is_set_listed_and_removed(toolbus: CommandLine) -> None:
    places = ("--host", "api.example.org", "--host", "*.example.net", "--command", "npx")
    assert run(toolbus, "set", "a/b/c", "--stdin", *places, value=f"{SECRET}\n").code == 0
    listed = run(toolbus, "list", "--json").value
    assert listed[0].pop("set_at")
    hosts = ["api.example.org", "*.example.net"]
    assert listed == [{"name": "a/b/c", "hosts": hosts, "commands": ["npx"]}]
    assert "*.example.net" in run(toolbus, "list").out
    missing = run(toolbus, "remove", "a/b/d")
    assert (missing.code, "did you mean a/b/c?" in missing.err) == (4, True)
    assert run(toolbus, "remove", "a/b/c").code == 0
    assert "there are no credentials" in run(toolbus, "list").err


@pytest.mark.parametrize(
    ("arguments", "value", "text"),
    [
        (("set", "a/b", "--stdin"), SECRET, "write org/tool/key"),
        (("set", "a/b/c", "--stdin"), "\n", "4 characters"),
        (("set", "a/b/c", "--stdin"), SECRET * 5_000, "at most 65536"),
        (("set", "a/b/c"), SECRET, "--stdin"),
        (("set", "a/b/c", "--stdin", "--host", "http://x"), SECRET, "without a scheme"),
        (("key", "key"), "", "cannot create key: File exists"),
    ],
)
def test_bad_input_is_a_usage_error(
    toolbus: CommandLine, arguments: tuple[str, ...], value: str, text: str
) -> None:
    outcome = run(toolbus, *arguments, value=value)
    assert (outcome.code, text in outcome.err) == (2, True), outcome.err


def test_storing_without_keyring_and_key_file_is_refused(tmp_path: Path) -> None:
    for stdin in (["--stdin"], []):  # before the value is asked for
        outcome = run(CommandLine(tmp_path, FAIL), "set", "a/b/c", *stdin, value=SECRET)
        assert (outcome.code, "toolbus credential key PATH" in outcome.err) == (2, True)
    assert not (tmp_path / "home").exists()
