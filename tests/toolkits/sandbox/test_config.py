"""What a config of a sandbox accepts, and what one start gets of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from toolbus_toolkits.sandbox import (
    BACKENDS,
    HOLDS,
    SandboxConfig,
    SandboxUnavailable,
    confinement,
    summary,
)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"write": ["/"]}, "/ cannot be given: name the folders in it that are needed"),
        ({"read": ["//usr/.."]}, "/ cannot be given"),
        ({"write": ["/proc/self"]}, "the sandbox shows its own part of it"),
        ({"read": ["/dev"]}, "the sandbox shows its own part of it"),
        ({"write": ["/no/such\nfolder"]}, "there is no file or folder /no/such\\\\nfolder"),
        ({"write": ["a\0b"]}, "NUL"),
        ({"write": ["/" + "x" * 4096]}, "too long"),
        ({"backend": "microsandbox"}, "microsandbox is not supported: .* use bubblewrap"),
        ({"backend": "docker"}, "docker needs an image"),
        ({"image": "alpine"}, "no other backend has one"),
        ({"backend": "chroot"}, "Input should be"),
        ({"protect": "never"}, "Input should be"),
        ({"max_processes": 0}, "greater than or equal to 1"),
        ({"netwrok": True}, "Extra inputs"),
    ],
)
def test_what_cannot_be_confined_is_refused_with_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SandboxConfig(**options)


def test_a_symlink_is_resolved_once_and_a_later_one_is_refused(tmp_path: Path) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    config = SandboxConfig(write=(str(link),))
    assert config.write == (str(folder),)
    assert config.backend == "auto"
    assert confinement(config, link).cwd == str(folder)
    folder.rmdir()
    with pytest.raises(SandboxUnavailable, match="does not exist any more"):
        confinement(config, "/")
    folder.symlink_to("/etc")
    with pytest.raises(SandboxUnavailable, match="is reached by a symlink now"):
        confinement(config, "/")


def test_a_program_starts_only_where_its_sandbox_shows_the_folder(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="add it to `write` or to `read`"):
        confinement(SandboxConfig(), tmp_path)
    assert confinement(SandboxConfig(read=(str(tmp_path),)), tmp_path).cwd == str(tmp_path)


def test_what_lies_below_another_folder_is_one_with_it(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    config = SandboxConfig(write=(str(tmp_path), str(below)), read=(str(below), "/usr/share"))
    plan = confinement(config, tmp_path)
    assert plan.write == (str(tmp_path),)
    assert str(below) not in plan.read
    assert "/usr/share" not in plan.read
    assert plan.protected == (str(below),)  # it may only be read, though its parent may be changed


def test_secrets_of_the_user_and_the_system_are_hidden_where_they_would_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLBUS_HOME", f"{tmp_path}/of toolbus")
    (tmp_path / "of toolbus").mkdir()
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".netrc").write_text("secret")
    other = tmp_path / "other"
    other.mkdir()
    (other / ".netrc").write_text("of a project")
    shown = confinement(SandboxConfig(write=(str(tmp_path),)), tmp_path, str(tmp_path))
    names = {os.path.relpath(path, tmp_path) for path in shown.hide}
    assert {".ssh", ".netrc", "of toolbus"} < names
    monkeypatch.setenv("HOME", str(tmp_path))  # a program may be given another one
    assert confinement(SandboxConfig(read=(str(tmp_path),)), "/", "/none").hide == shown.hide
    assert f"{other}/.netrc" not in shown.hide
    within = confinement(SandboxConfig(write=(str(other),)), other, str(tmp_path))
    assert all(path.startswith("/etc/") for path in within.hide)
    assert os.path.exists("/etc/shadow") == ("/etc/shadow" in within.hide)
    assert not within.shows("/etc/shadow")
    nothing = confinement(SandboxConfig(hide=()), "/")
    assert nothing.hide == ()


def test_each_row_says_for_each_backend_what_it_holds() -> None:
    for row in HOLDS.values():
        assert all(row.of(backend).startswith(("yes", "no")) for backend in BACKENDS)
    assert summary("subprocess") == "not confined: limits only"
    assert "confined by landlock; not held: mode, times" in summary("landlock")
