"""`mcp.json` in `TOOLBUS_HOME`: MCP servers of bundles beside those of the user.

The user may edit the file. Entries and keys that no bundle has installed stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from toolbus_toolkits.bounded_json import read_json_file
from toolbus_toolkits.bundles.contents import BundleRefused
from toolbus_toolkits.mcp.config import HOME_FILE, MAX_FILE_BYTES, MAX_SERVERS, entries_path
from toolbus_toolkits.mcp.names import toolkit_name

__all__ = ["McpFile"]

_KEY = "mcpServers"


class McpFile:
    """The file as it is.

    Args:
        home: `TOOLBUS_HOME`.

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
