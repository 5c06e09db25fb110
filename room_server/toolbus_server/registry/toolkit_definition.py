"""Makes a definition from a packed manifest: checked, compiled, and identified by its digest.

The server computes the digest: SHA-256 over the manifest in the canonical form of RFC 8785, without
fields at their defaults, so that fields of later releases do not change it. A large manifest is
read in steps, each of which is short for any input. Pure: no sockets, no clock, and a schema that
refers to another document is refused, never fetched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import jsonschema_rs
import msgspec
import rfc8785
from pydantic import ValidationError

from toolbus.errors import InvalidArguments, TooLarge
from toolbus.wire import (
    MAX_DEPTH,
    MAX_MANIFEST_BYTES,
    MAX_TOOLS,
    BadBody,
    ToolkitManifest,
    ToolManifest,
    pack_body,
    unpack_body,
)
from toolbus_server.registry.packed_manifest import (
    MAX_TOOL_BYTES,
    count_values,
    join_manifest,
    split_manifest,
)
from toolbus_server.registry.schema_budget import (
    MAX_TOOL_VALUES,
    OverBudget,
    measure_schema,
)
from toolbus_server.registry.schema_cost import exceeds_cost

__all__ = [
    "Definition",
    "LazyDefinition",
    "ParsedManifest",
    "Steps",
    "ValidSchemas",
    "compile_manifest",
    "compile_schema",
    "parse_manifest",
    "read_definition",
    "run_steps",
    "schema_cost_of",
]

# A reply to `describe` carries a manifest one level deeper than it was sent (BODY-1).
_MAX_LEVELS = MAX_DEPTH - 1
# For each resource within a schema the compiler visits all others.
_MAX_RESOURCES = 64
_MAX_PATTERN_BYTES = 64 * 1024
"""A pattern that compiles to more is refused, since compiling blocks the event loop."""
MAX_MANIFEST_VALUES = 131_072
"""Maps, lists and plain values in one manifest."""
MAX_MANIFEST_COST = 250_000
"""What compiling all different schemas of one manifest may cost, in units of a microsecond."""
MAX_HEAD_BYTES = 512 * 1024
"""Bytes of all fields of a manifest but its tools."""
MAX_ESCAPED_BYTES = 16_384
"""Bytes below 0x20, quotes and backslashes in one packed tool: the canonical form escapes them."""
MAX_KNOWN_SCHEMAS = 16_384
"""Digests of valid schemas that a server remembers, 32 bytes each."""
_ESCAPED = bytes(range(0x20)) + b'"\\'
_MAX_VISITS = 256
"""Subschemas that the compiler may visit for unevaluated values, repeated visits included."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Definition:
    """One version of a toolkit: its manifest, and the digest that identifies it."""

    manifest: ToolkitManifest
    digest: str
    tools: dict[str, ToolManifest]
    search_text: str = ""
    """All searchable texts, case-folded: a text that is not in here is in none of them."""
    packed: bytes = b""
    """The manifest without fields at their defaults, packed."""

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

    def tool(self, name: str) -> ToolManifest | None:
        """Return a tool; None if there is none of this name."""
        return self.tools.get(name)

    def read_steps(self) -> Steps[None]:
        """Prepare all attributes for use, in steps; only a `LazyDefinition` is not ready."""
        yield from ()


class LazyDefinition(Definition):
    """A definition that another server has checked; its manifest is parsed when it is first used.

    A call parses its tool only. Run `read_steps` before the first use of another attribute than
    `name`, `digest`, `version` and `packed`, which would parse the whole manifest at once. A room
    may have thousands of toolkits that are never used at this server. All of these raise
    InvalidArguments if this server cannot read the manifest.

    Args:
        name: The name of the toolkit.
        digest: Identifies the definition.
        version: The author's version.
        packed: The manifest; empty if it is not kept.
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
            found = self._read_tools[name] = _validated(ToolManifest, packed, _MAX_LEVELS - 2, path)
        return found

    def _tools_by_name(self) -> dict[str, bytes]:
        if self._packed_tools is None and not self._packed:
            head = ToolkitManifest(name=self._name, version=self._version)
            object.__setattr__(self, "_head", head)
            object.__setattr__(self, "_packed_tools", {})
        if self._packed_tools is None:
            try:
                pieces = split_manifest(self._packed, MAX_TOOLS)
                named = {_name_of(piece): piece for piece in pieces.tools}
            except (BadBody, msgspec.DecodeError) as error:
                raise _manifest_error("/tools", str(error)) from error
            object.__setattr__(self, "_head", _parse(pieces.head))
            object.__setattr__(self, "_packed_tools", named)
            return named
        return self._packed_tools

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


@dataclass(frozen=True, slots=True)
class ParsedManifest:
    """A manifest whose fields are valid; its schemas are not compiled yet."""

    manifest: ToolkitManifest
    schemas: dict[bytes, tuple[str, dict[str, Any]]]
    """The different schemas that are not known to be valid, each with its path, by digest."""
    values: int
    """How many values it has."""
    cost: int
    """What compiling these schemas costs."""


def read_definition(packed: bytes) -> Definition:
    """Read and check the manifest of a registration at once.

    Raises:
        TooLarge: The manifest is over its limit.
        InvalidArguments: It is invalid; `details` has the `path` and a `message`.
    """
    known = ValidSchemas()
    parsed = run_steps(parse_manifest(packed, known))
    return run_steps(compile_manifest(parsed, known))


_T = TypeVar("_T")
Steps: TypeAlias = Generator[None, None, _T]
"""Work in steps of at most 5 ms; the event loop may run between them."""


def run_steps(steps: Steps[_T]) -> _T:
    """Run all steps at once, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result


