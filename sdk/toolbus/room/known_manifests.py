"""The manifests that one participant has read, so that the same is validated once."""

from __future__ import annotations

from typing import Any, TypeAlias

from toolbus.wire import ToolkitManifest

__all__ = ["KnownManifests"]

_MAX_KEPT = 512

_Key: TypeAlias = tuple[str, tuple[str, ...]]


class KnownManifests:
    """Manifests by digest and the tools that the participant may read.

    Both together determine a manifest. The oldest are dropped.
    """

    def __init__(self) -> None:
        self._known: dict[_Key, ToolkitManifest] = {}

    def read(self, digest: str, body: dict[str, Any]) -> ToolkitManifest:
        """Return the manifest of a description. Raises `ValidationError` if it is not one."""
        key = digest, tuple(tool["name"] for tool in body["tools"])
        manifest = self._known.get(key)
        if manifest is None:
            manifest = ToolkitManifest.model_validate(body)
            if len(self._known) >= _MAX_KEPT:
                del self._known[next(iter(self._known))]
            self._known[key] = manifest
        return manifest
