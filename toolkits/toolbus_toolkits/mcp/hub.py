"""Many MCP servers in one process: each connected on its own, each a toolkit of its own in a room.

A server that is dead, slow or refused changes nothing for the others. The names of toolkits and
tools depend on the configuration alone. `McpBuilder` makes the toolkit of one of them for a turn.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from toolbus import (
    AlreadyExists,
    NotFound,
    Room,
    RoomClient,
    RoomException,
    Toolkit,
    ToolkitBuilder,
    ToolkitConfig,
    Unavailable,
)
from toolbus.bounded_logging import bounded_logger
from toolbus.settings import expanded, home_of, user_folder
from toolbus.untrusted_text import one_line
from toolbus_toolkits.mcp.config import (
    MAX_REASON_CHARS,
    ServerEntry,
    ServersFile,
    SkippedEntry,
    read_file,
    usual_files,
)
from toolbus_toolkits.mcp.connection import first_of
from toolbus_toolkits.mcp.server import McpServer
from toolbus_toolkits.mcp.tools import McpTool
from toolbus_toolkits.mcp.transports import ServerAccess

__all__ = ["McpBuilder", "McpHub", "McpRequest"]

_logger = bounded_logger(__name__)


class McpHub:
    """MCP servers that are connected while the block is entered.

        async with McpHub.from_config("mcp.json") as hub, hub.host(room):
            await hub.tried()  # only for a program that needs all of them

    Nothing here waits for a server: each is connected, and hosted, by itself.

    Args:
        servers: The servers, not started yet.
        access: For servers that are added later.
        skipped: Entries that are not used, and why.

    Raises `ValueError` for two servers of one name.
    """

    def __init__(
        self,
        servers: Iterable[McpServer] = (),
        *,
        access: ServerAccess | None = None,
        skipped: Iterable[SkippedEntry] = (),
    ) -> None:
        self._servers: dict[str, McpServer] = {}
        for server in servers:
            if server.name in self._servers:
                raise ValueError(f"two MCP servers are named {server.name!r}")
            self._servers[server.name] = server
        self.access: ServerAccess = access or ServerAccess()
        """What servers may reach, and their credentials."""
        self.skipped: tuple[SkippedEntry, ...] = tuple(skipped)
        """Entries of the configuration that are not used."""
        self.refused: dict[str, str] = {}
        """Why the toolkit of a server is not hosted, by its name."""
        self.added: set[str] = set()
        """The names of servers that were added later, by `add`."""
        self._is_open = False
        self._room: RoomClient | None = None
        self._stopping = asyncio.Event()
        self._hosting: dict[str, asyncio.Task[None]] = {}
        self._answered: dict[str, asyncio.Event] = {}
        """Set when the room has accepted or refused a server's first definition."""
        self._ending: dict[str, asyncio.Task[None]] = {}
        """What removes servers now, by their names."""

    @classmethod
    def from_config(
        cls, path: str | Path | None = None, *, access: ServerAccess | None = None
    ) -> Self:
        """Make a hub of the servers of a file.

        Args:
            path: A file with `mcpServers`; by default `mcp.json` of `TOOLBUS_HOME` and those of
                editors, in this folder and of this user. Of two entries with one name the first
                file's counts.
            access: Which addresses may be reached, and the credentials. A file that was not named
                here may hold no reference to a credential.

        Raises:
            ValueError: The file cannot be read, or there is none. Of several usual files, those
                that cannot be read are skipped, and logged.
        """
        if path is not None:
            file = read_file(expanded(path), by_operator=True)
            return cls.from_files([file], access=access)
        found = usual_files(Path.cwd(), user_folder(), home_of(os.environ))
        if not found:
            raise ValueError(
                "there is no file of MCP servers here or at home: name one with --config"
            )
        access = (access or ServerAccess()).for_others()
        return cls.from_files(_read_usable(found), access=access)

    @classmethod
    def from_files(
        cls, files: Iterable[ServersFile], *, access: ServerAccess | None = None
    ) -> Self:
        """Make a hub of the servers of files that were read; of equal names the first counts."""
        access = access or ServerAccess()
        files = list(files)
        excluded = {name: file.source for file in reversed(files) for name in file.excluded}
        entries: dict[str, ServerEntry] = {}
        skipped: list[SkippedEntry] = []
        for file in files:
            # A name counts also where its entry is disabled.
            earlier = {*entries, *(entry.name for entry in skipped)}
            for name, entry in file.servers.items():
                if name in earlier or name in excluded:
                    reason = "an earlier file has it"
                    if name in excluded:
                        reason = f"{excluded[name]} says that it is not used"
                    skipped.append(SkippedEntry(name, reason, file.source, entry.shared_with))
                else:
                    entries[name] = entry
            skipped += file.skipped
            for warning in file.warnings:
                _logger.warning("%s", warning)
        servers = []
        for name, entry in entries.items():
            try:
                servers.append(McpServer.from_entry(name, entry, access))
            except ValueError as error:
                source = next(file.source for file in files if name in file.servers)
                skipped.append(SkippedEntry(name, str(error), source, entry.shared_with))
        for left_out in skipped:
            _logger.warning(
                "MCP server %s is not used: %s: %s", left_out.name, left_out.source, left_out.reason
            )
        if not entries:
            read = ", ".join(file.source for file in files)
            _logger.warning("no MCP server is configured: %s", read)
        return cls(servers, access=access, skipped=skipped)

    @property
    def servers(self) -> tuple[McpServer, ...]:
        """All servers, by their names."""
        return tuple(self._servers[name] for name in sorted(self._servers))

    def server(self, name: str) -> McpServer | None:
        """Return the server of a name; None if there is none."""
        return self._servers.get(name)

    def toolkits(self) -> list[Toolkit]:
        """Return the toolkits of all servers that were connected at least once."""
        return [server.toolkit() for server in self.servers if server.has_toolkit]

    async def __aenter__(self) -> Self:
        """Begin to connect to all servers side by side. It waits for none of them: see `tried`."""
        self._is_open = True
        if self.servers:
            names = ", ".join(server.name for server in self.servers)
            _logger.info("connecting to MCP servers: %s", names)
        try:
            for server in self.servers:
                await server.start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect from all servers side by side, so that none waits for another's end."""
        await self._close()

    async def _close(self) -> None:
        self._is_open = False
        stopping = (server.stop() for server in reversed(self.servers))
        await asyncio.gather(*stopping, *self._ending.values())

    async def tried(self) -> None:
        """Wait until each server is connected, and hosted where this hub hosts, or has failed once.

        One that fails is tried again in the background.
        """
        await asyncio.gather(*(self._tried(server) for server in self.servers))

    @asynccontextmanager
    async def host(self, room: RoomClient) -> AsyncIterator[None]:
        """Host the toolkit of each server in a room until the end of the block.

        Each is hosted when it is connected, and one whose tools change is replaced: calls that run
        finish with the definition that they began with. What the room refuses is in `refused`, and
        changes nothing for the others.
        """
        self._room = room
        self._stopping = asyncio.Event()
        try:
            for server in self.servers:
                self._begin_hosting(server, room)
            yield
        finally:
            self._room = None
            self._stopping.set()
            await asyncio.gather(*self._hosting.values(), return_exceptions=True)
            self._hosting.clear()
            self._answered.clear()

    async def add(self, name: str, entry: ServerEntry) -> McpServer:
        """Add a server, connect to it, and host it where the others are hosted.

        It waits until the server is connected or has failed once.

        Raises:
            AlreadyExists: The name is taken.
            ValueError: Its sandbox would replace the one of this host.
        """
        server = McpServer.from_entry(name, entry, self.access.for_others())
        if server.name in self._servers:
            raise AlreadyExists(f"there is an MCP server {server.name} already")
        self._servers[server.name] = server
        self.added.add(server.name)
        # All of it is begun before the first wait: a caller that leaves meanwhile changes nothing.
        if self._is_open:
            await server.start()
        if self._room is not None:
            self._begin_hosting(server, self._room)
        await self._tried(server)
        return server

    async def remove(self, name: str) -> None:
        """Remove a server: its toolkit leaves the room, its calls there finish, and it is stopped.

        Calls in this process end with it. Its name is taken until then. A caller that leaves
        meanwhile changes nothing. Raises `NotFound` if there is none.
        """
        server = self._servers.get(name)
        if server is None:
            raise NotFound(f"there is no MCP server {one_line(name, 64)!r}")
        if name not in self._ending:
            ending = asyncio.create_task(self._end(server), name=f"remove mcp {name}")
            self._ending[name] = ending
        await asyncio.shield(self._ending[name])

    async def _end(self, server: McpServer) -> None:
        name = server.name
        server.removed.set()
        try:
            if name in self._hosting:
                await asyncio.wait([self._hosting[name]])
            await server.stop()
        finally:
            del self._servers[name], self._ending[name]
            self._hosting.pop(name, None)
            self._answered.pop(name, None)
            self.refused.pop(name, None)
            self.added.discard(name)

    def _begin_hosting(self, server: McpServer, room: RoomClient) -> None:
        task = asyncio.create_task(self._host(server, room), name=f"host mcp {server.name}")
        self._hosting[server.name] = task
        self._answered[server.name] = asyncio.Event()

    async def _tried(self, server: McpServer) -> None:
        """Wait until a server is connected, and hosted or refused, or has failed once."""
        if not self._is_open:
            return
        await server.tried()
        answered = self._answered.get(server.name)
        if server.has_toolkit and answered is not None:
            await first_of(answered, server.removed, self._stopping)

    async def _host(self, server: McpServer, room: RoomClient) -> None:
        """Host one server's toolkit from its first list of tools to the end of the hub.

        A definition that the room refuses leaves the former one; the next may be accepted.
        """
        if server.has_toolkit:
            server.changed.set()
        shared_with = server.entry.shared_with
        public = None if shared_with is None else False
        try:
            async with AsyncExitStack() as stack:
                while True:
                    await first_of(server.changed, server.removed, self._stopping)
                    if server.removed.is_set() or self._stopping.is_set():
                        return
                    server.changed.clear()
                    toolkit = server.toolkit()
                    try:
                        if server.hosted.is_set():
                            await room.replace(toolkit)
                        else:
                            hosting = room.host(toolkit, public=public, shared_with=shared_with)
                            await stack.enter_async_context(hosting)
                            server.hosted.set()
                            _logger.info("MCP server %s is hosted", server.name)
                    except (RoomException, ValueError, TypeError) as error:
                        self.refused[server.name] = one_line(str(error), MAX_REASON_CHARS)
                        text = "it is not hosted"
                        if server.hosted.is_set():
                            text = "its new definition is refused, the old one stays"
                        _logger.error("MCP server %s: %s: %s", server.name, text, error)
                    else:
                        self.refused.pop(server.name, None)
                    self._answered[server.name].set()
        finally:
            server.hosted.clear()


