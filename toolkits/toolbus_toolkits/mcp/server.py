"""One MCP server: its connection, its toolkit, and single tools of it as functions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from keyword import iskeyword
from typing import Any, Self

import mcp_types as types

from toolbus import Omission, ToolContext, Toolkit, Unavailable
from toolbus import tool as as_tool
from toolbus.bounded_logging import bounded_logger
from toolbus.tools.tool_run import LocalRun
from toolbus_toolkits.credentials.references import RedactingFilter
from toolbus_toolkits.mcp.config import ServerEntry
from toolbus_toolkits.mcp.connection import ConnectionState, ServerConnection
from toolbus_toolkits.mcp.entry_keys import matches_any
from toolbus_toolkits.mcp.exchange import MAX_NAMES
from toolbus_toolkits.mcp.log_budget import LogBudget
from toolbus_toolkits.mcp.names import toolkit_name
from toolbus_toolkits.mcp.tools import (
    MAX_DESCRIPTION_CHARS,
    ListedTools,
    McpTool,
    origin_of,
    tools_of,
)
from toolbus_toolkits.mcp.transports import ServerAccess
from toolbus_toolkits.sandbox import Backend

__all__ = ["McpServer"]

_MAX_RULE_CHARS = 2_000
"""Rules are part of each request to a model that has the toolkit."""
_CANCEL_AGAIN_S = 3.0
_MAX_NAMED = 100
"""Names of an entry that are looked up in the list, which may be long."""
_MAX_COMPARED = 5
"""Names that are compared with all of the list, for one that is near: each takes milliseconds."""

_logger = bounded_logger(__name__)


class McpServer:
    """An MCP server whose tools are a toolkit, while its block is entered.

        async with McpServer("files", command="npx", args=["-y", "some-server", "."]) as files:
            async with room.host(files.toolkit()):
                ...

    Args:
        name: The toolkit's name; `toolkit_name` changes what a name cannot have.
        command: A program that is started and speaks MCP over its pipes.
        args: Its arguments. Everybody on the machine can read them.
        env: Variables that it gets, beside a short list that every program gets.
        cwd: The folder that it starts in.
        url: The address of a server, instead of a command.
        headers: HTTP headers for the address.
        transport: "stdio", "streamable_http" or "sse"; by default as command and address say.
        access: Which addresses may be reached, and the credentials.
        options: Further fields of `ServerEntry`, such as `enabled_tools`, `timeout_s`, `trusted`
            and `sandbox`.

    Raises `ValidationError` for an entry that is not valid.
    """

    def __init__(  # noqa: PLR0913 - the promised signature
        self,
        name: str,
        *,
        command: str | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        transport: str | None = None,
        access: ServerAccess | None = None,
        **options: Any,
    ) -> None:
        given = {
            "command": command,
            "args": tuple(args),
            "env": env,
            "cwd": cwd,
            "url": url,
            "headers": headers,
            "transport": transport,
            **options,
        }
        entry = ServerEntry.model_validate(given)
        self._set(name, entry, access or ServerAccess())

    @classmethod
    def from_entry(cls, name: str, entry: ServerEntry, access: ServerAccess) -> Self:
        """Make a server from an entry of a file. Raises `ValueError` as `access.confined` does."""
        made = cls.__new__(cls)
        made._set(name, entry, access)
        return made

    def _set(self, name: str, entry: ServerEntry, access: ServerAccess) -> None:
        self.name: str = toolkit_name(name)
        self.entry: ServerEntry = access.confined(self.name, entry)
        self._access = access
        self._listed: tuple[list[types.Tool], list[Omission]] | None = None
        self._made: ListedTools | None = None
        self._toolkit: Toolkit | None = None
        self._owner: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._budget = LogBudget(at_once=10, every_s=60.0)
        self.changed: asyncio.Event = asyncio.Event()
        """Set with each new definition of the toolkit; the task that waits for it clears it."""
        self.hosted: asyncio.Event = asyncio.Event()
        """Set while a hub hosts the toolkit in a room."""
        self.removed: asyncio.Event = asyncio.Event()
        """Set when a hub removes it."""
        self._connection = ServerConnection(self.name, self.entry, access, self._receive)

    @property
    def state(self) -> ConnectionState:
        """Whether it is connected."""
        return self._connection.state

    @property
    def reason(self) -> str:
        """Why it is not connected; empty if it is."""
        return self._connection.reason

    @property
    def confined_by(self) -> Backend | None:
        """What confines its program while it is connected; None for one that nothing confines."""
        return self._connection.confined_by

    @property
    def has_toolkit(self) -> bool:
        """Whether it was connected at least once."""
        return self._toolkit is not None

    async def start(self) -> None:
        """Begin to connect, in a task that owns the connection.

        Raises `RuntimeError` if it has begun.
        """
        if self._owner is not None:
            raise RuntimeError(f"MCP server {self.name} is already started")
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:  # events belong to one
            self.changed = asyncio.Event()
            self.removed = asyncio.Event()
            self.hosted = asyncio.Event()
        self._loop = loop
        self._connection.begin()
        self._owner = asyncio.create_task(self._connection.run(), name=f"mcp {self.name}")

    async def stop(self) -> None:
        """Disconnect; a started program ends. Idempotent."""
        owner = self._owner
        self._owner = None
        if owner is not None:
            owner.cancel()
            while not (await asyncio.wait([owner], timeout=_CANCEL_AGAIN_S))[0]:
                owner.cancel()  # it waits for an answer of the server to its leave
            self._connection.end()

    async def __aenter__(self) -> Self:
        """Connect. Raises `Unavailable` if the first attempt fails."""
        await self.start()
        try:
            await self._connection.tried()
            if self._toolkit is None:
                raise Unavailable(f"MCP server {self.name}: {self.reason}", executed="no")
        except BaseException:  # also a cancellation: no block ends that would stop it
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        await self.stop()

    async def tried(self) -> None:
        """Wait until it was connected, or has failed, once; not if it has not begun."""
        if self._owner is not None:
            await self._connection.tried()

    async def retry(self) -> None:
        """Try to connect now, if it is not connected, and wait until that has ended."""
        await self._connection.retry()

    def toolkit(self) -> Toolkit:
        """Return the toolkit with the tools that the server lists now.

        It goes on while the connection is opened again. A changed list is another toolkit: see
        `changed`. Raises `Unavailable` if the server was never connected.
        """
        if self._toolkit is None:
            # A caller that waits for it would wait in vain once an attempt has failed.
            text = f"MCP server {self.name} has never been connected: {self.reason or self.state}"
            raise Unavailable(text, executed="no", retryable=not self.reason)
        return self._toolkit

    def tool(self, name: str, *, raw: bool = False) -> Callable[..., Any]:
        """Return one tool as an async function with keyword parameters.

        The function returns the plain value of the result; with `raw`, the `CallToolResult` as the
        server sent it. Its name, docstring and signature are the tool's.

        Args:
            name: The tool's name, the server's or the toolkit's.
            raw: Whether the result is left as it is.

        Raises:
            NotFound: There is no such tool.
            Unavailable: The server was never connected.
        """
        toolkit = self.toolkit()
        tools = [tool for tool in toolkit.tools if isinstance(tool, McpTool)]
        found = next((tool for tool in tools if tool.definition.name == name), None)
        tool = found or toolkit.get_tool(name)
        assert isinstance(tool, McpTool)

        async def call(**arguments: Any) -> Any:
            context = ToolContext(run=LocalRun())  # what the tool raises is for the calling tool
            if raw:
                return await tool.call(context, tool.read_arguments(arguments))
            return (await toolkit.execute(context, tool.name, arguments)).value

        call.__name__ = call.__qualname__ = tool.name
        call.__doc__ = tool.description
        _set_signature(call, tool)
        # A toolkit that lists the function has the words of the server as its description.
        return as_tool(annotations=tool.annotations)(call)

    async def _receive(self, listed: list[types.Tool]) -> None:
        """Take the tools of a list that are shown; the toolkit changes if they have."""
        seen = self._connection.seen
        now = (listed, sorted(seen.left_out))
        if now == self._listed and self._toolkit is not None:
            return
        self._warn_of_unknown(seen.names)
        entry = self.entry
        made = await tools_of(
            listed, self._connection, entry.timeout_s, self._made, trusted=entry.trusted
        )
        made.left_out += seen.left_out
        self._listed = now
        self._made = made
        words = self._connection.instructions[:_MAX_RULE_CHARS]
        self._toolkit = Toolkit(
            self.name,
            made.tools,
            description=f"The MCP server {self.name}.",
            rules=[words] if words.strip() else [],
            annotations=origin_of(self.name, trusted=entry.trusted),
            left_out=made.left_out,
            unchecked=made.unchecked,
            errors="class",  # what a library raises may have the value of a credential
        )
        self._toolkit.log_filters = (RedactingFilter(self._access.credentials),)
        if made.left_out:
            shown = "; ".join(f"{tool.name}: {tool.reason}" for tool in made.left_out)
            self._warn(f"tools that are left out: {len(made.left_out)}: {shown}")
        if made.unchecked:
            count = len(made.unchecked)
            self._warn(f"{count} parts of its schemas are checked by the server alone")
        if (chars := made.description_chars) < MAX_DESCRIPTION_CHARS:
            self._warn(f"its descriptions are cut to {chars} characters: they are too large")
        self.changed.set()

    def _warn_of_unknown(self, listed: set[str]) -> None:
        """Warn of tools in the entry that the server does not have."""
        if len(listed) >= MAX_NAMES:
            return  # it lists more than is known here
        named = sorted((self.entry.enabled_tools or frozenset()) | self.entry.disabled_tools)
        unknown = [
            name
            for name in named[:_MAX_NAMED]
            if not any(matches_any(tool, frozenset({name})) for tool in listed)
        ]
        for name in unknown[:_MAX_COMPARED]:
            near = get_close_matches(name, listed, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            self._warn(f"it has no tool {name}{hint}")

    def _warn(self, text: str) -> None:
        # A server can change its list as often as it likes.
        self._budget.log(_logger.warning, "MCP server %s: %s", self.name, text)


def _set_signature(function: Callable[..., Any], tool: McpTool) -> None:
    """Give a function the parameters of a tool, if their names can be those of parameters."""
    schema = tool.manifest().input_schema
    required = schema.get("required", ())
    names = list(schema.get("properties", {}))
    if not all(name.isidentifier() and not iskeyword(name) for name in names):
        return
    empty = inspect.Parameter.empty
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(name, kind, default=empty if name in required else None) for name in names
    ]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
