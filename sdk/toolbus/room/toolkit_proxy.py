"""A caller's view of a hosted toolkit: its description, and its tools as methods.

A proxy keeps the definition it was made from. Every call goes through its room.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import reduce
from inspect import Parameter, Signature
from keyword import iskeyword
from operator import or_
from types import MappingProxyType
from typing import Any, NamedTuple, Never, Protocol, Self, TypeAlias

from toolbus.auth.participant_names import full_name
from toolbus.chunks.chunk_types import Chunk
from toolbus.client.retry import ToolkitKey
from toolbus.errors import InvalidArguments, NotFound
from toolbus.room.call_form import (
    INVOKE_OPTIONS,
    merged_arguments,
    own_name,
    refuse_misplaced,
    refuse_unknown,
    with_option_hint,
)
from toolbus.schemas.foreign import usable_schema
from toolbus.tools.call_room import StreamOptions
from toolbus.untrusted_text import one_line, printable
from toolbus.wire import ToolkitManifest, ToolManifest

__all__ = [
    "Chunks",
    "DefinitionInfo",
    "Invoker",
    "KnownManifest",
    "KnownManifests",
    "ToolkitInfo",
    "ToolkitProxy",
    "TypedToolkitProxy",
    "documentation_of",
    "signature_of",
]

Chunks: TypeAlias = AbstractAsyncContextManager[AsyncIterator[Chunk]]
"""The type of a stream: `ChunkStream` for a `Room`."""

_OPTIONS = INVOKE_OPTIONS | StreamOptions.__optional_keys__
# A room may have any number of toolkits: what is kept of them must not grow with it.
_MAX_MANIFESTS = 512
_MAX_USABLE = 4_096
# Schemas come from other participants, wide and deep: what `help` shows of one is bounded.
_MAX_PARAMETERS = 256
_MAX_DEPTH = 4
_MAX_BRANCHES = 16
_MAX_DEFAULT_CHARS = 200
_MAX_DOC_CHARS = 8_000
_TYPES: Mapping[str, Any] = MappingProxyType(
    {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}
)


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


class KnownManifest(NamedTuple):
    """A manifest, with what identifies it: the digest, and the tools that may be listed."""

    digest: str
    tools: tuple[str, ...]
    manifest: ToolkitManifest

    def is_of(self, info: ToolkitInfo) -> bool:
        """Whether it is still that of a toolkit as it was listed or described now."""
        return self.digest == info.digest and self.tools == info.tools

    def reduced_to(self, info: ToolkitInfo) -> ToolkitManifest | None:
        """Return the manifest as a participant may read it that sees fewer of its tools.

        A participant may read the tools that it may list, and no others. None if this is not the
        definition, if it lacks one of the tools, or if the participant may not list any.
        """
        if self.digest != info.digest or not info.tools or not {*info.tools} <= {*self.tools}:
            return None
        tools = tuple(tool for tool in self.manifest.tools if tool.name in info.tools)
        return self.manifest.model_copy(update={"tools": tools})


class KnownManifests:
    """The last manifest of each toolkit, by its name and the owner that was asked for.

    One with tools that may be called but not listed is not kept: a description without it does not
    show whether these are the same. The oldest are dropped.
    """

    def __init__(self) -> None:
        self._known: dict[ToolkitKey, KnownManifest] = {}
        self._usable: dict[tuple[str, str], ToolManifest] = {}

    def get(self, key: ToolkitKey) -> KnownManifest | None:
        """Return what is known of a toolkit."""
        return self._known.get(key)

    def read(self, key: ToolkitKey, info: ToolkitInfo, body: dict[str, Any]) -> ToolkitManifest:
        """Read the manifest of a description, and keep it. Raises `ValidationError`."""
        manifest = ToolkitManifest.model_validate(body)
        self._known.pop(key, None)
        if len(manifest.tools) == len(info.tools):
            if len(self._known) >= _MAX_MANIFESTS:
                del self._known[next(iter(self._known))]
            self._known[key] = KnownManifest(info.digest, info.tools, manifest)
        return manifest

    def usable(self, digest: str, tool: str) -> ToolManifest | None:
        """Return what `keep_usable` returned for a tool of a definition, if that is kept."""
        return self._usable.get((digest, tool))

    def keep_usable(self, digest: str, tool: ToolManifest) -> ToolManifest:
        """Return a tool whose schemas compile here, and keep it. It takes 200 ms at most.

        Args:
            digest: The digest of the toolkit's definition.
            tool: The tool as its host described it, with any JSON as its schemas.
        """
        schemas = {"input_schema": usable_schema(tool.input_schema).schema}
        if tool.output_schema is not None:
            schemas["output_schema"] = usable_schema(tool.output_schema).schema
        usable = tool.model_copy(update=schemas)
        if len(self._usable) >= _MAX_USABLE:
            del self._usable[next(iter(self._usable))]
        self._usable[digest, tool.name] = usable
        return usable


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


# What `help` and `inspect.signature` show of a method. What has no form there is `Any`, or part of
# `**arguments`: a schema may be any JSON, and a name that is not an identifier is not a parameter.


def signature_of(tool: ToolManifest, stream: Any) -> Signature:
    """Return the signature of the method that calls a tool.

    Each argument is a keyword. One that may be left out has its default, or `...` where the schema
    says none.
    """
    schema = tool.input_schema
    properties = _properties(schema)
    required = schema.get("required")
    names = [name for name in properties if name.isidentifier() and not iskeyword(name)]
    parameters = []
    for name in names[:_MAX_PARAMETERS]:
        value = properties[name]
        default: Any = ...
        if isinstance(required, list) and name in required:
            default = Parameter.empty
        elif isinstance(value, dict) and len(repr(value.get("default"))) <= _MAX_DEFAULT_CHARS:
            default = value.get("default", ...)
        form = _annotation(value)
        made = Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=form)
        parameters.append(made)
    is_open = schema.get("additionalProperties") is not False or "patternProperties" in schema
    if is_open or len(parameters) < len(properties):
        more = "arguments"
        while more in names:
            more += "_"
        parameters.append(Parameter(more, Parameter.VAR_KEYWORD, annotation=Any))
    result = stream
    if not tool.streaming:
        result = _annotation(tool.output_schema)
    return Signature(parameters, return_annotation=result)


def documentation_of(tool: ToolManifest) -> str:
    """Return the description of a tool and of its parameters, escaped and cut."""
    described = [
        f"    {one_line(name)}: {one_line(schema['description'])}"
        for name, schema in [*_properties(tool.input_schema).items()][:_MAX_PARAMETERS]
        if isinstance(schema, dict) and isinstance(schema.get("description"), str)
    ]
    lines = [tool.description]
    if described:
        lines += ["", "Args:", *described]
    return printable("\n".join(lines).strip(), _MAX_DOC_CHARS)


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _annotation(schema: Any, depth: int = 0) -> Any:
    """Return the type of the values that a schema describes; `Any` if it has no plain one."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return Any
    for keyword in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(keyword), list) and "type" not in schema:
            return _union(_annotation(branch, depth + 1) for branch in branches[:_MAX_BRANCHES])
    kind = schema.get("type")
    if isinstance(kind, list):
        # Each name once: an array of an array of 16 equal names would be read thousands of times.
        names = dict.fromkeys(name for name in kind[:_MAX_BRANCHES] if isinstance(name, str))
        return _union(_annotation({**schema, "type": name}, depth + 1) for name in names)
    if kind == "array":
        item = _annotation(schema.get("items"), depth + 1)
        return list[item]  # type: ignore[valid-type]
    if kind == "object":
        value = _annotation(schema.get("additionalProperties"), depth + 1)
        return dict[str, value]  # type: ignore[valid-type]
    return _TYPES.get(kind, Any) if isinstance(kind, str) else Any


def _union(types: Iterable[Any]) -> Any:
    found = list(types)
    # `None | None` is not a type, and `Any | int` says no more than Any.
    if not found or Any in found or found == [None]:
        return found[0] if found == [None] else Any
    return reduce(or_, [type(None) if kind is None else kind for kind in dict.fromkeys(found)])
