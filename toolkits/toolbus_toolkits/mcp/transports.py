"""How an MCP server is reached: a started program, streamable HTTP, or SSE.

References to credentials are resolved here, at the moment of use, and their values go nowhere else.

Messages of a started program are one line of JSON each, over its pipes. The session of the MCP SDK
reads and writes these itself, in its own tasks: with a task for each pipe, as the SDK's own
transport has, a call takes two more turns of the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.shared.message import SessionMessage

from toolbus.bounded_logging import bounded_logger
from toolbus.settings import expanded
from toolbus_toolkits.credentials.references import (
    CREDENTIAL_THREADS,
    CredentialResolver,
    CredentialSource,
)
from toolbus_toolkits.launcher import Program, ProgramLimits, RunningProgram, launch
from toolbus_toolkits.mcp.config import ServerEntry
from toolbus_toolkits.mcp.http_transports import sse, streamable_http
from toolbus_toolkits.mcp.log_budget import limit_sdk_logs
from toolbus_toolkits.mcp.messages import (
    MAX_MESSAGE_BYTES,
    LoopShare,
    RequestFailed,
    Streams,
    read_messages,
)
from toolbus_toolkits.network import AddressPolicy, http_client
from toolbus_toolkits.sandbox import Backend, SandboxConfig, SandboxPolicy

__all__ = ["Link", "ServerAccess", "open_link", "stdio_streams"]

_MAX_RESPONSE_BYTES = 256 * 1024 * 1024
"""Of one response, which may be a stream of events that lasts; then it is opened again."""


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """What the operator allows MCP servers."""

    policy: AddressPolicy = field(default_factory=AddressPolicy)
    """Which addresses may be reached."""
    credentials: CredentialSource = field(default_factory=partial(CredentialResolver, None))
    """For entries of files that the operator named."""
    sandbox: SandboxConfig | SandboxPolicy | None = None
    """What started programs may reach whose entries do not say it; all that their user may if None.
    Of a policy, `recommend_program` is asked with the name of the server."""
    is_for_operator: bool = True
    """Whether the operator wrote the entries, so that their own sandboxes replace this one."""

    def for_others(self) -> ServerAccess:
        """Return the same for entries of others: they get no credentials, and no wider sandbox."""
        return ServerAccess(self.policy, sandbox=self.sandbox, is_for_operator=False)

    def confined(self, name: str, entry: ServerEntry) -> ServerEntry:
        """Return an entry with the sandbox that it is started in.

        Args:
            name: That of the server.
            entry: Its entry; one with an address stays as it is.

        Raises `ValueError` if its own sandbox would replace that of the operator, and for a policy
        that one program cannot hold.
        """
        if entry.command is None or self.sandbox is None:
            return entry
        if entry.sandbox is not None:
            if self.is_for_operator:
                return entry
            raise ValueError(
                "its sandbox cannot replace the one of this host: take it out, or name the file"
                " with --config"
            )
        if isinstance(self.sandbox, SandboxConfig):
            return entry.model_copy(update={"sandbox": self.sandbox})
        config, max_s = self.sandbox.recommend_program(name)
        timeout_s = entry.timeout_s if max_s is None else min(entry.timeout_s, max_s)
        return entry.model_copy(update={"sandbox": config, "timeout_s": timeout_s})

    def redact(self, text: str) -> str:
        """Return a text without the credentials that were given out."""
        return self.credentials.redact(text)


@dataclass(slots=True)
class Link:
    """An opened transport to a server; `program` is None for an address."""

    transport: AbstractAsyncContextManager[Streams]
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is known that nothing more comes from the server."""
    program: RunningProgram | None = None

    @property
    def confined_by(self) -> Backend | None:
        """What confines the program; None without a sandbox, and for an address."""
        return None if self.program is None else self.program.confined_by

    async def explain(self) -> None:
        """Wait a moment until it is known whether, and how, a program ended."""
        if self.program is not None:
            await self.program.exited()

    def ending(self) -> str:
        """Return how the program ended; empty for one that runs, and for an address."""
        program = self.program
        if program is None or (program.returncode is None and not self.closed.is_set()):
            return ""
        return program.ending()


@asynccontextmanager
async def open_link(
    entry: ServerEntry,
    access: ServerAccess,
    on_line: Callable[[str], None],
    on_doubt: Callable[[], None],
) -> AsyncIterator[Link]:
    """Open the way to a server; it is closed after the block.

    Args:
        entry: How it is reached.
        access: What it may reach, and its credentials.
        on_line: Called with each line that a program writes to stderr.
        on_doubt: Called when it is no longer clear that the server knows this client.

    Raises:
        LaunchFailed: The program cannot be started.
        ToolFailed: The address or a credential is refused.
    """
    limit_sdk_logs()
    if entry.command is not None:
        # On a thread, because a credential may be read from a keyring or a file.
        chosen = await CREDENTIAL_THREADS.run(_program, entry, access)
        async with launch(chosen, on_line=on_line, redact=access.redact) as program:
            closed = asyncio.Event()
            yield Link(stdio_streams(program, closed), closed, program)
        return
    assert entry.url is not None
    access.policy.check_url(entry.url)
    host = urlsplit(entry.url).netloc
    headers = await CREDENTIAL_THREADS.run(
        lambda: {
            name: access.credentials.for_host(value, host) for name, value in entry.headers.items()
        }
    )
    async with http_client(
        access.policy,
        max_response_bytes=_MAX_RESPONSE_BYTES,
        headers={"accept-encoding": "identity", **headers},
    ) as client:
        closed = asyncio.Event()
        if entry.transport == "sse":
            opened = sse(client, entry.url, entry.connect_timeout_s, closed)
        else:
            opened = streamable_http(client, entry.url, entry.connect_timeout_s, on_doubt)
        yield Link(opened, closed)


def _program(entry: ServerEntry, access: ServerAccess) -> Program:
    assert entry.command is not None
    return Program(
        entry.command,
        entry.args,
        {
            name: access.credentials.for_command(value, entry.command)
            for name, value in entry.env.items()
        },
        entry.cwd and expanded(entry.cwd),
        ProgramLimits(memory_bytes=entry.memory_mb and entry.memory_mb * 1024 * 1024),
        sandbox=entry.sandbox,
    )


_READ_BYTES = 64 * 1024
"""At a time, so that a program which writes without end leaves time for others."""
_MAX_BAD_LINES = 100
"""Lines that may be no messages before the first one that is: some servers print words at their
start, and a program that prints more is no server. One that has spoken may print what it likes."""

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
            if not data:  # a last message may have no line end; one that is cut is none
                for message in read_messages(bytes(self._pending)):
                    if not isinstance(message, RequestFailed):
                        self._messages.append(SessionMessage(message))
                self._pending.clear()
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
            for message in read_messages(bytes(self._pending)) if self._pending.strip() else ():
                if isinstance(message, RequestFailed):
                    self._bad_lines += 1
                    self._messages.append(message)
                else:
                    self._has_spoken = True
                    self._messages.append(SessionMessage(message))
            self._pending.clear()
            await share.give_back()
        self._pending += rest
        if len(self._pending) > MAX_MESSAGE_BYTES:
            self._program.given_up = f"it wrote a line of more than {MAX_MESSAGE_BYTES:,} bytes"
        elif self._bad_lines > _MAX_BAD_LINES and not self._has_spoken:
            self._program.given_up = f"it wrote more than {_MAX_BAD_LINES} lines before any message"
        return not self._program.given_up
