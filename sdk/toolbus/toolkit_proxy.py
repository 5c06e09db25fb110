"""What a caller holds of a toolkit elsewhere: its description, and its tools as methods.

A proxy knows the definition it was made from and sends nothing by itself; every call goes through
its room.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from toolbus.call_ends import hinted
from toolbus.chunks import Chunk
from toolbus.errors import InvalidArguments, NotFound
from toolbus.wire import ToolkitManifest, ToolManifest

__all__ = ["Chunks", "Invoker", "ToolkitInfo", "ToolkitProxy", "call_by_invoke", "no_tool"]

Chunks: TypeAlias = AbstractAsyncContextManager[AsyncIterator[Chunk]]
"""A stream to be entered and read: `ChunkStream`, whatever room gives it."""


@dataclass(frozen=True, slots=True)
class ToolkitInfo:
    """A toolkit as lists and events show it."""

    name: str
    title: str
    description: str
    version: str
    digest: str
    """Names the definition: pass it as `pin` to be sure of it."""
    public: bool
    owner: str
    """The name of the identity that registered it."""
    hosts: int
    """How many connections serve it."""
    tools: tuple[str, ...]
    """The names of the tools that you can see."""

    @classmethod
    def from_wire(cls, summary: Mapping[str, Any]) -> ToolkitInfo:
        """Read a summary as the server sends it."""
        return cls(
            name=summary["name"],
            title=summary["title"],
            description=summary["description"],
            version=summary["version"],
            digest=summary["digest"],
            public=summary["public"],
            owner=summary["owner"]["name"],
            hosts=summary["hosts"],
            tools=tuple(summary["tools"]),
        )


class Invoker(Protocol):
    """What a proxy needs of a room."""

    @property
    def invoke(self) -> Callable[..., Awaitable[Any]]:
        """Call a tool and return its chunk, as `Room.invoke` does."""

    @property
    def stream(self) -> Callable[..., Chunks]:
        """Call a tool and give its chunks, as `Room.stream` does."""


class ToolkitProxy:
    """A toolkit elsewhere: `await weather.forecast(city="Oslo")` calls its tool.

    A tool that streams is read: `async with logs.tail(path="a.log") as chunks:`.

    Args:
        room: Makes the calls.
        info: What the list says of it.
        manifest: Its description, with the tools that may be called.
        options: What every call is made with: `timeout_s`, `pin` and others of `Room.invoke`, and
            of `Room.stream` for tools that stream.
    """

    def __init__(
        self,
        room: Invoker,
        info: ToolkitInfo,
        manifest: ToolkitManifest,
        options: Mapping[str, Any],
    ) -> None:
        self._room = room
        self._info = info
        self._manifest = manifest
        self._options = dict(options)
        self._tools = {tool.name: tool for tool in manifest.tools}

    @property
    def info(self) -> ToolkitInfo:
        """What a list says of it, as of when it was asked for."""
        return self._info

    @property
    def manifest(self) -> ToolkitManifest:
        """Its description: words, rules and tools with their schemas."""
        return self._manifest

    def with_options(self, **options: Any) -> ToolkitProxy:
        """Return the same toolkit, called with other options, for instance `timeout_s=10`."""
        merged = {**self._options, **options}
        return ToolkitProxy(self._room, self._info, self._manifest, merged)

    async def call(self, tool: str, /, **arguments: Any) -> Any:
        """Call a tool by its name and return the plain value.

        Raises:
            RoomException: Why there is no value; `executed` says whether the tool ran.
        """
        try:
            chunk = await self._room.invoke(self._info.name, tool, arguments, **self._options)
        except InvalidArguments as error:
            raise hinted(error) from None
        return chunk.value

    def stream(self, tool: str, /, **arguments: Any) -> Chunks:
        """Call a tool by its name and go through what it gives, as `Room.stream` has it.

        Any tool can be called so; where a method is asked for, one that streams always is.
        """
        return self._room.stream(self._info.name, tool, arguments, **self._options)

    def tool(self, name: str) -> ToolManifest:
        """Return the description of one tool. Raises NotFound."""
        found = self._tools.get(name)
        if found is None:
            raise NotFound(f"tool {self._info.name}.{name} not found")
        return found

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__") or name not in self._tools:
            raise AttributeError(f"toolkit {self._info.name} has no tool {name!r}")

        async def call_tool(*unnamed: Any, **arguments: Any) -> Any:
            self._refuse_unnamed(name, unnamed)
            return await self.call(name, **arguments)

        def stream_tool(*unnamed: Any, **arguments: Any) -> Chunks:
            self._refuse_unnamed(name, unnamed)
            return self.stream(name, **arguments)

        method: Callable[..., Any] = stream_tool if self._tools[name].streaming else call_tool
        method.__name__ = name
        method.__doc__ = self._tools[name].description
        return method

    def _refuse_unnamed(self, tool: str, unnamed: tuple[Any, ...]) -> None:
        if unnamed:
            first = next(iter(self._tools[tool].input_schema.get("properties", ())), "name")
            words = f"{self._info.name}.{tool}: arguments go by name, as {tool}({first}=...)"
            raise TypeError(words)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._tools})

    def __repr__(self) -> str:
        return f"<ToolkitProxy {self._info.name}: {', '.join(self._tools)}>"


def no_tool(tool: str) -> InvalidArguments:
    """Say that a text names no tool."""
    return InvalidArguments(f"{tool[:64]!r} names no tool: write toolkit.tool")


async def call_by_invoke(room: Any, tool: str, /, **arguments: Any) -> Any:
    """Call a tool as `Room.call` does, where the room's class has an `invoke` of its own."""
    toolkit, _, name = tool.partition(".")
    if not (toolkit and name):
        raise no_tool(tool)
    try:
        return (await room.invoke(toolkit, name, arguments)).value
    except InvalidArguments as error:
        raise hinted(error) from None