def parse_manifest(packed: bytes, known: ValidSchemas) -> Steps[ParsedManifest]:
    """Read a manifest and estimate what compiling its schemas costs, tool by tool.

    Raises:
        TooLarge: The manifest is over its limit.
        InvalidArguments: It is invalid, or one of its schemas is over its budget.
    """
    if len(packed) > MAX_MANIFEST_BYTES:
        raise TooLarge(f"a manifest has at most {MAX_MANIFEST_BYTES} bytes", executed="no")
    try:
        pieces = split_manifest(packed, MAX_TOOLS)
    except BadBody as error:
        raise _manifest_error(error.path, error.reason) from error
    yield
    values = _count(pieces.head, "")
    head = _parse(pieces.head)
    tools: dict[str, ToolManifest] = {}
    schemas: dict[bytes, tuple[str, dict[str, Any]]] = {}
    cost = 0
    for index, packed_tool in enumerate(pieces.tools):
        yield
        path = f"/tools/{index}"
        values += _count(packed_tool, path)
        if values > MAX_MANIFEST_VALUES:
            raise _manifest_error(path, f"more than {MAX_MANIFEST_VALUES} values in one manifest")
        tool = _validated(ToolManifest, packed_tool, _MAX_LEVELS - 2, path)
        if tools.setdefault(tool.name, tool) is not tool:
            raise _manifest_error("/tools", "two tools have the same name")
        yield
        for part, schema in _schemas_of(tool):
            digest = hashlib.sha256(pack_body(schema)).digest()
            if digest not in known and digest not in schemas:
                schemas[digest] = (f"{path}{part}", schema)
                cost += schema_cost_of(schema, f"{path}{part}")
                yield
        if cost > MAX_MANIFEST_COST:
            raise _manifest_error(path, f"schemas that cost more than {MAX_MANIFEST_COST} units")
    manifest = head.model_copy(update={"tools": tuple(tools.values())})
    return ParsedManifest(manifest, schemas, values, cost)


def compile_manifest(parsed: ParsedManifest, known: ValidSchemas) -> Steps[Definition]:
    """Compile the schemas of a manifest, one in each step, and compute its digest.

    Raises:
        InvalidArguments: A schema is invalid; `details` has the `path` and a `message`.
    """
    for digest, (path, schema) in parsed.schemas.items():
        compile_schema(schema, path)
        known.add(digest)
        yield
    manifest = parsed.manifest
    head = manifest.model_dump(mode="json", exclude_defaults=True, exclude={"tools"})
    canonical = {name: _canonical(value, f"/{name}") for name, value in head.items()}
    packed_tools: list[bytes] = []
    canonical_tools: list[bytes] = []
    for index, tool in enumerate(manifest.tools):
        yield
        dumped = tool.model_dump(mode="json", exclude_defaults=True)
        yield
        canonical_tools.append(_canonical(dumped, f"/tools/{index}"))
        packed_tools.append(pack_body(dumped))
    yield
    if canonical_tools:
        canonical["tools"] = b"[" + b",".join(canonical_tools) + b"]"
    members = (b'"%b":%b' % (name.encode(), canonical[name]) for name in sorted(canonical))
    text = b"{" + b",".join(members) + b"}"
    yield
    tools = {tool.name: tool for tool in manifest.tools}
    packed = join_manifest(head, packed_tools)
    return Definition(
        manifest, hashlib.sha256(text).hexdigest(), tools, _search_text(manifest), packed
    )


