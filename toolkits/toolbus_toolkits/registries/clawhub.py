"""A registry that speaks the HTTP API of ClawHub, version 1: search, versions, and zips of skills.

It advertises the hash of each file of a skill, not of the zip. A skill is named by its slug, or by
`@owner/slug` where several owners have one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from toolbus.chunks.file_io import FILE_THREADS
from toolbus_toolkits.bundles.contents import MAX_FILES, BundleRefused, is_hidden, read_contents
from toolbus_toolkits.registries.fetching import Advertised, Fetcher
from toolbus_toolkits.registries.model import (
    MAX_DESCRIPTION_CHARS,
    EntryName,
    EntryVersion,
    Listing,
    NotInRegistry,
    RegistryEntry,
    RegistryRefused,
    Release,
    describe,
    short,
)

__all__ = ["ClawhubRegistry"]

_MAX_RESULTS = 50
_OWN_FILES = frozenset({"_meta.json"})
"""What the server adds to each zip."""
_ModelT = TypeVar("_ModelT", bound=BaseModel)


class _Part(BaseModel, frozen=True, extra="ignore", hide_input_in_errors=True):
    pass


class _Latest(_Part):
    version: EntryVersion


class _Found(_Part):
    slug: EntryName
    owner: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = Field(
        None, validation_alias="ownerHandle"
    )
    summary: str | None = None
    version: EntryVersion | None = None
    latest: _Latest | None = Field(None, validation_alias="latestVersion")


class _Moderation(_Part):
    is_blocked: bool = Field(False, validation_alias="isMalwareBlocked")
    is_suspicious: bool = Field(False, validation_alias="isSuspicious")
    verdict: str | None = None


class _Summary(_Part):
    summary: str | None = None


class _Skill(_Part):
    skill: _Summary | None = None
    latest: _Latest | None = Field(None, validation_alias="latestVersion")
    moderation: _Moderation | None = None


class _File(_Part):
    path: str
    sha256: str
    size: int


class _Files(_Part):
    version: EntryVersion
    files: list[_File] | None = Field(None, max_length=MAX_FILES)


class _VersionAnswer(_Part):
    version: _Files | None = None


class ClawhubRegistry:
    """Asks a server for skills; its plugins are not read.

    Args:
        source: The name of the source.
        fetcher: Its requests.
    """

    def __init__(self, source: str, fetcher: Fetcher) -> None:
        self._source = source
        self._fetcher = fetcher
        self._api = fetcher.base.removesuffix("/v1").removesuffix("/api") + "/api/v1"

    async def search(self, query: str) -> Listing:
        """Return the first 50 results of the server, which searches by meaning."""
        limit = {"limit": str(_MAX_RESULTS)}
        if query:
            data = await self._fetcher.read_list(f"{self._api}/search", {"q": query} | limit)
        else:
            data = await self._fetcher.read_list(f"{self._api}/skills", limit)
        items = data.get("results" if query else "items") if isinstance(data, dict) else None
        if not isinstance(items, list):
            raise RegistryRefused("it did not answer with results: does it speak ClawHub's API?")
        return self._listing(items)

    async def find(self, name: str, version: str | None) -> list[Release]:
        """Return the release of a skill in a version, by default the latest."""
        owner, _, slug = name.rpartition("/")
        path = f"{self._api}/skills/{quote(slug, safe='')}"
        query = {"ownerHandle": owner.removeprefix("@")} if owner else {}
        try:
            skill = _read(_Skill, await self._fetcher.read_json(path, query))
            if skill.latest is None:
                return []
            wanted = version or skill.latest.version
            answer = await self._fetcher.read_json(
                f"{path}/versions/{quote(wanted, safe='')}", query
            )
        except NotInRegistry:
            return []
        files = _read(_VersionAnswer, answer).version
        if files is None or files.version != wanted:
            return []
        notes = _notes(skill, files)
        summary = (skill.skill and skill.skill.summary) or ""
        entry = self._entry(name, files.version, summary)

        async def save(folder: Path) -> Path:
            target = folder / "download.zip"
            asked = {"slug": slug, "version": files.version} | query
            await self._fetcher.save(f"{self._api}/download", target, Advertised(), asked)
            await FILE_THREADS.run(_check, target, files.files)
            return target

        return [Release(entry, save, notes, has_other_name=True)]

    def _listing(self, items: list[Any]) -> Listing:
        found, left_out = [], []
        for index, item in enumerate(items):
            try:
                found.append(_Found.model_validate(item))
            except ValidationError as error:
                left_out.append(f"/{index}: {describe(error)}")
        counts = Counter(skill.slug for skill in found)
        releases = []
        for skill in found:
            is_shared = counts[skill.slug] > 1 and skill.owner
            name = f"@{skill.owner}/{skill.slug}" if is_shared else skill.slug
            version = skill.version or (skill.latest.version if skill.latest else "")
            releases.append(Release(self._entry(name, version, skill.summary or ""), _unknown))
        return Listing(releases, left_out)

    def _entry(self, name: str, version: str, summary: str) -> RegistryEntry:
        description = summary[:MAX_DESCRIPTION_CHARS]
        return RegistryEntry(self._source, name, "skill", version, description)


async def _unknown(_: Path) -> Path:
    raise RegistryRefused("a result of a search has no files: look the skill up by its name")


def _read(model: type[_ModelT], data: Any) -> _ModelT:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise RegistryRefused(f"its answer is not valid: {describe(error)}") from None


def _notes(skill: _Skill, files: _Files) -> tuple[str, ...]:
    """Return what the registry warns of. Raises `RegistryRefused` for malware."""
    notes = []
    if skill.moderation is not None:
        if skill.moderation.is_blocked or skill.moderation.verdict == "malicious":
            raise RegistryRefused("the registry has blocked it as malware")
        if skill.moderation.is_suspicious or skill.moderation.verdict == "suspicious":
            notes.append("the registry reports this skill as suspicious")
    if files.files is None:
        notes.append("the registry advertises no hashes for this skill: its files are not checked")
    return tuple(notes)


def _check(path: Path, advertised: list[_File] | None) -> None:
    """Compare the files of a zip with what is advertised. Raises `RegistryRefused`."""
    if advertised is None:
        return
    try:
        contents = read_contents(path)
    except BundleRefused as error:
        raise RegistryRefused(f"the download is refused: {error}".replace(str(path), "")) from None
    shown = {
        file.path: file for file in advertised if not any(map(is_hidden, file.path.split("/")))
    }
    others = (contents.keys() - _OWN_FILES) ^ (shown.keys() - _OWN_FILES)
    if others:
        raise RegistryRefused(
            f"the download does not have the advertised files: {short(min(others))}"
        )
    for name, file in shown.items():
        content = contents.get(name, b"")
        if (hashlib.sha256(content).hexdigest(), len(content)) != (file.sha256.lower(), file.size):
            raise RegistryRefused(
                f"{short(name)} does not have the advertised SHA-256 or size: it was changed, or "
                "the source is wrong"
            )
