"""The input of a call: sent within the host's credit, and stopped at the end of the call."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.parts.scripted_room import ScriptedRoom, json_body, piece, scripted_room
from support.patience import PATIENCE_S
from toolbus.chunks.chunk_types import FILE_PIECE_BYTES, FileChunk
from toolbus.errors import (
    ConnectionLost,
    InvalidArguments,
    NotFound,
    RoomException,
    TooLarge,
    ToolFailed,
)
from toolbus.room.room import connection_of
from toolbus.wire import Cancel, Credit, Frame, Input, pack_body, unpack_body

MUCH = 2**20


async def inputs(scripted: ScriptedRoom, count: int) -> list[Input]:
    return [await scripted.connection.next_of(Input) for _ in range(count)]


def received(frames: list[Frame]) -> list[tuple[int, Any, bool]]:
    """Return number, value and last flag of the input frames."""
    return [
        (frame.number, None if frame.body is None else unpack_body(frame.body)[1], frame.last)
        for frame in frames
        if isinstance(frame, Input)
    ]


async def called(scripted: ScriptedRoom, **options: Any) -> asyncio.Task[Any]:
    """Start a call with an input."""
    invoked = asyncio.create_task(scripted.room.invoke("rows.load", **options))
    call = await scripted.call()
    assert (call.options or {})["input"] is True
    return invoked


class Rows:
    """An async iterable that records how many items were taken and whether it was closed."""

    def __init__(self, *values: Any, error: BaseException | None = None) -> None:
        self.values = values
        self.error = error
        self.taken = 0
        self.closed = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[Any]:
        try:
            for value in self.values:
                self.taken += 1
                yield value
            if self.error is not None:
                raise self.error
            await asyncio.Event().wait()
        finally:
            self.closed.set()


# Credit


async def test_nothing_is_taken_without_credit_and_no_more_than_the_credit() -> None:
    """INPUT-1, STREAM-3."""
    rows = Rows("a", "b", "c", "d")
    async with scripted_room() as scripted, scripted.room.stream("rows.load", input=rows):
        await scripted.call()
        assert (await scripted.received(), rows.taken) == ([], 0)
        await scripted.want(2)
        assert received(await scripted.received()) == [(1, "a", False), (2, "b", False)]
        assert rows.taken == 2
        await scripted.want(1)  # less than before: credit is never taken back
        assert (await scripted.received(), rows.taken) == ([], 2)
        await scripted.want(3)
        assert received(await scripted.received()) == [(3, "c", False)]


async def test_credit_in_bytes_limits_the_input_too() -> None:
    """STREAM-3."""
    rows = Rows("a" * 100, "b" * 100, "c")
    async with scripted_room() as scripted, scripted.room.stream("rows.load", input=rows):
        await scripted.call()
        await scripted.want(10, 101)
        assert [value[:1] for _, value, _ in received(await scripted.received())] == ["a"]
        await scripted.want(10, 105)
        assert [value[:1] for _, value, _ in received(await scripted.received())] == ["b"]


@pytest.mark.parametrize("make", [list, tuple, iter, lambda rows: (row for row in rows)])
async def test_last_input_frame_follows_all_others(make: Any) -> None:
    """INPUT-2."""
    async with (
        scripted_room() as scripted,
        scripted.room.stream("rows.load", input=make([1, "b"])) as chunks,
    ):
        await scripted.call()
        await scripted.want(256)
        found = await inputs(scripted, 3)
        assert [(frame.number, frame.body, frame.last) for frame in found] == [
            (1, json_body(1), False),
            (2, pack_body([2, "b"]), False),
            (3, None, True),
        ]
        await scripted.end(json_body("loaded"))
        assert [chunk.value async for chunk in chunks] == ["loaded"]


async def test_empty_input_is_a_single_last_frame() -> None:
    """INPUT-2."""
    async with scripted_room() as scripted, scripted.room.stream("rows.load", input=[]):
        await scripted.call()
        await scripted.want(1)
        assert await inputs(scripted, 1) == [Input(scripted.id, 1, None, True)]


async def test_credit_for_chunks_is_not_credit_for_input() -> None:
    """STREAM-6."""
    async with scripted_room() as scripted, scripted.room.stream("rows.load", input=[1]):
        await scripted.call()
        await scripted.connection.send(Credit(scripted.id, False, 256, MUCH))
        assert await scripted.received() == []


async def test_blocking_sync_iterable_does_not_block_other_calls() -> None:
    go = threading.Event()

    def rows() -> Iterator[str]:
        yield threading.current_thread().name
        assert go.wait(PATIENCE_S)
        yield "b"

    async with scripted_room() as scripted, scripted.room.stream("rows.load", input=rows()):
        await scripted.call()
        await scripted.want(256)
        assert received(list(await inputs(scripted, 1))) == [(1, "toolbus-input", False)]
        assert await scripted.received() == []
        go.set()
        assert received(list(await inputs(scripted, 2))) == [(2, "b", False), (3, None, True)]


async def test_nothing_is_taken_while_the_connection_is_congested() -> None:
    rows = Rows("a", "b")
    async with scripted_room() as scripted, scripted.room.stream("rows.load", input=rows) as chunks:
        await scripted.call()
        connection = connection_of(scripted.room).link.websocket
        assert connection is not None
        connection.pause_writing()
        await scripted.want(256)
        for number in range(3):  # after the credit, and some loop iterations later
            await scripted.chunks(number)
            assert (await anext(chunks)).value == number
        assert rows.taken == 0
        connection.resume_writing()
        assert received(list(await inputs(scripted, 2))) == [(1, "a", False), (2, "b", False)]


async def test_input_that_never_waits_yields_to_other_tasks() -> None:
    seen: list[int] = []
    taken = 0

    async def rows() -> AsyncIterator[int]:
        nonlocal taken
        asyncio.get_running_loop().call_soon(lambda: seen.append(taken))
        for _ in range(200):
            taken += 1
            yield taken

    async with scripted_room() as scripted, scripted.room.stream("rows.load", input=rows()):
        await scripted.call()
        await scripted.want(256)
        await inputs(scripted, 201)
        assert seen == [32]


# Attachments


def joined(found: list[Input]) -> bytes:
    bodies = [unpack_body(frame.body, binary=True) for frame in found if frame.body is not None]
    assert [fields[4:] for fields in bodies] == [[True]] * (len(bodies) - 1) + [[]]
    assert [fields[1] for fields in bodies[1:]] == [""] * (len(bodies) - 1)
    assert max(len(fields[3]) for fields in bodies) <= FILE_PIECE_BYTES
    return b"".join(fields[3] for fields in bodies)


async def brought(data: bytes) -> AsyncIterator[bytes]:
    yield data[:3]
    yield data[3:]


@pytest.mark.parametrize("form", ["bytes", "path", "str", "file", "iterable"])
async def test_attachment_is_sent_piece_by_piece(tmp_path: Path, form: str) -> None:
    """STREAM-9, INPUT-2."""
    data = os.urandom(FILE_PIECE_BYTES * 2 + 5)
    path = tmp_path / "a.bin"
    path.write_bytes(data)
    forms: dict[str, Any] = {
        "bytes": data,
        "path": path,
        "str": str(path),
        "file": FileChunk(data, "a.bin", "x/y"),
        "iterable": brought(data),
    }
    async with scripted_room() as scripted:
        invoked = await called(scripted, attachment=forms[form])
        await scripted.want(256)
        found = [await scripted.connection.next_of(Input)]
        while not found[-1].last:
            found.append(await scripted.connection.next_of(Input))
        assert joined(found) == data
        assert [frame.number for frame in found] == [*range(1, len(found) + 1)]
        first = unpack_body(found[0].body or b"", binary=True)
        named = {"path": "a.bin", "str": "a.bin", "file": "a.bin"}
        assert first[1] == named.get(form, "")
        await scripted.end(json_body("kept"))
        assert (await invoked).value == "kept"


async def test_pieces_of_an_attachment_are_sent_as_they_are_produced() -> None:
    go = asyncio.Event()

    async def typed() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"
        await go.wait()

    async with scripted_room() as scripted:
        await called(scripted, attachment=typed())
        await scripted.want(256)
        (first,) = await inputs(scripted, 1)  # the next one may be the last
        assert unpack_body(first.body or b"", binary=True)[3:] == [b"one", True]
        assert await scripted.received() == []
        go.set()
        (last,) = await inputs(scripted, 1)
        assert (unpack_body(last.body or b"", binary=True)[3:], last.last) == ([b"two"], True)


async def test_empty_attachment_is_one_empty_piece() -> None:
    async with scripted_room() as scripted:
        await called(scripted, attachment=b"")
        await scripted.want(1)
        (only,) = await inputs(scripted, 1)
        assert (joined([only]), only.last) == (b"", True)


async def test_file_among_the_values_is_sent_in_pieces() -> None:
    rows = ["a", FileChunk(b"x" * (FILE_PIECE_BYTES + 1), "n"), "b"]
    async with scripted_room() as scripted, scripted.room.stream("rows.load", input=rows):
        await scripted.call()
        await scripted.want(256)
        found = await inputs(scripted, 5)
        assert joined(found[1:3]) == b"x" * (FILE_PIECE_BYTES + 1)
        assert found[3].body == pack_body([2, "b"])


async def test_file_that_cannot_be_opened_is_an_os_error_and_nothing_is_sent(
    tmp_path: Path,
) -> None:
    async with scripted_room() as scripted:
        with pytest.raises(FileNotFoundError):
            await scripted.room.invoke("rows.load", attachment=tmp_path / "missing")
        assert scripted.pending == set()


async def test_large_result_of_an_upload_is_received_in_pieces() -> None:
    """STREAM-8."""
    async with scripted_room() as scripted:
        invoked = await called(scripted, attachment=b"in")
        await scripted.want(256)
        await inputs(scripted, 1)
        await scripted.chunk(piece(b"out, ", more=True, name="a"))
        file = await invoked
        await scripted.end(piece(b"all of it", more=False))
        assert (file.name, await file.read()) == ("a", b"out, all of it")


# Ends


@pytest.mark.parametrize("kind", [ValueError, ToolFailed, NotFound])
async def test_iterable_that_fails_cancels_the_call_and_is_raised(kind: type[Exception]) -> None:
    """INPUT-3: an error of another call says nothing about this one."""
    error = kind("mine, or a tool's that I called")

    def is_own(raised: Exception) -> bool:
        if not isinstance(raised, RoomException):
            return raised is error
        frames = [summary.name for summary in traceback.extract_tb(raised.__traceback__)]
        return (raised.executed, raised.retryable, frames[-1]) == ("maybe", False, "__aiter__")

    async with scripted_room() as scripted:
        async with scripted.room.stream("rows.load", input=Rows("a", error=error)) as chunks:
            await scripted.call()
            await scripted.chunks("before")
            await scripted.want(256)
            assert (await anext(chunks)).value == "before"
            with pytest.raises(type(error)) as caught:
                await anext(chunks)
            assert is_own(caught.value)
            assert (await scripted.received())[-1] == Cancel(scripted.id, "cancelled")
        invoked = await called(scripted, attachment=FileChunk.from_pieces(Rows(b"a", error=error)))
        await scripted.want(256)
        with pytest.raises(type(error)) as raised:
            await invoked
        assert is_own(raised.value)
        assert (await scripted.received())[-1] == Cancel(scripted.id, "cancelled")


async def test_sync_iterable_that_fails_is_raised_too() -> None:
    def rows() -> Iterator[int]:
        yield 1
        raise ValueError("mine")

    async with (
        scripted_room() as scripted,
        scripted.room.stream("rows.load", input=rows()) as chunks,
    ):
        await scripted.call()
        await scripted.want(256)
        with pytest.raises(ValueError, match="mine"):
            await anext(chunks)


async def test_iterable_that_raises_cancelled_error_does_not_hang_the_call() -> None:
    rows = Rows("a", error=asyncio.CancelledError())
    async with scripted_room() as scripted, scripted.room.stream("rows.load", input=rows) as chunks:
        await scripted.call()
        await scripted.want(256)
        with pytest.raises(RuntimeError, match="input was cancelled"):
            await anext(chunks)


@pytest.mark.parametrize(
    ("value", "kind", "path"),
    [
        (float("nan"), InvalidArguments, ""),
        ({"a": object()}, InvalidArguments, "/a"),
        ("x" * 2**18, TooLarge, None),
        (FileChunk.from_pieces(Rows("text")), InvalidArguments, "/data"),
    ],
)
async def test_value_that_cannot_be_sent_ends_the_call(
    value: Any, kind: type[RoomException], path: str | None
) -> None:
    async with (
        scripted_room() as scripted,
        scripted.room.stream("rows.load", input=[1, value]) as chunks,
    ):
        await scripted.call()
        await scripted.want(256)
        with pytest.raises(kind) as caught:
            await anext(chunks)
        assert (caught.value.details.get("path"), caught.value.executed) == (path, "maybe")
        assert (await scripted.received())[-1] == Cancel(scripted.id, "cancelled")


async def test_attachment_that_cannot_be_sent_is_refused_before_the_call() -> None:
    async with scripted_room() as scripted:
        for wrong in (FileChunk(b"a", "\ud800"), FileChunk("text"), 7):  # type: ignore[arg-type]  # untyped callers
            with pytest.raises(InvalidArguments) as caught:
                await scripted.room.invoke("rows.load", attachment=wrong)
            assert caught.value.executed == "no"
        assert scripted.pending == set()


async def ended(scripted: ScriptedRoom) -> None:
    await scripted.end(json_body("enough"))


async def failed(scripted: ScriptedRoom) -> None:
    await scripted.fail(ToolFailed("no more"))


async def lost(scripted: ScriptedRoom) -> None:
    await scripted.connection.websocket.close()


@pytest.mark.parametrize("end", [ended, failed, lost])
async def test_call_that_ends_early_stops_the_iterable(end: Any) -> None:
    """INPUT-3."""
    rows = Rows("a", "b")
    async with scripted_room() as scripted:
        async with scripted.room.stream("rows.load", input=rows) as chunks:
            await scripted.call()
            await scripted.want(256)
            await inputs(scripted, 2)
            await end(scripted)
            await rows.closed.wait()
            if end is ended:
                assert (await anext(chunks)).value == "enough"
            else:
                with pytest.raises((ToolFailed, ConnectionLost)):
                    await anext(chunks)


async def test_leaving_the_block_stops_the_iterable() -> None:
    rows = Rows("a")
    async with scripted_room() as scripted:
        async with scripted.room.stream("rows.load", input=rows):
            await scripted.call()
            await scripted.want(256)
            await inputs(scripted, 1)
        await rows.closed.wait()
        assert await scripted.received() == [Cancel(scripted.id, "cancelled")]


async def test_sync_generator_is_closed_after_its_current_item() -> None:
    go, closed = threading.Event(), threading.Event()

    def rows() -> Iterator[str]:
        try:
            yield "a"
            assert go.wait(PATIENCE_S)
            yield "b"
        finally:
            closed.set()

    async with scripted_room() as scripted:
        async with scripted.room.stream("rows.load", input=rows()):
            await scripted.call()
            await scripted.want(256)
            await inputs(scripted, 1)
            await scripted.received()
        assert not closed.is_set()  # a thread that blocks cannot be stopped
        go.set()
        assert await asyncio.to_thread(closed.wait, 5)
