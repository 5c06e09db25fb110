"""What `TOOLBUS_HOME` has now: installed bundles, which own files and MCP servers, and `mcp.json`.

A file, or an MCP server, belongs to the bundle that installed it: `bundles.json` says so. What no
bundle has installed is the user's, in `mcp.json` too, and is never changed. SHA-256 tells whether
it is as the bundle brought it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from toolbus_toolkits.bounded_json import read_json_file
from toolbus_toolkits.bundles.contents import BundleRefused
from toolbus_toolkits.bundles.manifest import Requirements
from toolbus_toolkits.bundles.transaction import INSTALLED_FILE, apply_changes, real_path
from toolbus_toolkits.mcp.config import HOME_FILE, MAX_FILE_BYTES, MAX_SERVERS, entries_path
from toolbus_toolkits.mcp.names import toolkit_name

__all__ = ["HomeState", "Installed", "InstalledBundle", "McpFile", "digest", "entry_digest"]

_KEY = "mcpServers"


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
    """What is installed: the whole of `bundles.json`."""

    bundles: dict[str, InstalledBundle] = Field(default_factory=dict)

    @classmethod
    def read(cls, home: Path) -> Installed:
        """Read the file; it is empty if there is none.

        Raises `BundleRefused` if it is damaged, or has a path that leads outside of the home.
        """
        path = home / INSTALLED_FILE
        try:
            found = cls.model_validate(read_json_file(path, missing={}))
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


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file, in hex."""
    return hashlib.sha256(content).hexdigest()


def entry_digest(entry: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an entry of `mcp.json`, whatever the order of its keys."""
    return digest(json.dumps(entry, sort_keys=True, separators=(",", ":")).encode())


def _same(one: str, other: str) -> bool:
    return one.lower() == other.lower()


class McpFile:
    """`mcp.json` as it is.

    Raises `BundleRefused` if the file is not what the toolkit `mcp` reads.
    """

    def __init__(self, home: Path) -> None:
        path = home / HOME_FILE
        try:
            self._data: Any = read_json_file(path, MAX_FILE_BYTES, missing={_KEY: {}})
        except ValueError as error:
            raise BundleRefused(f"{error}: correct it, or move it away") from None
        if not isinstance(self._data, dict) or not isinstance(self._entries, dict):
            raise BundleRefused(f'{path} must be an object with "{_KEY}"')

    @property
    def _entries(self) -> Any:
        found = self._data
        for key in entries_path(self._data) or ():
            found = found[key]
        return found

    @property
    def entries(self) -> Mapping[str, Any]:
        """The entries, by the names of their toolkits."""
        return {toolkit_name(key): entry for key, entry in self._entries.items()}

    def changed(self, added: Mapping[str, Any], removed: Iterable[str]) -> bytes:
        """Return the file with some entries added, or replaced, and others removed.

        Entries stay under the key that has them. Raises `BundleRefused` if the toolkit `mcp` would
        not read the file with what is added.
        """
        gone = {*removed, *added}
        rest = {key: entry for key, entry in self._entries.items() if toolkit_name(key) not in gone}
        entries = {**rest, **added}
        data: dict[str, Any] = entries
        path = entries_path(self._data) if self._data else (_KEY,)
        if path is not None:
            data = {**self._data}
            inner = data
            for key in path[:-1]:
                inner[key] = {**inner[key]}
                inner = inner[key]
            inner[path[-1]] = entries
        text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
        content = text.encode(errors="surrogatepass")
        if added and (len(entries) > MAX_SERVERS or len(content) > MAX_FILE_BYTES):
            raise BundleRefused(
                f"{HOME_FILE} would have {len(entries)} MCP servers and {len(content):,} bytes, "
                f"and may have {MAX_SERVERS} and {MAX_FILE_BYTES:,}: remove others first"
            )
        return content


class HomeState:
    """The installed bundles, the file of MCP servers and the files of a home, which need not exist.

    Raises `BundleRefused` if one of its files is damaged.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.installed = Installed.read(home)
        self.mcp = McpFile(home)

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder, or a link to nothing."""
        return os.path.lexists(self.home / path)

    def has_files(self, path: str) -> bool:
        """Whether there is a file, or a folder with anything but empty folders."""
        place = self.home / path
        if place.is_symlink() or not place.is_dir():
            return self.exists(path)
        return any(not inner.is_dir() or inner.is_symlink() for inner in place.rglob("*"))

    def is_whole(self, bundle: InstalledBundle) -> bool:
        """Whether everything of an installed bundle is there, changed or not."""
        return all(map(self.exists, bundle.files)) and bundle.servers.keys() <= {*self.mcp.entries}

    def digest_of(self, path: str) -> str | None:
        """Return the SHA-256 of a file; None if there is none."""
        try:
            return digest((self.home / path).read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BundleRefused(f"{path}: cannot be read: {error.strerror}") from None

    def digest_of_server(self, name: str) -> str | None:
        """Return the SHA-256 of an entry of `mcp.json`; None if there is none."""
        entry = self.mcp.entries.get(name)
        return None if entry is None else entry_digest(entry)

    def as_installed(self, bundle: InstalledBundle) -> tuple[set[str], set[str]]:
        """Return the files and MCP servers of a bundle that are there as it installed them."""
        files = {path for path, sha in bundle.files.items() if self.digest_of(path) == sha}
        servers = {
            name for name, sha in bundle.servers.items() if self.digest_of_server(name) == sha
        }
        return files, servers

    def change(
        self,
        installed: Installed,
        files: Mapping[str, bytes | None],
        *,
        added: Mapping[str, Any],
        removed: Iterable[str],
    ) -> None:
        """Change files, MCP servers and what is installed: all or none. The caller holds the lock.

        Raises `BundleRefused` if a file cannot be changed.
        """
        changes = dict(files)
        removed = set(removed)
        if added or removed:
            changes[HOME_FILE] = self.mcp.changed(added, removed)
        changes[INSTALLED_FILE] = installed.content()
        try:
            apply_changes(self.home, changes)
        except OSError as error:
            text = f"{error.filename or self.home}: {error.strerror or error}: nothing was changed"
            raise BundleRefused(text) from error
