"""Files that a host sends: whole or in pieces, as a result and in a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.parts.isolated_host import PLENTY, HostStage
from toolbus import FileChunk, tool
from toolbus.chunks.chunk_types import FILE_PIECE_BYTES
from toolbus.tools.toolkit import MAX_RESULT_BYTES
from toolbus.wire import StreamChunk, pack_body, unpack_body
from toolbus.wire.flow_control import MAX_CHUNK_BYTES


def joined(fields: list[list[Any]]) -> bytes:
    assert all(len(piece[3]) <= FILE_PIECE_BYTES for piece in fields)
    assert [piece[4:] for piece in fields] == [[True]] * (len(fields) - 1) + [[]]
    return b"".join(piece[3] for piece in fields)


LARGE = bytes(range(256)) * 1200  # 300 KiB


class OnDisk:
    """A file whose size the test sets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = b""
        self.fill(LARGE)

    def fill(self, data: bytes) -> None:
        self.data = data
        self.path.write_bytes(data)


@pytest.fixture
def disk(tmp_path: Path) -> OnDisk:
    return OnDisk(tmp_path / "big.bin")


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def files(disk: OnDisk) -> dict[str, FileChunk]:
    data = disk.data
    return {
        "whole": FileChunk(data, "big.bin", "x/y"),
        "path": FileChunk.from_path(disk.path, mime_type="x/y"),
        "pieces": FileChunk.from_pieces(pieces(data, 100_000), "big.bin", "x/y"),
    }


@pytest.mark.parametrize("kind", ["whole", "path", "pieces"])
async def test_large_file_result_is_sent_in_pieces_as_the_caller_reads(
    host_stage: HostStage, disk: OnDisk, kind: str
) -> None:
    """STREAM-8 and STREAM-9: one chunk at first, the rest within credit, the last in the result."""

    @tool
    async def get() -> FileChunk:
        return files(disk)[kind]

    server = host_stage.server(get)
    server.dispatch(1, "get")
    first = await server.fields_of(1)
    assert first[:3] == [3, "big.bin", "x/y"]
    assert await server.is_quiet()
    received = [first]
    number = 1
    while server.answers.empty():
        server.credit(1, number + 1, 2**30)
        await asyncio.sleep(0)
        while not server.unread.empty():
            number += 1
            received.append(await server.fields_of(number))
    frame = server.answers.get_nowait()
    received.append(unpack_body(frame.body, binary=True))  # type: ignore[union-attr]  # a result
    assert joined(received) == disk.data


@pytest.mark.parametrize("kind", ["whole", "path", "pieces"])
async def test_file_of_256_kib_is_an_ordinary_result(
    host_stage: HostStage, disk: OnDisk, kind: str
) -> None:
    disk.fill(b"x" * 256 * 1024)

    @tool
    async def get() -> FileChunk:
        return files(disk)[kind]

    server = host_stage.server(get)
    server.dispatch(1, "get")
    assert await server.answer() == disk.data
    assert server.unread.empty()


@pytest.mark.parametrize("kind", ["whole", "path", "pieces"])
async def test_caller_without_support_for_pieces_gets_the_whole_file(
    host_stage: HostStage, disk: OnDisk, kind: str
) -> None:
    """STREAM-8: with `whole` in the dispatch nothing precedes the result; BODY-6 holds."""

    @tool
    async def get() -> FileChunk:
        return files(disk)[kind]

    server = host_stage.server(get)
    server.dispatch(1, "get", header={"whole": True})
    assert await server.answer() == disk.data
    disk.fill(b"x" * MAX_RESULT_BYTES)
    server.dispatch(2, "get", header={"whole": True})
    error = await server.error()
    assert (error.code, error.executed) == ("too_large", "yes")
    assert server.unread.empty()


async def test_large_files_in_a_stream_are_sent_in_pieces(
    host_stage: HostStage, disk: OnDisk
) -> None:
    """STREAM-9: if `more` is true, the next chunk continues the data."""

    @tool
    async def get() -> AsyncIterator[Any]:
        yield FileChunk.from_path(disk.path)
        yield b"small"
        yield FileChunk(b"")
        yield "between"

    server = host_stage.server(get)
    server.dispatch(1, "get", header=PLENTY)
    assert await server.answer() == 0
    received = [await server.fields_of(number + 1) for number in range(server.unread.qsize())]
    assert joined(received[:-3]) == disk.data
    kind = "application/octet-stream"
    assert received[-3:] == [[3, "", kind, b"small"], [3, "", kind, b""], [2, "between"]]


async def test_small_file_in_a_stream_is_one_chunk(
    host_stage: HostStage,
) -> None:
    """STREAM-2: its name and type are part of the 256 KiB."""
    head = len(pack_body([3, "name", "x/y", b"", True])) + 8

    @tool
    async def get() -> AsyncIterator[FileChunk]:
        for size in (MAX_CHUNK_BYTES - head, MAX_CHUNK_BYTES):
            yield FileChunk(b"x" * size, "name", "x/y")

    server = host_stage.server(get)
    server.dispatch(1, "get", header=PLENTY)
    assert await server.answer() == 0
    received = [await server.fields_of(number + 1) for number in range(server.unread.qsize())]
    assert received[0] == [3, "name", "x/y", b"x" * (MAX_CHUNK_BYTES - head)]
    assert joined(received[1:]) == b"x" * MAX_CHUNK_BYTES


async def test_a_file_that_cannot_be_read_is_the_tools_failure(
    host_stage: HostStage, disk: OnDisk
) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 300_000
        raise OSError("secret")

    @tool
    async def missing() -> FileChunk:
        return FileChunk.from_path(disk.path.with_name("nobody"))

    @tool
    async def half() -> FileChunk:
        return FileChunk.from_pieces(broken())

    server = host_stage.server(missing, half)
    server.dispatch(1, "missing")
    error = await server.error()
    assert (error.code, error.executed) == ("tool_failed", "yes")
    assert error.details["cause"] == "FileNotFoundError"
    server.dispatch(1, "half", header=PLENTY)
    assert (await server.error()).details["cause"] == "OSError"
    assert (await server.fields_of(1))[4:] == [True]


async def test_file_name_that_fills_a_chunk_is_too_large(host_stage: HostStage) -> None:
    @tool
    async def get() -> AsyncIterator[FileChunk]:
        yield FileChunk(b"x", "n" * MAX_CHUNK_BYTES)

    @tool
    async def one() -> FileChunk:
        return FileChunk(b"x", "n" * MAX_RESULT_BYTES)

    server = host_stage.server(get, one)
    server.dispatch(1, "get", header=PLENTY)
    assert (await server.error()).code == "too_large"
    server.dispatch(1, "one")
    assert (await server.error()).code == "too_large"


@pytest.mark.parametrize("kind", ["whole", "path"])
async def test_sync_tool_runs_other_calls_while_its_returned_file_is_unread(
    host_stage: HostStage, disk: OnDisk, kind: str
) -> None:
    """STREAM-8: the function's concurrency does not depend on how slowly its file is read."""

    @tool
    def get() -> FileChunk:
        return files(disk)[kind]

    server = host_stage.server(get)
    server.dispatch(1, "get")
    assert (await server.fields_of(1))[1] == "big.bin"
    server.dispatch(2, "get")
    second = await server.next_of(StreamChunk)
    assert (second.id, second.number) == (2, 1)
