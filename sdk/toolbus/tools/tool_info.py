"""What a caller knows of one tool: its description, its flags, and whose it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

from toolbus.wire.manifest import ToolkitManifest, ToolManifest

__all__ = ["ToolInfo"]


@dataclass(frozen=True, slots=True)
class ToolInfo:
    """A tool, as agents, models and middlewares see it."""

    name: str
    """`toolkit.tool`."""
    description: str
    input_schema: dict[str, Any]
    """A JSON Schema of the arguments. Not to be changed."""
    toolkit: str
    tool: str
    title: str = ""
    """A title for humans."""
    thumbnail_url: str = ""
    """The address of a picture for user interfaces; chosen by the tool's author, not checked."""
    rules: tuple[str, ...] = ()
    """How a model should use the tool, written by its author."""
    toolkit_rules: tuple[str, ...] = ()
    """How a model should use the tools of its toolkit together: the same for each of them."""
    output_schema: dict[str, Any] | None = None
    """A JSON Schema of the result, if the tool guarantees one. Not to be changed."""
    read_only: bool = False
    """Its author declares that it changes nothing."""
    idempotent: bool = False
    """Its author declares that running it twice has the effect of running it once."""
    concurrency_safe: bool = False
    """Its author declares that several calls of one agent may run at a time."""
    destructive: bool = False
    """It may delete or overwrite what cannot be restored."""
    open_world: bool = False
    """It acts on systems that its author does not control, such as the internet."""
    external: bool = False
    """A person or another program outside its host gives its result."""
    approval: bool = False
    """Its author wants a person to approve each call."""
    streaming: bool = False
    """It returns its result chunk by chunk."""
    takes: str = ""
    """What a call may send with its arguments: "attachment", "input", or nothing."""
    takes_required: bool = False
    """Whether a call must send it."""
    supports_context: bool = False
    """It reads the caller's context."""
    cache_ttl_s: float | None = None
    """Seconds that a result may be served again for equal arguments."""
    timeout_s: float | None = None
    """Seconds that one call may run at its host."""
    owner: str = ""
    """The name of the identity that registered its toolkit; empty for one of this process."""
    issuer: str = ""
    """The issuer of that identity's token."""
    alias: str = ""
    """The alias of that issuer, where the server has several; else empty."""
    digest: str = ""
    """The digest of the toolkit's definition; empty for one of this process."""
    own_name: str = ""
    """`toolkit.tool` by the toolkit's own name, which differs from `name` in a turn where the
    toolkit has an alias."""
    workdirs: tuple[str, ...] = ()
    """The folders that it works in, of a tool of this process: those of its toolkit, else the
    working directories of the turn's permissions."""
    own_annotations: Mapping[str, Any] = field(default_factory=dict)
    """The annotations of the tool itself. Not to be changed."""
    toolkit_annotations: Mapping[str, Any] = field(default_factory=dict)
    """Those of its toolkit. Not to be changed."""

    @property
    def annotations(self) -> Mapping[str, Any]:
        """JSON values for programs: those of the toolkit, and the tool's own in their place.

        `mcp` is the name of the MCP server that the tool is of.
        """
        return MappingProxyType({**self.toolkit_annotations, **self.own_annotations})

    @classmethod
    def of(  # noqa: PLR0913 - each is one fact, by keyword
        cls,
        toolkit: ToolkitManifest,
        tool: ToolManifest,
        *,
        owner: str = "",
        issuer: str = "",
        alias: str = "",
        digest: str = "",
        own_toolkit: str = "",
    ) -> Self:
        """Make one from a toolkit's manifest and that of one of its tools.

        `own_toolkit` is the toolkit's own name, if the manifest has another one.
        """
        return cls(
            f"{toolkit.name}.{tool.name}",
            tool.description,
            tool.input_schema,
            toolkit.name,
            tool.name,
            title=tool.title,
            thumbnail_url=tool.thumbnail_url,
            rules=tool.rules,
            toolkit_rules=toolkit.rules,
            output_schema=tool.output_schema,
            read_only=tool.read_only,
            idempotent=tool.idempotent,
            concurrency_safe=tool.is_concurrency_safe,
            destructive=tool.destructive,
            open_world=tool.open_world,
            external=tool.external,
            approval=tool.approval,
            streaming=tool.streaming,
            takes=tool.takes,
            takes_required=tool.takes_required,
            supports_context=tool.supports_context,
            cache_ttl_s=tool.cache_ttl_s,
            timeout_s=tool.timeout_s,
            owner=owner,
            issuer=issuer,
            alias=alias,
            digest=digest,
            own_name=f"{own_toolkit or toolkit.name}.{tool.name}",
            own_annotations=tool.annotations,
            toolkit_annotations=toolkit.annotations,
        )
