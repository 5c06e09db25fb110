"""Which files of a folder are secrets and settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolbus_toolkits.sandbox import SandboxUnavailable
from toolbus_toolkits.sandbox.protection import CONFINED_FOLDERS, Protection, find_protection


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def found(root: Path, *hidden: str, makes_hooks: bool = True) -> tuple[set[str], set[str]]:
    """Return the names of what is hidden, and of what is protected."""
    protection: Protection = find_protection(
        (str(root),), [f"{root}/{name}" for name in hidden], makes_hooks=makes_hooks
    )
    return (
        {os.path.relpath(path, root) for path in protection.hide},
        {os.path.relpath(path, root) for path in protection.protected},
    )


def test_secrets_and_settings_are_found_at_any_depth_by_their_names(tmp_path: Path) -> None:
    make(tmp_path, ".env", "a/b/ID_RSA", ".ssh/config", "a/.cargo/credentials", "cacert.pem")
    make(
        tmp_path,
        ".env.example",
        "a/.vscode/tasks.json",
        ".toolbus/dev-keys.toml",
        "etc/passwd",
        "Makefile",
    )
    assert found(tmp_path) == (
        {".env", "a/b/ID_RSA", ".ssh", "a/.cargo/credentials", ".toolbus/dev-keys.toml"},
        {"a/.vscode", ".toolbus"},
    )
    assert found(tmp_path, "a", ".env")[0] == {".ssh", ".toolbus/dev-keys.toml"}


def test_of_a_repository_only_what_git_runs_is_protected(tmp_path: Path) -> None:
    make(tmp_path, ".git/config", ".git/HEAD", ".git/modules/a/config", "b/.git")
    assert ".git/hooks" not in found(tmp_path, makes_hooks=False)[1]
    assert found(tmp_path)[1] == {".git/config", ".git/hooks", ".git/modules", "b/.git"}
    assert (tmp_path / ".git/hooks").is_dir()
    (tmp_path / ".git/hooks").rmdir()
    (tmp_path / ".git/hooks").symlink_to("/etc")
    with pytest.raises(SandboxUnavailable, match="hooks' is a symlink"):
        found(tmp_path)


def test_symlinks_are_not_followed(tmp_path: Path) -> None:
    make(tmp_path, "a/.env")
    (tmp_path / "a/again").symlink_to(tmp_path)
    (tmp_path / "a/.npmrc").symlink_to("/etc/passwd")
    assert found(tmp_path) == ({"a/.env"}, set())


def test_a_folder_of_more_files_than_are_looked_through_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, *(f"{number % 3}/{number}" for number in range(10)))
    monkeypatch.setattr("toolbus_toolkits.sandbox.protection.MAX_FILES", 13)
    assert found(tmp_path) == (set(), set())
    make(tmp_path, "one more")
    with pytest.raises(SandboxUnavailable, match=r"more than 13 files .*: name smaller folders"):
        found(tmp_path)


def test_a_child_by_fork_has_no_confined_programs() -> None:
    use = CONFINED_FOLDERS.enter(("/a",), sets_up=True)
    try:
        assert CONFINED_FOLDERS.count(("/a/b",))
        child = os.fork()
        if child == 0:
            os._exit(CONFINED_FOLDERS.count(("/a",)))
        assert os.waitpid(child, 0)[1] == 0
    finally:
        use.leave()
