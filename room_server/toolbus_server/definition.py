"""From a packed manifest to a definition: checked, compiled, and named by its digest.

The digest is the server's own work: SHA-256 over the manifest in the canonical form of RFC 8785,
without the fields that stand at their defaults, so that what a later release adds does not change
it. Pure: no sockets, no clock, and a schema that refers to another document is refused, never
fetched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
import rfc8785
from pydantic import ValidationError

from toolbus.errors import InvalidArguments, TooLarge
from toolbus.grants import is_toolkit_name
from toolbus.wire import (
    MAX_DEPTH,
    MAX_MANIFEST_BYTES,
    BadBody,
    ToolkitManifest,
    ToolManifest,
    pack_body,
    unpack_body,
)
from toolbus_server.unfolding import unfolds_beyond

__all__ = ["Definition", "KnownDefinition", "check_schema", "name_in", "read_definition"]

# A description carries a manifest one level deeper than it was sent (BODY-1).
_MAX_LEVELS = MAX_DEPTH - 1
# Each resource of its own within a schema costs the compiler a look at all others.
_MAX_RESOURCES = 64
# Compiling a schema takes time that others wait for, some 20 us for each of its objects.
_MAX_PARTS = 4_096
_VALUES = frozenset({"enum", "const", "default", "examples"})
_MAX_PATTERN_BYTES = 64 * 1024
"""A pattern that compiles to more is refused: compiling is work that others wait for."""
_MAX_UNFOLDED = 256
"""Parts that the compiler looks at for what is unevaluated, each as often as a way leads there."""


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """One version of a toolkit: what its host says of it, and the digest that names it."""

    manifest: ToolkitManifest
    digest: str
    tools: dict[str, ToolManifest]
    words: str = ""
    """All that a search looks at, as it compares it: what is not in here need not be looked for."""

    @property
    def name(self) -> str:
        """What the toolkit is called."""
        return self.manifest.name


class KnownDefinition(Definition):
    """A definition that another server has checked and named; read when it is first asked for.

    A room may have thousands of toolkits that nobody at this server ever asks for. What it says
    where its manifest is none that this server can read is InvalidArguments.

    Args:
        name: What the toolkit is called.
        digest: What names the definition.
        packed: The manifest.
    """

    __slots__ = ("_name", "_packed", "_whole")
    _name: str
    _packed: bytes
    _whole: Definition | None

    def __init__(self, name: str, digest: str, packed: bytes) -> None:
        put = object.__setattr__  # nobody else changes it
        put(self, "digest", digest)
        put(self, "_name", name)
        put(self, "_packed", packed)
        put(self, "_whole", None)

    @property
    def is_read(self) -> bool:
        """Whether somebody has asked for what it says."""
        return self._whole is not None

    @property
    def name(self) -> str:
        """What the toolkit is called."""
        return self._name

    @property
    def manifest(self) -> ToolkitManifest:
        """What its host says of it."""
        return self._read().manifest

    @property
    def tools(self) -> dict[str, ToolManifest]:
        """Its tools by name."""
        return self._read().tools

    @property
    def words(self) -> str:
        """All that a search looks at."""
        return self._read().words

    def _read(self) -> Definition:
        whole = self._whole
        if whole is None:
            manifest = _parse(self._packed)
            tools = {tool.name: tool for tool in manifest.tools}
            whole = Definition(manifest, self.digest, tools, _words_of(manifest))
            object.__setattr__(self, "_whole", whole)
        return whole


def name_in(packed: bytes) -> str:
    """Return the name that a manifest gives its toolkit, whatever else it holds; "" for none."""
    try:
        name = unpack_body(packed).get("name")
    except (BadBody, AttributeError):
        return ""
    return name if is_toolkit_name(name) else ""


def read_definition(packed: bytes) -> Definition:
    """Read what a host wants to register.

    Raises:
        TooLarge: The manifest is over its limit.
        InvalidArguments: It breaks a rule; `details` has the `path` and a `message`.
    """
    if len(packed) > MAX_MANIFEST_BYTES:
        raise TooLarge(f"a manifest has at most {MAX_MANIFEST_BYTES} bytes", executed="no")
    manifest = _parse(packed)
    tools = {tool.name: tool for tool in manifest.tools}
    if len(tools) != len(manifest.tools):
        raise _refused("/tools", "two tools have the same name")
    checked: set[bytes] = set()
    for index, tool in enumerate(manifest.tools):
        for part in ("input_schema", "output_schema"):
            schema = getattr(tool, part)
            packed_schema = pack_body(schema)
            if schema is not None and packed_schema not in checked:
                check_schema(schema, f"/tools/{index}/{part}")
                checked.add(packed_schema)
    return Definition(manifest, _digest(manifest), tools, _words_of(manifest))


def _words_of(manifest: ToolkitManifest) -> str:
    """Put together all that a search looks at."""
    words = [manifest.name, manifest.title, manifest.description]
    for tool in manifest.tools:
        words += (tool.name, tool.title, tool.description)
    return "\n".join(words).casefold()


def _refused(path: str, message: str) -> InvalidArguments:
    return InvalidArguments(
        f"manifest{path}: {message}", details={"path": path, "message": message}
    )


def _parse(packed: bytes) -> ToolkitManifest:
    try:
        return ToolkitManifest.model_validate(unpack_body(packed, max_depth=_MAX_LEVELS))
    except BadBody as error:
        raise _refused(error.path, error.reason) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = "".join(f"/{part}" for part in first["loc"])
        raise _refused(path, first["msg"]) from error


def _refuse_retrieval(uri: str) -> Any:
    raise ValueError(f"refers to another document: {uri[:200]}")


def _parts_of(value: Any) -> Iterator[dict[str, Any]]:
    """Go through the objects of a schema; examples of values are no part of it."""
    if isinstance(value, dict):
        yield value
        value = [part for name, part in value.items() if name not in _VALUES]
    for part in value if isinstance(value, list) else ():
        yield from _parts_of(part)


def _resources_in(parts: list[dict[str, Any]]) -> int:
    """Count what names itself within a schema."""
    is_of_draft_4 = any("draft-04" in str(part.get("$schema")) for part in parts)
    names = ("$id", "id") if is_of_draft_4 else ("$id",)
    return sum(any(isinstance(part.get(name), str) for name in names) for part in parts)


def check_schema(schema: dict[str, Any], path: str) -> None:
    """Refuse what is no JSON Schema, refers elsewhere, or costs too much to compile.

    Raises:
        InvalidArguments: Why; `details` has this `path` and a `message`.
    """
    parts = list(_parts_of(schema))
    if _resources_in(parts) > _MAX_RESOURCES:
        raise _refused(path, f"more than {_MAX_RESOURCES} parts with an $id of their own")
    if len(parts) > _MAX_PARTS:
        raise _refused(path, f"more than {_MAX_PARTS} objects in one schema")
    if unfolds_beyond(_MAX_UNFOLDED, schema):
        words = f"more than {_MAX_UNFOLDED} parts to look at for what is unevaluated"
        raise _refused(path, words)
    try:
        jsonschema_rs.validator_for(
            schema,
            retriever=_refuse_retrieval,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=_MAX_PATTERN_BYTES),
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        raise _refused(path, str(error).splitlines()[0][:500]) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise _refused(path, f"not a JSON Schema: {str(error)[:200]}") from error


def _digest(manifest: ToolkitManifest) -> str:
    try:
        canonical = rfc8785.dumps(manifest.model_dump(mode="json", exclude_defaults=True))
    except rfc8785.CanonicalizationError as error:
        raise _refused("", f"has no canonical form: {error}") from error
    return hashlib.sha256(canonical).hexdigest()
