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


def found(root: Path, *hidden: str, fills_git: bool = True) -> tuple[set[str], set[str]]:
    """Return the names of what is hidden, and of what is protected."""
    protection: Protection = find_protection(
        (str(root),), [f"{root}/{name}" for name in hidden], fills_git=fills_git
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
    assert ".git/hooks" not in found(tmp_path, fills_git=False)[1]
    (tmp_path / ".git/worktrees/w").mkdir(parents=True)
    (tmp_path / ".git/worktrees/w/commondir").write_text("../..")
    assert found(tmp_path)[1] == {
        *(".git/config", ".git/hooks", ".git/modules", ".git/commondir", "b/.git"),
        ".git/worktrees/w/commondir",
    }
    assert (tmp_path / ".git/hooks").is_dir()
    (tmp_path / ".git/hooks").rmdir()
    (tmp_path / ".git/hooks").symlink_to("/etc")
    with pytest.raises(SandboxUnavailable, match="hooks' is a symlink"):
        found(tmp_path)


def test_symlinks_are_followed_to_secrets_and_refused_as_settings(tmp_path: Path) -> None:
    make(tmp_path, "a/.env", "variables")
    (tmp_path / "a/again").symlink_to(tmp_path)
    (tmp_path / "a/.npmrc").symlink_to("/etc/passwd")
    (tmp_path / ".envrc").symlink_to("variables")
    assert found(tmp_path) == ({"a/.env", "variables"}, set())
    (tmp_path / ".vscode").symlink_to("a")
    with pytest.raises(SandboxUnavailable, match="vscode' is a symlink, which cannot be protected"):
        found(tmp_path)


def test_a_folder_that_its_owner_has_closed_is_refused(tmp_path: Path) -> None:
    folder = tmp_path
    try:
        os.chdir(folder)
        for _ in range(20):  # deeper than a path may be long: as root nothing else is closed
            os.mkdir("x" * 250)
            os.chdir("x" * 250)
    finally:
        os.chdir("/")
    with pytest.raises(SandboxUnavailable, match=r"cannot be looked through: .*too long"):
        found(tmp_path)


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
