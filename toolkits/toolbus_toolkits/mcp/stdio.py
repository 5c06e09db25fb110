"""Messages to and from a started MCP server: one line of JSON each, over its pipes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from toolbus.bounded_logging import bounded_logger
from toolbus_toolkits.credentials.redaction import Redact
from toolbus_toolkits.launcher import RunningProgram

__all__ = ["MAX_LINE_BYTES", "Streams", "stdio_streams"]

MAX_LINE_BYTES = 16 * 1024 * 1024
"""The longest message of a server; a longer one ends the connection."""
_READ_BYTES = 64 * 1024
_MAX_BAD_LINES = 100
"""Lines of one connection that may be no messages: some servers print words at their start."""

Streams: TypeAlias = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]
"""What a session of the MCP SDK reads from and writes to."""

_logger = bounded_logger(__name__)


@asynccontextmanager
async def stdio_streams(
    program: RunningProgram, closed: asyncio.Event, redact: Redact = str
) -> AsyncIterator[Streams]:
    """Exchange messages with a program.

    Args:
        program: The server.
        closed: Set when nothing more comes from the server.
        redact: Removes credentials from what is logged.
    """
    received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, sent = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        try:
            async with received:
                async for message in _messages(program, redact):
                    await received.send(message)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            _logger.debug("the session of pid %d is closed", program.pid)
        finally:
            closed.set()

    async def write() -> None:
        try:
            async with sent:
                async for each in sent:
                    text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                    program.stdin.write(text.encode() + b"\n")
                    await program.stdin.drain()
        except (OSError, RuntimeError) as error:  # the pipe is closed
            _logger.debug("nothing more is written to pid %d: %s", program.pid, error)
            await received.aclose()  # or a request would wait for its answer

    working = [asyncio.create_task(read()), asyncio.create_task(write())]
    try:
        yield incoming, outgoing
    finally:
        for each in working:
            each.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        for stream in (received, incoming, outgoing, sent):
            await stream.aclose()


async def _messages(program: RunningProgram, redact: Redact) -> AsyncIterator[SessionMessage]:
    """Yield messages until the output ends, or is not that of an MCP server."""
    bad_lines = 0
    pending = bytearray()
    while data := await program.stdout.read(_READ_BYTES):
        *lines, rest = data.split(b"\n")
        for line in lines:
            pending += line
            message = _message(bytes(pending))
            pending.clear()
            if message is not None:
                yield message
                continue
            bad_lines += 1
            if bad_lines == 1:
                words = redact(line.decode(errors="replace"))[:200]
                _logger.warning("pid %d writes what is no message: %r", program.pid, words)
        pending += rest
        if len(pending) > MAX_LINE_BYTES or bad_lines > _MAX_BAD_LINES:
            _logger.error(
                "pid %d writes no messages, or one of more than %d bytes: the connection ends",
                program.pid,
                MAX_LINE_BYTES,
            )
            return


def _message(line: bytes) -> SessionMessage | None:
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return None
