"""Reads files of skills: regular, bounded, UTF-8, and never outside of a folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath

from toolbus import ToolFailed

__all__ = ["UnreadableFile", "file_parts", "inside", "read_bytes", "text_of", "why_unreadable"]

# A FIFO does not block, and the last part of a path is not a link.
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


class UnreadableFile(Exception):
    """A file is not read; the text says why, without its path."""


def file_parts(skill: str, file: str) -> tuple[str, ...]:
    """Return the parts of the name of a file of a skill.

    Raises `ToolFailed` for a name that leaves the folder of the skill, or is hidden.
    """
    parts = PurePosixPath(file).parts
    is_outside = file.startswith("/") or set(file) & {"\\", "\0", ":"}
    if is_outside or not parts or any(part.startswith(".") for part in parts):
        raise ToolFailed(
            f"{file[:200]!r} is not a file of the skill {skill}: name it relative to the skill,"
            " without .. and hidden names"
        )
    return parts


def inside(path: Path, folder: Path) -> Path:
    """Return the real path of a file or folder.

    Args:
        path: May have links.
        folder: A real path, in which it must be.

    Raises `UnreadableFile` if it is elsewhere, or does not exist.
    """
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a NUL
        raise UnreadableFile(why_unreadable(error)) from None
    if not real.is_relative_to(folder):
        raise UnreadableFile("is a link that leaves its folder")
    return real


def read_bytes(path: Path, max_bytes: int) -> tuple[bytes, os.stat_result]:
    """Return at most `max_bytes` + 1 bytes of a regular file that is not a link, and its facts."""
    try:
        descriptor = os.open(path, _FLAGS)
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode):
                raise UnreadableFile("is not a regular file")
            content = b""
            while part := os.read(descriptor, max_bytes + 1 - len(content)):
                content += part
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        raise UnreadableFile(why_unreadable(error)) from None
    return content, facts


def text_of(content: bytes, *, cut: bool = False) -> str:
    """Return bytes as text. Raises `UnreadableFile` for anything but UTF-8 text.

    Args:
        content: The bytes.
        cut: Whether the last character may be incomplete.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        if not cut or error.start < len(content) - 3:
            raise UnreadableFile("is not UTF-8 text") from None
        text = content[: error.start].decode("utf-8")
    if "\0" in text:
        raise UnreadableFile("is a binary file")
    return text


def why_unreadable(error: Exception) -> str:
    """Return why a file or folder is not read, to follow its path."""
    return f"cannot be read: {getattr(error, 'strerror', None) or type(error).__name__}"
