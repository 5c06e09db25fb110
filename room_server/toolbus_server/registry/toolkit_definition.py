"""Makes a definition from a packed manifest: checked, and identified by its digest.

The server computes the digest: SHA-256 over the manifest in the canonical form of RFC 8785, without
fields at their defaults, so that fields of later releases do not change it. A large manifest is
read in steps, each of which is short for any input. Pure: no sockets, no clock.

Schemas and annotations are for the readers of a manifest. Here they are checked to be JSON within
limits, and hashed, then kept packed only: a server neither compiles a schema nor reads one again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from toolbus.errors import InvalidArguments, TooLarge
from toolbus.wire import (
    MAX_MANIFEST_BYTES,
    MAX_MANIFEST_DEPTH,
    MAX_MANIFEST_VALUES,
    MAX_TOOL_VALUES,
    MAX_TOOLS,
    BadBody,
    ToolkitManifest,
    ToolManifest,
    pack_body,
    read_tool,
    unpack_body,
)
from toolbus.wire.body_steps import Steps, ValueCount, run_steps, unpack_steps
from toolbus.wire.manifest import TOOL_JSON, checked_fields
from toolbus_server.registry.packed_manifest import (
    join_manifest,
    set_aside,
    split_manifest,
    write_canonical,
)

__all__ = [
    "Definition",
    "LazyDefinition",
    "definition_steps",
    "read_definition",
    "searchable_texts",
]

MAX_HEAD_BYTES = 512 * 1024
"""Of all fields of a manifest but its tools (PROTOCOL.md, REG-2)."""
_ANNOTATIONS = ("annotations",)
_pack = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Definition:
    """One version of a toolkit: its manifest, and the digest that identifies it."""

    manifest: ToolkitManifest
    """Without annotations and schemas: these are empty here, and stand in `packed`."""
    digest: str
    tools: dict[str, ToolManifest]
    search_text: str = ""
    """All searchable texts, case-folded: a text that is not in here is in none of them."""
    packed: bytes = b""
    """The manifest without fields at their defaults, packed."""
    tool: Callable[[str], ToolManifest | None] = field(init=False, repr=False, compare=False)
    """Returns a tool; None if there is none of this name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tool", self.tools.get)  # each call asks: no function of ours

    @property
    def is_name_only(self) -> bool:
        """Whether its manifest is not kept: then it seems to have no tools."""
        return False

    @property
    def name(self) -> str:
        """The name of the toolkit."""
        return self.manifest.name

    @property
    def version(self) -> str:
        """The author's version of it."""
        return self.manifest.version

    def read_steps(self) -> Steps[None]:
        """Prepare all attributes for use, in steps; only a `LazyDefinition` is not ready."""
        yield from ()

    def describe_steps(self, tools: Iterable[ToolManifest]) -> Steps[dict[str, Any]]:
        """Make the manifest that a reader gets: with all defaults, and with these tools only."""
        pieces = split_manifest(self.packed, MAX_TOOLS)
        packed_tools = {_name_of(piece): piece for piece in pieces.tools}
        described: list[msgspec.Raw] = []
        for tool in tools:
            yield
            _, aside = set_aside(packed_tools[tool.name], TOOL_JSON)
            described.append(msgspec.Raw(_pack(tool.model_dump(mode="json") | aside)))
        yield
        _, annotations = set_aside(pieces.head, _ANNOTATIONS)
        head = self.manifest.model_copy(update={"tools": ()}).model_dump(mode="json")
        return head | annotations | {"tools": described}


