"""A caller's view of a hosted toolkit: its description, and its tools as methods.

A proxy keeps the definition it was made from. Every call goes through its room.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import reduce
from inspect import Parameter, Signature
from keyword import iskeyword
from operator import or_
from types import MappingProxyType
from typing import (
    Any,
    Literal,
    NamedTuple,
    Never,
    NotRequired,
    Protocol,
    Self,
    TypeAlias,
    TypedDict,
)

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
from toolbus.schemas.identity_cache import IdentityCache
from toolbus.schemas.python_types import PythonTypes
from toolbus.schemas.text import SchemaTree, node_lines
from toolbus.tools.call_room import StreamOptions
from toolbus.untrusted_text import SHOWN_CHARS, one_line, printable
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
_MAX_STEPS = 1_000
_MAX_LITERAL_CHARS = 200
_MAX_NAME_CHARS = 64
_MAX_DOC_CHARS = 8_000
_TYPES: Mapping[str, Any] = MappingProxyType(
    {"string": str, "integer": int, "number": float, "boolean": bool, "null": type(None)}
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

    def forget(self, key: ToolkitKey) -> None:
        """Drop the manifest of a toolkit, for a reader that keeps it itself."""
        self._known.pop(key, None)

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
        method.__doc__, signature = _shown(described)
        setattr(method, "__signature__", signature)  # noqa: B010 - typed so
        self.__dict__[name] = method
        return method

    def _mapping(self, tool: str, positional: tuple[Any, ...]) -> Mapping[str, Any] | None:
        """Return the mapping of a method's arguments. Raises TypeError for anything else."""
        if not positional:
            return None
        if len(positional) == 1 and isinstance(positional[0], Mapping):
            return positional[0]
        first = next(iter(_properties(self._tools[tool].input_schema)), "name")
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
    says none. An object with fields is a TypedDict.
    """
    schema = tool.input_schema
    types = _Types(schema, tool.name)
    properties = _properties(schema)
    required = schema.get("required")
    names = [name for name in properties if name.isidentifier() and not iskeyword(name)]
    parameters = []
    for name in names[:_MAX_PARAMETERS]:
        value = properties[name]
        default: Any = ...
        if isinstance(required, list) and name in required:
            default = Parameter.empty
        elif isinstance(value, dict) and len(repr(value.get("default"))) <= SHOWN_CHARS:
            default = value.get("default", ...)
        form = types.of(value, name)
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
        result = _Types(tool.output_schema, tool.name).of(tool.output_schema, "result")
    return Signature(parameters, return_annotation=result)


def documentation_of(tool: ToolManifest) -> str:
    """Return the description of a tool and of its parameters with their fields, escaped and cut."""
    lines = []
    for node in SchemaTree(tool.input_schema, max_steps=_MAX_STEPS).nodes():
        if node.description or node.children:
            lines.append(f"    {node.name}: {node.description or node.type_text}")
            lines += node_lines(node.children, "        ")
    if lines:
        lines = ["", "Args:", *map(one_line, lines)]
    return printable("\n".join([tool.description, *lines]).strip(), _MAX_DOC_CHARS)


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


class _Types(PythonTypes[Any]):
    """Makes the types of a signature. `help` shows their module, which is the name of the tool.

    A TypedDict that refers to itself is `dict[str, Any]` in there.
    """

    def __init__(self, root: Any, tool: str) -> None:
        super().__init__(root if isinstance(root, dict) else {}, _MAX_STEPS)
        self._tool = tool

    @property
    def any(self) -> Any:
        return Any

    def scalar(self, kind: str) -> Any:
        return _TYPES.get(kind, Any)

    def literal(self, values: list[str | int]) -> Any:
        made = Literal[tuple(values)]  # type: ignore[valid-type]
        return made if len(repr(made)) <= _MAX_LITERAL_CHARS else Any

    def list_of(self, item: Any) -> Any:
        return list[item]

    def dict_of(self, value: Any) -> Any:
        return dict[str, value]

    def union(self, parts: list[Any]) -> Any:
        return reduce(or_, sorted(parts, key=lambda part: part is type(None)))

    def begin_dict(self, hint: str, description: str) -> Any:
        return dict[str, Any]

    def end_dict(self, begun: Any, hint: str, fields: list[tuple[str, Any, bool]]) -> Any:
        words = re.findall(r"[A-Za-z0-9]+", hint[:_MAX_NAME_CHARS])
        name = "".join(f"{word[0].upper()}{word[1:]}" for word in words) or "Fields"
        forms = {key: form if needed else NotRequired[form] for key, form, needed in fields}
        made: Any = TypedDict(name, forms)  # type: ignore[misc]
        made.__module__ = self._tool
        return made


def _make_shown(tool: ToolManifest) -> tuple[str, Signature]:
    return documentation_of(tool), signature_of(tool, Chunks)


# Made once: it takes 3 ms for a model of ten fields, and a program may ask for a proxy each time.
_shown: IdentityCache[ToolManifest, tuple[str, Signature]] = IdentityCache(_make_shown, 256)
