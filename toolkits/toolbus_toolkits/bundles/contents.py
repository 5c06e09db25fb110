"""Reads all files of a bundle, from a folder or a zip, into memory.

Nothing is unpacked on the disk, so what is shown, checked and installed are the same bytes. Sizes
and numbers are bounded before anything is unpacked; links, special files and paths that could leave
a folder are refused. Hidden files and folders are left out.
"""

from __future__ import annotations

import os
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from toolbus.untrusted_text import one_line
from toolbus_toolkits.skills.files import UnreadableFile, read_bytes

__all__ = [
    "MAX_BYTES",
    "MAX_FILES",
    "MAX_FILE_BYTES",
    "BundleRefused",
    "checked_path",
    "is_hidden",
    "is_plain",
    "read_contents",
]

MAX_FILES = 1_000
"""Files of one bundle; hidden ones count in a zip."""
MAX_FILE_BYTES = 8 * 1024 * 1024
"""Of one file: a few bytes of a zip unpack to any number."""
MAX_BYTES = 64 * 1024 * 1024
"""Of all files, and of a zip itself."""
# Others write the paths: with longer and deeper ones a file system, or another program, fails
# halfway through.
_MAX_PATH_BYTES = 240
_MAX_DEPTH = 16
_MAX_DIRECTORY_BYTES = 1024 * 1024
"""Of a zip's central directory, which `zipfile` reads whole."""
_LEFT_OUT = "__MACOSX"
_ENCRYPTED = 0x1
_END = struct.Struct("<4s4H2LH")
"""The end record of a zip: APPNOTE.TXT, 4.3.16."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Of the other methods `zipfile` unpacks a whole file at once, however few bytes are read of it."""
_LOCATOR_BYTES = 20
"""Of the locator of a Zip64 end record, just before the end record: APPNOTE.TXT, 4.3.15."""


class BundleRefused(ValueError):
    """A bundle is not installed, or not removed; the text says why. Nothing was changed."""


def read_contents(path: Path) -> dict[str, bytes]:
    """Return the files of a bundle by their paths in it, which have `/`.

    It is a folder or a zip. A zip whose files are all in one folder is read as that folder.

    Raises `BundleRefused` for what is neither, is too large, or is unsafe.
    """
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)
        read = list(_of_folder(path) if is_folder else _of_zip(path))
    except (OSError, ValueError) as error:
        if isinstance(error, BundleRefused):
            raise
        why = getattr(error, "strerror", None) or str(error)
        raise BundleRefused(f"{path}: cannot be read: {one_line(why, 200)}") from None
    _check_names(name for name, _ in read)
    tops = {name.partition("/")[0] for name, _ in read}
    if is_folder or len(tops) != 1 or any("/" not in name for name, _ in read):
        return dict(read)
    return {name.partition("/")[2]: content for name, content in read}


def checked_path(text: str) -> PurePosixPath:
    """Return a path within a bundle.

    Raises `BundleRefused` for one that is absolute, has `..`, or parts that a file system may take
    for something else.
    """
    shown = one_line(text, 120)
    if not text or len(text.encode("utf-8", "surrogatepass")) > _MAX_PATH_BYTES:
        raise BundleRefused(f"the path {shown!r} must have 1 to {_MAX_PATH_BYTES} bytes")
    parts = text.split("/")
    if len(parts) > _MAX_DEPTH:
        raise BundleRefused(f"the path {shown!r} has more than {_MAX_DEPTH} parts")
    if not is_plain(text):
        raise BundleRefused(f"the path {shown!r} is not a plain path inside the bundle")
    return PurePosixPath(text)


def is_plain(path: str) -> bool:
    """Whether a path is relative, without `..`, and each part is the same on every file system."""
    return all(
        part.isprintable()
        and not set(part) & set('\\:*?"<>|')
        and bool(part.strip(". "))
        and part == part.strip()
        and not part.endswith(".")
        for part in path.split("/")
    )


def is_hidden(part: str) -> bool:
    """Whether a file or folder of this name is left out."""
    return part.startswith(".") or part == _LEFT_OUT


