"""What `TOOLBUS_HOME` has now, as installing and removing need it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from toolbus_toolkits.bundles.contents import BundleRefused
from toolbus_toolkits.bundles.installed import (
    INSTALLED_FILE,
    Installed,
    InstalledBundle,
    digest,
    entry_digest,
)
from toolbus_toolkits.bundles.mcp_file import McpFile
from toolbus_toolkits.bundles.transaction import apply_changes
from toolbus_toolkits.mcp.config import HOME_FILE

__all__ = ["HomeState"]


class HomeState:
    """The installed bundles, the file of MCP servers and the files of a home.

    Args:
        home: `TOOLBUS_HOME`; it need not exist.

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
