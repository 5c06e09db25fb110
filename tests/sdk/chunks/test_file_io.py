"""Files that are not completely in memory: sources, saving and receiving."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from support.parts.scripted_room import ScriptedRoom, json_body, piece, scripted_room
from toolbus import ChunkStream, JsonChunk
from toolbus.chunks.chunk_types import FILE_PIECE_BYTES, FileChunk, as_chunk, chunk_from_wire
from toolbus.chunks.receive_credit import BUDGET_BYTES
from toolbus.errors import (
    ConnectionLost,
    DeadlineExceeded,
    HostLost,
    InvalidResult,
    RoomException,
    StreamBroken,
    ToolFailed,
)
from toolbus.wire import Cancel, Credit, pack_body
from toolbus.wire.flow_control import WINDOW_BYTES

BIG = bytes(range(256)) * 1_024  # four pieces
DATA = b"first second third"


async def brought(*pieces: Any) -> AsyncIterator[Any]:
    for item in pieces:
        yield item


async def sizes(file: FileChunk) -> list[int]:
    return [len(data) async for data in file.pieces()]


# Local files


@pytest.fixture
def files(tmp_path: Path) -> list[Callable[[], FileChunk]]:
    """Return the same file in each of its forms."""
    path = tmp_path / "big.bin"
    path.write_bytes(BIG)
    return [
        lambda: FileChunk(BIG, "big.bin"),
        lambda: FileChunk.from_path(path),
        lambda: FileChunk.from_pieces(brought(BIG[:10], b"", memoryview(BIG[10:])), "big.bin"),
    ]


async def test_file_reads_the_same_from_every_source(
    files: list[Callable[[], FileChunk]], tmp_path: Path
) -> None:
    for make in files:
        assert await make().read() == BIG
        assert max(await sizes(make())) <= FILE_PIECE_BYTES
        await make().save(tmp_path / "saved")
        assert (tmp_path / "saved").read_bytes() == BIG
        assert make().name == "big.bin"
        assert make().mime_type == "application/octet-stream"
        assert isinstance(as_chunk(make()), FileChunk)


async def test_error_of_a_partial_file_names_the_ways_to_read_it(tmp_path: Path) -> None:
    for file in (FileChunk.from_path(tmp_path / "a"), FileChunk.from_pieces(brought(b"a"))):
        assert not file.is_whole
        with pytest.raises(ValueError, match=r"await read\(\)"):
            _ = file.data
        with pytest.raises(ValueError, match="not completely in memory"):
            file.to_wire()
        assert "in pieces" in repr(file)
    assert FileChunk(b"a").is_whole


async def test_file_with_a_name_and_a_type_keeps_them(tmp_path: Path) -> None:
    file = FileChunk.from_path(tmp_path / "a.bin", "map.png", "image/png")
    assert (file.name, file.mime_type) == ("map.png", "image/png")
    file = FileChunk.from_pieces(brought(), "a", "b/c")
    assert (file.name, file.mime_type, await file.read()) == ("a", "b/c", b"")


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("report.pdf", "application/pdf"),
        ("map.PNG", "image/png"),
        ("a.csv.gz", "application/gzip"),
        ("a.csv.xz", "application/octet-stream"),
        ("Makefile", "application/octet-stream"),
        ("data:text/html,.unknown", "application/octet-stream"),
        ("", "application/octet-stream"),
    ],
)
def test_the_media_type_of_a_file_is_that_of_its_name(name: str, media_type: str) -> None:
    assert FileChunk.from_path(f"/no/{name}" if name else "/").mime_type == media_type
    assert FileChunk.from_path("/no/file.pdf", name).mime_type == media_type
    assert FileChunk.from_path(f"/no/{name}", mime_type="a/b").mime_type == "a/b"


async def test_file_on_disk_is_reread_and_one_in_pieces_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    file = FileChunk.from_path(tmp_path / "a")
    assert await file.read() == b"old"
    (tmp_path / "a").write_bytes(b"new")
    assert await file.read() == b"new"
    once = FileChunk.from_pieces(brought(b"a"))
    assert await once.read() == b"a"
    with pytest.raises(RuntimeError, match="once"):
        await once.read()


async def test_unreadable_file_is_an_os_error_for_its_reader(tmp_path: Path) -> None:
    file = FileChunk.from_path(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        await file.read()


async def test_pieces_that_are_not_bytes_cannot_be_sent() -> None:
    with pytest.raises(InvalidResult) as caught:
        await FileChunk.from_pieces(brought(b"a", "text")).read()
    assert caught.value.details["path"] == "/data"
    with pytest.raises(TypeError, match="must be an async iterable of bytes, not list"):
        FileChunk.from_pieces([b"a"])  # type: ignore[arg-type]


async def test_save_that_fails_half_way_leaves_the_old_file_and_no_other(
    tmp_path: Path,
) -> None:
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")
    target.chmod(0o600)

    async def fails() -> AsyncIterator[bytes]:
        yield b"new"
        raise ToolFailed("no more")

    with pytest.raises(ToolFailed):
        await FileChunk.from_pieces(fails()).save(target)
    assert (target.read_bytes(), os.listdir(tmp_path)) == (b"old", ["a.bin"])
    await FileChunk.from_pieces(brought(b"n", b"ew")).save(target)
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (b"new", 0o600)
    assert os.listdir(tmp_path) == ["a.bin"]


async def test_cancelled_save_leaves_nothing_and_closes_its_generator(
    tmp_path: Path,
) -> None:
    reached, closed = asyncio.Event(), asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            yield b"a"
            reached.set()
            await asyncio.Event().wait()
        finally:
            closed.set()

    saving = asyncio.create_task(FileChunk.from_pieces(endless()).save(tmp_path / "a"))
    async with asyncio.timeout(60):
        await reached.wait()
        saving.cancel()
        await asyncio.wait([saving])
        await closed.wait()
    assert os.listdir(tmp_path) == []


def test_piece_is_not_a_chunk_of_its_own() -> None:
    """STREAM-9."""
    with pytest.raises(StreamBroken):
        chunk_from_wire([3, "n", "m", b"a", True])
    assert chunk_from_wire([3, "n", "m", b"a", False]) == FileChunk(b"a", "n", "m")


# As a result


async def begun(scripted: ScriptedRoom, **options: Any) -> FileChunk:
    """Call a tool and get a file whose first piece has arrived."""
    invoked = asyncio.create_task(scripted.room.invoke("files.get", **options))
    call = await scripted.call()
    assert "credit_chunks" not in (call.options or {})
    await scripted.chunk(piece(b"first ", more=True, name="a.txt"))
    file = await invoked
    assert isinstance(file, FileChunk)
    return file


async def test_large_file_is_returned_with_its_first_piece(
    tmp_path: Path,
) -> None:
    """STREAM-8, STREAM-9."""
    async with scripted_room() as scripted:
        file = await begun(scripted)
        assert (file.name, file.mime_type, file.is_whole) == ("a.txt", "text/x", False)
        await scripted.chunk(piece(b"second ", more=True))
        await scripted.end(piece(b"third", more=False))
        await file.save(tmp_path / "a.txt")
        assert (tmp_path / "a.txt").read_bytes() == DATA
        with pytest.raises(RuntimeError, match="once"):
            await file.read()


async def test_credit_for_a_file_is_sent_when_its_first_piece_is_read() -> None:
    """STREAM-8."""
    async with scripted_room() as scripted:
        invoked = asyncio.create_task(scripted.room.invoke("files.get"))
        await scripted.call()
        first = piece(b"first ", more=True)
        await scripted.chunk(first)
        file = await invoked
        (credit,) = await scripted.received()
        assert credit == Credit(scripted.id, False, 257, WINDOW_BYTES + len(first))
        await scripted.chunk(piece(b"second ", more=True))
        assert await scripted.received() == []
        await scripted.end(piece(b"third", more=False))
        assert await file.read() == DATA


async def test_returning_bytes_reads_a_file_whole() -> None:
    async with scripted_room() as scripted:
        invoked = asyncio.create_task(scripted.room.invoke("files.get", returns=bytes))
        await scripted.call()
        await scripted.chunk(piece(b"first ", more=True))
        await scripted.end(piece(b"second third", more=False))
        assert await invoked == DATA
        returned = asyncio.create_task(scripted.room.invoke("files.get", returns=FileChunk))
        await scripted.call()
        await scripted.chunk(piece(b"first ", more=True))
        assert not (await returned).is_whole


@pytest.mark.parametrize(
    ("error", "executed"), [(ToolFailed("disk"), "yes"), (HostLost(), "maybe")]
)
async def test_failure_within_a_file_is_raised_to_its_reader(
    tmp_path: Path, error: RoomException, executed: str
) -> None:
    async with scripted_room() as scripted:
        file = await begun(scripted)
        await scripted.fail(error)
        with pytest.raises(type(error)) as caught:
            await file.save(tmp_path / "a")
        assert caught.value.executed == executed
        assert os.listdir(tmp_path) == []


async def test_lost_connection_within_a_file_is_raised_to_its_reader() -> None:
    async with scripted_room() as scripted:
        file = await begun(scripted)
        await scripted.connection.websocket.close()
        with pytest.raises(ConnectionLost) as caught:
            await file.read()
        assert caught.value.executed == "maybe"


async def test_deadline_of_the_call_covers_the_whole_file() -> None:
    async with scripted_room() as scripted:
        file = await begun(scripted, timeout_s=0.05)
        with pytest.raises(DeadlineExceeded) as caught:
            await file.read()
        assert caught.value.executed == "maybe"


@pytest.mark.parametrize(
    "rest", [json_body(1), pack_body([0]), pack_body([3, "", "", b"x", True]), b"\xc1"]
)
async def test_end_in_the_middle_of_a_file_is_a_broken_stream(rest: bytes) -> None:
    """STREAM-9."""
    async with scripted_room() as scripted:
        file = await begun(scripted)
        await scripted.end(rest)
        with pytest.raises(StreamBroken):
            await file.read()


@pytest.mark.parametrize("rest", [json_body(1), pack_body([3, "", "", b"x"])])
async def test_chunk_that_does_not_continue_the_file_breaks_it(rest: bytes) -> None:
    """STREAM-9."""
    async with scripted_room() as scripted:
        file = await begun(scripted)
        await scripted.received()
        await scripted.chunk(rest)
        with pytest.raises(StreamBroken):
            await file.read()
        assert await scripted.received() == [Cancel(scripted.id, "cancelled")]


async def test_chunk_of_a_call_that_is_neither_stream_nor_file_is_a_broken_stream() -> None:
    """STREAM-8, STREAM-9."""
    async with scripted_room() as scripted:
        for body in (json_body(1), pack_body([3, "", "", b"x"])):
            invoked = asyncio.create_task(scripted.room.invoke("files.get"))
            await scripted.call()
            await scripted.chunk(body)
            with pytest.raises(StreamBroken):
                await invoked
            received = await scripted.received()
            assert received[-1] == Cancel(scripted.id, "cancelled")


async def test_file_dropped_unread_cancels_the_call() -> None:
    """CALL-10."""
    async with scripted_room() as scripted:
        file = await begun(scripted)
        await scripted.received()
        del file
        gc.collect()
        assert await scripted.received() == [Cancel(scripted.id, "cancelled")]
        assert scripted.id not in scripted.pending


async def test_cancelled_read_cancels_the_call() -> None:
    async with scripted_room() as scripted:
        file = await begun(scripted)
        reading = asyncio.create_task(file.read())
        await scripted.received()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await scripted.received() == [Cancel(scripted.id, "cancelled")]


async def test_call_abandoned_before_its_first_piece_is_cancelled() -> None:
    async with scripted_room() as scripted:
        invoked = asyncio.create_task(scripted.room.invoke("files.get"))
        await scripted.call()
        invoked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await invoked
        await scripted.chunk(piece(b"first ", more=True))
        assert await scripted.received() == [Cancel(scripted.id, "cancelled")]
        assert scripted.dropped == 1


async def test_call_cancelled_at_its_first_piece_keeps_no_memory() -> None:
    async with scripted_room() as scripted:
        invoked = asyncio.create_task(scripted.room.invoke("files.get"))
        await scripted.call()
        scripted.at_chunk(invoked.cancel)
        await scripted.chunk(piece(b"first ", more=True))
        with pytest.raises(asyncio.CancelledError):
            await invoked
        assert await scripted.received() == [Cancel(scripted.id, "cancelled")]
        assert scripted.id not in scripted.pending
        assert scripted.shares_left == BUDGET_BYTES


@pytest.mark.parametrize("rest", [json_body(1), b"\xc1"])
async def test_broken_file_or_call_keeps_no_memory(rest: bytes) -> None:
    async with scripted_room() as scripted:
        file = await begun(scripted)
        await scripted.chunk(rest)
        with pytest.raises(StreamBroken):
            await file.read()
        invoked = asyncio.create_task(scripted.room.invoke("files.get"))
        await scripted.call()
        await scripted.chunk(rest)
        with pytest.raises(StreamBroken):
            await invoked
        assert scripted.shares_left == BUDGET_BYTES


# In a stream


async def two_files(scripted: ScriptedRoom) -> None:
    await scripted.call()
    await scripted.chunk(piece(b"first ", more=True, name="one"))
    await scripted.chunk(piece(b"second ", more=True))
    await scripted.chunk(piece(b"third", more=False))
    await scripted.chunk(json_body("between"))
    await scripted.chunk(piece(b"a", more=True, name="two"))
    await scripted.end(piece(b"b", more=False))


async def next_file(chunks: ChunkStream) -> FileChunk:
    file = await anext(chunks)
    assert isinstance(file, FileChunk)
    return file


async def test_file_in_pieces_is_one_chunk_of_its_stream() -> None:
    """STREAM-9."""
    async with scripted_room() as scripted, scripted.room.stream("files.all") as chunks:
        await two_files(scripted)
        assert await (await next_file(chunks)).read() == DATA
        assert await anext(chunks) == JsonChunk("between")
        assert await (await next_file(chunks)).read() == b"ab"
        assert [chunk async for chunk in chunks] == []


async def test_unread_pieces_of_a_file_are_skipped() -> None:
    async with scripted_room() as scripted, scripted.room.stream("files.all") as chunks:
        await two_files(scripted)
        unread = await next_file(chunks)
        assert await anext(chunks) == JsonChunk("between")
        half = await next_file(chunks)
        async for data in half.pieces():
            assert data == b"a"
            break
        assert [chunk async for chunk in chunks] == []
        with pytest.raises(RuntimeError, match="skipped"):
            await unread.read()


async def test_half_read_file_does_not_end_as_if_complete() -> None:
    async with scripted_room() as scripted, scripted.room.stream("files.all") as chunks:
        await two_files(scripted)
        pieces = (await next_file(chunks)).pieces()
        assert await anext(pieces) == b"first "
        assert await anext(chunks) == JsonChunk("between")
        with pytest.raises(RuntimeError, match="skipped"):
            await anext(pieces)


async def test_file_and_its_stream_are_read_by_one_task_at_a_time() -> None:
    async with scripted_room() as scripted, scripted.room.stream("files.all") as chunks:
        await scripted.call()
        await scripted.chunk(piece(b"first ", more=True))
        reading = asyncio.create_task((await next_file(chunks)).read())
        await scripted.received()
        with pytest.raises(RuntimeError, match="another task"):
            await anext(chunks)
        await scripted.chunk(piece(b"second ", more=True))
        await scripted.end(piece(b"third", more=False))
        assert await reading == DATA


async def test_too_large_piece_of_a_host_is_split() -> None:
    async with scripted_room() as scripted, scripted.room.stream("files.all") as chunks:
        await scripted.call()
        await scripted.chunk(piece(b"x" * (2 * FILE_PIECE_BYTES + 1), more=True))
        await scripted.end(piece(b"y", more=False))
        sizes = [len(data) async for data in (await next_file(chunks)).pieces()]
        assert sizes == [FILE_PIECE_BYTES, FILE_PIECE_BYTES, 1, 1]


async def test_failure_within_a_file_is_raised_to_its_reader_and_the_streams() -> None:
    async with scripted_room() as scripted:
        async with scripted.room.stream("files.all") as chunks:
            await scripted.call()
            await scripted.chunk(piece(b"first ", more=True))
            await scripted.fail(ToolFailed("disk"))
            file = await next_file(chunks)
            with pytest.raises(ToolFailed):
                await file.read()
        async with scripted.room.stream("files.all") as chunks:
            await scripted.call()
            await scripted.chunk(piece(b"first ", more=True))
            await scripted.fail(ToolFailed("disk"))
            await next_file(chunks)
            with pytest.raises(ToolFailed) as caught:
                await anext(chunks)
            assert caught.value.details["chunks"] == 1
