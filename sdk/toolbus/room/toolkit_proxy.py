"""A caller's view of a hosted toolkit: its description, and its tools as methods.

A proxy keeps the definition it was made from. Every call goes through its room.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Never, Protocol, Self, TypeAlias

from toolbus.auth.participant_names import full_name
from toolbus.chunks.chunk_types import Chunk
from toolbus.client.local_errors import with_option_hint
from toolbus.errors import InvalidArguments, NotFound
from toolbus.room.call_form import (
    INVOKE_OPTIONS,
    merged_arguments,
    own_name,
    refuse_misplaced,
    refuse_unknown,
)
from toolbus.room.method_signatures import documentation_of, signature_of
from toolbus.tools.call_room import StreamOptions
from toolbus.wire import ToolkitManifest, ToolManifest

__all__ = [
    "Chunks",
    "DefinitionInfo",
    "Invoker",
    "ToolkitInfo",
    "ToolkitProxy",
    "TypedToolkitProxy",
]

Chunks: TypeAlias = AbstractAsyncContextManager[AsyncIterator[Chunk]]
"""The type of a stream: `ChunkStream` for a `Room`."""

_OPTIONS = INVOKE_OPTIONS | StreamOptions.__optional_keys__


@dataclass(frozen=True, slots=True)
class DefinitionInfo:
    """A definition in reserve: its hosts serve when those of the definitions before it are gone."""

    version: str
    digest: str
    hosts: int = 0
    """How many connections have it."""
    last_call_ms: int | None = None
    """When a call last went to it, as Unix time in ms; None if the server knows of none."""

    @classmethod
    def from_wire(cls, summary: Mapping[str, Any]) -> DefinitionInfo:
        """Decode a summary."""
        hosts, last_call_ms = summary.get("hosts", 0), summary.get("last_call")
        return cls(summary["version"], summary["digest"], hosts, last_call_ms)


@dataclass(frozen=True, slots=True)
class ToolkitInfo:
    """A toolkit as it appears in lists and events."""

    name: str
    title: str
    description: str
    version: str
    digest: str
    """The digest of the definition; pass it as `pin` to call only this definition."""
    public: bool
    owner: str
    """The name of the identity that registered it."""
    hosts: int
    """How many connections serve it."""
    tools: tuple[str, ...]
    """The names of the tools that this participant can see."""
    issuer: str = ""
    """The issuer of that identity's token."""
    alias: str = ""
    """The alias of that issuer, where the server has several; else empty."""
    reserve: tuple[DefinitionInfo, ...] = ()
    """Other definitions that have hosts, the next to serve first."""
    assesses: bool = False
    """Whether `Room.assess` asks its tools: all of its hosts answer. Else their flags answer."""

    @property
    def full_owner(self) -> str:
        """The owner as people see it, and for `participant=`: `alias/name`, or the name."""
        return full_name(self.owner, self.alias)

    @classmethod
    def from_wire(cls, summary: Mapping[str, Any]) -> ToolkitInfo:
        """Decode a summary."""
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
            issuer=summary["owner"]["issuer"],
            alias=summary["owner"].get("alias", ""),
            reserve=tuple(map(DefinitionInfo.from_wire, summary.get("reserve", ()))),
            assesses=summary.get("assesses") is True,
        )


class Invoker(Protocol):
    """The part of a room that a proxy uses."""

    @property
    def invoke(self) -> Callable[..., Awaitable[Any]]:
        """Call a tool and return its chunk, as `Room.invoke` does."""

    @property
    def stream(self) -> Callable[..., Chunks]:
        """Call a tool and give its chunks, as `Room.stream` does."""


