"""`get` and `put`: files of any size, and what becomes of them where a call breaks off."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from toolbus import FileChunk, ToolContext, ToolFailed
from toolbus.chunks.file_io import FILE_THREADS
from toolbus.tools.context import run_of
from toolbus.tools.tool_run import LocalRun
from toolbus_server.testing import room_of
from toolbus_toolkits.files import Files, reached, transfer_tools
from toolbus_toolkits.files.transfer_tools import Upload
from toolbus_toolkits.workspace import Draft

LARGE = os.urandom(1024) * 3_000  # three blocks
_MIDDLE = 1024 * 1024


class Caller:
    """Calls the tools of one toolkit; `context` is that of the last call."""

    def __init__(self, root: Path) -> None:
        self._toolkit = Files(root)
        self.context = ToolContext()

    async def __call__(self, tool: str, path: str = "file", file: Any = None, **more: Any) -> Any:
        self.context = ToolContext(run=LocalRun())
        given = {"path": path, **more}
        return (await self._toolkit.execute(self.context, tool, given, file)).value


@pytest.fixture
def call(tmp_path: Path) -> Caller:
    return Caller(tmp_path)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_large_files_are_received_and_sent_through_a_room(tmp_path: Path) -> None:
    token = hashlib.blake2b(LARGE, digest_size=12).hexdigest()
    async with room_of("host", "ann") as (host, ann), host.host(Files(tmp_path), public=True):
        put = await ann.invoke("files.put", {"path": "new/data.json"}, attachment=LARGE)
        assert put.value == {"token": token, "size": len(LARGE)}
        got = (await ann.invoke("files.get", {"path": "new/data.json"})).value
        assert (got.name, got.mime_type) == ("data.json", "application/json")
        assert await got.read() == LARGE
        # What it has sent, and what it was sent, it has seen.
        (tmp_path / "new" / "data.json").write_bytes(LARGE + b"more")
        got = (await ann.invoke("files.get", {"path": "new/data.json"})).value
        assert await got.read() == LARGE + b"more"
        for data in (b"1", b""):
            put = await ann.invoke("files.put", {"path": "new/data.json"}, attachment=data)
            assert put.value["size"] == len(data)
        assert await (await ann.invoke("files.get", {"path": "new/data.json"})).value.read() == b""


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("a.tar.gz", "application/gzip"),
        ("a.csv.xz", "application/octet-stream"),
        ("a.png", "image/png"),
        ("Makefile", "application/octet-stream"),
    ],
)
async def test_the_media_type_is_that_of_the_bytes(
    tmp_path: Path, call: Caller, name: str, media_type: str
) -> None:
    (tmp_path / name).touch()
    assert (await call("get", name)).mime_type == media_type


def _appended(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _replaced(path: Path) -> None:
    path.with_name("other").write_bytes(b"other")
    path.with_name("other").rename(path)


def _deleted(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("change", [_appended, _replaced, _deleted])
async def test_what_was_there_when_it_began_is_sent(
    tmp_path: Path, call: Caller, change: Callable[[Path], Any]
) -> None:
    (tmp_path / "file").write_bytes(LARGE)
    file = await call("get")
    pieces = file.pieces()
    first = await anext(pieces)
    change(tmp_path / "file")
    assert first + b"".join([piece async for piece in pieces]) == LARGE


async def test_a_file_that_becomes_shorter_is_not_sent_as_if_it_were_whole(
    tmp_path: Path, call: Caller
) -> None:
    (tmp_path / "file").write_bytes(LARGE)
    file = await call("get")
    os.truncate(tmp_path / "file", 10)
    with pytest.raises(ToolFailed) as caught:
        await file.read()
    assert caught.value.details == {"reason": "changed"}


async def _drop(file: FileChunk) -> None:
    assert not file.is_whole


async def _leave(file: FileChunk) -> None:
    pieces = file.pieces()
    await anext(pieces)
    await pieces.aclose()


async def _cancel(file: FileChunk) -> None:
    reading = asyncio.ensure_future(file.read())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])


@pytest.mark.parametrize("leave", [_drop, _leave, _cancel])
async def test_a_file_that_is_not_read_to_its_end_is_closed_and_not_seen(
    tmp_path: Path, call: Caller, leave: Callable[[FileChunk], Any]
) -> None:
    (tmp_path / "file").write_bytes(LARGE)
    before = _descriptors()
    file = await call("get")
    is_gone = asyncio.Event()
    weakref.finalize(file.source, asyncio.get_running_loop().call_soon_threadsafe, is_gone.set)
    await leave(file)
    del file
    await is_gone.wait()  # the thread that has opened it may hold it for a moment
    assert _descriptors() == before
    with pytest.raises(ToolFailed) as caught:
        await call("put", file=b"new")
    assert caught.value.details == {"reason": "never_read"}


async def _unread(pieces: list[bytes], read: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        read.append(piece)
        yield piece


@pytest.mark.parametrize(
    ("path", "token", "reason"),
    [
        ("file", None, "never_read"),
        ("file", "0" * 24, "changed"),
        ("partly", None, "never_read"),
        ("read", None, "changed"),
        ("new", "0" * 24, "changed"),
        (".", None, "not_a_file"),
        ("fifo", None, "not_a_file"),
        ("file/below", None, "not_a_folder"),
        ("../outside", None, "outside"),
    ],
)
async def test_what_may_not_be_replaced_is_refused_before_the_upload(
    tmp_path: Path, call: Caller, path: str, token: str | None, reason: str
) -> None:
    for name in ("file", "partly", "read"):
        (tmp_path / name).write_text("1\n2\n3\n")
    os.mkfifo(tmp_path / "fifo")
    await call("read", "partly", limit=1)
    await call("read", "read")
    (tmp_path / "read").write_text("4\n")
    read: list[bytes] = []
    with pytest.raises(ToolFailed) as caught:
        await call("put", path, _unread([b"1", b"2"], read), token=token)
    assert (caught.value.details, caught.value.executed) == ({"reason": reason}, "no")
    assert len(read) <= 1


async def test_a_token_is_enough_for_a_file_that_others_have_read(
    tmp_path: Path, call: Caller
) -> None:
    (tmp_path / "file").write_bytes(b"old")
    token = hashlib.blake2b(b"old", digest_size=12).hexdigest()
    assert (await call("put", file=b"new", token=token))["size"] == 3
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("was_there", [True, False])
async def test_of_two_writers_the_one_who_uploads_learns_that_the_other_was_first(
    tmp_path: Path, call: Caller, was_there: bool
) -> None:
    if was_there:
        (tmp_path / "file").write_bytes(b"old")
        await (await call("get")).read()

    async def pieces() -> AsyncIterator[bytes]:
        yield LARGE
        (tmp_path / "file").write_bytes(b"of another one")
        yield LARGE

    with pytest.raises(ToolFailed) as caught:
        await call("put", file=pieces())
    assert (caught.value.details, caught.value.executed) == ({"reason": "changed"}, "no")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"of another one"


@pytest.mark.parametrize("how", ["raises", "cancelled", "disk_full"])
async def test_an_upload_that_breaks_off_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, call: Caller, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    (tmp_path / "file").write_bytes(b"old")
    await (await call("get")).read()
    before = _descriptors()
    half_way = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield LARGE
        half_way.set()
        if how == "raises":
            raise ConnectionError
        if how == "disk_full":
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            monkeypatch.setattr(Draft, "write", lambda *_: _raise(full))
            yield LARGE
        await asyncio.Event().wait()

    putting = asyncio.ensure_future(call("put", file=pieces()))
    await half_way.wait()
    if how == "cancelled":
        putting.cancel()
    await asyncio.wait([putting])
    if how == "disk_full":
        error = putting.exception()
        assert isinstance(error, ToolFailed)
        assert (error.details, error.executed) == ({"reason": "no_space"}, "no")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"
    assert _descriptors() == before


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("is_past_the_check", "before"), [(False, b"old"), (False, None), (True, b"old")]
)
async def test_a_call_that_is_cancelled_in_its_last_step_says_whether_it_changed_the_file(
    tmp_path: Path,
    call: Caller,
    monkeypatch: pytest.MonkeyPatch,
    is_past_the_check: bool,
    before: bytes | None,
) -> None:
    if before is not None:
        await call("put", file=before)
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    class Slow(Upload):
        def _check(self, descriptor: int | None) -> None:
            if is_past_the_check:
                super()._check(descriptor)
            begun.set()
            go_on.wait()
            if not is_past_the_check:
                super()._check(descriptor)

        def discard(self) -> None:
            super().discard()
            ended.set()

    monkeypatch.setattr(transfer_tools, "Upload", Slow)
    putting = asyncio.ensure_future(call("put", file=b"new"))
    await FILE_THREADS.run(begun.wait)
    putting.cancel()
    await asyncio.wait([putting])
    assert run_of(call.context).entered is is_past_the_check
    go_on.set()
    await FILE_THREADS.run(ended.wait)
    after = b"new" if is_past_the_check else before
    assert os.listdir(tmp_path) == ([] if after is None else ["file"])
    assert after is None or (tmp_path / "file").read_bytes() == after


async def test_large_files_that_one_caller_reads_leave_threads_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reached, "_MAX_WHOLE", 2)
    (tmp_path / "file").write_bytes(b"data")
    running = threading.Semaphore(0)
    may_end = threading.Event()
    version_of = Upload._version_of

    def slow(upload: Upload, descriptor: int) -> str:
        running.release()
        may_end.wait()
        return version_of(upload, descriptor)

    async with room_of("host", "ann", "bob") as (host, ann, bob):
        async with host.host(Files(tmp_path), public=True):
            with monkeypatch.context() as patch:
                patch.setattr(Upload, "_version_of", slow)
                calls = [
                    asyncio.ensure_future(ann.invoke("files.put", {"path": "file"}, attachment=b""))
                    for _ in range(4)
                ]
                for _ in range(2):
                    await asyncio.to_thread(running.acquire)
                reading = asyncio.ensure_future(ann.call("files.read", path="file"))
                assert (await bob.call("files.read", path="file"))["truncated"] is False
                assert not reading.done()
                assert not running.acquire(blocking=False)
                may_end.set()
                await asyncio.wait([*calls, reading])
            assert (await reading)["truncated"] is False
