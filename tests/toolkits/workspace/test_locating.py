"""Finding what a path names inside of working directories."""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from support.workspace.plain_user import as_plain_user
from toolbus_toolkits.workspace import (
    FolderMoved,
    Location,
    NoFile,
    OutsideRoots,
    Roots,
    RootVanished,
    UnresolvedPath,
    located,
    replaced,
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder `work` with files, folders and symlinks, beside `more` and what is in no root."""
    place = tmp_path.resolve()
    for folder in ("work/src/deep", "work/locked", "more", "other/dir", "other/locked"):
        (place / folder).mkdir(parents=True)
    for file in ("work/a.txt", "work/src/b.txt", "work/locked/c", "more/m", "other/file"):
        (place / file).write_text(file)
    links = {"in": "src", "abs": f"{place}/work/src/b.txt", "deep": "src/deep", "gone": "src/new"}
    links |= {"more": "../more", "out": "../other", "back": "../other/back", "loop": "loop"}
    links |= {"far": "../other/loop", "file": "a.txt"}
    for name, target in links.items():
        (place / "work" / name).symlink_to(target)
    (place / "other/back").symlink_to(place / "work/src")
    (place / "other/loop").symlink_to("loop")
    (place / "more/home").symlink_to("../work/a.txt")
    os.mkfifo(place / "work/fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "work/socket"))
    return place


@pytest.fixture
def roots(place: Path) -> Roots:
    return Roots([place / "work", place / "more"])


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def found(text: str | bytes, roots: Roots) -> Location:
    with located(text, roots) as location:
        return location


def read(text: str | bytes, roots: Roots) -> bytes:
    with located(text, roots) as location, os.fdopen(location.open_file(), "rb") as file:
        return file.read()


@pytest.mark.parametrize(
    ("text", "path", "kind"),
    [
        (".", "work", "folder"),
        ("", "work", "folder"),
        ("a.txt", "work/a.txt", "file"),
        ("file", "work/a.txt", "file"),
        ("in/b.txt", "work/src/b.txt", "file"),
        ("abs", "work/src/b.txt", "file"),
        ("src/", "work/src", "folder"),
        ("in/.", "work/src", "folder"),
        # `..` is the folder above what the symlink names.
        ("deep/../b.txt", "work/src/b.txt", "file"),
        ("src/../../work/./a.txt", "work/a.txt", "file"),
        # By names alone, as the shell of the same agent judges it.
        ("a.txt/../src", "work/src", "folder"),
        ("nothing/here/../../a.txt", "work/a.txt", "file"),
        ("out/../other/../work/a.txt", "work/a.txt", "file"),
        ("new", "work/new", "nothing"),
        ("gone", "work/src/new", "nothing"),
        ("in/x/y/z", "work/src/x/y/z", "nothing"),
        ("more/m", "more/m", "file"),
        ("more/home", "work/a.txt", "file"),
        ("back/b.txt", "work/src/b.txt", "file"),
        ("fifo", "work/fifo", "other"),
        ("socket", "work/socket", "other"),
        ("/../{place}/more/m", "more/m", "file"),
        ("n\u00e4me \u200b\n", "work/n\u00e4me \u200b\n", "nothing"),
        ("x" * 255, "work/" + "x" * 255, "nothing"),
    ],
)
def test_a_path_leads_to_an_open_folder_and_a_name(
    place: Path, roots: Roots, text: str, path: str, kind: str
) -> None:
    with located(text.format(place=place), roots) as location:
        assert location.path == str(place / path)
        assert location.root == str(place / path.split("/")[0])
        assert location.relative == os.path.relpath(place / path, location.root)
        folder = Path(os.readlink(f"/proc/self/fd/{location.folder}"))
        assert folder.joinpath(*location.missing, location.name) == place / path
        mode = 0 if location.status is None else location.status.st_mode
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", 0: "nothing"}
    assert kinds.get(stat.S_IFMT(mode), "other") == kind


@pytest.mark.parametrize(
    ("text", "kind", "why"),
    [
        ("loop", UnresolvedPath, "its symlinks lead nowhere"),
        ("a\0b", UnresolvedPath, "it contains NUL"),
        ("a\udcff", UnresolvedPath, "it is no text"),
        ("a/" * 2048, UnresolvedPath, "it is too long"),
        ("a.txt/", NotADirectoryError, "Not a directory"),
        ("file/.", NotADirectoryError, "Not a directory"),
        ("a.txt/b", NotADirectoryError, "Not a directory"),
        ("fifo/b/c", NotADirectoryError, "Not a directory"),
        ("new/", FileNotFoundError, "No such file"),
        ("x" * 256, OSError, os.strerror(errno.ENAMETOOLONG)),
        ("locked/c", PermissionError, "Permission denied"),
        ("locked/new/er", PermissionError, "Permission denied"),
    ],
)
def test_a_path_to_no_file_is_an_error(
    place: Path, roots: Roots, text: str, kind: type[Exception], why: str
) -> None:
    (place / "work/locked").chmod(0)
    before = open_descriptors()
    with pytest.raises(kind, match=why):
        as_plain_user(lambda: found(text, roots))
    assert open_descriptors() == before


def test_a_path_outside_is_the_same_error_whatever_is_there(place: Path, roots: Roots) -> None:
    (place / "other/locked").chmod(0)
    texts = ["..", "/", "/etc/passwd", "out", "out/file", "out/dir", "out/dir/", "out/file/"]
    texts += ["out/nothing", "out/nothing/", "out/file/x", "out/locked", "out/locked/x", "out/loop"]
    texts += ["far", "far/x", "out/" + "x" * 256, "new/../../new", f"{place}/work2", f"{place}/w"]
    texts += ["/proc/self/root/etc/passwd", "/proc/self/fd/0", "src/../../other/back/../.."]
    before = open_descriptors()
    for text in texts:
        with pytest.raises(OutsideRoots) as refused:
            as_plain_user(lambda: found(text, roots))  # noqa: B023 - runs at once
        assert refused.value.args == (text,)
    assert open_descriptors() == before
    # Nor does a way through it tell more than that of its symlinks.
    for text in ("file", "dir", "nothing", "locked/x/..", "file/x/.."):
        assert found(f"out/{text}/../../work/a.txt", roots).path == str(place / "work/a.txt")


def test_only_regular_files_are_opened_as_files(place: Path, roots: Roots) -> None:
    kinds = {"src": "a folder", "fifo": "a FIFO", "socket": "a socket"}
    for text, kind in kinds.items():
        with located(text, roots) as location, pytest.raises(NoFile, match=kind):
            location.open_file()
    with located("/dev/null", Roots(["/"])) as location, pytest.raises(NoFile, match="a device"):
        location.open_file()
    with located("new", roots) as location, pytest.raises(FileNotFoundError):
        location.open_file()
    with located("a.txt", roots) as location, pytest.raises(NotADirectoryError):
        location.open_folder()
    with located("src", roots) as location:
        folder = location.open_folder()
        assert sorted(os.listdir(folder)) == ["b.txt", "deep"]
        os.close(folder)


def test_a_file_that_becomes_a_symlink_is_not_opened(place: Path, roots: Roots) -> None:
    with located("a.txt", roots) as location:
        (place / "work/a.txt").unlink()
        (place / "work/a.txt").symlink_to(place / "other/file")
        with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
            location.open_file()


def test_a_root_may_be_the_root_of_all_or_be_in_another_one(place: Path) -> None:
    slash = found("/", Roots(["/"]))
    assert (slash.path, slash.name, slash.relative) == ("/", ".", ".")
    assert found("etc/passwd", Roots(["/"])).relative == "etc/passwd"
    inner = found("b.txt", Roots([place / "work/src", place / "work"]))
    assert inner.root == str(place / "work/src")
    outer = found("../a.txt", Roots([place / "work/src", place / "work"]))
    assert (outer.root, outer.relative) == (str(place / "work"), "a.txt")


def test_a_root_that_changes_stays_the_folder_of_its_path(place: Path, roots: Roots) -> None:
    for file in (place / "work").iterdir():
        file.rename(place / "other" / f"moved {file.name}")
    (place / "work").rmdir()
    for text in (".", "a.txt", "x/y"):
        with pytest.raises(RootVanished, match="the root does not exist any more"):
            found(text, roots)
    assert read(str(place / "more/m"), roots) == b"more/m"
    (place / "work").mkdir()
    assert found("a.txt", roots).status is None
    (place / "work").rmdir()
    (place / "work").symlink_to("other")
    with pytest.raises(OutsideRoots):
        found("file", roots)
    (place / "work").unlink()
    (place / "work").write_text("a file")
    for text in (".", "a.txt"):
        with pytest.raises(NotADirectoryError):
            found(text, roots)


def test_a_root_below_a_folder_that_may_not_be_entered_is_not_reported_as_outside(
    place: Path,
) -> None:
    (place / "work/locked/root/x").mkdir(parents=True)
    roots = Roots([place / "work/locked/root/x"])
    (place / "work/locked").chmod(0)
    with pytest.raises(PermissionError):
        as_plain_user(lambda: found("a", roots))


def test_names_of_any_bytes_are_found_as_the_system_gave_them(place: Path) -> None:
    folder = os.fsencode(place) + b"/work/\xff"
    os.mkdir(folder)
    Path(os.fsdecode(folder), "a").write_text("bytes")
    roots = Roots([place / "work", os.fsdecode(folder)])
    assert read(b"\xff/a", roots) == b"bytes"
    with os.scandir(place / "work") as entries:
        assert folder in {
            os.fsencode(found(os.fsencode(entry.path), roots).path)
            for entry in entries
            if entry.name not in ("out", "loop", "far", "more")
        }


def test_a_deep_path_holds_few_descriptors(place: Path, roots: Roots) -> None:
    (place / "work" / ("d/" * 300)).mkdir(parents=True)
    before = len(open_descriptors())
    with located("d/" * 300 + "a", roots) as location:
        assert len(open_descriptors()) - before <= 20
        assert location.relative == "d/" * 300 + "a"
        replaced(location, b"deep", lambda _: None)
    assert read("d/" * 300 + "a", roots) == b"deep"
    # The descriptors of folders further up were closed on the way down.
    for up in (1, 14, 15, 16, 17, 200):
        path = "d/" * 300 + "../" * up
        assert found(path, roots).relative == "d/" * (299 - up) + "d"
        assert found(f"{path}d/x", roots).missing == ()
    assert len(open_descriptors()) == before


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let this process open so many more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, open_descriptors()))
    holes = [os.open("/", os.O_RDONLY)]
    while holes[-1] < highest:
        holes.append(os.open("/", os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (holes[-1] + 1 + count, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for hole in holes:
            os.close(hole)


def test_where_no_descriptor_is_left_none_is_lost(place: Path, roots: Roots) -> None:
    before = open_descriptors()
    needed = 0
    while True:
        assert needed < 40
        with descriptors_left(needed), suppress(OSError):
            with located("out/../work/in/../../more/../work/src/new/file", roots) as location:
                replaced(location, b"x", lambda _: None)
            break
        assert open_descriptors() == before
        assert not (place / "work/src/new").exists()
        needed += 1
    assert needed > 3
    assert (place / "work/src/new/file").read_bytes() == b"x"


_SWAP = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
one, other = map(os.fsencode, sys.argv[1:])
parent = os.getppid()
print("begun", flush=True)
while os.getppid() == parent:
    for _ in range(1000):
        if libc.renameat2(-100, one, -100, other, 2) != 0:  # AT_FDCWD, RENAME_EXCHANGE
            sys.exit("it was not exchanged")
"""


@contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """Let a process exchange what two names mean as fast as it can."""
    command = [sys.executable, "-S", "-E", "-c", _SWAP, str(one), str(other)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield
            assert process.poll() is None
        finally:
            process.kill()


def errors_of(action: Callable[[], None]) -> set[type[Exception]]:
    """Try an action again and again, and return the kinds of its errors."""
    kinds: set[type[Exception]] = set()
    for _ in range(300):
        try:
            action()
        except (OSError, OutsideRoots) as error:
            kinds.add(type(error))
    return kinds


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("src", "../other/dir"),  # a folder, and a symlink to one outside
        ("src/deep", "../../other/dir"),
        ("src/deep/secret", "../../../other/dir/secret"),  # a file, and a symlink to one outside
        ("in", "../other/dir"),  # a symlink inside, and one outside
    ],
)
def test_what_is_swapped_never_leads_outside(
    place: Path, roots: Roots, name: str, target: str
) -> None:
    for folder in ("work/src", "work/src/deep"):
        (place / folder / "secret").write_text("public")
    (place / "other/dir/secret").write_text("secret")
    work = place / "work"
    (work / "other").symlink_to(target)
    path = name if name.endswith("secret") else f"{name}/secret"
    beside = os.path.join(os.path.dirname(path), "new/er")
    contents = set()

    def reads() -> None:
        contents.add(read(path, roots))

    def writes() -> None:
        for text in (path, beside):
            with located(text, roots) as location:
                replaced(location, b"written", lambda _: None)

    with swapping(work / name, work / "other"):
        # `OSError` itself is what a symlink in the place of the file is.
        assert errors_of(reads) <= {OutsideRoots, OSError}
        assert errors_of(writes) <= {OutsideRoots, OSError, FolderMoved}
    assert contents <= {b"public"}
    assert sorted(os.listdir(place / "other")) == ["back", "dir", "file", "locked", "loop"]
    assert os.listdir(place / "other/dir") == ["secret"]
    assert (place / "other/dir/secret").read_text() == "secret"
