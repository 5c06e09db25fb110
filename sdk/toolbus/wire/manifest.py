"""The manifest of a toolkit: names, descriptions, schemas and the behaviour of its tools.

A manifest is the same for all readers: it contains neither its owner, nor who may see it, nor who
serves it. The server computes the digest from it, so two hosts with one digest serve one
definition. The server checks at registration, not here, whether a schema compiles.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, JsonValue

__all__ = [
    "MAX_MANIFEST_BYTES",
    "MAX_TOOLS",
    "ToolManifest",
    "ToolkitManifest",
]

MAX_MANIFEST_BYTES = 1024 * 1024
"""Size of one packed manifest (PROTOCOL.md, REG-2)."""
MAX_TOOLS = 1_000
"""Tools in one toolkit (PROTOCOL.md, REG-2)."""

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

    @property
    def is_concurrency_safe(self) -> bool:
        """The value of `concurrency_safe`, with its default."""
        return self.read_only if self.concurrency_safe is None else self.concurrency_safe


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
