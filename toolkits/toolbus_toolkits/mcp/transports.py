"""How an MCP server is reached: a started program, streamable HTTP, or SSE.

References to credentials are resolved here, at the moment of use, and their values go nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx2
from mcp.client import Transport
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from toolbus.bounded_logging import bounded_logger
from toolbus_toolkits.credentials.references import CredentialResolver, CredentialSource
from toolbus_toolkits.launcher import Program, ProgramLimits, RunningProgram, launch
from toolbus_toolkits.mcp.config import ServerEntry
from toolbus_toolkits.mcp.http_bounds import BoundedHttp, without_query
from toolbus_toolkits.mcp.sdk_logs import limit_sdk_logs
from toolbus_toolkits.mcp.stdio import MAX_LINE_BYTES, stdio_streams
from toolbus_toolkits.network import AddressPolicy, http_client

__all__ = ["Link", "ServerAccess", "open_link"]

_MAX_RESPONSE_BYTES = 256 * 1024 * 1024
"""Of one response, which may be a stream of events that lasts; then it is opened again."""
_LATER_S = 5.0
"""A call ends by its own time-out, before that of HTTP."""

_logger = bounded_logger(__name__)


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
    """One opened way to a server."""

    transport: Transport
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
async def open_link(name: str, entry: ServerEntry, access: ServerAccess) -> AsyncIterator[Link]:
    """Open the way to a server; it is closed after the block.

    Raises:
        LaunchFailed: The program cannot be started.
        ToolFailed: The address or a credential is refused.
    """
    if entry.command is not None:
        # On a thread, because a credential may be read from a keyring or a file.
        chosen = await asyncio.to_thread(_program, entry, access)
        async with launch(chosen, on_line=_logs(name), redact=access.redact) as program:
            closed = asyncio.Event()
            yield Link(stdio_streams(program, closed, access.redact), closed, program)
        return
    assert entry.url is not None
    access.policy.check_url(entry.url)
    limit_sdk_logs()
    host, shown = urlsplit(entry.url).netloc, without_query(entry.url)
    headers = await asyncio.to_thread(_resolved, entry.headers, access, host)

    def client(*_: Any, **__: Any) -> httpx2.AsyncClient:
        return http_client(
            access.policy,
            timeout_s=entry.timeout_s + _LATER_S,
            max_response_bytes=_MAX_RESPONSE_BYTES,
            headers={"accept-encoding": "identity", **headers},
            around=partial(
                BoundedHttp,
                max_message_bytes=MAX_LINE_BYTES,
                post_streams=entry.transport != "sse",
                address=entry.url or "",
            ),
        )

    if entry.transport == "sse":
        # It opens the client itself, and its headers are in the client.
        yield Link(sse_client(shown, timeout=entry.connect_timeout_s, httpx_client_factory=client))
        return
    async with client() as opened:
        yield Link(streamable_http_client(shown, http_client=opened))


def _program(entry: ServerEntry, access: ServerAccess) -> Program:
    assert entry.command is not None
    megabytes = None if entry.memory_mb is None else entry.memory_mb * 1024 * 1024
    return Program(
        entry.command,
        entry.args,
        {
            name: access.credentials.for_command(each, entry.command)
            for name, each in entry.env.items()
        },
        entry.cwd.expanduser() if entry.cwd is not None else None,
        ProgramLimits(memory_bytes=megabytes),
    )


def _resolved(values: Mapping[str, str], access: ServerAccess, host: str) -> dict[str, str]:
    return {name: access.credentials.for_host(each, host) for name, each in values.items()}


def _logs(name: str) -> Any:
    def log(line: str) -> None:
        _logger.info("MCP server %s: %s", name, line)

    return log
