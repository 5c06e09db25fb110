"""The manifests that one participant has read, so that the same is neither sent nor read again."""

from __future__ import annotations

from typing import Any, NamedTuple

from toolbus.client.retry import ToolkitKey
from toolbus.room.toolkit_proxy import ToolkitInfo
from toolbus.schemas.foreign import usable_schema
from toolbus.wire import ToolkitManifest, ToolManifest

__all__ = ["KnownManifest", "KnownManifests"]

_MAX_MANIFESTS = 512
_MAX_USABLE = 4_096


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
