"""Messages over the pipes of a program that reads late, ends its input, or writes much at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage

from toolbus_toolkits.launcher import Program, RunningProgram, launch
from toolbus_toolkits.mcp.messages import RequestFailed, Streams
from toolbus_toolkits.mcp.transports import stdio_streams

TIME_S = 60
LATE_READER = """
import signal, sys, threading
go = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: go.set())
print('{"jsonrpc": "2.0", "method": "ready"}', flush=True)
go.wait()
for line in sys.stdin:
    print('{"jsonrpc": "2.0", "method": "%d"}' % len(line), flush=True)
"""
CLOSES_INPUT = """
import os, signal
os.close(0)
print('{"jsonrpc": "2.0", "method": "ready"}', flush=True)
signal.pause()
"""
MANY = 1_000
WRITES_MUCH = f"""
print("words")
print("\\n".join('{{"jsonrpc": "2.0", "method": "%d"}}' % each for each in range({MANY})))
"""


@asynccontextmanager
async def running(code: str) -> AsyncIterator[tuple[RunningProgram, asyncio.Event, Streams]]:
    closed = asyncio.Event()
    async with (
        asyncio.timeout(TIME_S),
        launch(Program(sys.executable, ("-c", code))) as program,
        stdio_streams(program, closed) as streams,
    ):
        yield program, closed, streams


def message(text: str) -> SessionMessage:
    return SessionMessage(types.JSONRPCNotification(jsonrpc="2.0", method=text))


async def method_of(streams: Streams) -> str:
    received = await streams[0].receive()
    assert isinstance(received, SessionMessage)
    assert isinstance(received.message, types.JSONRPCNotification)
    return received.message.method


async def test_sends_that_are_cancelled_while_a_program_does_not_read_are_not_stored() -> None:
    async with running(LATE_READER) as (program, _, streams):
        assert await method_of(streams) == "ready"
        sending = [
            asyncio.create_task(streams[1].send(message("x" * 1_000_000))) for _ in range(50)
        ]
        for each in sending:
            await asyncio.wait([each], timeout=0)
            each.cancel()
            await asyncio.gather(each, return_exceptions=True)
        os.kill(program.pid, signal.SIGUSR1)
        await streams[1].send(message("last"))
        assert int(await method_of(streams)) > 1_000_000  # the first was in the buffer
        assert int(await method_of(streams)) < 100


async def test_a_program_that_ended_its_input_gets_no_message() -> None:
    async with running(CLOSES_INPUT) as (_, closed, streams):
        assert await method_of(streams) == "ready"
        with pytest.raises((anyio.BrokenResourceError, anyio.ClosedResourceError)):
            await streams[1].send(message("x"))
        assert not closed.is_set()


async def test_many_messages_at_once_come_in_order_and_do_not_hold_the_loop() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with running(WRITES_MUCH) as (_, closed, streams):
        unreadable = await streams[0].receive()
        assert isinstance(unreadable, RequestFailed)
        assert "words" in unreadable.words
        assert await method_of(streams) == "0"
        counting = asyncio.create_task(count())
        assert [int(await method_of(streams)) for _ in range(1, MANY)] == list(range(1, MANY))
        counting.cancel()
        assert turns >= MANY / 2
        with pytest.raises(anyio.EndOfStream):
            await streams[0].receive()
        assert closed.is_set()


PRINTS_WORDS = """
import sys, time
print('{"jsonrpc": "2.0", "method": "first"}\\n\\n\\n', flush=True)
for _ in range(300):
    print("words", flush=True)
sys.stdout.write('{"jsonrpc": "2.0", "method": "last"}')
"""


async def test_a_server_that_has_spoken_may_print_words_and_end_without_a_line_end() -> None:
    async with running(PRINTS_WORDS) as (_, closed, streams):
        assert await method_of(streams) == "first"
        for _ in range(300):  # and nothing for an empty line
            assert isinstance(await streams[0].receive(), RequestFailed)
        assert await method_of(streams) == "last"
        with pytest.raises(anyio.EndOfStream):
            await streams[0].receive()
        assert closed.is_set()


@pytest.mark.parametrize(
    "code", ["print('x' * (17 << 20), flush=True)", "print('x\\n' * 200, flush=True)"]
)
async def test_output_that_is_no_mcp_ends_the_stream(code: str) -> None:
    async with running(f"{code}\nimport signal; signal.pause()") as (_, closed, streams):
        received = [item async for item in streams[0]]  # to the end of the stream
        assert all(isinstance(item, RequestFailed) for item in received)
        assert closed.is_set()