def _of_folder(folder: Path) -> Iterator[tuple[str, bytes]]:
    left = MAX_BYTES
    for number, (path, name) in enumerate(_files_of(folder), 1):
        relative = str(checked_path(path.relative_to(folder).as_posix()))
        if number > MAX_FILES:
            raise BundleRefused(f"{folder}: has more than {MAX_FILES} files")
        try:
            content, _ = read_bytes(path, MAX_FILE_BYTES)
        except UnreadableFile as error:
            raise BundleRefused(f"{one_line(name, 120)} {error}") from None
        left -= _checked_size(relative, len(content), left)
        yield relative, content


def _files_of(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files below a folder, in the order of their names; links are refused."""
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if is_hidden(entry.name):
            continue
        if entry.is_symlink():
            raise BundleRefused(f"{one_line(entry.path, 200)} is a link: a bundle has files alone")
        if entry.is_dir(follow_symlinks=False):
            checked_path(Path(entry.path).relative_to(folder).as_posix())
            yield from _files_of(Path(entry.path))
        else:
            yield Path(entry.path), entry.name


def _of_zip(path: Path) -> Iterator[tuple[str, bytes]]:
    with path.open("rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise BundleRefused(f"{path}: is neither a folder nor a zip")
        _check_directory(file.read(MAX_BYTES + 1), path)
        file.seek(0)
        left = MAX_BYTES
        try:
            with zipfile.ZipFile(file) as archive:
                for info in _entries(archive, path):
                    with archive.open(info) as member:  # its header may give another size
                        content = member.read(MAX_FILE_BYTES + 1)
                    left -= _checked_size(info.filename, len(content), left)
                    yield info.filename, content
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError) as error:
            raise BundleRefused(
                f"{path}: the zip is damaged: {one_line(str(error), 120)}"
            ) from None


def _check_directory(data: bytes, path: Path) -> None:
    """Refuse a zip whose table of files is large, before it is read."""
    if len(data) > MAX_BYTES:
        raise BundleRefused(f"{path}: is larger than {MAX_BYTES} bytes")
    at = data.rfind(b"PK\x05\x06", -(_END.size + 0xFFFF))
    if at < 0 or at + _END.size > len(data):
        raise BundleRefused(f"{path}: is neither a folder nor a zip")
    *_, entries, directory_bytes, _, _ = _END.unpack_from(data, at)
    is_zip64 = data[max(0, at - _LOCATOR_BYTES) :].startswith(b"PK\x06\x07")
    if entries > MAX_FILES or directory_bytes > _MAX_DIRECTORY_BYTES or is_zip64:
        raise BundleRefused(f"{path}: the zip may have {MAX_FILES} files")


def _entries(archive: zipfile.ZipFile, path: Path) -> Iterator[zipfile.ZipInfo]:
    infos = archive.infolist()
    if len(infos) > MAX_FILES:
        raise BundleRefused(f"{path}: the zip may have {MAX_FILES} files")
    for info in infos:
        name = checked_path(info.filename.removesuffix("/"))
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise BundleRefused(f"{name} is a link or a special file: a bundle has files alone")
        if info.flag_bits & _ENCRYPTED:
            raise BundleRefused(f"{path}: {name} is encrypted")
        if info.compress_type not in _METHODS:
            raise BundleRefused(f"{path}: {name} is not compressed by deflate: make the zip anew")
        if not any(map(is_hidden, name.parts)) and not info.is_dir():
            yield info


def _checked_size(name: str, size: int, left: int) -> int:
    if size > MAX_FILE_BYTES:
        raise BundleRefused(f"{one_line(name, 120)} has more than {MAX_FILE_BYTES} bytes")
    if size > left:
        raise BundleRefused(f"the bundle has more than {MAX_BYTES} bytes")
    return size


def _check_names(names: Iterable[str]) -> None:
    """Refuse names that one file system would take for the same file."""
    seen: dict[str, str] = {}
    folders: set[str] = set()
    for name in names:
        key = unicodedata.normalize("NFC", name).casefold()
        if key in seen:
            raise BundleRefused(f"{seen[key]!r} and {name!r} are one file on some systems")
        seen[key] = name
        folders.update(map(str, PurePosixPath(key).parents))
    for key in folders & seen.keys():
        raise BundleRefused(f"{seen[key]!r} is a file and a folder")