class ValidSchemas:
    """Digests of schemas that compiled, the latest; a server compiles equal schemas once."""

    def __init__(self, limit: int = MAX_KNOWN_SCHEMAS) -> None:
        self._limit = limit
        self._digests: dict[bytes, None] = {}

    def __contains__(self, digest: bytes) -> bool:
        if digest not in self._digests:
            return False
        self.add(digest)  # now the latest
        return True

    def add(self, digest: bytes) -> None:
        """Remember one, and forget the one that was used longest ago if there are too many."""
        self._digests.pop(digest, None)
        self._digests[digest] = None
        if len(self._digests) > self._limit:
            del self._digests[next(iter(self._digests))]


def _search_text(manifest: ToolkitManifest) -> str:
    """Join all searchable texts, case-folded."""
    texts = [manifest.name, manifest.title, manifest.description]
    for tool in manifest.tools:
        texts += (tool.name, tool.title, tool.description)
    return "\n".join(texts).casefold()


def _manifest_error(path: str, message: str) -> InvalidArguments:
    return InvalidArguments(
        f"manifest{path}: {message}", details={"path": path, "message": message}
    )


def _parse(packed: bytes) -> ToolkitManifest:
    return _validated(ToolkitManifest, packed, _MAX_LEVELS, "")


_M = TypeVar("_M", ToolManifest, ToolkitManifest)


def _validated(model: type[_M], packed: bytes, max_depth: int, path: str) -> _M:
    """Decode and validate a manifest, or the tool at this path."""
    try:
        return model.model_validate(unpack_body(packed, max_depth=max_depth))
    except BadBody as error:
        raise _manifest_error(path + error.path, error.reason) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path += "".join(f"/{part}" for part in first["loc"])
        raise _manifest_error(path, first["msg"]) from error


def _count(packed: bytes, path: str) -> int:
    """Count the values of a tool, or of what is not in tools; refuse what takes long to read."""
    noun, limit = ("one tool", MAX_TOOL_BYTES) if path else ("the fields but tools", MAX_HEAD_BYTES)
    if len(packed) > limit:
        raise _manifest_error(path, f"more than {limit} bytes in {noun}")
    if len(packed) - len(packed.translate(None, _ESCAPED)) > MAX_ESCAPED_BYTES:
        message = f"more than {MAX_ESCAPED_BYTES} control characters, quotes and backslashes"
        raise _manifest_error(path, f"{message} in {noun}")
    values = count_values(packed, MAX_TOOL_VALUES)
    if values is None:
        raise _manifest_error(path, f"more than {MAX_TOOL_VALUES} values in {noun}")
    return values


def _schemas_of(tool: ToolManifest) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "/input_schema", tool.input_schema
    if tool.output_schema is not None:
        yield "/output_schema", tool.output_schema


def _refuse_retrieval(uri: str) -> Any:
    raise ValueError(f"refers to another document: {uri[:200]}")


def _resources_in(parts: list[dict[str, Any]]) -> int:
    """Count the subschemas with an id of their own."""
    is_of_draft_4 = any("draft-04" in str(part.get("$schema")) for part in parts)
    names = ("$id", "id") if is_of_draft_4 else ("$id",)
    return sum(any(isinstance(part.get(name), str) for name in names) for part in parts)


def schema_cost_of(schema: dict[str, Any], path: str) -> int:
    """Return what compiling a schema will cost; refuse one that costs too much.

    Raises:
        InvalidArguments: The reason; `details` has this `path` and a `message`.
    """
    try:
        size = measure_schema(schema)
    except OverBudget as error:
        raise _manifest_error(path, str(error)) from error
    if _resources_in(size.subschemas) > _MAX_RESOURCES:
        raise _manifest_error(path, f"more than {_MAX_RESOURCES} parts with an $id of their own")
    if exceeds_cost(_MAX_VISITS, schema, size.parts):
        message = f"more than {_MAX_VISITS} subschemas to visit for unevaluated values"
        raise _manifest_error(path, message)
    return size.cost


def compile_schema(schema: dict[str, Any], path: str) -> None:
    """Refuse an invalid JSON Schema and one that refers to another document.

    `schema_cost_of` comes first. It takes 5 ms at most.

    Raises:
        InvalidArguments: The reason; `details` has this `path` and a `message`.
    """
    try:
        jsonschema_rs.validator_for(
            schema,
            retriever=_refuse_retrieval,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=_MAX_PATTERN_BYTES),
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        raise _manifest_error(path, str(error).splitlines()[0][:500]) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise _manifest_error(path, f"not a JSON Schema: {str(error)[:200]}") from error


def _canonical(value: Any, path: str) -> bytes:
    try:
        return rfc8785.dumps(value)
    except rfc8785.CanonicalizationError as error:
        raise _manifest_error(path, f"has no canonical form: {error}") from error
