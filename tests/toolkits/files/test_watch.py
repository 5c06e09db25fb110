"""`watch`: which changes it tells, which it leaves out, and how it ends."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from toolbus import ToolContext, ToolFailed, ToolUse, Turn
from toolbus.chunks.file_io import FILE_THREADS
from toolbus_server.testing import room_of
from toolbus_toolkits.files import Files, transfer_tools, watching
from toolbus_toolkits.workspace import inotify, watched_tree
from toolbus_toolkits.workspace.inotify import Event, Inotify
from toolbus_toolkits.workspace.watched_tree import WaitingChanges

_END = "end-of-test"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell changes at once: no test depends on which of them come together."""
    monkeypatch.setattr(watching, "_QUIET_S", 0.002)


class Watching:
    """A watch that runs, and its changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reported: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self._ends = 0
        self.running: asyncio.Future[Any]

    async def put(self, chunk: Any) -> None:
        await self._reported.put(chunk.value)

    async def next(self) -> str:
        if not self._reported.empty():
            change = self._reported.get_nowait()
            return f"{change['change']} {change['path']}"
        getting = asyncio.ensure_future(self._reported.get())
        async with asyncio.timeout(60):
            await asyncio.wait([getting, self.running], return_when=asyncio.FIRST_COMPLETED)
        if not getting.done():
            getting.cancel()
            await self.running
        change = await getting
        return f"{change['change']} {change['path']}"

    async def changes(self) -> list[str]:
        """Return the changes that the watch reports until now.

        A busy machine writes slowly, so one change may come in two parts: they are put together.
        """
        reported: dict[str, None] = {}
        # What is reported together is in no order: the second end comes after all of it.
        for _ in range(2):
            self._ends += 1
            end = f"added {_END}-{self._ends}/"
            (self._folder / f"{_END}-{self._ends}").mkdir()
            while (change := await self.next()) != end:
                kind, _, path = change.partition(" ")
                if kind != "modified" or f"added {path}" not in reported:
                    reported[change] = None
        return list(reported)


@asynccontextmanager
async def _watching(
    toolkit: Files, path: str = ".", folder: Path | None = None
) -> AsyncIterator[Watching]:
    """Watch, and add the changes that end a test in a folder."""
    watch = Watching(folder or Path())
    context = ToolContext(on_chunk=watch.put)
    running = asyncio.ensure_future(toolkit.execute(context, "watch", {"path": path}))
    watch.running = running
    try:
        while (first := await watch.next()).startswith("waiting "):
            pass
        assert first.startswith("watching ")
        yield watch
    finally:
        running.cancel()
        await asyncio.wait([running])


def _tree(root: Path) -> None:
    for name in ("src/deep", ".git/objects", "src/.hg"):
        (root / "tree" / name).mkdir(parents=True)
    (root / "outside").mkdir()
    for name in ("tree/file", "tree/src/app.py", "tree/other", "outside/secret"):
        (root / name).write_text("old")
    (root / "tree" / "link").symlink_to(root / "outside")


def _new_folders(tree: Path) -> None:
    (tree / "a" / "b" / "c").mkdir(parents=True)
    (tree / "a" / "b" / "c" / "file").touch()


def _swapped_for_a_link(tree: Path) -> None:
    (tree / "src").rename(tree.parent / "outside" / "src")
    (tree / "src").symlink_to(tree.parent / "outside" / "src")
    (tree / "src" / "deep" / "secret").touch()


@pytest.mark.parametrize(
    ("act", "reported"),
    [
        (lambda tree: (tree / "new").touch(), ["added new"]),
        (lambda tree: (tree / "src" / "app.py").write_text("new"), ["modified src/app.py"]),
        (lambda tree: (tree / "file").unlink(), ["deleted file"]),
        (lambda tree: (tree / "file").rename(tree / "new"), ["deleted file", "added new"]),
        (lambda tree: (tree / "file").rename(tree / "other"), ["deleted file", "modified other"]),
        (lambda tree: (tree / "ln").symlink_to("/nowhere"), ["added ln"]),
        (_new_folders, ["added a/", "added a/b/", "added a/b/c/", "added a/b/c/file"]),
        (
            lambda tree: (tree / "src").rename(tree / "lib"),
            ["deleted src/", "added lib/", "added lib/deep/", "added lib/app.py"],
        ),
        (_swapped_for_a_link, ["deleted src/", "added src"]),
        (lambda tree: (tree / "link" / "secret").write_text("new"), []),
        (lambda tree: (tree / ".git" / "objects" / "new").touch(), []),
        (lambda tree: (tree / ".git" / "objects").rename(tree / "src" / ".hg" / "x"), []),
        (lambda tree: (tree / ".0123456789abcdef.part").touch(), []),
        (lambda tree: os.mkdir(os.fsencode(tree) + b"/\xe9t\xe9"), [r"added \udce9t\udce9/"]),
    ],
)
async def test_each_change_below_the_folder_is_reported_once(
    tmp_path: Path, act: Callable[[Path], Any], reported: list[str]
) -> None:
    _tree(tmp_path)
    tree = tmp_path / "tree"
    async with _watching(Files(tree), folder=tree) as watch:
        act(tree)
        # The order within a folder that is listed is that of the disk.
        assert sorted(await watch.changes()) == sorted(reported)


async def test_a_folder_that_is_swapped_for_a_link_before_it_is_opened_is_not_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _tree(tmp_path)
    tree = tmp_path / "tree"
    opened = watched_tree._opened

    def swapped(steps: list[str], top: int) -> int:
        if steps == ["new"] and not (tree / "new").is_symlink():
            (tree / "new").rmdir()
            (tree / "new").symlink_to(tmp_path / "outside")
        return opened(steps, top)

    monkeypatch.setattr(watched_tree, "_opened", swapped)
    async with _watching(Files(tree), folder=tree) as watch:
        (tree / "new").mkdir()
        reported = await watch.changes()
        (tmp_path / "outside" / "secret").write_text("new")
        reported += await watch.changes()
    assert "added new" in reported
    assert not any("secret" in change for change in reported)


@pytest.mark.parametrize("keeps_names", [True, False])
async def test_a_file_that_a_tool_writes_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps_names: bool
) -> None:
    if not keeps_names:
        monkeypatch.setattr(watched_tree, "_MAX_NAMES", 0)
    toolkit = Files(tmp_path)
    async with _watching(toolkit, folder=tmp_path) as watch:
        for change in ("added file", "modified file"):
            await toolkit.execute(ToolContext(), "put", {"path": "file"}, b"data")
            assert await watch.changes() == [change]


async def test_one_file_is_watched_whatever_takes_its_place(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    file = tmp_path / "folder" / "file"
    file.touch()
    (tmp_path / "folder" / "other").touch()
    (tmp_path / "elsewhere").touch()
    async with _watching(Files(tmp_path), "folder/file") as watch:
        (tmp_path / "folder" / "other").rename(file)
        assert await watch.next() == "modified folder/file"
        file.unlink()
        assert await watch.next() == "deleted folder/file"
        file.mkdir()
        file.rmdir()
        (tmp_path / "elsewhere").rename(file)
        assert await watch.next() == "added folder/file"


async def test_paths_below_a_further_root_are_absolute(tmp_path: Path) -> None:
    for name in ("first", "second/inner"):
        (tmp_path / name).mkdir(parents=True)
    second = os.path.realpath(tmp_path / "second")  # noqa: ASYNC240 - a folder of the test
    toolkit = Files(tmp_path / "first", further_roots=[second])
    async with _watching(toolkit, f"{second}/inner") as watch:
        os.mkdir(f"{second}/inner/new")
        assert await watch.next() == f"added {second}/inner/new/"


@pytest.mark.parametrize(
    "act",
    [
        lambda root: (root / "above" / "folder").rename(root / "elsewhere"),
        lambda root: (root / "above").rename(root / "elsewhere"),
        lambda root: root.rename(root.with_name("elsewhere")),
        lambda root: shutil.rmtree(root / "above"),
    ],
)
async def test_a_watch_ends_with_an_error_when_its_folder_is_deleted_or_moved(
    tmp_path: Path, act: Callable[[Path], Any]
) -> None:
    root = tmp_path / "root"
    (root / "above" / "folder").mkdir(parents=True)
    async with _watching(Files(root), "above/folder") as watch:
        act(root)
        with pytest.raises(ToolFailed) as caught:
            await watch.next()
    assert caught.value.details == {"reason": "no_such_file"}


@pytest.mark.parametrize(
    ("path", "reason"),
    [("missing", "no_such_file"), ("fifo", "not_a_file"), ("..", "outside")],
)
async def test_what_cannot_be_watched_is_refused(tmp_path: Path, path: str, reason: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    await _refused(Files(tmp_path), path, reason)


async def _refused(toolkit: Files, path: str, reason: str) -> None:
    with pytest.raises(ToolFailed) as caught:
        async with _watching(toolkit, path):
            pass
    assert caught.value.details == {"reason": reason}


async def test_limits_of_the_system_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def many(*_: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = len(os.listdir("/proc/self/fd"))
    add = Inotify.add
    is_new = inotify.MASK_CREATE
    monkeypatch.setattr(Inotify, "add", lambda *a: full() if a[2] & is_new else add(*a))
    await _refused(Files(tmp_path), ".", "too_large")
    monkeypatch.setattr(Inotify, "__init__", many)
    await _refused(Files(tmp_path), ".", "too_many")
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_caller_has_a_few_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_tools, "_MAX_WATCHES_OF_ONE", 1)
    toolkit = Files(tmp_path)
    for _ in range(2):
        async with _watching(toolkit):
            await _refused(toolkit, ".", "too_many")


async def test_what_is_in_folders_deeper_than_the_limit_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_tree, "MAX_DEPTH", 2)
    (tmp_path / "1" / "2" / "3").mkdir(parents=True)
    async with _watching(Files(tmp_path), folder=tmp_path) as watch:
        (tmp_path / "1" / "2" / "3" / "deep").touch()
        (tmp_path / "1" / "2" / "file").touch()
        assert await watch.changes() == ["added 1/2/file"]


@pytest.mark.parametrize("seconds", [{"timeout_s": 0.3}, {}])
async def test_a_watch_ends_by_itself_before_its_result_would_be_lost(
    tmp_path: Path, seconds: dict[str, float]
) -> None:
    async with Turn(None, always=[Files(tmp_path)]) as turn:
        result = await turn.invoke("files.watch", seconds, timeout_s=60 if seconds else 1)
    # A busy machine may not have begun by then.
    assert result.value in ([{"path": ".", "change": "watching"}], [])


async def test_when_the_kernel_drops_events_that_is_reported_and_the_watch_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_lost = threading.Event()
    read = Inotify.read

    def lossy(kernel: Inotify) -> list[Event]:
        events = read(kernel)
        if not events or not is_lost.is_set():
            return events
        is_lost.clear()
        return [Event(-1, inotify.Q_OVERFLOW, 0, "")]

    monkeypatch.setattr(Inotify, "read", lossy)
    async with _watching(Files(tmp_path), folder=tmp_path) as watch:
        is_lost.set()
        (tmp_path / "new").mkdir()
        assert await watch.next() == "missed ."
        (tmp_path / "new" / "file").touch()
        assert await watch.changes() == ["added new/file"]


async def test_a_slow_caller_gets_a_notice_that_changes_were_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_tree, "_MAX_WAITING", 20)
    async with _watching(Files(tmp_path), folder=tmp_path) as watch:
        for number in range(500):
            (tmp_path / str(number)).mkdir()
        reported = await watch.changes()
    assert "missed ." in reported
    assert len(reported) < 500


async def test_many_changes_at_once_are_all_reported(tmp_path: Path) -> None:
    async with _watching(Files(tmp_path), folder=tmp_path) as watch:
        await FILE_THREADS.run(_make_files, tmp_path, 2_000)
        assert set(await watch.changes()) == {f"added {number}" for number in range(2_000)}


def _make_files(folder: Path, count: int) -> None:
    for number in range(count):
        os.close(os.open(folder / str(number), os.O_CREAT | os.O_WRONLY))


@pytest.mark.parametrize(
    ("kinds", "is_folder", "reported"),
    [
        (["added", "modified"], False, ["added"]),
        (["added", "deleted"], False, []),
        (["modified", "deleted"], False, ["deleted"]),
        (["deleted", "added", "modified"], False, ["modified"]),
        (["added", "deleted"], True, []),
        # Not the same folder: what was below the old one is gone.
        (["deleted", "added"], True, ["deleted", "added"]),
        (["deleted", "added", "deleted"], True, ["deleted"]),
    ],
)
def test_changes_of_one_path_are_folded(
    kinds: list[Any], is_folder: bool, reported: list[str]
) -> None:
    changes = WaitingChanges(".", ".")
    for kind in kinds:
        changes.note("a", kind, is_folder=is_folder)
    assert [change["change"] for change in changes.take()] == reported


@pytest.mark.parametrize(
    ("notes", "reported"),
    [
        # A new folder that is moved away takes along what was reported to be in it.
        ("added a/, added a/b/, added a/b/c, deleted a/", ""),
        ("added a/, added a/b, deleted a/, added a/, added a/c", "added a/, added a/c"),
        ("modified a/b, added ab, deleted a/", "added ab, deleted a/"),
        ("added a/b/, modified a/b/c, deleted a/b/, added b/", "added b/"),
        ("deleted a/b, deleted a/", "deleted a/b, deleted a/"),
        ("added a/b, deleted a/, added a/, added a/b", "deleted a/, added a/, added a/b"),
    ],
)
def test_nothing_is_reported_of_what_was_in_a_folder_that_has_left(
    notes: str, reported: str
) -> None:
    changes = WaitingChanges(".", ".")
    for note in notes.split(", "):
        kind, _, path = note.partition(" ")
        changes.note(path.rstrip("/"), cast(Any, kind), is_folder=path.endswith("/"))
    taken = [f"{change['change']} {change['path']}" for change in changes.take()]
    assert ", ".join(taken) == reported


async def test_a_stream_without_changes_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer_tools, "_WAITING_S", 0.01)
    (tmp_path / "folder").mkdir()
    async with _watching(Files(tmp_path), "folder") as watch:
        for _ in range(2):
            assert await watch.next() == "waiting folder"
        (tmp_path / "folder" / "new").mkdir()
        while (change := await watch.next()) == "waiting folder":
            pass
        assert change == "added folder/new/"


async def test_a_watch_ends_with_its_caller(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    use = ToolUse("0", "files.watch", {})
    async with Turn(None, always=[Files(tmp_path)]) as turn:
        async with aclosing(turn.stream(use)) as chunks:
            first: Any = await anext(chunks)
            assert first.value == {"path": ".", "change": "watching"}
        assert len(os.listdir("/proc/self/fd")) == before


async def test_changes_come_through_a_room(tmp_path: Path) -> None:
    async with room_of("host", "ann") as (host, ann), host.host(Files(tmp_path), public=True):
        async with ann.stream("files.watch") as chunks:
            reported = []
            async for chunk in chunks:
                reported.append(chunk.value)
                if len(reported) == 2:
                    break
                (tmp_path / "new").mkdir()
    assert reported == [{"path": ".", "change": "watching"}, {"path": "new/", "change": "added"}]
