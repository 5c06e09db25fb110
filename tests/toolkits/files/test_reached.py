"""What the tools of files say of paths that they cannot use."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from toolbus import ToolFailed
from toolbus_toolkits.files.reached import FilesConfig, ReachedFiles
from toolbus_toolkits.workspace import Draft


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with what is no file, beside one that is outside."""
    root = tmp_path.resolve() / "root"
    (root / "folder").mkdir(parents=True)
    (root / "file").write_text("text")
    os.mkfifo(root / "fifo")
    (root / "loop").symlink_to("loop")
    return root


def failure_of(root: Path, path: str | bytes, error: OSError | None = None) -> tuple[str, str]:
    """Return the reason and the message of the failure to read a file."""
    with pytest.raises(ToolFailed) as failed:
        _read(ReachedFiles(FilesConfig(root=root)), path, error)
    reason = failed.value.details["reason"]
    assert failed.value.retryable == (reason in ("changed", "locked"))
    return reason, failed.value.message


def _read(files: ReachedFiles, path: str | bytes, error: OSError | None) -> None:
    with files.at(path) as location:
        if error is not None:
            raise error
        os.close(location.open_file())


@pytest.mark.parametrize(
    ("path", "reason", "words"),
    [
        ("gone", "no_such_file", "does not exist"),
        ("file/x", "not_a_folder", "is no folder"),
        ("folder", "not_a_file", "is a folder, not a file"),
        ("fifo", "not_a_file", "is a FIFO, not a file"),
        ("../other", "outside", "is outside of what these tools reach"),
        ("/etc/passwd", "outside", "is outside of what these tools reach"),
        ("loop", "no_path", "its symlinks lead nowhere"),
        ("a\0b", "no_path", "it contains NUL"),
        ("x" * 256, "no_path", "has a name that is too long"),
        (b"\xff", "no_such_file", "does not exist"),
    ],
)
def test_a_path_that_names_no_file_fails_with_a_reason(
    root: Path, path: str | bytes, reason: str, words: str
) -> None:
    found, message = failure_of(root, path)
    assert found == reason
    assert words in message
    assert message.isprintable()


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (("~", "~/a.txt", "~ann/a.txt", "~/new/a.txt"), "`~` stands for nothing"),
        (("$HOME/x", "${HOME}/x", "$PWD", "$(pwd)/x", "%TEMP%/x"), "variables stand for nothing"),
        (("file:///x", "file:/x", "file://host/x", "https://host/x"), "it is a URL"),
        (('"a b.txt"', "'a.txt'", "`a.txt`", '"~/a.txt"'), "leave out the quotes"),
        (("a.txt\n", "a\nb.txt", "\na.txt", "a.txt\r\n", "a\u2028"), "leave out the line end"),
        (
            ("a~", "~a.txt", "$id.tsx", "$id/x", "file.txt", "file:x", "it's", "'", "100%", "a b"),
            "",
        ),
    ],
)
def test_a_new_path_that_is_written_for_a_shell_or_a_browser_is_refused(
    root: Path, paths: tuple[str, ...], words: str
) -> None:
    for path in paths:
        expected = "no_path" if words else "no_such_file"
        reason, message = failure_of(root, path)
        assert (reason, words in message) == (expected, True), path
        if "://" not in path and "/" not in path:
            (root / path).write_text("what exists is found")
            _read(ReachedFiles(FilesConfig(root=root)), path, None)
            (root / path).unlink()


@pytest.mark.parametrize(
    ("number", "reason", "words"),
    [
        (errno.ENOSPC, "no_space", "the disk is full"),
        (errno.EDQUOT, "no_space", "the quota of this user is used up"),
        (errno.EFBIG, "no_space", "larger than this host allows"),
        (errno.EROFS, "not_permitted", "is on a file system that is read-only"),
        (errno.EACCES, "not_permitted", "may not be accessed"),
        (errno.EPERM, "not_permitted", "may not be changed"),
        (errno.ETXTBSY, "not_permitted", "is a program that runs"),
        (errno.EBUSY, "not_permitted", "cannot be replaced: it is a mount"),
        (errno.ELOOP, "changed", "was replaced by a symbolic link meanwhile"),
        (errno.EAGAIN, "locked", "is locked by others"),
        (errno.EIO, "failed", "the disk reports an error"),
        (errno.ESTALE, "failed", "network share"),
        (errno.EMFILE, "failed", "too many open files"),
        (errno.ENOTCONN, "failed", os.strerror(errno.ENOTCONN)),
    ],
)
def test_an_error_of_the_system_names_the_path_as_it_was_given_once(
    root: Path, number: int, reason: str, words: str
) -> None:
    error = OSError(number, os.strerror(number), str(root / "file"))
    found, message = failure_of(root, "./file", error)
    assert found == reason
    assert message.startswith("'./file' ")
    assert message.count("file'") == 1
    assert words in message


def test_a_root_that_vanished_and_a_folder_that_moved_are_reported(root: Path) -> None:
    files = ReachedFiles(FilesConfig(root=root))
    with files.at("folder/new") as location:
        draft = Draft(location)
    (root / "folder").rename(root.parent / "moved")
    with pytest.raises(ToolFailed, match="its folder was moved") as moved, files.failing("folder"):
        draft.commit(lambda _: None)
    assert moved.value.details == {"reason": "changed"}
    assert os.listdir(root.parent / "moved") == []
    root.rename(root.parent / "elsewhere")
    with pytest.raises(ToolFailed) as vanished, files.at("file"):
        pass
    assert vanished.value.details == {"reason": "no_such_file"}
    assert vanished.value.message == f"'file' does not exist, nor does its root {str(root)!r}"
