"""A registry that is a folder: bundles, skills and zips of them, each in a folder or file in it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from toolbus.chunks.file_io import FILE_THREADS
from toolbus.settings import expanded
from toolbus_toolkits.bundles.bundle import read_bundle
from toolbus_toolkits.bundles.contents import (
    MAX_BYTES,
    MAX_FILES,
    BundleRefused,
    is_hidden,
    read_contents,
)
from toolbus_toolkits.bundles.manifest import AGX_FILE, BUNDLE_FILE
from toolbus_toolkits.registries.model import (
    MAX_DESCRIPTION_CHARS,
    Listing,
    RegistryEntry,
    RegistryRefused,
    Release,
    short,
)
from toolbus_toolkits.skills.front_matter import read_front_matter
from toolbus_toolkits.skills.skill import SKILL_FILE

__all__ = ["MANIFESTS", "MAX_PLACES", "LocalRegistry"]

MAX_PLACES = 1_000
"""How many folders and zips of a registry are read."""
MANIFESTS = (BUNDLE_FILE, AGX_FILE, SKILL_FILE)
"""The files of which a bundle has one at its top."""


class LocalRegistry:
    """Reads a folder anew for each question.

    Args:
        source: The name of the source.
        folder: The folder.
    """

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
        found = Listing([], [])
        for place in self._places():
            try:
                found.releases.append(self._release(place))
            except BundleRefused as error:
                found.left_out.append(f"{short(place.name)}: {short(error)}")
        return found

    def _places(self) -> Iterator[Path]:
        """Yield zips and folders that may have something, by their names."""
        try:
            places = sorted(expanded(self._folder).iterdir())
        except OSError as error:
            raise RegistryRefused(f"its folder cannot be read: {error.strerror}") from None
        found = [place for place in places if not place.name.startswith(".") and _may_have(place)]
        if len(found) > MAX_PLACES:
            raise RegistryRefused(f"its folder has more than {MAX_PLACES:,} bundles and skills")
        yield from found

    def _release(self, place: Path) -> Release:
        contents = read_contents(place)
        bundle = read_bundle(contents)
        is_skill = bundle.manifest.form == "skill"
        description = _of_skill(contents) if is_skill else bundle.manifest.description
        entry = RegistryEntry(
            self._source,
            bundle.name,
            "skill" if is_skill else "bundle",
            bundle.version,
            description[:MAX_DESCRIPTION_CHARS],
        )

        async def save(folder: Path) -> Path:
            return await FILE_THREADS.run(_copy, place, folder / f"download{place.suffix}")

        return Release(entry, save)


def _of_skill(contents: Mapping[str, bytes]) -> str:
    return str(read_front_matter(contents[SKILL_FILE].decode())[0]["description"])


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
