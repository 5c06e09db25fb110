"""What is installed: `bundles.json` in `TOOLBUS_HOME`, and which bundle owns what.

A file, or an MCP server, belongs to the bundle that installed it. What no bundle has installed is
the user's, and is never changed. SHA-256 tells whether it is as the bundle brought it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from toolbus.untrusted_text import one_line
from toolbus_toolkits.bounded_json import read_json_file
from toolbus_toolkits.bundles.contents import BundleRefused, is_plain
from toolbus_toolkits.bundles.manifest import Requirements

__all__ = ["INSTALLED_FILE", "Installed", "InstalledBundle", "digest", "entry_digest", "real_path"]

INSTALLED_FILE = "bundles.json"
_MAX_FILE_BYTES = 64 * 1024 * 1024


class InstalledBundle(BaseModel, frozen=True, extra="ignore"):
    """A bundle, and what it has installed."""

    name: str
    version: str = ""
    description: str = ""
    form: str = "toolbus"
    """`toolbus`, `agx`, or `skill` for a skill alone."""
    origin: str = ""
    """Where it came from, as given to the installer."""
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
        """Read the file; it is empty if there is none.

        Raises `BundleRefused` if it is damaged, or has a path that leads outside of the home.
        """
        path = home / INSTALLED_FILE
        try:
            found = cls.model_validate(read_json_file(path, _MAX_FILE_BYTES, missing={}))
        except ValueError as error:
            why = "" if isinstance(error, ValidationError) else f": {error}"
            raise BundleRefused(f"{path} is damaged{why}: restore it, or move it away") from None
        for owned in (file for bundle in found.bundles.values() for file in bundle.files):
            real_path(home, owned, path)
        return found

    def find(self, name: str) -> InstalledBundle | None:
        """Return a bundle, None without one; upper and lower case are the same."""
        return next((bundle for key, bundle in self.bundles.items() if _same(key, name)), None)

    def owner_of_file(self, path: str) -> str | None:
        """Return the name of the bundle that installed a file; None if no bundle did."""
        return next((bundle.name for bundle in self.bundles.values() if path in bundle.files), None)

    def owner_of_server(self, name: str) -> str | None:
        """Return the name of the bundle that installed an MCP server; None if no bundle did."""
        return next(
            (bundle.name for bundle in self.bundles.values() if name in bundle.servers), None
        )

    def with_bundle(self, bundle: InstalledBundle) -> Installed:
        """Return the same with a bundle, in the place of the one of its name."""
        rest = self.without(bundle.name).bundles
        return Installed(bundles={**rest, bundle.name: bundle})

    def without(self, name: str) -> Installed:
        """Return the same without a bundle."""
        rest = {key: bundle for key, bundle in self.bundles.items() if not _same(key, name)}
        return Installed(bundles=rest)

    def content(self) -> bytes:
        """Return the bytes of the file."""
        return (self.model_dump_json(indent=2, exclude_defaults=True) + "\n").encode()


def real_path(home: Path, path: str, source: Path) -> Path:
    """Return where a file of a bundle is.

    Args:
        home: `TOOLBUS_HOME`; it may be a link.
        path: Below it, as it was read.
        source: Where it was read, for messages.

    Raises `BundleRefused` if it leads outside of the home, as a text or by a link.
    """
    shown = one_line(path, 120)
    if not is_plain(path):
        raise BundleRefused(f"{source}: {shown!r} is not a plain path inside {home}: remove it")
    real = Path(os.path.realpath(home / path))
    if not real.is_relative_to(os.path.realpath(home)):
        raise BundleRefused(
            f"{source}: {shown!r} leads outside of {home} by a link: put the file, or the folder, "
            "in the place of the link"
        )
    return real


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file, in hex."""
    return hashlib.sha256(content).hexdigest()


def entry_digest(entry: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an entry of `mcp.json`, whatever the order of its keys."""
    return digest(json.dumps(entry, sort_keys=True, separators=(",", ":")).encode())


def _same(one: str, other: str) -> bool:
    return one.lower() == other.lower()
