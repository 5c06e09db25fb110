"""Writes files of others: their names are no paths, and nothing is replaced."""

from __future__ import annotations

import os
import unicodedata
from contextlib import suppress
from pathlib import Path

from toolbus.chunks.chunk_types import FileChunk
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.untrusted_text import one_line, visible

__all__ = ["checked_folder", "safe_name", "save_bytes", "save_file"]

_MAX_NAME_BYTES = 120
"""Of a name: below the 255 of file systems, with space for a number."""
_SAFE_MARKS = frozenset(" ._-+=@(),")
_RESERVED = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}
)
"""Names that Windows takes for devices, with any suffix."""


def safe_name(name: str) -> str:
    """Return a name for a new file that is one name, visible, and no option or hidden file.

    Letters of all scripts, digits and a few marks stay; everything else is `_`.
    """
    last = unicodedata.normalize("NFC", name[:4_096]).replace("\\", "/").rstrip("/")
    characters = (_safe_character(character) for character in last.rpartition("/")[2])
    stem, suffix = os.path.splitext("".join(characters).lstrip(" .-").rstrip(" ."))
    if len(suffix.encode()) > 16:  # none of a file
        stem += suffix
        suffix = ""
    stem = stem.encode()[: _MAX_NAME_BYTES - len(suffix.encode())].decode(errors="ignore")
    stem = stem.rstrip(" ")
    if not stem.strip("_ "):
        stem = "file"
    elif stem.partition(".")[0].strip().lower() in _RESERVED:
        stem = f"file{stem}"
    return stem + suffix


def _safe_character(character: str) -> str:
    is_letter = unicodedata.category(character)[0] in "LMN" and visible(character) == character
    return character if is_letter or character in _SAFE_MARKS else "_"


def checked_folder(path: Path) -> Path:
    """Make a folder if there is none. Raises UsageError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


async def save_file(file: FileChunk, folder: Path) -> Path:
    """Write a file of others into a folder, under a name of its own; return its path.

    Raises:
        UsageError: It cannot be written.
        RoomException: The rest of the file does not arrive; what came of it is removed.
    """
    number, path = _create(folder, safe_name(file.name))
    failure: OSError | None = None
    try:
        async for piece in file.pieces():
            # A file that is not read to its end would end the call that it belongs to.
            if failure is None:
                try:
                    _write(number, piece)
                except OSError as error:
                    failure = error
        if failure is not None:
            raise _unwritable(path, failure) from failure
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(number)
    return path


def save_bytes(data: bytes, path: Path, name: str) -> Path:
    """Write data to a path of the user's own: a folder, or a file that does not exist.

    The name is that in a folder; it may be from others.

    Raises:
        UsageError: It exists, or cannot be written.
    """
    try:
        if path.is_dir():
            number, path = _create(path, safe_name(name))
        else:
            number = _open(path)
        try:
            _write(number, data)
        finally:
            os.close(number)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error
    return path


def _create(folder: Path, name: str) -> tuple[int, Path]:
    stem, suffix = os.path.splitext(name)
    for number in range(1, 1_000):
        path = folder / (name if number == 1 else f"{stem}-{number}{suffix}")
        with suppress(FileExistsError):
            try:
                return _open(path), path
            except FileExistsError:
                raise
            except OSError as error:
                raise _unwritable(path, error) from error
    raise UsageError(f"{folder} has too many files named {one_line(name)}")


def _open(path: Path) -> int:
    # O_EXCL follows no symbolic link at the end of the path, and replaces nothing.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return os.open(path, flags, 0o666)


def _write(number: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(number, left) :]


def _unwritable(path: Path, error: Exception) -> UsageError:
    reason = error.strerror if isinstance(error, OSError) else error
    return UsageError(f"cannot write {one_line(str(path))}: {reason}")
