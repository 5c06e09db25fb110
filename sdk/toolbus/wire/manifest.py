"""What a host says of a toolkit: names, words, schemas and how its tools behave.

A manifest is the same bytes for everyone who reads it: it holds nothing of its owner, of who may
see it or of who serves it. The server computes its digest from it, so two hosts with one digest
serve one definition. Whether a schema compiles is checked by the server at registration, not here.
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


Line = Annotated[str, Field(max_length=1_000)]
Words = Annotated[str, Field(max_length=65_536)]
Rules = Annotated[tuple[Words, ...], Field(max_length=256)]
Url = Annotated[str, Field(max_length=2_048)]


class _Manifest(BaseModel, frozen=True, extra="ignore"):
    """What both kinds of manifest are: values, in which what a newer release adds is ignored."""


class ToolManifest(_Manifest):
    """One tool: its name, its words, its schemas and how it behaves."""

    name: Annotated[str, AfterValidator(_tool_name)]
    title: Line = ""
    description: Words = ""
    input_schema: dict[str, Any]
    """A JSON Schema with its `$defs`; the arguments of a call are one object that fits it."""
    output_schema: dict[str, Any] | None = None
    """A JSON Schema of the JSON value a call returns, where the tool promises one."""
    rules: Rules = ()
    thumbnail_url: Url = ""
    supports_context: bool = False
    """A hint that the tool reads what a caller sends as `caller_context`."""
    read_only: bool = False
    idempotent: bool = False
    """Running it twice does what running it once does, so that a lost call may be tried again."""
    streaming: bool = False
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """How long the host lets one call run; it caps the caller's own deadline."""
    max_concurrency: Annotated[int, Field(ge=1)] | None = None
    """How many calls one host runs at a time."""
    affinity: Annotated[str, AfterValidator(_affinity)] = "none"
    """Which calls stay with one host: "none", "caller", or the name of an argument."""
    takes: Annotated[str, Field(max_length=64)] = ""
    """What a call may send beside its arguments: "attachment" for a file, "input" for values."""
    takes_required: bool = False
    """Whether it cannot be called without that."""


class ToolkitManifest(_Manifest):
    """One toolkit, as its host registers it and as others read it."""

    name: Annotated[str, AfterValidator(_toolkit_name)]
    title: Line = ""
    description: Words = ""
    rules: Rules = ()
    thumbnail_url: Url = ""
    annotations: dict[str, JsonValue] = Field(default_factory=dict)
    version: Annotated[str, Field(max_length=128)] = ""
    tools: Annotated[tuple[ToolManifest, ...], Field(max_length=MAX_TOOLS)] = ()
