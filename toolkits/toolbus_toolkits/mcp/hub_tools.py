"""The toolkit `mcp`: what its servers are, their tools by one name, and new servers.

Who may not see the toolkit of a server sees nothing of it here either, and a tool of a server is
called through the room as its caller's own call: nothing here is a way around a grant. A command
of another participant is code that runs on this machine: `connect`, `import` and `remove` exist
only where the operator names the callers that may use them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar

from toolbus import (
    Chunk,
    InvalidArguments,
    NoHost,
    NotFound,
    Participant,
    PermissionDenied,
    RoomClient,
    RoomException,
    Tool,
    ToolContext,
    Toolkit,
    Unavailable,
)
from toolbus.auth.participant_names import is_named
from toolbus.chunks.chunk_types import fitting
from toolbus.permissions.assessment import Assessment
from toolbus.tools.context import run_of
from toolbus.tools.toolkit import MAX_RESULT_BYTES
from toolbus.untrusted_text import one_line
from toolbus.wire import ToolkitManifest
from toolbus_toolkits.credentials.references import RedactingFilter, refuse_references
from toolbus_toolkits.mcp.config import ServersFile, SkippedEntry, read_servers
from toolbus_toolkits.mcp.hub import McpHub
from toolbus_toolkits.mcp.names import toolkit_name
from toolbus_toolkits.mcp.server import McpServer

__all__ = ["McpToolkit"]

_NAME = "mcp"
_SUMMARY = 300
"""Characters of a description: a list has up to a thousand of them for each server."""
_MISSING = frozenset({"left_out", "left_out_count", "unchecked", "unchecked_count"})
"""Annotations of a toolkit that say what of its server is not there."""


class McpToolkit(Toolkit):
    """The toolkit `mcp` over a hub. While it is hosted, the toolkits of the servers are too.

    Args:
        hub: The hub; it is opened by the start of the toolkit's tools.
        allow_import: The names of callers that may use `connect`, `import` and `remove`; none by
            default.
        allow_remove: The names of servers that they may remove, beside those that were added later.
    """

    def __init__(
        self, hub: McpHub, allow_import: Iterable[str] = (), allow_remove: Iterable[str] = ()
    ) -> None:
        allowed = frozenset(allow_import)
        self._audience = audience = _Audience(hub)
        tools: list[Tool] = [_List(hub, audience), _Call(hub, audience)]
        if allowed:
            tools += [_Connect(hub, audience, allowed), _Import(hub, audience, allowed)]
            tools.append(_Remove(hub, audience, allowed, map(toolkit_name, allow_remove)))
        super().__init__(
            _NAME,
            tools,
            title="MCP servers",
            description="MCP servers, each of which is a toolkit of its own in this room too.",
            rules=["Call list first: it names the servers and their tools."],
            errors="class",  # what a library raises may have the value of a credential
        )
        self._hub = hub
        self.log_filters = (RedactingFilter(hub.access.credentials),)

    @asynccontextmanager
    async def hosting(self, room: RoomClient) -> AsyncIterator[None]:
        """Host the toolkits of the servers as well."""
        self._audience.room = room
        async with self._hub.host(room):
            yield


class _Audience:
    """Who may see what of which server.

    The room decides it for the toolkit of a server. What it does not host, it cannot decide: then
    a server is shown, without tools, to those whom the room would show its toolkit.
    """

    def __init__(self, hub: McpHub) -> None:
        self._hub = hub
        self.room: RoomClient | None = None
        """Where the servers are hosted."""

    @property
    def host(self) -> Participant:
        """The participant that hosts the servers."""
        assert self.room is not None, "only a hosted call asks for it"
        return self.room.me

    def askers(self, context: ToolContext) -> list[Participant]:
        """Return those who decided that this call is made: its caller, or those who forwarded it.

        This host itself is left out where it forwarded a call: it could do all of it without one.
        """
        *forwarders, last = (context.caller, *context.forwarded_for)
        return [*(asker for asker in forwarders if not self._is_host(asker)), last]

    def covers(self, shared_with: tuple[str, ...] | None, context: ToolContext) -> bool:
        """Whether all who asked for a call are among those that something is shared with."""
        if shared_with is None or not context.is_hosted:
            return True
        return all(
            self._is_host(asker) or any(self._is_shared(share, asker) for share in shared_with)
            for asker in self.askers(context)
        )

    def _is_host(self, participant: Participant) -> bool:
        host = self.host
        return (participant.issuer, participant.name) == (host.issuer, host.name)

    def _is_shared(self, share: str, participant: Participant) -> bool:
        kind, _, value = share.partition(":")
        if kind == "role":
            return participant.role == value
        return share == "*" or (kind == "name" and is_named(value, participant, self.host))

    async def description(self, server: McpServer, context: ToolContext) -> dict[str, Any] | None:
        """Describe a server as the caller of a call may see it; None if it may not see it."""
        shown: ToolkitManifest | None = None
        if not context.is_hosted:
            shown = server.toolkit().manifest() if server.has_toolkit else None
        elif server.hosted.is_set():
            room = context.room.forwarding()
            try:
                proxy = await room.toolkit(server.name, self.host.full_name)
            except (NotFound, PermissionDenied, NoHost):
                return None
            shown = proxy.manifest
        elif not self.covers(server.entry.shared_with, context):
            return None
        return _description(server, self._hub.refused.get(server.name), shown)

    def unhosted_error(self, server: McpServer) -> Unavailable | None:
        """Return why a server cannot be called now; None if its toolkit is in the room."""
        if server.hosted.is_set():
            return None
        try:
            server.toolkit()
        except Unavailable as error:
            return error
        refused = self._hub.refused.get(server.name)
        why = f": {refused}" if refused else " yet"
        text = f"MCP server {server.name} is not hosted{why}"
        return Unavailable(text, executed="no", retryable=not refused)


class _HubTool(Tool):
    """A tool over the servers of a hub."""

    schema: ClassVar[Mapping[str, Any]]
    marks_entry = True

    def __init__(
        self, hub: McpHub, audience: _Audience, allowed: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(input_schema=dict(self.schema))
        self._hub = hub
        self._audience = audience
        self._allowed = allowed
        """The callers that may add and remove servers."""
        self._open = AsyncExitStack()


class _List(_HubTool):
    """The servers and their tools. Its start opens the hub, its stop closes it."""

    name = "list"
    description = "List the MCP servers, whether they are connected, and their tools."
    read_only = True
    idempotent = True
    schema: ClassVar = {"properties": {}}
    max_concurrency = 4
    """Each call makes a request for each server."""

    async def start(self, room: Any) -> None:
        await self._open.enter_async_context(self._hub)

    async def stop(self) -> None:
        await self._open.aclose()

    def make_result(self, value: Any) -> Chunk:
        """Convert the list; one that fills more than a frame is a file."""
        return fitting(super().make_result(value), MAX_RESULT_BYTES)

    async def execute(self, context: ToolContext, /, *_: Any, **arguments: Any) -> Any:
        """Return `{"servers": [{name, state, reason, tools: [{name, description}], ...}]}`.

        A server has `left_out` too, tools that cannot be hosted, and `unchecked`, parts of schemas
        that the server alone checks: `[{name, reason}]`. One that is confined has `sandbox`, the
        backend that confines it. Beside the servers are the entries that
        are not used: `{"skipped": [{name, reason}]}`.
        """
        described = []
        for server in self._hub.servers:
            try:
                described.append(await self._audience.description(server, context))
            except RoomException as error:
                raise context.refuse(error) from None
        context.enter()
        skipped = [
            entry
            for entry in self._hub.skipped
            if self._audience.covers(entry.shared_with, context)
        ]
        return {
            "servers": [server for server in described if server is not None],
            "skipped": _skipped(skipped),
        }


class _Call(_HubTool):
    """A tool of a server by its full name.

    In a room it is forwarded: a caller that may not call the tool itself may not call it through
    this. It is judged and recorded as the tool that it reaches.
    """

    name = "call"
    description = "Call a tool of an MCP server, as the toolkit of the server would."
    open_world = True
    destructive = True
    schema: ClassVar = {
        "properties": {
            "tool": {"type": "string", "description": "server.tool, as `list` names them."},
            "arguments": {"type": "object", "description": "Its arguments."},
        },
        "required": ["tool"],
    }

    def reached(self, arguments: Mapping[str, Any]) -> str:
        """Return the tool that a call reaches, through any number of calls of this tool itself."""
        tool: Any = ""
        while isinstance(arguments, Mapping):
            tool, arguments = arguments.get("tool"), arguments.get("arguments") or {}
            if tool != f"{_NAME}.{self.name}":
                break
        return tool if isinstance(tool, str) else ""

    async def assess(self, context: ToolContext, arguments: dict[str, Any]) -> Assessment:
        """Return what the tool says that the call reaches."""
        tool, inner = arguments["tool"], arguments.get("arguments") or {}
        try:
            toolkit = self._toolkit(context, tool)
        except Unavailable as error:  # it may be there when the call is made
            return Assessment("ask", immune=True, message=error.message, source="manifest")
        if toolkit is None:
            host = self._audience.host.full_name
            return await context.forward_assess(tool, inner, participant=host)
        name = tool.partition(".")[2]
        return replace(await toolkit.assess(context, name, inner, context.patterns), reaches=tool)

    async def execute(
        self, context: ToolContext, /, *_: Any, tool: str, arguments: dict[str, Any] | None = None
    ) -> Chunk:
        """Return what the tool returns."""
        toolkit = self._toolkit(context, tool)
        if toolkit is None:
            host = self._audience.host.full_name
            return await context.forward(tool, arguments, participant=host)
        if (recording := run_of(context).recording) is not None:
            recording.reach(tool, arguments)
        return await toolkit.execute(context, tool.partition(".")[2], arguments or {})

    def _toolkit(self, context: ToolContext, tool: str) -> Toolkit | None:
        """Return the toolkit of a tool; None where the room is to be asked, which decides.

        Raises what a call of it is refused with, recorded in the context.
        """
        server_name, _dot, tool_name = tool.partition(".")
        if not tool_name or "." in tool_name:
            text = f"there is no tool {one_line(tool, 128)!r} (write server.tool)"
            raise context.refuse(NotFound(text))
        server = self._hub.server(server_name)
        if context.is_hosted:
            audience = self._audience
            if server is not None and audience.covers(server.entry.shared_with, context):
                unhosted = audience.unhosted_error(server)
                if unhosted is not None:
                    raise context.refuse(unhosted)
            # Also where there is no such server: the room has one answer for that and for a hidden
            # one.
            return None
        if server is None:
            text = f"there is no MCP server {one_line(server_name, 64)!r}"
            raise context.refuse(NotFound(text))
        try:
            return server.toolkit()
        except Unavailable as error:
            raise context.refuse(error) from None


class _Importing(_HubTool):
    """A tool that only some callers may use."""

    open_world = True
    destructive = True

    def _check(self, context: ToolContext) -> None:
        """Refuse a call unless all who asked for it may add servers. Raises PermissionDenied."""
        audience = self._audience
        for asker in audience.askers(context):
            sender = asker if audience.room is None else audience.host
            if not any(is_named(name, asker, sender) for name in self._allowed):
                text = f"{asker.full_name} may not change MCP servers here (--allow-import)"
                raise context.refuse(_denied(text, "--allow-import"))
        if context.is_hosted:
            try:
                context.room.forwarding()  # what it answers is what its caller may see
            except Unavailable as error:
                raise context.refuse(error) from None

    async def _seen(self, context: ToolContext, name: str) -> McpServer:
        """Return a server that the caller may see. Raises what refuses the call."""
        self._check(context)
        server = self._hub.server(name)
        if server is None or await self._audience.description(server, context) is None:
            raise context.refuse(NotFound(f"there is no MCP server {one_line(name, 64)!r}"))
        return server


class _Connect(_Importing):
    """Connects again to a server that is configured."""

    name = "connect"
    description = "Try now to connect to an MCP server that is not connected."
    schema: ClassVar = {
        "properties": {"name": {"type": "string", "description": "A server's name."}},
        "required": ["name"],
    }

    async def execute(self, context: ToolContext, /, *_: Any, name: str) -> Any:
        """Return the server as `list` shows it."""
        server = await self._seen(context, name)
        await server.retry()
        return await self._audience.description(server, context)


class _Import(_Importing):
    """Adds servers until the host stops."""

    name = "import"
    description = "Add MCP servers, in the form of `mcpServers`, until this host stops."
    approval = True  # a command in the arguments is code that runs here
    schema: ClassVar = {
        "properties": {
            "servers": {
                "type": "object",
                "description": "Entries by their names, as in an editor's mcpServers.",
                "minProperties": 1,
                "maxProperties": 32,
            }
        },
        "required": ["servers"],
    }

    async def assess(self, context: ToolContext, arguments: dict[str, Any]) -> Assessment:
        """Refuse what would be refused: no person is asked about that."""
        self._read(context, arguments["servers"])
        return await super().assess(context, arguments)

    def _read(self, context: ToolContext, servers: dict[str, Any]) -> ServersFile:
        """Read entries that may be added. Raises what refuses the call."""
        self._check(context)
        try:
            refuse_references(servers, "/servers")
            found = read_servers(servers, "servers")
        except InvalidArguments as error:
            raise context.refuse(error) from None
        except ValueError as error:
            raise context.refuse(_invalid("/servers", str(error))) from None
        access = self._hub.access.for_others()
        for name, entry in found.servers.items():
            try:
                access.confined(name, entry)
            except ValueError as error:
                raise context.refuse(_invalid(f"/servers/{name}", str(error))) from None
        taken = [name for name in found.servers if self._hub.server(name) is not None]
        if taken:
            text = f"there is an MCP server {taken[0]} already"
            raise context.refuse(_invalid(f"/servers/{taken[0]}", text))
        return found

    async def execute(self, context: ToolContext, /, *_: Any, servers: dict[str, Any]) -> Any:
        """Return `{"servers": [...], "skipped": [{name, reason}]}`."""
        found = self._read(context, servers)
        added = await asyncio.gather(
            *(self._hub.add(name, entry) for name, entry in found.servers.items())
        )
        servers_added = []
        for new in added:
            described = await self._audience.description(new, context)
            refused = self._hub.refused.get(new.name)
            servers_added.append(described or _description(new, refused, None))
        return {"servers": servers_added, "skipped": _skipped(found.skipped)}


class _Remove(_Importing):
    """Removes servers until the host stops."""

    name = "remove"
    description = "Remove an MCP server that was added while this host runs, and end its program."
    approval = True
    schema: ClassVar = {
        "properties": {"name": {"type": "string", "description": "A server's name."}},
        "required": ["name"],
    }

    def __init__(
        self,
        hub: McpHub,
        audience: _Audience,
        allowed: frozenset[str],
        removable: Iterable[str],
    ) -> None:
        super().__init__(hub, audience, allowed)
        self._removable = frozenset(removable)
        """The servers of the operator that may be removed."""

    async def assess(self, context: ToolContext, arguments: dict[str, Any]) -> Assessment:
        """Refuse what would be refused: no person is asked about that."""
        await self._checked(context, arguments["name"])
        return await super().assess(context, arguments)

    async def _checked(self, context: ToolContext, name: str) -> None:
        await self._seen(context, name)
        if name not in self._hub.added | self._removable:
            text = f"the MCP server {name} is of this host's operator (--allow-remove)"
            raise context.refuse(_denied(text, "--allow-remove"))

    async def execute(self, context: ToolContext, /, *_: Any, name: str) -> None:
        """Return when the toolkit of the server has left, and its program has ended."""
        await self._checked(context, name)
        context.enter()
        await self._hub.remove(name)


def _denied(text: str, flag: str) -> PermissionDenied:
    """Return the error of what a flag of the host allows, and no token."""
    return PermissionDenied(text, details={"host_flag": flag})


def _invalid(path: str, message: str) -> InvalidArguments:
    return InvalidArguments(f"{path}: {message}", details={"path": path, "message": message})


def _description(
    server: McpServer, refused: str | None, shown: ToolkitManifest | None
) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": server.name,
        "state": server.state,
        "reason": server.reason if server.state != "connected" else refused or "",
        "tools": [],
        "left_out": [],
        "unchecked": [],
    }
    if server.confined_by is not None:
        described["sandbox"] = server.confined_by
    if shown is not None:
        for tool in shown.tools:
            summary = one_line(tool.description.strip().partition("\n")[0], _SUMMARY)
            name = f"{server.name}.{tool.name}"
            described["tools"].append({"name": name, "description": summary})
        described |= {key: value for key, value in shown.annotations.items() if key in _MISSING}
    return described


def _skipped(entries: Iterable[SkippedEntry]) -> list[dict[str, Any]]:
    return [{"name": entry.name, "reason": entry.reason} for entry in entries]
