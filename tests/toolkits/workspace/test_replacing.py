"""Replacing files as a whole."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from support.workspace.plain_user import as_plain_user
from toolbus_toolkits.workspace import (
    Draft,
    FolderMoved,
    NoFile,
    Roots,
    is_draft,
    located,
    replaced,
    replacing,
)

_SYSTEMS = ["unnamed drafts", "named drafts", "no links"]


class Refused(FileNotFoundError):
    """What a check raises, such as one that looks for another file."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path.resolve()


@pytest.fixture(params=_SYSTEMS)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the file system can."""
    if request.param != "unnamed drafts":
        monkeypatch.setattr(replacing, "_TEMPORARY", 0)
    if request.param == "no links":
        monkeypatch.setattr(os, "link", _no_links)
    return str(request.param)


def _no_links(*_: object, **__: object) -> NoReturn:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.fixture(autouse=True)
def _no_descriptor_is_lost() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before


def write(root: Path, path: str, data: bytes, check: Callable[[int | None], None]) -> None:
    with located(path, Roots([root])) as location:
        replaced(location, data, check)


def anything(_: int | None) -> None:
    """Let all be replaced."""


def refuse(_: int | None) -> NoReturn:
    raise Refused


def tree(root: Path) -> dict[str, str]:
    """Return the text of each file, and "" for each empty folder."""
    found = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_file():
            found[name] = path.read_text()
        elif not any(path.iterdir()):
            found[name] = ""
    return found


@pytest.mark.usefixtures("system")
def test_a_file_is_made_with_its_folders_and_replaced(root: Path) -> None:
    asked: list[bytes | None] = []

    def check(current: int | None) -> None:
        asked.append(None if current is None else os.read(current, 100))

    umask = os.umask(0o027)
    try:
        write(root, "a/b/c.txt", b"one", check)
    finally:
        os.umask(umask)
    assert stat.S_IMODE((root / "a/b/c.txt").stat().st_mode) == 0o640
    assert stat.S_IMODE((root / "a/b").stat().st_mode) == 0o750
    write(root, "a/b/c.txt", b"two", check)
    assert tree(root) == {"a/b/c.txt": "two"}
    assert set(asked[:-1]) == {None}
    assert asked[-1] == b"one"


@pytest.mark.usefixtures("system")
def test_what_is_refused_or_discarded_leaves_nothing(root: Path) -> None:
    (root / "old").write_text("old")
    for path in ("old", "new", "a/b/new"):
        with pytest.raises(Refused):
            write(root, path, b"data", refuse)
        with located(path, Roots([root])) as location, Draft(location) as draft:
            draft.write(b"data")
        with pytest.raises(ValueError, match="was committed or discarded"):
            draft.write(b"more")
    assert tree(root) == {"old": "old"}


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("path", ["new", "a/b/new"])
def test_a_file_that_appears_is_not_replaced_unseen(root: Path, path: str) -> None:
    asked = []

    def check(current: int | None) -> None:
        if current is not None:
            asked.append(os.read(current, 100))
            raise Refused
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("theirs")

    with pytest.raises(Refused):
        write(root, path, b"ours", check)
    assert tree(root) == {path: "theirs"}
    assert asked == [b"theirs"]


@pytest.mark.usefixtures("system")
def test_a_draft_outlives_its_location_and_changes_threads(root: Path) -> None:
    with located("a/new", Roots([root])) as location:
        draft = Draft(location)
    for action in (lambda: draft.write(b"one"), lambda: draft.write(b"two")):
        thread = threading.Thread(target=action)
        thread.start()
        thread.join()
    draft.commit(anything)
    draft.discard()
    assert tree(root) == {"a/new": "onetwo"}


def test_a_draft_has_no_name_or_one_that_is_recognised(root: Path, system: str) -> None:
    (root / "secret").write_text("old")
    (root / "secret").chmod(0o600)
    with located("secret", Roots([root])) as location, Draft(location) as draft:
        draft.write(b"new")
        names = set(os.listdir(root)) - {"secret"}
        assert len(names) == (0 if system == "unnamed drafts" else 1)
        for name in names:
            assert is_draft(name)
            assert stat.S_IMODE((root / name).stat().st_mode) == 0o600
    assert not is_draft(".part")
    assert not is_draft(".0123456789abcdef.part2")


@pytest.mark.parametrize(("mode", "expected"), [(0o600, 0o600), (0o755, 0o755), (0o7755, 0o755)])
def test_permissions_stay_but_not_those_to_run_as_another_user(
    root: Path, mode: int, expected: int
) -> None:
    (root / "a").write_text("old")
    (root / "a").chmod(mode)
    write(root, "a", b"new", anything)
    assert stat.S_IMODE((root / "a").stat().st_mode) == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_the_owner_stays_or_the_group_gets_no_more_than_all(root: Path) -> None:
    file = root / "a"
    file.write_text("old")
    os.chown(file, 1234, 2345)
    write(root, "a", b"new", anything)
    assert (file.stat().st_uid, file.stat().st_gid) == (1234, 2345)
    os.chown(file, 0, 2345)
    file.chmod(0o664)
    as_plain_user(lambda: write(root, "a", b"newer", anything))
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_the_access_list_stays(root: Path) -> None:
    entries = [(1, 6, -1), (2, 6, 1234), (4, 0, -1), (16, 6, -1), (32, 0, -1)]
    access = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    (root / "listed").write_text("old")
    (root / "plain").write_text("old")
    (root / "plain").chmod(0o640)
    try:
        os.setxattr(root / "listed", "system.posix_acl_access", access)
        os.setxattr(root, "system.posix_acl_default", access)
    except OSError:
        pytest.skip("this file system has no access lists")
    for name in ("listed", "plain"):
        write(root, name, b"new", anything)
    assert os.getxattr(root / "listed", "system.posix_acl_access") == access
    assert os.listxattr(root / "plain") == []
    assert stat.S_IMODE((root / "plain").stat().st_mode) == 0o640


def test_another_name_of_the_file_keeps_the_old_bytes(root: Path) -> None:
    (root / "a").write_text("old")
    (root / "b").hardlink_to(root / "a")
    write(root, "a", b"new", anything)
    assert tree(root) == {"a": "new", "b": "old"}


def test_what_is_no_file_that_may_be_written_is_refused_before_all_work(root: Path) -> None:
    (root / "folder").mkdir()
    (root / "read-only").write_text("old")
    (root / "read-only").chmod(0o444)
    os.mkfifo(root / "fifo")
    kinds = {"folder": NoFile, "fifo": NoFile, "read-only": PermissionError}
    for name, kind in kinds.items():
        with located(name, Roots([root])) as location, Draft(location) as draft:
            with pytest.raises(kind):
                as_plain_user(lambda: draft.write(b"data"))
    with located("a/" * 101 + "b", Roots([root])) as location, Draft(location) as draft:
        with pytest.raises(OSError, match=os.strerror(errno.ENAMETOOLONG)):
            draft.write(b"data")
    root.chmod(0o555)
    with pytest.raises(PermissionError):
        as_plain_user(lambda: write(root, "new", b"data", anything))
    root.chmod(0o755)
    assert set(os.listdir(root)) == {"folder", "read-only", "fifo"}


def test_a_symlink_in_the_place_of_the_file_is_neither_followed_nor_replaced(root: Path) -> None:
    (root / "work").mkdir()
    (root / "outside").write_text("outside")
    for text in ("", "old"):
        with located("a", Roots([root / "work"])) as location:
            (root / "work/a").unlink(missing_ok=True)
            (root / "work/a").symlink_to(root / "outside")
            with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
                replaced(location, b"new", anything)
        assert (root / "work/a").is_symlink()
        (root / "work/a").unlink()
        (root / "work/a").write_text(text)
    assert (root / "outside").read_text() == "outside"


@pytest.mark.parametrize("path", ["a", "new/a"])
def test_a_folder_that_was_moved_out_gets_nothing(root: Path, path: str) -> None:
    (root / "work/folder").mkdir(parents=True)
    with located(f"folder/{path}", Roots([root / "work"])) as location, Draft(location) as draft:
        draft.write(b"data")
        (root / "work/folder").rename(root / "moved")
        (root / "work/folder").mkdir()
        with pytest.raises(FolderMoved):
            draft.commit(anything)
    assert tree(root) == {"work/folder": "", "moved": ""}


@contextmanager
def locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    os.close(descriptor)


def test_who_waited_for_a_writer_is_asked_about_the_file_of_that_writer(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "a").write_text("old")
    waits = threading.Event()
    monkeypatch.setattr(time, "sleep", lambda _: waits.set())
    asked = []
    write_new = threading.Thread(
        target=write,
        args=(root, "a", b"new", lambda current: asked.append(os.read(current, 100))),
    )
    with locked(root / "a"):
        write_new.start()
        assert waits.wait(60)
        (root / "theirs").write_text("theirs")
        (root / "theirs").rename(root / "a")
    write_new.join()
    assert asked == [b"theirs"]
    assert tree(root) == {"a": "new"}


def test_a_lock_that_is_not_given_up_is_an_error(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacing, "_LOCK_SECONDS", 0.01)
    (root / "a").write_text("old")
    with locked(root / "a"), pytest.raises(BlockingIOError, match="others hold its lock"):
        write(root, "a", b"new", anything)
    assert tree(root) == {"a": "old"}


@pytest.mark.parametrize("why", [errno.ENOTSUP, errno.ENOLCK, errno.EBADF])
def test_file_systems_lock_in_their_way_or_not_at_all(
    root: Path, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    lock = fcntl.flock

    def flock(descriptor: int, how: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(why, os.strerror(why))
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    (root / "a").write_text("old")
    asked = []
    write(root, "a", b"new", lambda current: asked.append(os.read(current or 0, 100)))
    assert asked == [b"old"]
    assert tree(root) == {"a": "new"}


@pytest.mark.usefixtures("system")
def test_where_there_is_no_space_all_stays_as_it_was(root: Path) -> None:
    (root / "old").write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        for path in ("old", "new", "a/b/new"):
            with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
                write(root, path, b"x" * 2000, anything)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert tree(root) == {"old": "old"}


@pytest.mark.usefixtures("system")
def test_an_error_when_the_draft_is_closed_keeps_the_old_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "old").write_text("old")
    close = os.close

    def close_file(descriptor: int) -> None:
        is_written = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
        close(descriptor)
        if is_written:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "close", close_file)
    for path in ("old", "new"):
        with pytest.raises(OSError, match=os.strerror(errno.EDQUOT)):
            write(root, path, b"data", anything)
    assert tree(root) == {"old": "old"}


_PROLOGUE = """
import os, sys
from pathlib import Path
from toolbus_toolkits.workspace import Draft, Roots, located, replaced, replacing
root, system, how = sys.argv[1:]
def no_links(*_, **__):
    raise PermissionError(1, "no links")
