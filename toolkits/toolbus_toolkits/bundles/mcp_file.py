"""`mcp.json` in `TOOLBUS_HOME`: MCP servers of bundles beside those of the user.

The user may edit the file. Entries and keys that no bundle has installed stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from toolbus_toolkits.bundles.contents import BundleRefused
from toolbus_toolkits.mcp.config import HOME_FILE
from toolbus_toolkits.mcp.names import toolkit_name

__all__ = ["McpFile"]

_KEY = "mcpServers"
_MAX_FILE_BYTES = 1024 * 1024


class McpFile:
    """The file as it is.

    Args:
        home: `TOOLBUS_HOME`.

    Raises `BundleRefused` if the file is not what the toolkit `mcp` reads.
    """

    def __init__(self, home: Path) -> None:
        path = home / HOME_FILE
        try:
            with path.open("rb") as file:
                data = file.read(_MAX_FILE_BYTES + 1)
            self._data: Any = json.loads(data) if len(data) <= _MAX_FILE_BYTES else None
        except FileNotFoundError:
            self._data = {_KEY: {}}
        except OSError as error:
            raise BundleRefused(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError):
            raise BundleRefused(f"{path} is not JSON: correct it, or move it away") from None
        if not isinstance(self._data, dict) or not isinstance(self._data.get(_KEY, {}), dict):
            raise BundleRefused(f'{path} must be an object with "{_KEY}", of at most 1 MiB')

    @property
    def entries(self) -> Mapping[str, Any]:
        """The entries, by the names of their toolkits."""
        return {toolkit_name(key): each for key, each in self._data.get(_KEY, {}).items()}

    def changed(self, added: Mapping[str, Any], removed: Iterable[str]) -> bytes:
        """Return the file with some entries added, or replaced, and others removed."""
        gone = {*removed, *added}
        kept = {
            key: each
            for key, each in self._data.get(_KEY, {}).items()
            if toolkit_name(key) not in gone
        }
        data = {**self._data, _KEY: {**kept, **added}}
        return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode(
            errors="surrogatepass"
        )