class LazyDefinition(Definition):
    """A definition that another server has checked; its manifest is parsed when it is first used.

    A call parses its tool only. Run `read_steps` before the first use of another attribute than
    `name`, `digest`, `version` and `packed`, which would parse the whole manifest at once. A room
    may have thousands of toolkits that are never used at this server. All of these raise
    InvalidArguments if this server cannot read the manifest.
    """

    __slots__ = ("_head", "_name", "_packed", "_packed_tools", "_parsed", "_read_tools", "_version")
    _name: str
    _version: str
    _packed: bytes
    _parsed: Definition | None
    _head: ToolkitManifest
    _packed_tools: dict[str, bytes] | None
    _read_tools: dict[str, ToolManifest]

    def __init__(self, name: str, digest: str, version: str, packed: bytes) -> None:
        put = object.__setattr__  # the base class is frozen
        put(self, "digest", digest)
        put(self, "_name", name)
        put(self, "_version", version)
        put(self, "_packed", packed)
        put(self, "_parsed", None)
        put(self, "_packed_tools", None)
        put(self, "_read_tools", {})

    @property
    def is_name_only(self) -> bool:
        """Whether its manifest is not kept."""
        return not self._packed

    @property
    def is_read(self) -> bool:
        """Whether its manifest was parsed."""
        return self._parsed is not None

    @property
    def name(self) -> str:
        """The name of the toolkit."""
        return self._name

    @property
    def version(self) -> str:
        """The author's version of it."""
        return self._version

    @property
    def packed(self) -> bytes:
        """The manifest, packed."""
        return self._packed

    @property
    def manifest(self) -> ToolkitManifest:
        """The manifest."""
        return self._read().manifest

    @property
    def tools(self) -> dict[str, ToolManifest]:
        """Its tools by name."""
        return self._read().tools

    @property
    def search_text(self) -> str:
        """All searchable texts, case-folded."""
        return self._read().search_text

    def tool(self, name: str) -> ToolManifest | None:
        """Return a tool, and parse no other; None if there is none of this name."""
        if self._parsed is not None:
            return self._parsed.tools.get(name)
        found = self._read_tools.get(name)
        if found is None:
            packed = self._tools_by_name().get(name)
            if packed is None:
                return None
            path = f"/tools/{name}"
            found = self._read_tools[name] = _parse(ToolManifest, packed, TOOL_JSON, path)
        return found

    def _tools_by_name(self) -> dict[str, bytes]:
        if self._packed_tools is not None:
            return self._packed_tools
        tools: dict[str, bytes] = {}
        if self.is_name_only:
            head = ToolkitManifest(name=self._name, version=self._version)
        else:
            try:
                pieces = split_manifest(self._packed, MAX_TOOLS)
                tools = {_name_of(piece): piece for piece in pieces.tools}
            except (BadBody, msgspec.DecodeError) as error:
                raise _manifest_error("/tools", str(error)) from error
            head = _parse(ToolkitManifest, pieces.head, _ANNOTATIONS, "")
        object.__setattr__(self, "_head", head)
        object.__setattr__(self, "_packed_tools", tools)
        return tools

    def read_steps(self) -> Steps[None]:
        """Parse the manifest, one tool in each step."""
        if self._parsed is not None:
            return
        tools: dict[str, ToolManifest] = {}
        for name in self._tools_by_name():
            if (tool := self.tool(name)) is not None:
                tools[name] = tool
            yield
        manifest = self._head.model_copy(update={"tools": tuple(tools.values())})
        parsed = Definition(manifest, self.digest, tools, _search_text(manifest))
        object.__setattr__(self, "_parsed", parsed)

    def _read(self) -> Definition:
        if self._parsed is None:
            run_steps(self.read_steps())
        assert self._parsed is not None, "it was read now"
        return self._parsed


class _Named(msgspec.Struct):
    """A packed tool, of which only the name is decoded."""

    name: str


_decode_named = msgspec.msgpack.Decoder(_Named).decode


def _name_of(packed_tool: bytes) -> str:
    return _decode_named(packed_tool).name


def read_definition(packed: bytes) -> Definition:
    """Read the manifest of a registration at once, as `definition_steps` does in steps."""
    return run_steps(definition_steps(packed))


