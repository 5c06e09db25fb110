"""How an MCP server is reached: a started program, streamable HTTP, or SSE.

References to credentials are resolved here, at the moment of use, and their values go nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

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
from toolbus_toolkits.mcp.stdio import Streams, stdio_streams
from toolbus_toolkits.network import AddressPolicy, http_client

__all__ = ["Link", "ServerAccess", "open_link"]

_MAX_RESPONSE_BYTES = 256 * 1024 * 1024
"""Of one response, which may be a stream of events that lasts; then it is opened again."""


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """What the operator allows MCP servers."""

    policy: AddressPolicy = field(default_factory=AddressPolicy)
    """Which addresses may be reached."""
    credentials: CredentialSource = field(default_factory=partial(CredentialResolver, None))
    """For entries of files that the operator named."""

    def without_credentials(self) -> ServerAccess:
        """Return the same for entries of others."""
        return ServerAccess(self.policy)

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
    megabytes = None if entry.memory_mb is None else entry.memory_mb * 1024 * 1024
    return Program(
        entry.command,
        entry.args,
        {
            name: access.credentials.for_command(value, entry.command)
            for name, value in entry.env.items()
        },
        expanded(entry.cwd) if entry.cwd is not None else None,
        ProgramLimits(memory_bytes=megabytes),
    )
