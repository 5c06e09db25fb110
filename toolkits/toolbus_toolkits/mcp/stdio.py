"""Messages to and from a started MCP server: one line of JSON each, over its pipes.

The session of the MCP SDK reads and writes the pipes itself, in its own tasks: with a task for each
pipe, as the SDK's own transport has, a call takes two more turns of the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.shared.message import SessionMessage

from toolbus.bounded_logging import bounded_logger
from toolbus_toolkits.launcher import RunningProgram
from toolbus_toolkits.mcp.messages import MAX_MESSAGE_BYTES, LoopShare, RequestFailed, read_messages

__all__ = ["Streams", "stdio_streams"]

_READ_BYTES = 64 * 1024
_MAX_BAD_LINES = 100
"""Lines that may be no messages before the first one that is: some servers print words at their
start, and a program that prints more is no server. One that has spoken may print what it likes."""

Streams: TypeAlias = tuple[
    ObjectReceiveStream[SessionMessage | Exception], ObjectSendStream[SessionMessage]
]
"""What a session of the MCP SDK reads from and writes to."""

_logger = bounded_logger(__name__)


@asynccontextmanager
async def stdio_streams(program: RunningProgram, closed: asyncio.Event) -> AsyncIterator[Streams]:
    """Exchange messages with a program.

    Args:
        program: The server.
        closed: Set when nothing more comes from the server.
    """
    received = _ReceivedMessages(program, closed)
    sent = _SentMessages(program)
    async with received, sent:
        yield received, sent


class _SentMessages(ObjectSendStream[SessionMessage]):
    """The input of a program.

    Any number of tasks may send. While the program does not read, one message at most is behind
    those that fill the buffer: a task that is cancelled meanwhile has written nothing.
    """

    def __init__(self, program: RunningProgram) -> None:
        self._program = program
        self._turn = asyncio.Lock()
        self._is_closed = False

    async def send(self, item: SessionMessage) -> None:
        """Write a message, once there is room for it.

        Raises:
            BrokenResourceError: The program has closed its input, or has ended, and may have read
                the message before.
            ClosedResourceError: Nothing of it was written.
        """
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        stdin = self._program.stdin
        is_written = False
        try:
            async with self._turn:
                await stdin.drain()
                if self._is_closed:
                    raise anyio.ClosedResourceError
                stdin.write(text.encode() + b"\n")
                is_written = True
                await stdin.drain()  # raises if that could not be written
        except (OSError, RuntimeError) as error:  # the second by other event loops
            _logger.debug("nothing more is written to pid %d: %s", self._program.pid, error)
            if is_written:
                raise anyio.BrokenResourceError from error
            raise anyio.ClosedResourceError from error

    async def aclose(self) -> None:
        """Write nothing more; the launcher closes the pipe."""
        self._is_closed = True


class _ReceivedMessages(ObjectReceiveStream[SessionMessage | Exception]):
    """The output of a program, until it ends or is not that of an MCP server."""

    def __init__(self, program: RunningProgram, closed: asyncio.Event) -> None:
        self._program = program
        self._closed = closed
        self._pending = bytearray()
        self._bad_lines = 0
        self._has_spoken = False
        self._messages = deque[SessionMessage | Exception]()

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message, or a `RequestFailed` for a line that is none.

        Raises:
            EndOfStream: No further message comes.
        """
        if self._messages:
            await asyncio.sleep(0)  # many that came at once do not hold the loop
        while not self._messages:
            if self._closed.is_set():
                raise anyio.EndOfStream
            data = await self._program.read(_READ_BYTES)
            if not data:
                self._take_last()
            if not data or not await self._take(data):
                self._closed.set()
        return self._messages.popleft()

    async def aclose(self) -> None:
        """Read nothing more; the launcher closes the pipe."""
        self._messages.clear()

    async def _take(self, data: bytes) -> bool:
        """Add the messages that end in this output; return whether more may come."""
        *lines, rest = data.split(b"\n")
        share = LoopShare()
        for line in lines:
            self._pending += line
            self._add(bytes(self._pending))
            self._pending.clear()
            await share.give_back()
        self._pending += rest
        if len(self._pending) > MAX_MESSAGE_BYTES:
            self._program.given_up = f"it wrote a line of more than {MAX_MESSAGE_BYTES:,} bytes"
        elif self._bad_lines > _MAX_BAD_LINES and not self._has_spoken:
            self._program.given_up = f"it wrote more than {_MAX_BAD_LINES} lines before any message"
        return not self._program.given_up

    def _take_last(self) -> None:
        """Add a message that has no line end, because its program ended right after it."""
        for message in read_messages(bytes(self._pending)):
            if not isinstance(message, RequestFailed):  # one that is cut is none
                self._messages.append(SessionMessage(message))
        self._pending.clear()

    def _add(self, line: bytes) -> None:
        for message in read_messages(line) if line.strip() else ():
            if isinstance(message, RequestFailed):
                self._bad_lines += 1
                self._messages.append(message)
            else:
                self._has_spoken = True
                self._messages.append(SessionMessage(message))
