"""The manifest of a toolkit: names, descriptions, schemas and the behaviour of its tools.

A manifest is the same for all readers: it contains neither its owner, nor who may see it, nor who
serves it. The server computes the digest from it, so two hosts with one digest serve one
definition. No server compiles a schema: it checks what is here, in time that grows with the bytes
only, and a host can check the same before it registers.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, Field, JsonValue, ValidationError

from toolbus.wire.body_steps import Steps, ValueCount, run_steps, unpack_steps
from toolbus.wire.codec import MAX_DEPTH
from toolbus.wire.json_check import BadBody

__all__ = [
    "MAX_MANIFEST_BYTES",
    "MAX_MANIFEST_DEPTH",
    "MAX_MANIFEST_VALUES",
    "MAX_TOOLS",
    "MAX_TOOL_BYTES",
    "MAX_TOOL_VALUES",
    "TOOL_JSON",
    "ToolManifest",
    "ToolParts",
    "ToolkitManifest",
    "checked_fields",
    "read_tool",
    "tool_refusal",
]

MAX_MANIFEST_BYTES = 1024 * 1024
"""Size of one packed manifest (PROTOCOL.md, REG-2)."""
MAX_TOOLS = 1_000
"""Tools in one toolkit (PROTOCOL.md, REG-2)."""
MAX_TOOL_BYTES = 256 * 1024
"""Size of one packed tool (PROTOCOL.md, REG-2)."""
# Bytes bound the time: the slowest tool of 65,536 values, maps of one entry, is read in 15 ms, in
# steps of which the longest takes 0.6 ms. Values bound the memory of their reader: a map takes 64
# to 232 bytes, and as little as one byte of the tool. A list of texts of three letters has as many
# values when its bytes are full, and a schema of properties a third of them.
MAX_TOOL_VALUES = 65_536
"""Maps, lists and plain values, without keys, in one tool (PROTOCOL.md, REG-2)."""
MAX_MANIFEST_VALUES = 131_072
"""The same in one manifest. A caller reads all of it."""
# A reply to `describe` carries a manifest one level deeper than it was sent (BODY-1).
MAX_MANIFEST_DEPTH = MAX_DEPTH - 1
"""Levels of arrays and maps in one manifest; a tool begins at the third."""
TOOL_JSON = ("input_schema", "output_schema", "annotations")
"""The fields of a tool that are any JSON, for the readers of a manifest."""

_TOOLKIT_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _toolkit_name(value: str) -> str:
    if _TOOLKIT_NAME.fullmatch(value) is None:
        raise ValueError("a toolkit name is a lower-case letter, then up to 63 of a-z 0-9 _ -")
    return value


def _tool_name(value: str) -> str:
    if _TOOL_NAME.fullmatch(value) is None:
        raise ValueError("a tool name is 1 to 64 of A-Z a-z 0-9 _ -")
    return value


def _affinity(value: str) -> str:
    if not value or len(value) > 256:
        raise ValueError('affinity is "none", "caller" or the name of an argument')
    return value


SingleLine = Annotated[str, Field(max_length=1_000)]
LongText = Annotated[str, Field(max_length=65_536)]
Rules = Annotated[tuple[LongText, ...], Field(max_length=256)]
Url = Annotated[str, Field(max_length=2_048)]


class _Manifest(BaseModel, frozen=True, extra="ignore"):
    """The base of both manifests: a value that ignores the fields of newer releases."""


class ToolManifest(_Manifest):
    """One tool: its name, description, schemas and behaviour."""

    name: Annotated[str, AfterValidator(_tool_name)]
    title: SingleLine = ""
    description: LongText = ""
    input_schema: dict[str, Any]
    """A JSON Schema with its `$defs`; the arguments of a call are one object that matches it."""
    output_schema: dict[str, Any] | None = None
    """A JSON Schema of the JSON value that a call returns, if the tool guarantees one."""
    rules: Rules = ()
    thumbnail_url: Url = ""
    supports_context: bool = False
    """A hint that the tool reads the `caller_context` that a caller sends."""
    read_only: bool = False
    idempotent: bool = False
    """Running it twice has the effect of running it once, so a lost call may be retried."""
    streaming: bool = False
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The longest time that one call may run at the host; it caps the caller's own deadline."""
    max_concurrency: Annotated[int, Field(ge=1)] | None = None
    """How many calls one host runs at a time."""
    affinity: Annotated[str, AfterValidator(_affinity)] = "none"
    """Which calls stay with one host: "none", "caller", or the name of an argument."""
    takes: Annotated[str, Field(max_length=64)] = ""
    """What a call may send with its arguments: "attachment" for a file, "input" for values."""
    takes_required: bool = False
    """Whether a call must send it."""
    concurrency_safe: bool | None = None
    """Whether several calls of one caller may run at a time; None is the value of `read_only`."""
    destructive: bool = False
    """It may delete or overwrite what cannot be restored."""
    open_world: bool = False
    """It acts on systems that its author does not control, such as the internet."""
    external: bool = False
    """A person or another program outside the host gives its result."""
    approval: bool = False
    """Its author wants a person to approve each call."""
    cache_ttl_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Seconds that a result may be served again for equal arguments."""
    annotations: dict[str, JsonValue] = Field(default_factory=dict)
    """JSON values for programs, about this tool beside those about its toolkit."""

    @property
    def is_concurrency_safe(self) -> bool:
        """The value of `concurrency_safe`, with its default."""
        return self.read_only if self.concurrency_safe is None else self.concurrency_safe


class ToolParts(NamedTuple):
    """One packed tool that was read and checked."""

    tool: ToolManifest
    """All fields but those of `TOOL_JSON`, which are empty here."""
    json: dict[str, dict[str, Any]]
    """`input_schema`, and the others of `TOOL_JSON` that there are. They are JSON; no more is
    known."""
    values: int


def tool_refusal(packed: bytes) -> BadBody | None:
    """Return why a room refuses a packed tool by itself, with the path in it; None if it does not.

    It takes as long as reading the bytes. What it cannot know: whether the name is in the toolkit
    already, and whether all tools together exceed the limits of one manifest.
    """
    try:
        run_steps(read_tool(packed))
    except BadBody as error:
        return error
    return None


def read_tool(packed: bytes) -> Steps[ToolParts]:
    """Read and check one packed tool, in steps of about a millisecond.

    Raises:
        BadBody: It has too many bytes, values or levels, or a field that is not as it has to be.
    """
    if len(packed) > MAX_TOOL_BYTES:
        raise BadBody("", f"more than {MAX_TOOL_BYTES} bytes in one tool")
    count = ValueCount(MAX_TOOL_VALUES, "one tool")
    fields = yield from unpack_steps(packed, max_depth=MAX_MANIFEST_DEPTH - 2, count=count)
    found: dict[str, dict[str, Any]] = {}
    if type(fields) is dict:
        for name in TOOL_JSON:
            if type(fields.get(name)) is dict:
                # Only the map itself is checked below: pydantic would copy it in one piece.
                found[name], fields[name] = fields[name], {}
    if not found.get("annotations"):  # their default, which is in no digest
        found.pop("annotations", None)
    return ToolParts(checked_fields(ToolManifest, fields), found, count.values)


class ToolkitManifest(_Manifest):
    """One toolkit, as its host registers it and as other participants read it."""

    name: Annotated[str, AfterValidator(_toolkit_name)]
    title: SingleLine = ""
    description: LongText = ""
    rules: Rules = ()
    thumbnail_url: Url = ""
    annotations: dict[str, JsonValue] = Field(default_factory=dict)
    version: Annotated[str, Field(max_length=128)] = ""
    tools: Annotated[tuple[ToolManifest, ...], Field(max_length=MAX_TOOLS)] = ()


_M = TypeVar("_M", bound=_Manifest)


def checked_fields(model: type[_M], fields: Any) -> _M:
    """Make a manifest from unpacked fields. Raises BadBody with the path of a wrong one."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = "".join(f"/{part}" for part in first["loc"])
        raise BadBody(path, first["msg"]) from error
