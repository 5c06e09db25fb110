"""A registry that is one static file, `index.json`, with zips beside it or elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints

from toolbus_toolkits.registries.fetching import MAX_DOWNLOAD_BYTES, Advertised, Fetcher
from toolbus_toolkits.registries.model import (
    MAX_DESCRIPTION_CHARS,
    EntryName,
    EntryVersion,
    Kind,
    Listing,
    RegistryEntry,
    RegistryRefused,
    Release,
)

__all__ = ["MAX_ENTRIES", "IndexRegistry"]

MAX_ENTRIES = 10_000


class _Entry(BaseModel, frozen=True, extra="ignore", hide_input_in_errors=True):
    name: EntryName
    kind: Kind
    version: EntryVersion
    description: str = ""
    url: Annotated[str, StringConstraints(min_length=1, max_length=2_048)]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9A-Fa-f]{64}$")]
    size: int = Field(ge=0, le=MAX_DOWNLOAD_BYTES, strict=True)


class IndexRegistry:
    """Reads an index. Its form is that of docs/guides/registries.md.

    Args:
        source: The name of the source.
        fetcher: Its requests.
    """

    def __init__(self, source: str, fetcher: Fetcher) -> None:
        self._source = source
        self._fetcher = fetcher

    async def search(self, query: str) -> Listing:
        """Return the entries that match a query, in all versions."""
        return (await self._read()).matching(query)

    async def find(self, name: str, version: str | None) -> list[Release]:
        """Return the releases of a name."""
        return (await self._read()).named(name)

    async def _read(self) -> Listing:
        data = await self._fetcher.read_list()
        entries = data.get("entries") if isinstance(data, dict) else None
        if not isinstance(entries, list) or data.get("toolbus_index") != "1":
            raise RegistryRefused(
                'its index must be {"toolbus_index": "1", "entries": [...]}: is this its address?'
            )
        if len(entries) > MAX_ENTRIES:
            raise RegistryRefused(f"its index has more than {MAX_ENTRIES:,} entries")
        return Listing.of_items(entries, "/entries", self._release)

    def _release(self, data: Any) -> Release:
        read = _Entry.model_validate(data)
        entry = RegistryEntry(
            self._source,
            read.name,
            read.kind,
            read.version,
            read.description[:MAX_DESCRIPTION_CHARS],
        )

        async def save(folder: Path) -> Path:
            target = folder / "download.zip"
            await self._fetcher.save(read.url, target, Advertised(read.sha256, read.size, True))
            return target

        return Release(entry, save)