def definition_steps(packed: bytes) -> Steps[Definition]:
    """Read and check the manifest of a registration, and compute its digest.

    A step takes 2.5 ms at most, whatever the manifest is; all of the slowest, 1 MiB of floats, take
    300 ms.

    Raises:
        TooLarge: The manifest is over its limit.
        InvalidArguments: It is invalid; `details` has the `path` and a `message`.
    """
    if len(packed) > MAX_MANIFEST_BYTES:
        raise TooLarge(f"a manifest has at most {MAX_MANIFEST_BYTES} bytes", executed="no")
    try:
        pieces = split_manifest(packed, MAX_TOOLS)
        yield
        manifest, fields, values = yield from _read_head(pieces.head)
    except BadBody as error:
        raise _manifest_error(error.path, error.reason) from error
    hashed = hashlib.sha256()
    separator = b"{"
    tools: dict[str, ToolManifest] = {}
    packed_tools: list[bytes] = []
    for name in sorted((*fields, "tools") if pieces.tools else fields):
        hashed.update(b'%b"%b":' % (separator, name.encode()))
        separator = b","
        if name == "tools":
            tools, packed_tools = yield from _read_tools(pieces.tools, values, hashed.update)
        else:
            yield from write_canonical(fields[name], hashed.update)
    hashed.update(b"}")
    yield
    manifest = manifest.model_copy(update={"tools": tuple(tools.values())})
    packed = join_manifest(fields, packed_tools)
    yield
    return Definition(manifest, hashed.hexdigest(), tools, _search_text(manifest), packed)


def _read_head(packed: bytes) -> Steps[tuple[ToolkitManifest, dict[str, Any], int]]:
    """Read the fields but `tools`; return them also without those at their defaults, and counted.

    Raises BadBody.
    """
    if len(packed) > MAX_HEAD_BYTES:
        raise BadBody("", f"more than {MAX_HEAD_BYTES} bytes in the fields but tools")
    count = ValueCount(MAX_TOOL_VALUES, "the fields but tools")
    fields = yield from unpack_steps(packed, max_depth=MAX_MANIFEST_DEPTH, count=count)
    annotations = fields.get("annotations")
    if type(annotations) is dict:
        fields["annotations"] = {}  # they are JSON already, and pydantic would go through them
    manifest = checked_fields(ToolkitManifest, fields)
    head = manifest.model_dump(mode="json", exclude_defaults=True)
    if annotations:
        head["annotations"] = annotations
    return manifest, head, count.values


def _read_tools(
    packed: list[bytes], values: int, write: Callable[[bytes], object]
) -> Steps[tuple[dict[str, ToolManifest], list[bytes]]]:
    """Read the tools of a manifest with so many values before them; write their canonical form.

    Returns the tools by name, and each packed without fields at their defaults.
    """
    tools: dict[str, ToolManifest] = {}
    packed_tools: list[bytes] = []
    for index, packed_tool in enumerate(packed):
        yield
        write(b"," if index else b"[")
        path = f"/tools/{index}"
        try:
            tool, aside, count = yield from read_tool(packed_tool)
        except BadBody as error:
            raise _manifest_error(path + error.path, error.reason) from error
        values += count
        if values > MAX_MANIFEST_VALUES:
            raise _manifest_error(path, f"more than {MAX_MANIFEST_VALUES} values in one manifest")
        if tools.setdefault(tool.name, tool) is not tool:
            raise _manifest_error("/tools", "two tools have the same name")
        fields = tool.model_dump(mode="json", exclude_defaults=True) | aside
        yield from write_canonical(fields, write)
        yield
        packed_tools.append(pack_body(fields))
    write(b"]")
    return tools, packed_tools


def searchable_texts(manifest: ToolkitManifest, tools: Iterable[ToolManifest]) -> list[str]:
    """Collect the names, titles and descriptions to search, of a toolkit and these tools."""
    texts = [manifest.name, manifest.title, manifest.description]
    for tool in tools:
        texts += (tool.name, tool.title, tool.description)
    return texts


def _search_text(manifest: ToolkitManifest) -> str:
    return "\n".join(searchable_texts(manifest, manifest.tools)).casefold()


def _manifest_error(path: str, message: str) -> InvalidArguments:
    return InvalidArguments(
        f"manifest{path}: {message}", details={"path": path, "message": message}
    )


_M = TypeVar("_M", ToolManifest, ToolkitManifest)


def _parse(model: type[_M], packed: bytes, aside: tuple[str, ...], path: str) -> _M:
    """Read the fields but some of a manifest that another server has checked, or of a tool."""
    try:
        rest, _ = set_aside(packed, aside)
        return checked_fields(model, unpack_body(rest))
    except BadBody as error:
        raise _manifest_error(path + error.path, error.reason) from error
