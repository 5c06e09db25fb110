"""Makes a definition from a packed manifest: checked, compiled, and identified by its digest.

The server computes the digest: SHA-256 over the manifest in the canonical form of RFC 8785, without
fields at their defaults, so that fields of later releases do not change it. Pure: no sockets, no
clock, and a schema that refers to another document is refused, never fetched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
import rfc8785
from pydantic import ValidationError

from toolbus.auth.grants import is_toolkit_name
from toolbus.errors import InvalidArguments, TooLarge
from toolbus.wire import (
    MAX_DEPTH,
    MAX_MANIFEST_BYTES,
    BadBody,
    ToolkitManifest,
    ToolManifest,
    pack_body,
    unpack_body,
)
from toolbus_server.registry.schema_cost import exceeds_cost

__all__ = ["Definition", "LazyDefinition", "check_schema", "read_definition", "toolkit_name_of"]

# A reply to `describe` carries a manifest one level deeper than it was sent (BODY-1).
_MAX_LEVELS = MAX_DEPTH - 1
# For each resource within a schema the compiler visits all others.
_MAX_RESOURCES = 64
# Compiling blocks the event loop for some 20 us for each object of a schema.
_MAX_PARTS = 4_096
_VALUES = frozenset({"enum", "const", "default", "examples"})
_MAX_PATTERN_BYTES = 64 * 1024
"""A pattern that compiles to more is refused, since compiling blocks the event loop."""
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

    @property
    def name(self) -> str:
        """The name of the toolkit."""
        return self.manifest.name

    @property
    def version(self) -> str:
        """The author's version of it."""
        return self.manifest.version


class LazyDefinition(Definition):
    """A definition that another server has checked; its manifest is parsed when it is first used.

    A room may have thousands of toolkits that are never used at this server. Its attributes raise
    InvalidArguments if this server cannot read the manifest.

    Args:
        name: The name of the toolkit.
        digest: Identifies the definition.
        version: The author's version.
        packed: The manifest.
    """

    __slots__ = ("_name", "_packed", "_parsed", "_version")
    _name: str
    _version: str
    _packed: bytes
    _parsed: Definition | None

    def __init__(self, name: str, digest: str, version: str, packed: bytes) -> None:
        put = object.__setattr__  # the base class is frozen
        put(self, "digest", digest)
        put(self, "_name", name)
        put(self, "_version", version)
        put(self, "_packed", packed)
        put(self, "_parsed", None)

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

    def _read(self) -> Definition:
        parsed = self._parsed
        if parsed is None:
            manifest = _parse(self._packed)
            tools = {tool.name: tool for tool in manifest.tools}
            parsed = Definition(manifest, self.digest, tools, _search_text(manifest))
            object.__setattr__(self, "_parsed", parsed)
        return parsed


def toolkit_name_of(packed: bytes) -> str:
    """Return the toolkit's name in a packed manifest that may be invalid otherwise; "" for none."""
    try:
        name = unpack_body(packed).get("name")
    except (BadBody, AttributeError):
        return ""
    return name if is_toolkit_name(name) else ""


def read_definition(packed: bytes) -> Definition:
    """Read and check the manifest of a registration.

    Raises:
        TooLarge: The manifest is over its limit.
        InvalidArguments: It is invalid; `details` has the `path` and a `message`.
    """
    if len(packed) > MAX_MANIFEST_BYTES:
        raise TooLarge(f"a manifest has at most {MAX_MANIFEST_BYTES} bytes", executed="no")
    manifest = _parse(packed)
    tools = {tool.name: tool for tool in manifest.tools}
    if len(tools) != len(manifest.tools):
        raise _manifest_error("/tools", "two tools have the same name")
    checked: set[bytes] = set()
    for index, tool in enumerate(manifest.tools):
        for part in ("input_schema", "output_schema"):
            schema = getattr(tool, part)
            packed_schema = pack_body(schema)
            if schema is not None and packed_schema not in checked:
                check_schema(schema, f"/tools/{index}/{part}")
                checked.add(packed_schema)
    return Definition(manifest, _digest(manifest), tools, _search_text(manifest))


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
    try:
        return ToolkitManifest.model_validate(unpack_body(packed, max_depth=_MAX_LEVELS))
    except BadBody as error:
        raise _manifest_error(error.path, error.reason) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = "".join(f"/{part}" for part in first["loc"])
        raise _manifest_error(path, first["msg"]) from error


def _refuse_retrieval(uri: str) -> Any:
    raise ValueError(f"refers to another document: {uri[:200]}")


def _parts_of(value: Any) -> Iterator[dict[str, Any]]:
    """Iterate over the objects of a schema, without examples of values."""
    if isinstance(value, dict):
        yield value
        value = [part for name, part in value.items() if name not in _VALUES]
    for part in value if isinstance(value, list) else ():
        yield from _parts_of(part)


def _resources_in(parts: list[dict[str, Any]]) -> int:
    """Count the subschemas with an id of their own."""
    is_of_draft_4 = any("draft-04" in str(part.get("$schema")) for part in parts)
    names = ("$id", "id") if is_of_draft_4 else ("$id",)
    return sum(any(isinstance(part.get(name), str) for name in names) for part in parts)


def check_schema(schema: dict[str, Any], path: str) -> None:
    """Refuse an invalid JSON Schema, one with external references, and one that costs too much.

    Raises:
        InvalidArguments: The reason; `details` has this `path` and a `message`.
    """
    parts = list(_parts_of(schema))
    if _resources_in(parts) > _MAX_RESOURCES:
        raise _manifest_error(path, f"more than {_MAX_RESOURCES} parts with an $id of their own")
    if len(parts) > _MAX_PARTS:
        raise _manifest_error(path, f"more than {_MAX_PARTS} objects in one schema")
    if exceeds_cost(_MAX_VISITS, schema):
        message = f"more than {_MAX_VISITS} subschemas to visit for unevaluated values"
        raise _manifest_error(path, message)
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


def _digest(manifest: ToolkitManifest) -> str:
    try:
        canonical = rfc8785.dumps(manifest.model_dump(mode="json", exclude_defaults=True))
    except rfc8785.CanonicalizationError as error:
        raise _manifest_error("", f"has no canonical form: {error}") from error
    return hashlib.sha256(canonical).hexdigest()
