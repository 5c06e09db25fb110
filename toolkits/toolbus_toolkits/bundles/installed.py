"""What is installed: `bundles.json` in `TOOLBUS_HOME`, and which bundle owns what.

A file, or an MCP server, belongs to the bundle that installed it. What no bundle has installed is
the user's, and is never changed. SHA-256 tells whether it is as the bundle brought it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from toolbus_toolkits.bounded_json import read_json_file
from toolbus_toolkits.bundles.contents import BundleRefused
from toolbus_toolkits.bundles.manifest import Requirements

__all__ = ["INSTALLED_FILE", "Installed", "InstalledBundle", "digest", "entry_digest"]

INSTALLED_FILE = "bundles.json"
_MAX_FILE_BYTES = 64 * 1024 * 1024


class InstalledBundle(BaseModel, frozen=True, extra="ignore"):
    """One installed bundle."""

    name: str
    version: str = ""
    description: str = ""
    form: str = "toolbus"
    """`toolbus`, `agx`, or `skill` for a skill alone."""
    origin: str = ""
    """Where it came from, as the installer was told."""
    installed_at: str = ""
    """UTC, ISO 8601."""
    files: dict[str, str] = Field(default_factory=dict)
    """Paths below `TOOLBUS_HOME`, each with the SHA-256 that was installed."""
    servers: dict[str, str] = Field(default_factory=dict)
    """MCP servers in `mcp.json`, each with the SHA-256 of its entry."""
    skills: tuple[str, ...] = ()
    avatars: tuple[str, ...] = ()
    memory_templates: tuple[str, ...] = ()
    requires: Requirements = Requirements()


class Installed(BaseModel, frozen=True, extra="forbid"):
    """The whole file."""

    bundles: dict[str, InstalledBundle] = Field(default_factory=dict)

    @classmethod
    def read(cls, home: Path) -> Installed:
        """Read the file; it is empty if there is none. Raises `BundleRefused` if it is damaged."""
        path = home / INSTALLED_FILE
        try:
            return cls.model_validate(read_json_file(path, _MAX_FILE_BYTES, missing={}))
        except ValueError as error:
            why = f"{path}" if isinstance(error, ValidationError) else f"{error}: it"
            raise BundleRefused(f"{why} is damaged: restore it, or move it away") from None

    def find(self, name: str) -> InstalledBundle | None:
        """Return a bundle; upper and lower case are the same."""
        return next((each for key, each in self.bundles.items() if _same(key, name)), None)

    def owner_of_file(self, path: str) -> str | None:
        """Return the bundle that a file belongs to."""
        return next((each.name for each in self.bundles.values() if path in each.files), None)

    def owner_of_server(self, name: str) -> str | None:
        """Return the bundle that an MCP server belongs to."""
        return next((each.name for each in self.bundles.values() if name in each.servers), None)

    def with_bundle(self, bundle: InstalledBundle) -> Installed:
        """Return the same with a bundle, in the place of the one of its name."""
        rest = self.without(bundle.name).bundles
        return Installed(bundles={**rest, bundle.name: bundle})

    def without(self, name: str) -> Installed:
        """Return the same without a bundle."""
        rest = {key: each for key, each in self.bundles.items() if not _same(key, name)}
        return Installed(bundles=rest)

    def content(self) -> bytes:
        """Return the bytes of the file."""
        return (self.model_dump_json(indent=2, exclude_defaults=True) + "\n").encode()


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file, in hex."""
    return hashlib.sha256(content).hexdigest()


def entry_digest(entry: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an entry of `mcp.json`, whatever the order of its keys."""
    return digest(json.dumps(entry, sort_keys=True, separators=(",", ":")).encode())


def _same(one: str, other: str) -> bool:
    return one.lower() == other.lower()