def _read_usable(paths: Iterable[Path]) -> list[ServersFile]:
    """Read files of editors, which may have comments or be large; raise if none can be read."""
    read: list[ServersFile] = []
    refused: list[str] = []
    for path in paths:
        try:
            read.append(read_file(path))
        except ValueError as error:
            refused.append(str(error))
    if not read:
        raise ValueError("; ".join(refused))
    for reason in refused:
        _logger.warning("a file of MCP servers is not used: %s", reason)
    return read


class McpRequest(ToolkitConfig):
    """Tools of one MCP server: a configured `server`, or an allowed `url`.

    It never holds a command: that would be code of a stranger that runs here.
    """

    server: str | None = Field(None, max_length=64, description="The name of a configured server.")
    url: str | None = Field(None, max_length=2048, description="An address that is allowed here.")

    @model_validator(mode="after")
    def _names_one(self) -> McpRequest:
        if (self.server is None) == (self.url is None):
            raise ValueError("must have either server or url")
        return self


class McpBuilder(ToolkitBuilder[McpRequest]):
    """Builds the toolkit of an MCP server for a turn: `Turn(builders=[McpBuilder(hub)])`.

    Args:
        hub: The configured servers, which are open while turns are made.
        allow_urls: Addresses that a request may name, in full.
        access: For those addresses.
        name: The builder's name.
    """

    def __init__(
        self,
        hub: McpHub,
        *,
        allow_urls: Iterable[str] = (),
        access: ServerAccess | None = None,
        name: str = "mcp",
    ) -> None:
        super().__init__(name, McpRequest, description="The tools of an MCP server.")
        self._hub = hub
        self._urls = frozenset(allow_urls)
        self._access = access

    async def make(self, room: Room, model: Any, config: McpRequest) -> Toolkit:
        """Return the toolkit of the requested server."""
        if config.server is not None:
            server = self._hub.server(config.server)
            if server is None or server.entry.shared_with is not None:
                # A server for some participants is in the room for those; a turn may be another's.
                raise self.refusal("/server", "there is no such MCP server for requests")
            if not server.has_toolkit:
                await server.tried()  # it may just be connecting
            if not server.has_toolkit:
                raise self.refusal("/server", f"it is not connected: {server.reason}")
            return server.toolkit()
        if config.url not in self._urls:
            raise self.refusal("/url", "this address is not on the list of the operator")
        server = McpServer(f"{self.name}-url", url=config.url, access=self._access)
        try:
            async with server:
                toolkit = server.toolkit()
        except Unavailable as error:
            raise self.refusal("/url", error.message) from None
        opener = _Opener(server)
        for tool in toolkit.tools:
            assert isinstance(tool, McpTool)
            tool.opener = opener
        return toolkit


class _Opener:
    """Connects a server for the first tool that starts, and disconnects it after the last one."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._users = 0

    async def acquire(self) -> None:
        self._users += 1
        if self._users == 1:
            await self._server.start()
            await self._server.tried()

    async def release(self) -> None:
        self._users -= 1
        if self._users == 0:
            await self._server.stop()
