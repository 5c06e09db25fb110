"""What can be viewed of a skill: its text, and other text files of its folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from toolbus import SkillText, ToolFailed
from toolbus_toolkits.skills.files import UnreadableFile, inside, read_bytes, text_of
from toolbus_toolkits.skills.skill import SKILL_FILE, Skill

__all__ = ["MAX_FILES", "MAX_VIEW_BYTES", "skill_text"]

MAX_VIEW_BYTES = 256 * 1024
"""Longer files are cut."""
MAX_FILES = 200
"""Longer lists of files are cut."""
_MAX_DEPTH = 6


def skill_text(skill: Skill, file: str | None) -> SkillText:
    """Return the body of a skill with the list of its files, or one of these files.

    Raises `ToolFailed` for a file that is not a text file of its folder.
    """
    if file is not None:
        text, is_cut = _file_text(skill, file)
        source = skill.source
        return SkillText(skill.name, text, source.name, source.operator, file, (), is_cut)
    files: list[str] = []
    for name in _files(skill.base_dir, ""):
        if len(files) == MAX_FILES:
            return _body(skill, files, is_cut=True)
        files.append(name)
    return _body(skill, files)


def _body(skill: Skill, files: list[str], *, is_cut: bool = False) -> SkillText:
    return SkillText(
        skill.name,
        skill.body,
        skill.source.name,
        skill.source.operator,
        files=tuple(files),
        truncated=is_cut,
    )


def _file_text(skill: Skill, file: str) -> tuple[str, bool]:
    """Return the text of a file, and whether it was cut."""
    parts = PurePosixPath(file).parts
    is_outside = file.startswith("/") or "\\" in file or "\0" in file or ":" in file
    if is_outside or not parts or any(part.startswith(".") for part in parts):
        raise ToolFailed(
            f"{file[:200]!r} is not a file of the skill {skill.name}: name it relative to the"
            " skill, without .. and hidden names"
        )
    try:
        path = inside(skill.base_dir.joinpath(*parts), skill.base_dir)
        if any(part.startswith(".") for part in path.relative_to(skill.base_dir).parts):
            raise UnreadableFile("is a link to a hidden file")
        content, _ = read_bytes(path, MAX_VIEW_BYTES)
        is_cut = len(content) > MAX_VIEW_BYTES
        return text_of(content[:MAX_VIEW_BYTES], cut=is_cut), is_cut
    except UnreadableFile as error:
        raise ToolFailed(f"{file[:200]!r} of the skill {skill.name} {error}") from None


def _files(folder: Path, prefix: str, depth: int = 1) -> Iterator[str]:
    """Yield the files below a folder by name, without hidden ones and links."""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.is_symlink() or not _can_be_named(entry.name):
            continue
        name = f"{prefix}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            if depth < _MAX_DEPTH:
                yield from _files(Path(entry.path), f"{name}/", depth + 1)
        elif name != SKILL_FILE and entry.is_file(follow_symlinks=False):
            yield name


def _can_be_named(name: str) -> bool:
    """Return whether a caller can write a name: it is text, and not a path of another system."""
    return name.isprintable() and not set(name) & {"\\", ":"}