if system != "unnamed drafts":
    replacing._TEMPORARY = 0
if system == "no links":
    os.link = no_links
"""
_STOPPED = """
def stop(*_, **__):
    print("stopped", flush=True)
    sys.stdin.read()
with located("a", Roots([root])) as location, Draft(location) as draft:
    draft.write(b"new" * 10_000)
    if how == "rename":
        os.rename = stop
    if how == "write":
        stop()
    draft.write(b"new" * 10_000)
    draft.commit(stop if how == "check" else lambda _: None)
"""
_COUNTING = """
class Changed(Exception):
    pass
print("begun", flush=True)
sys.stdin.readline()
def write(name, data, expected):
    def check(current):
        if (None if current is None else os.read(current, 100)) != expected:
            raise Changed
    with located(name, Roots([root])) as location:
        try:
            replaced(location, data, check)
        except Changed:
            return False
        return True
made = sum(write(f"{number}/new", how.encode(), None) for number in range(40))
for number in range(50):
    while True:
        before = Path(root, "count").read_bytes()
        if write("count", b"%d" % (int(before) + 1), before):
            break
print(made)
"""


def started(code: str, root: Path, system: str, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _PROLOGUE + code, str(root), system, how]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("how", ["write", "check", "rename"])
@pytest.mark.parametrize("system", _SYSTEMS[:2])
def test_a_process_that_is_killed_leaves_the_old_file(root: Path, system: str, how: str) -> None:
    (root / "a").write_text("old")
    with started(_STOPPED, root, system, how) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "stopped\n"
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    assert (root / "a").read_text() == "old"
    others = set(os.listdir(root)) - {"a"}
    assert len(others) == (system == "named drafts" or how == "rename")
    assert all(map(is_draft, others))
    write(root, "a", b"newer", anything)  # its lock is gone with it
    assert (root / "a").read_text() == "newer"


@pytest.mark.parametrize("system", ["unnamed drafts", "no links"])
def test_of_two_processes_that_write_none_loses_what_it_wrote(root: Path, system: str) -> None:
    (root / "count").write_text("0")
    with (
        started(_COUNTING, root, system, "one") as one,
        started(_COUNTING, root, system, "two") as two,
    ):
        for process in (one, two):
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
        for process in (one, two):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        made = {"one": int(one.communicate()[0]), "two": int(two.communicate()[0])}
    assert (root / "count").read_text() == "100"
    files = [(root / str(number) / "new").read_text() for number in range(40)]
    assert {name: files.count(name) for name in made} == made
    assert not list(root.rglob(".*"))
