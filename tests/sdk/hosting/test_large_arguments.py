"""Large arguments of a call: read in slices, between which the host serves other calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.parts.isolated_host import HostStage, ScriptedPeer, echo
from toolbus import ToolContext, Toolkit, tool
from toolbus.chunks.chunk_sequences import ChunkReader, ConcurrentReadError
from toolbus.chunks.receive_credit import ReceivedChunk
from toolbus.concurrency import slices
from toolbus.errors import StreamBroken
from toolbus.hosting.output_stream import unreadable_input
from toolbus.tools.sliced_parameters import MAX_CONTAINERS
from toolbus.wire import pack_body

ROWS = [{"a": 1}] * 60_000
LONG = "x" * 50_000


@tool
async def count(rows: list[dict[str, int]]) -> int:
    return len(rows)


@tool
async def context_size(context: ToolContext) -> int:
    return len(context.caller_context or {})


@pytest.fixture(autouse=True)
def one_step_in_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)


async def begin_reading(server: ScriptedPeer) -> None:
    """Let the host take a few steps of what it has to read."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert server.answers.empty()


async def test_other_calls_are_answered_while_large_arguments_are_read(
    host_stage: HostStage,
) -> None:
    """BODY-2."""
    server = host_stage.server(count, echo)
    server.dispatch(1, "count", rows=ROWS)
    for number in range(2, 52):
        server.dispatch(number, "echo", text=str(number))
        assert await server.answer() == str(number)
    assert [*server.runner._calls] == [1]
    assert await server.answer() == len(ROWS)


async def test_a_call_that_is_cancelled_while_it_is_read_did_not_run(
    host_stage: HostStage,
) -> None:
    """BODY-2."""
    server = host_stage.server(count, echo)
    server.dispatch(1, "count", rows=ROWS)
    await begin_reading(server)
    call = server.runner._calls[1]
    assert call.executed == "no"
    server.cancel(1)
    await server.idle()
    assert not call.entered
    assert not server.runner.running_calls
    server.dispatch(2, "count", rows=[{"a": 1}] * 30_000)  # the turn was passed on
    assert await server.answer() == 30_000


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"rows": [*ROWS, {"a": float("nan")}]}, "/rows/60000/a"),
        ({"rows": [*ROWS, {"a": "b"}]}, "/rows/60000/a"),
        ({"rows": [{}] * (MAX_CONTAINERS - 1)}, ""),
        ([LONG], ""),
    ],
)
async def test_invalid_large_arguments_name_their_path_and_run_nothing(
    host_stage: HostStage, arguments: Any, path: str
) -> None:
    """BODY-2."""
    server = host_stage.server(count)
    server.dispatch(1, "count", packed=pack_body(arguments))
    error = await server.error()
    assert (error.code, error.executed, error.details["path"]) == ("invalid_arguments", "no", path)


async def test_large_context_of_a_caller_is_read_in_slices_too(host_stage: HostStage) -> None:
    server = host_stage.server(context_size, echo)
    large = {f"k{number}": [number] for number in range(50_000)}
    server.dispatch(1, "context_size", header={"caller_context": pack_body(large)})
    server.dispatch(2, "echo", text="between")
    assert [await server.answer(), await server.answer()] == ["between", 50_000]
    server.dispatch(3, "context_size", header={"caller_context": pack_body([LONG])})
    error = await server.error()
    assert (error.code, error.executed) == ("invalid_arguments", "no")
    assert error.details["path"] == "/caller_context"


async def test_an_override_of_the_toolkit_gets_large_arguments(host_stage: HostStage) -> None:
    class Listing(Toolkit):
        async def execute(self, context: Any, name: str, arguments: Any, *more: Any) -> Any:
            shorter = {"rows": arguments["rows"][:10]}
            return await super().execute(context, name, shorter, *more)

    server = host_stage.server(count, kit=Listing)
    server.dispatch(1, "count", rows=ROWS)
    assert await server.answer() == 10


class Chunks:
    """A source of chunks, the last of which is marked."""

    def __init__(self, *bodies: Any) -> None:
        self._bodies = [*map(pack_body, bodies)]

    async def next(self) -> ReceivedChunk | None:
        return ReceivedChunk(self._bodies.pop(0), last=False) if self._bodies else None

    def fail(self, error: Any) -> Any:
        return error


async def test_a_large_chunk_whose_reading_is_cancelled_is_read_again() -> None:
    values = [[[number]] * 20_000 for number in range(2)]
    reader = ChunkReader(Chunks(*([1, value] for value in values)), unreadable_input)
    reading = asyncio.create_task(reader.next())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(ConcurrentReadError):
        await reader.next()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    for value in values:
        chunk = await reader.next()
        assert chunk is not None
        assert chunk.value == value


async def test_a_file_that_goes_on_with_a_large_other_value_is_broken() -> None:
    piece = [3, "a", "b", b"x" * 50_000, True]
    reader = ChunkReader(Chunks(piece, [3, "", "", [[]] * 50_000]), unreadable_input)
    file: Any = await reader.next()
    with pytest.raises(StreamBroken):
        await file.read()
