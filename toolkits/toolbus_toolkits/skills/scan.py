"""Finds the skills of a source, and reads again only what changed.

A folder is searched one and two levels deep. Hidden folders, and links that leave the source, are
skipped. A folder that vanishes meanwhile is not there.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from toolbus_toolkits.skills.files import UnreadableFile, inside, read_bytes, why_unreadable
from toolbus_toolkits.skills.skill import (
    MAX_SKILL_BYTES,
    SKILL_FILE,
    Skill,
    SkillRefused,
    SkillSource,
    parse_skill,
)

__all__ = ["MAX_FOLDERS", "SkillScanner", "SkippedSkill"]

MAX_FOLDERS = 5_000
"""Of one source: a folder with all files of a user may be named by mistake."""
_SETTLED_NS = 2_000_000_000
"""A file that changed this recently may change again without another time: it is read again."""


class SkippedSkill(NamedTuple):
    """A skill, or a source, that is left out."""

    path: Path
    reason: str


class _Version(NamedTuple):
    """When these are the same, the file is."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, facts: os.stat_result) -> _Version:
        return cls(facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


@dataclass(slots=True)
class _Known:
    version: _Version | None
    """None if the file has to be read again."""
    digest: bytes
    """SHA-256 of the file."""
    found: Skill | SkippedSkill


class SkillScanner:
    """Reads the skills of one source; not safe from several threads."""

    def __init__(self, source: SkillSource) -> None:
        self._source = source
        self._known: dict[str, _Known] = {}

    def scan(self) -> list[Skill | SkippedSkill]:
        """Return what is there now, by path: skills, and why others are left out."""
        known, self._known = self._known, {}
        try:
            root = self._source.path.resolve(strict=True)
        except FileNotFoundError:
            return []
        except (OSError, RuntimeError, ValueError) as error:
            return [SkippedSkill(self._source.path, why_unreadable(error))]
        found: list[Skill | SkippedSkill] = []
        for candidate in self._candidates(str(root)):
            if isinstance(candidate, SkippedSkill):
                found.append(candidate)
            else:
                entry = self._read(candidate, root, known.get(candidate))
                if entry is not None:
                    self._known[candidate] = entry
                    found.append(entry.found)
        return found

    def _candidates(self, root: str) -> list[str | SkippedSkill]:
        """Return folders that have a `SKILL.md`, by path; a skill's own folders are not searched.

        Level by level, so that a large folder does not take the share of the others.
        """
        if _has_skill(root):
            return [root]
        found: list[str | SkippedSkill] = []
        searched = {root}
        waiting = deque([root])
        left = MAX_FOLDERS
        while waiting:
            for folder in self._folders(waiting.popleft(), root):
                if isinstance(folder, SkippedSkill) or _has_skill(folder):
                    found.append(folder)
                else:
                    place = os.path.realpath(folder) if os.path.islink(folder) else folder
                    if place not in searched:  # a link may lead back
                        searched.add(place)
                        waiting.append(folder)
                left -= 1
                if left <= 0:
                    text = f"only {MAX_FOLDERS} of its folders were searched"
                    found.append(SkippedSkill(Path(root), text))
                    return sorted(found, key=_parts)
        if len(searched) > 1 and not found:
            text = f"no folder in it has a {SKILL_FILE}; hidden folders are not searched"
            return [SkippedSkill(Path(root), text)]
        return sorted(found, key=_parts)

    def _folders(self, path: str, root: str) -> Iterator[str | SkippedSkill]:
        """Yield the folders in a folder, by name; links that leave the source as skipped."""
        try:
            with os.scandir(path) as entries:
                found = sorted(
                    (entry.path, entry.is_symlink()) for entry in entries if _is_searched(entry)
                )
        except FileNotFoundError:
            return
        except OSError as error:
            yield SkippedSkill(Path(path), why_unreadable(error))
            return
        for folder, is_link in found:
            try:
                if not is_link or inside(Path(folder), Path(root)).is_dir():
                    yield folder
            except UnreadableFile as error:
                yield SkippedSkill(Path(folder), str(error))

    def _read(self, folder: str, root: Path, known: _Known | None) -> _Known | None:
        """Return what a folder has now; None if it has vanished."""
        path = os.path.join(folder, SKILL_FILE)
        try:
            facts = os.lstat(path)
        except OSError:
            return None
        if known is not None and known.version == _Version.of(facts):
            return known
        base_dir = Path(folder)
        try:
            base_dir = inside(base_dir, root)
            file = base_dir / SKILL_FILE
            if stat.S_ISLNK(facts.st_mode):
                file = inside(file, root)
            content, read = read_bytes(file, MAX_SKILL_BYTES)
        except UnreadableFile as error:
            if not os.path.lexists(path):
                return None
            reason = f"{SKILL_FILE} {error}"
            return _Known(None, b"", SkippedSkill(Path(path), reason))
        version = None
        is_settled = time.time_ns() - max(read.st_mtime_ns, read.st_ctime_ns) > _SETTLED_NS
        if is_settled and not stat.S_ISLNK(facts.st_mode):
            version = _Version.of(read)
        digest = hashlib.sha256(content).digest()
        if known is not None and known.digest == digest:
            return _Known(version, digest, known.found)
        found: Skill | SkippedSkill
        try:
            found = parse_skill(content, base_dir, self._source)
        except SkillRefused as error:
            found = SkippedSkill(base_dir / SKILL_FILE, str(error))
        return _Known(version, digest, found)


def _parts(candidate: str | SkippedSkill) -> tuple[str, ...]:
    return (Path(candidate) if isinstance(candidate, str) else candidate.path).parts


def _has_skill(folder: str) -> bool:
    return os.path.lexists(os.path.join(folder, SKILL_FILE))


def _is_searched(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith("."):
        return False
    try:
        return entry.is_symlink() or entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
