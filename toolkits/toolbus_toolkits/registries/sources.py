"""What each type of registry speaks: a folder, a static index, AgenticX, ClawHub.

- A folder has bundles, skills and zips of them, each in a folder or file in it.
- An index is one static file, `index.json`, with zips beside it or elsewhere.
- AgenticX lists skills in all versions with `GET /skills?q=`. Skills of its first form are one text
  with a checksum; those of the second have several files, each with size and digest.
- ClawHub has an HTTP API, of which this is version 1: search, versions, and zips of skills. It
  advertises the hash of each file of a skill, not of the zip. A skill is named by its slug, or by
  `@owner/slug` where several owners have one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from toolbus.chunks.file_io import FILE_THREADS
from toolbus.settings import expanded
from toolbus_toolkits.bundles.bundle import read_bundle
from toolbus_toolkits.bundles.contents import (
    MAX_BYTES,
    MAX_FILES,
    BundleRefused,
    checked_path,
    is_hidden,
    read_contents,
)
from toolbus_toolkits.bundles.manifest import AGX_FILE, BUNDLE_FILE
from toolbus_toolkits.registries.fetching import Advertised, Fetcher
from toolbus_toolkits.registries.model import (
    EntryName,
    EntryVersion,
    Kind,
    Listing,
    NotInRegistry,
    RegistryEntry,
    RegistryRefused,
    Release,
    describe,
    short,
)
from toolbus_toolkits.skills.front_matter import read_front_matter
from toolbus_toolkits.skills.skill import SKILL_FILE

__all__ = ["MANIFESTS", "AgxRegistry", "ClawhubRegistry", "IndexRegistry", "LocalRegistry"]

MANIFESTS = (BUNDLE_FILE, AGX_FILE, SKILL_FILE)
"""The files of which a bundle has one at its top."""
# A registry of others must not fill the memory of who searches it.
_MAX_ENTRIES = 10_000
_MAX_PLACES = 1_000
_OWN_FILES = frozenset({"_meta.json"})
"""What ClawHub adds to each zip."""
_ModelT = TypeVar("_ModelT", bound=BaseModel)


class _Part(BaseModel, frozen=True, extra="ignore", hide_input_in_errors=True):
    """A part of an answer, of which what is not known is ignored."""


class _RemoteRegistry:
    """Asks the server of a source."""

    def __init__(self, source: str, fetcher: Fetcher) -> None:
        self._source = source
        self._fetcher = fetcher


# An index


class _IndexEntry(_Part):
    name: EntryName
    kind: Kind
    version: EntryVersion
    description: str = ""
    url: Annotated[str, StringConstraints(min_length=1, max_length=2_048)]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9A-Fa-f]{64}$")]
    size: int = Field(ge=0, le=MAX_BYTES, strict=True)


class IndexRegistry(_RemoteRegistry):
    """Reads an index. Its form is that of docs/guides/registries.md."""

    async def search(self, query: str) -> Listing:
        """Return the entries that match a query, in all versions."""
        return (await self._read()).matching(query)

    async def find(self, name: str, version: str | None) -> list[Release]:
        """Return the releases of a name."""
        return (await self._read()).named(name)

    async def _read(self) -> Listing:
        match await self._fetcher.read_list():
            case {"toolbus_index": "1", "entries": list(entries)}:
                if len(entries) > _MAX_ENTRIES:
                    raise RegistryRefused(f"its index has more than {_MAX_ENTRIES:,} entries")
                return Listing.of_items(entries, "/entries", self._release)
        raise RegistryRefused(
            'its index must be {"toolbus_index": "1", "entries": [...]}: is this its address?'
        )

    def _release(self, data: Any) -> Release:
        read = _IndexEntry.model_validate(data)
        entry = RegistryEntry.of(self._source, read.name, read.kind, read.version, read.description)

        async def save(folder: Path) -> Path:
            target = folder / "download.zip"
            await self._fetcher.save(read.url, target, Advertised(read.sha256, read.size, True))
            return target

        return Release(entry, save)


# AgenticX


class _AgxFile(_Part):
    path: str
    digest: str
    """`sha256:` and the hash in hex."""
    size: int


class _AgxSkill(_Part):
    name: EntryName
    version: EntryVersion = "0.1.0"
    description: str = ""
    checksum: str = ""
    """SHA-256 of its `SKILL.md`, in hex."""
    skill_content: str = ""
    files: list[_AgxFile] | None = Field(None, max_length=MAX_FILES)
    file_contents: dict[str, str] | None = Field(None, max_length=MAX_FILES)


class AgxRegistry(_RemoteRegistry):
    """Asks a server for skills; it has no bundles."""

    async def search(self, query: str) -> Listing:
        """Return the skills for which the server finds the query in name or description."""
        match await self._fetcher.read_list(f"{self._fetcher.base}/skills", {"q": query}):
            case {"items": list(items)}:
                return Listing.of_items(items, "/items", self._release)
        raise RegistryRefused("it did not answer with items: is it a registry of AgenticX?")

    async def find(self, name: str, version: str | None) -> list[Release]:
        """Return the releases of a skill."""
        return (await self.search(name)).named(name)

    def _release(self, data: Any) -> Release:
        skill = _AgxSkill.model_validate(data)
        entry = RegistryEntry.of(
            self._source, skill.name, "skill", skill.version, skill.description
        )

        async def save(folder: Path) -> Path:
            target = folder / "download"
            for text, content in _agx_contents(skill).items():
                try:
                    path = target / checked_path(text)
                except BundleRefused as error:
                    raise RegistryRefused(str(error)) from None
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            return target

        return Release(entry, save)


def _agx_contents(skill: _AgxSkill) -> dict[str, bytes]:
    """Return the files of a skill. Raises `RegistryRefused` if they are not as advertised."""
    texts = {SKILL_FILE: skill.skill_content} if skill.files is None else skill.file_contents or {}
    contents = {path: text.encode("utf-8", "surrogatepass") for path, text in texts.items()}
    if SKILL_FILE not in contents or not contents[SKILL_FILE]:
        raise RegistryRefused(f"it sent the skill without a {SKILL_FILE}")
    _check_hash(SKILL_FILE, contents[SKILL_FILE], skill.checksum)
    advertised = {file.path: file for file in skill.files or ()}
    if skill.files is not None and advertised.keys() != contents.keys():
        raise RegistryRefused("it did not send the files that it advertises")
    for path, file in advertised.items():
        _check_hash(path, contents[path], file.digest.removeprefix("sha256:"))
        if len(contents[path]) != file.size:
            raise RegistryRefused(f"{short(path)} does not have the advertised size")
    return contents


def _check_hash(path: str, content: bytes, advertised: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != advertised.lower():
        raise RegistryRefused(
            f"{short(path)} has the SHA-256 {found}, and the source advertises "
            f"{short(advertised) or 'none'}: it was changed, or the source is wrong"
        )


# ClawHub


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


class _ClawSkill(_Part):
    skill: _Summary | None = None
    latest: _Latest | None = Field(None, validation_alias="latestVersion")
    moderation: _Moderation | None = None


class _ClawFile(_Part):
    path: str
    sha256: str
    size: int


class _ClawFiles(_Part):
    version: EntryVersion
    files: list[_ClawFile] | None = Field(None, max_length=MAX_FILES)


class _VersionAnswer(_Part):
    version: _ClawFiles | None = None


class ClawhubRegistry(_RemoteRegistry):
    """Asks a server for skills; its plugins are not read."""

    def __init__(self, source: str, fetcher: Fetcher) -> None:
        super().__init__(source, fetcher)
        self._api = fetcher.base.removesuffix("/v1").removesuffix("/api") + "/api/v1"

    async def search(self, query: str) -> Listing:
        """Return the first 50 results of the server, which searches by meaning."""
        limit = {"limit": "50"}
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
            skill = _read(_ClawSkill, await self._fetcher.read_json(path, query))
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
            await FILE_THREADS.run(_check_zip, target, files.files)
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
            name = skill.slug
            if counts[name] > 1 and skill.owner:
                name = f"@{skill.owner}/{name}"
            version = skill.version or (skill.latest and skill.latest.version) or ""
            releases.append(Release(self._entry(name, version, skill.summary or ""), _unknown))
        return Listing(releases, left_out)

    def _entry(self, name: str, version: str, summary: str) -> RegistryEntry:
        return RegistryEntry.of(self._source, name, "skill", version, summary)


async def _unknown(_: Path) -> Path:
    raise RegistryRefused("a result of a search has no files: look the skill up by its name")


def _read(model: type[_ModelT], data: Any) -> _ModelT:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise RegistryRefused(f"its answer is not valid: {describe(error)}") from None


def _notes(skill: _ClawSkill, files: _ClawFiles) -> tuple[str, ...]:
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


def _check_zip(path: Path, advertised: list[_ClawFile] | None) -> None:
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


# A folder


class LocalRegistry:
    """Reads a folder anew for each question."""

    def __init__(self, source: str, folder: Path) -> None:
        self._source = source
        self._folder = folder

    async def search(self, query: str) -> Listing:
        """Return what matches a query, in all versions."""
        return (await FILE_THREADS.run(self._read)).matching(query)

    async def find(self, name: str, version: str | None) -> list[Release]:
        """Return the releases of a name."""
        return (await FILE_THREADS.run(self._read)).named(name)

    def _read(self) -> Listing:
        try:
            places = sorted(expanded(self._folder).iterdir())
        except OSError as error:
            raise RegistryRefused(f"its folder cannot be read: {error.strerror}") from None
        places = [place for place in places if not place.name.startswith(".") and _may_have(place)]
        if len(places) > _MAX_PLACES:
            raise RegistryRefused(f"its folder has more than {_MAX_PLACES:,} bundles and skills")
        found = Listing([], [])
        for place in places:
            try:
                found.releases.append(self._release(place))
            except BundleRefused as error:
                found.left_out.append(f"{short(place.name)}: {short(error)}")
        return found

    def _release(self, place: Path) -> Release:
        contents = read_contents(place)
        bundle = read_bundle(contents)
        kind: Kind = "bundle"
        description = bundle.manifest.description
        if bundle.manifest.form == "skill":
            kind = "skill"
            description = str(read_front_matter(contents[SKILL_FILE].decode())[0]["description"])
        entry = RegistryEntry.of(self._source, bundle.name, kind, bundle.version, description)

        async def save(folder: Path) -> Path:
            return await FILE_THREADS.run(_copy, place, folder / f"download{place.suffix}")

        return Release(entry, save)


def _may_have(place: Path) -> bool:
    if place.suffix.lower() == ".zip":
        return place.is_file()
    return any(os.path.lexists(place / file) for file in MANIFESTS)


def _copy(place: Path, target: Path) -> Path:
    """Copy a zip or a folder without its hidden files, which are not part of a bundle.

    Links in it stay links, which the installer refuses.
    """
    files = size = 0

    def copy(source: str, to: str) -> str:
        nonlocal files, size
        facts = os.lstat(source)
        files, size = files + 1, size + facts.st_size
        if files > MAX_FILES or size > MAX_BYTES:
            raise RegistryRefused(f"it has more than {MAX_FILES} files or {MAX_BYTES} bytes")
        if not stat.S_ISREG(facts.st_mode):
            raise RegistryRefused(f"{short(source)} is not a regular file")
        return shutil.copyfile(source, to)

    if place.is_dir():
        shutil.copytree(
            place,
            target,
            symlinks=True,
            ignore=lambda _, names: {*filter(is_hidden, names)},
            copy_function=copy,
        )
    else:
        copy(str(place.resolve()), str(target))
    return target
