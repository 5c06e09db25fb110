"""A registry of AgenticX: `GET /skills?q=` lists skills in all versions, with their files.

Skills of its first form are one text with a checksum; those of the second have several files, each
with size and digest. Both are saved as a folder.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from toolbus_toolkits.bundles.contents import MAX_FILES, BundleRefused, checked_path
from toolbus_toolkits.registries.fetching import Fetcher
from toolbus_toolkits.registries.model import (
    MAX_DESCRIPTION_CHARS,
    EntryName,
    EntryVersion,
    Listing,
    RegistryEntry,
    RegistryRefused,
    Release,
    short,
)
from toolbus_toolkits.skills.skill import SKILL_FILE

__all__ = ["AgxRegistry"]


class _File(BaseModel, frozen=True, extra="ignore", hide_input_in_errors=True):
    path: str
    digest: str
    """`sha256:` and the hash in hex."""
    size: int


class _Skill(BaseModel, frozen=True, extra="ignore", hide_input_in_errors=True):
    name: EntryName
    version: EntryVersion = "0.1.0"
    description: str = ""
    checksum: str = ""
    """SHA-256 of its `SKILL.md`, in hex."""
    skill_content: str = ""
    files: list[_File] | None = Field(None, max_length=MAX_FILES)
    file_contents: dict[str, str] | None = Field(None, max_length=MAX_FILES)


class AgxRegistry:
    """Asks a server for skills; it has no bundles.

    Args:
        source: The name of the source.
        fetcher: Its requests.
    """

    def __init__(self, source: str, fetcher: Fetcher) -> None:
        self._source = source
        self._fetcher = fetcher

    async def search(self, query: str) -> Listing:
        """Return the skills for which the server finds the query in name or description."""
        data = await self._fetcher.read_list(f"{self._fetcher.base}/skills", {"q": query})
        items = data.get("items") if isinstance(data, dict) else None
        if not isinstance(items, list):
            raise RegistryRefused("it did not answer with items: is it a registry of AgenticX?")
        return Listing.of_items(items, "/items", self._release)

    async def find(self, name: str, version: str | None) -> list[Release]:
        """Return the releases of a skill."""
        return (await self.search(name)).named(name)

    def _release(self, data: Any) -> Release:
        skill = _Skill.model_validate(data)
        description = skill.description[:MAX_DESCRIPTION_CHARS]
        entry = RegistryEntry(self._source, skill.name, "skill", skill.version, description)

        async def save(folder: Path) -> Path:
            return _save(_checked(skill), folder / "download")

        return Release(entry, save)


def _checked(skill: _Skill) -> dict[str, bytes]:
    """Return the files of a skill. Raises `RegistryRefused` if they are not as advertised."""
    texts = {SKILL_FILE: skill.skill_content} if skill.files is None else skill.file_contents or {}
    contents = {path: text.encode("utf-8", "surrogatepass") for path, text in texts.items()}
    if SKILL_FILE not in contents or not contents[SKILL_FILE]:
        raise RegistryRefused(f"it sent the skill without a {SKILL_FILE}")
    _check(SKILL_FILE, contents[SKILL_FILE], skill.checksum)
    advertised = {file.path: file for file in skill.files or ()}
    if skill.files is not None and advertised.keys() != contents.keys():
        raise RegistryRefused("it did not send the files that it advertises")
    for path, file in advertised.items():
        _check(path, contents[path], file.digest.removeprefix("sha256:"))
        if len(contents[path]) != file.size:
            raise RegistryRefused(f"{short(path)} does not have the advertised size")
    return contents


def _check(path: str, content: bytes, advertised: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != advertised.lower():
        raise RegistryRefused(
            f"{short(path)} has the SHA-256 {found}, and the source advertises "
            f"{short(advertised) or 'none'}: it was changed, or the source is wrong"
        )


def _save(contents: dict[str, bytes], folder: Path) -> Path:
    for text, content in contents.items():
        try:
            path = folder / checked_path(text)
        except BundleRefused as error:
            raise RegistryRefused(str(error)) from None
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder
