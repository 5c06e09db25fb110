"""Calls with streams, uploads, files or progress: retries, progress and spans."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from support.parts.scripted_room import (
    ScriptedRoom,
    error_of,
    json_body,
    piece,
    scripted_room,
    values,
)
from toolbus import ChunkStream
from toolbus.client.caller import Caller
from toolbus.errors import (
    DeadlineExceeded,
    HostLost,
    InvalidArguments,
    NoHost,
    Overloaded,
    RoomException,
    ToolFailed,
)
from toolbus.room.room import Room, connection_of
from toolbus.telemetry.tracing import Tracing
from toolbus.wire import Describe, Input, Result, pack_body

# Retries


async def test_stream_is_retried_until_its_first_chunk() -> None:
    """RETRY-1, RETRY-2."""
    async with scripted_room() as scripted, scripted.room.stream("logs.tail") as chunks:
        first = await scripted.call()
        reading = asyncio.create_task(values(chunks))
        await scripted.fail(Overloaded())
        second = await scripted.call()
        assert second.call_id == first.call_id
        assert (second.options or {})["attempt"] == 1
        assert (second.options or {})["credit_chunks"] == 256
        await scripted.chunks(1)
        await scripted.end()
        assert await reading == [1]


async def test_stream_is_not_retried_after_its_first_chunk() -> None:
    """Guarantee "caller's connection is lost"."""
    async with scripted_room() as scripted, scripted.room.stream("logs.tail") as chunks:
        await scripted.call()
        await scripted.chunks(1)
        await scripted.fail(HostLost(executed="no"))
        seen, error = await error_of(chunks)
        assert (seen, type(error)) == ([1], HostLost)
        assert await scripted.received() == []


async def test_stream_with_retry_off_is_tried_once() -> None:
    async with (
        scripted_room() as scripted,
        scripted.room.stream("logs.tail", retry=False) as chunks,
    ):
        await scripted.call()
        await scripted.fail(NoHost())
        _, error = await error_of(chunks)
        assert isinstance(error, NoHost)
        assert error.details == {"chunks": 0}


async def test_stream_that_could_not_be_sent_reports_no_chunks() -> None:
    async with scripted_room() as scripted:
        stream = scripted.room.stream("logs.tail", timeout_s=0.0)
        with pytest.raises(DeadlineExceeded) as caught:
            await stream.__aenter__()
        assert (caught.value.executed, caught.value.details) == ("no", {"chunks": 0})


async def test_stream_is_retried_with_the_affinity_that_its_tool_needs() -> None:
    """CALL-23."""
    async with (
        scripted_room() as scripted,
        scripted.room.stream("logs.tail", {"path": "a"}) as chunks,
    ):
        await scripted.call()
        reading = asyncio.create_task(values(chunks))
        details = {"path": "/affinity", "argument": "path"}
        await scripted.fail(InvalidArguments("which host", details=details))
        call = await scripted.call()
        assert len((call.options or {})["affinity"]) == 32
        await scripted.end()
        assert await reading == []


async def test_second_reader_gets_an_error_while_the_first_waits_for_a_retry() -> None:
    async with scripted_room() as scripted, scripted.room.stream("logs.tail") as chunks:
        await scripted.call()
        first = asyncio.create_task(anext(chunks))
        await scripted.fail(Overloaded(retry_after_s=0.3))
        await scripted.received()
        with pytest.raises(RuntimeError, match="another task"):
            await anext(chunks)
        await scripted.call()
        await scripted.chunks(1)
        assert (await first).value == 1


@pytest.mark.parametrize("retry_after_s", [0.01, 0.1])
async def test_read_cancelled_before_a_retry_loses_nothing(
    retry_after_s: float,
) -> None:
    """RETRY-1."""
    async with scripted_room() as scripted, scripted.room.stream("logs.tail") as chunks:
        await scripted.call()
        await scripted.fail(Overloaded(retry_after_s=retry_after_s))
        await scripted.received()
        for _ in range(5):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(chunks), 0.01)
        assert ((await scripted.call()).options or {})["attempt"] == 1
        await scripted.chunks(1)
        await scripted.end()
        assert await values(chunks) == [1]


async def test_stream_that_fails_without_a_reader_ends_with_its_error() -> None:
    tracing, exporter = traced()
    async with scripted_room(tracing) as scripted, scripted.room.stream("logs.tail") as chunks:
        await scripted.call()
        reading = asyncio.create_task(anext(chunks))
        await scripted.fail(Overloaded(retry_after_s=0.1))
        await scripted.received()
        reading.cancel()
        await scripted.call()
        assert exporter.get_finished_spans() == ()
        await scripted.fail(ToolFailed("no"))
        await scripted.received()
        with pytest.raises(ToolFailed):
            await anext(chunks)
        (span,) = exporter.get_finished_spans()
        assert (span.attributes or {}).get("error.type") == "tool_failed"


async def test_stream_cancelled_before_a_retry_is_not_retried() -> None:
    async with scripted_room() as scripted:
        async with scripted.room.stream("logs.tail") as chunks:
            await scripted.call()
            left = asyncio.create_task(anext(chunks))
            await scripted.fail(Overloaded(retry_after_s=0.05))
            await scripted.received()
        with pytest.raises(Overloaded):
            await left
        async with scripted.room.stream("logs.tail") as chunks:
            first = await scripted.call()
            reading = asyncio.create_task(anext(chunks))
            await scripted.fail(
                Overloaded(retry_after_s=0.2)
            )  # its retry is due after the cancellation
            assert (await scripted.call()).call_id == first.call_id
            await scripted.chunks(1)
            assert (await reading).value == 1


async def test_failed_attempt_without_a_reader_is_not_logged_by_asyncio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scripted_room() as scripted, scripted.room.stream("logs.tail") as chunks:
        await scripted.call()
        reading = asyncio.create_task(anext(chunks))
        await scripted.fail(Overloaded(retry_after_s=0.05))
        await scripted.received()
        reading.cancel()
        monkeypatch.setattr(Caller, "send_attempt", refuse)
        (retry,) = (task for task in asyncio.all_tasks() if "_retry_after" in repr(task))
        await asyncio.wait([retry])
        assert not retry._log_traceback  # the flag that asyncio uses for its log


async def refuse(*_: Any) -> None:
    raise ToolFailed("no")


async def test_error_of_the_input_is_raised_to_every_later_reader() -> None:
    async def fails() -> AsyncIterator[str]:
        raise OSError("disk")
        yield ""

    async with (
        scripted_room() as scripted,
        scripted.room.stream("rows.load", input=fails()) as chunks,
    ):
        await scripted.call()
        await scripted.want(1)
        for _ in range(2):
            with pytest.raises(OSError, match="disk"):
                await anext(chunks)


async def brought(*rows: str) -> AsyncIterator[str]:
    for row in rows:
        yield row


@pytest.mark.parametrize(("error", "attempt"), [(Overloaded(), 1), (NoHost(), None)], ids=repr)
async def test_call_is_retried_if_no_input_was_taken(
    error: RoomException, attempt: int | None
) -> None:
    """RETRY-2, RETRY-4."""
    rows = brought("a")
    async with scripted_room() as scripted, scripted.room.stream("rows.load", input=rows) as chunks:
        await scripted.call()
        reading = asyncio.create_task(anext(chunks))
        await scripted.fail(error)
        call = await scripted.call()
        assert (call.options or {}).get("attempt") == attempt
        await scripted.want(1)
        assert (await scripted.connection.next_of(Input)).body == pack_body([2, "a"])
        await scripted.end(json_body("done"))
        assert (await reading).value == "done"


async def test_call_is_not_retried_after_input_was_taken() -> None:
    """Guarantee "caller's connection is lost"."""
    async with (
        scripted_room() as scripted,
        scripted.room.stream("rows.load", input=brought("a")) as chunks,
    ):
        await scripted.call()
        await scripted.want(1)
        await scripted.connection.next_of(Input)
        await scripted.fail(HostLost(executed="no"))
        with pytest.raises(HostLost):
            await anext(chunks)
        assert await scripted.received() == []


# Progress, proxies, spans


async def test_progress_is_delivered_at_once_and_callback_errors_are_harmless(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """PROGRESS-1."""
    received: list[Any] = []
    harm = {1: asyncio.CancelledError(), 2: ValueError("not my number")}

    def listen(value: Any) -> None:
        received.append(value)
        if not isinstance(value, dict) and value in harm:
            raise harm[value]

    async with scripted_room() as scripted:
        async with scripted.room.stream("logs.tail", on_progress=listen) as chunks:
            call = await scripted.call()
            assert (call.options or {})["progress"] is True
            await scripted.progress(1)
            await scripted.progress(2)
            await scripted.chunks("a")
            await scripted.progress({"done": 3})
            await scripted.end()
            assert await values(chunks) == ["a"]
        assert received == [1, 2, {"done": 3}]
        assert caplog.text.count("on_progress raised") == 2
        invoked = asyncio.create_task(
            scripted.room.invoke("logs.size", on_progress=received.append)
        )
        await scripted.call()
        await scripted.progress("half")
        await scripted.end(json_body(7))
        assert (await invoked).value == 7
        assert received[-1] == "half"


async def test_proxy_returns_a_stream_for_a_streaming_tool() -> None:
    facts: dict[str, Any] = {"input_schema": {}, "idempotent": False}
    tools = [{"name": "size", **facts}, {"name": "tail", "streaming": True, **facts}]
    names = "name", "title", "description", "version", "digest"
    summary: dict[str, Any] = dict.fromkeys(names, "logs")
    summary |= {
        "public": True,
        "owner": {"name": "o", "issuer": "i"},
        "hosts": 1,
        "tools": ["size", "tail"],
    }
    async with scripted_room() as scripted:
        asking = asyncio.create_task(scripted.room.toolkit("logs"))
        request = await scripted.connection.next_of(Describe)
        body = pack_body({"toolkit": summary, "manifest": {"name": "logs", "tools": tools}})
        await scripted.connection.send(Result(request.id, body))
        logs = await asking
        async with logs.tail(path="a.log") as chunks:
            call = await scripted.call()
            assert (call.tool, call.arguments) == ("tail", pack_body({"path": "a.log"}))
            await scripted.chunks(1)
            await scripted.end()
            assert [chunk.value async for chunk in chunks] == [1]
        async with logs.with_options(stall_timeout_s=2).stream("size") as chunks:
            call = await scripted.call()
            assert (call.tool, (call.options or {})["idle_ms"]) == ("size", 2_000)
        size = asyncio.create_task(logs.size())
        assert "credit_chunks" not in ((await scripted.call()).options or {})
        await scripted.end(json_body(7))
        assert await size == 7


def traced() -> tuple[Tracing, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider), exporter


async def ended_well(scripted: ScriptedRoom, chunks: ChunkStream) -> None:
    await scripted.end()
    assert await values(chunks) == [1]


async def ended_badly(scripted: ScriptedRoom, chunks: ChunkStream) -> None:
    await scripted.fail(ToolFailed("no"))
    await error_of(chunks)


async def left(scripted: ScriptedRoom, chunks: ChunkStream) -> None:
    pass


@pytest.mark.parametrize(
    ("end", "error"), [(ended_well, None), (ended_badly, "tool_failed"), (left, "cancelled")]
)
async def test_span_of_a_stream_ends_with_the_stream(end: Any, error: str | None) -> None:
    tracing, exporter = traced()
    async with scripted_room(tracing) as scripted:
        async with scripted.room.stream("logs.tail") as chunks:
            call = await scripted.call()
            assert call.traceparent
            await scripted.chunks(1)
            if end is left:
                await anext(chunks)
            assert exporter.get_finished_spans() == ()
            await end(scripted, chunks)
        (span,) = exporter.get_finished_spans()
        assert span.name == "logs.tail"
        assert (span.attributes or {}).get("error.type") == error


async def test_span_of_a_file_ends_with_its_last_piece() -> None:
    tracing, exporter = traced()
    async with scripted_room(tracing) as scripted:
        invoked = asyncio.create_task(scripted.room.invoke("files.get"))
        await scripted.call()
        await scripted.chunk(piece(b"a", more=True))
        file = await invoked
        assert exporter.get_finished_spans() == ()
        await scripted.end(piece(b"b", more=False))
        assert await file.read() == b"ab"
        (span,) = exporter.get_finished_spans()
        assert span.name == "files.get"


async def test_client_announces_that_it_accepts_chunks() -> None:
    """CONN-4."""
    async with scripted_room() as scripted:
        request = scripted.connection.websocket.request
        assert request is not None
        assert request.path.endswith("&chunks=1&parts=1&assess=1&holds=1")


async def test_stream_of_a_turn_is_made_on_behalf_of_its_sender() -> None:
    async with scripted_room() as scripted:
        connection = connection_of(scripted.room)
        room = Room(connection, connection.caller, principal="bob")
        async with room.stream("logs.tail"):
            assert ((await scripted.call()).options or {})["on_behalf_of"] == "bob"