class TypedToolkitProxy:
    """A proxy without its tools as methods: the base of the classes that `toolbus stubs` writes.

    They name the methods, so that type checkers refuse all others.
    """

    def __init__(
        self,
        room: Invoker,
        info: ToolkitInfo,
        manifest: ToolkitManifest,
        options: Mapping[str, Any],
    ) -> None:
        """Made by the library.

        Args:
            room: Makes the calls.
            info: The summary from the list of toolkits.
            manifest: Its description, with the tools that may be called.
            options: Options of every call: those of `Room.invoke`, and of `Room.stream` for
                streaming tools.
        """
        self._room = room
        self._info = info
        self._manifest = manifest
        self._options = dict(options)
        self._tools = {tool.name: tool for tool in manifest.tools}

    @property
    def info(self) -> ToolkitInfo:
        """Its summary, as of when the proxy was made."""
        return self._info

    @property
    def manifest(self) -> ToolkitManifest:
        """Its description, rules, and tools with their schemas."""
        return self._manifest

    def with_options(self, **options: Any) -> Self:
        """Return a proxy of the same toolkit with other options, for instance `timeout_s=10`.

        The options are those of `Room.invoke`, and of `Room.stream` for streaming tools; any other
        one raises TypeError.
        """
        refuse_unknown("with_options", options, _OPTIONS)
        merged = {**self._options, **options}
        return type(self)(self._room, self._info, self._manifest, merged)

    async def call(
        self, tool: str, arguments: Any = None, /, *misplaced: Never, **named: Any
    ) -> Any:
        """Call a tool by its own name and return the plain value, or it as the option `returns`.

        Arguments are a mapping or keywords, never both, as in `Room.call`.

        Raises:
            RoomException: Why there is no value; `executed` says whether the tool ran.
        """
        full_name = f"{self._info.name}.{own_name(tool)}"
        if misplaced:
            refuse_misplaced("call", full_name, (arguments, *misplaced), {}, ())
        values = merged_arguments(full_name, arguments, named)
        try:
            chunk = await self._room.invoke(full_name, values, **self._options)
        except InvalidArguments as error:
            raise with_option_hint(error) from None
        return chunk.value if self._options.get("returns") is None else chunk

    def stream(self, tool: str, arguments: Any = None, /, **named: Any) -> Chunks:
        """Call a tool by its own name and read its chunks as they arrive, as `Room.stream` does.

        Any tool can be called so. The method of a tool that streams always does this.
        """
        full_name = f"{self._info.name}.{own_name(tool)}"
        values = merged_arguments(full_name, arguments, named)
        return self._room.stream(full_name, values, **self._options)

    def tool(self, name: str) -> ToolManifest:
        """Return the description of one tool. Raises NotFound."""
        found = self._tools.get(own_name(name))
        if found is None:
            raise NotFound(f"tool {self._info.name}.{name} not found")
        return found

    def __repr__(self) -> str:
        return f"<ToolkitProxy {self._info.name}: {', '.join(self._tools)}>"


class ToolkitProxy(TypedToolkitProxy):
    """A hosted toolkit: `await weather.forecast(city="Oslo")` calls its tool `forecast`.

    A streaming tool is read: `async with logs.tail(path="a.log") as chunks:`.
    """

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__") or name not in self._tools:
            raise AttributeError(f"toolkit {self._info.name} has no tool {name!r}")

        async def call_tool(*positional: Any, **arguments: Any) -> Any:
            return await self.call(name, self._mapping(name, positional), **arguments)

        def stream_tool(*positional: Any, **arguments: Any) -> Chunks:
            return self.stream(name, self._mapping(name, positional), **arguments)

        method: Callable[..., Any] = stream_tool if self._tools[name].streaming else call_tool
        described = self._tools[name]
        method.__name__ = name
        method.__qualname__ = f"{self._info.name}.{name}"
        method.__doc__ = documentation_of(described)
        setattr(method, "__signature__", signature_of(described, Chunks))  # noqa: B010 - typed so
        # Kept: what is shown of it takes 80 us to make, a fifth of a call.
        self.__dict__[name] = method
        return method

    def _mapping(self, tool: str, positional: tuple[Any, ...]) -> Mapping[str, Any] | None:
        """Return the mapping of a method's arguments. Raises TypeError for anything else."""
        if not positional:
            return None
        if len(positional) == 1 and isinstance(positional[0], Mapping):
            return positional[0]
        properties = self._tools[tool].input_schema.get("properties")  # any JSON, not ours
        first = next(iter(properties), "name") if isinstance(properties, dict) else "name"
        raise TypeError(
            f"{self._info.name}.{tool} takes arguments by name;"
            f" did you mean {tool}({first}=...) or {tool}({{{first!r}: ...}})?"
        )

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._tools})
