"""Files of a bundle, from a folder or a zip: what is read, and what is refused."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from toolbus_toolkits.bundles import contents
from toolbus_toolkits.bundles.contents import BundleRefused, checked_path, read_contents


def zipped(path: Path, *files: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(name, content)
    return path


def info(name: str, mode: int) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    made.external_attr = mode << 16
    return made


def test_a_folder_and_its_zip_are_the_same_bundle(tmp_path: Path) -> None:
    files = {"toolbus-bundle.yaml": b"a", "skills/pdf/SKILL.md": b"b"}
    hidden = {".git/config": b"c", "skills/.DS_Store": b"d"}
    for name, content in {**files, **hidden}.items():
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    items = [*files.items(), *hidden.items(), ("__MACOSX/x", b"e"), ("skills/", b"")]
    wrapped = [(f"pdf-1.2/{name}", content) for name, content in items]
    assert read_contents(tmp_path / "folder") == files
    assert read_contents(zipped(tmp_path / "plain.zip", *items)) == files
    assert read_contents(zipped(tmp_path / "wrapped.zip", *wrapped)) == files


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../a", "a/../b", "a//b", "./a", "C:/a", "a\\b", "a\0b", "a\u202eb", " a",
     "a.", "con?", "a/" * 17 + "b", "x" * 241],
)  # fmt: skip
def test_a_path_that_is_not_plain_is_refused(path: str) -> None:
    with pytest.raises(BundleRefused, match="the path"):
        checked_path(path)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([("../../outside", b"")], "not a plain path"),
        ([(info("link", stat.S_IFLNK | 0o777), b"/etc/passwd")], "link or a special file"),
        ([("a", b"1"), ("A", b"2")], "one file on some systems"),
        ([("caf\u00e9", b"1"), ("cafe\u0301", b"2")], "one file on some systems"),
        ([("a", b"1"), ("a/b", b"2")], "a file and a folder"),
        ([("big", bytes(8 * 1024 * 1024 + 1))], "more than 8388608 bytes"),
        ([(f"f{each}", bytes(8 * 1024 * 1024)) for each in range(9)], "more than 67108864 bytes"),
        ([(f"f{each}", b"") for each in range(1_001)], "may have 1000 files"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_an_unsafe_zip_is_refused(
    tmp_path: Path, files: list[tuple[str | zipfile.ZipInfo, bytes]], words: str
) -> None:
    with pytest.raises(BundleRefused, match=words):
        read_contents(zipped(tmp_path / "bundle.zip", *files))


def flipped(data: bytes) -> bytes:
    """Damage the content of the only file."""
    return data[:35] + bytes([data[35] ^ 0xFF]) + data[36:]


def encrypted(data: bytes) -> bytes:
    """Say that the only file is encrypted."""
    at = data.index(b"PK\x01\x02")
    return data[: at + 8] + b"\x01\x00" + data[at + 10 :]


def small_size(data: bytes) -> bytes:
    """Say that the only file has one byte."""
    at = data.index(b"PK\x01\x02")
    return data[: at + 24] + b"\x01\x00\x00\x00" + data[at + 28 :]


def newer(data: bytes) -> bytes:
    """Say that the only file needs version 25.5 of the format."""
    at = data.index(b"PK\x01\x02")
    return data[: at + 6] + b"\xff" + data[at + 7 :]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flipped, "the zip is damaged"),
        (encrypted, "is encrypted"),
        (small_size, "the zip is damaged"),
        (newer, "the zip is damaged: zip file version"),
        (lambda data: data[:-30], "neither a folder nor a zip"),
        (
            lambda data: data.replace(b"PK\x05\x06", b"PK\x06\x07" + bytes(16) + b"PK\x05\x06"),
            "may",
        ),
        (lambda data: b"no zip", "neither a folder nor a zip"),
        (lambda data: b"", "neither a folder nor a zip"),
    ],
    ids=["content", "encrypted", "size", "newer", "cut", "zip64", "text", "empty"],
)
def test_a_damaged_zip_is_refused(
    tmp_path: Path, damage: Callable[[bytes], bytes], words: str
) -> None:
    path = zipped(tmp_path / "bundle.zip", ("SKILL.md", b"text" * 100))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BundleRefused, match=words):
        read_contents(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_with_a_method_that_cannot_be_bounded_is_refused(tmp_path: Path, method: int) -> None:
    path = tmp_path / "bundle.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("SKILL.md", b"text" * 100)
    with pytest.raises(BundleRefused, match="not compressed by deflate"):
        read_contents(path)


def test_a_zip_larger_than_its_limit_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "MAX_BYTES", 100)
    with pytest.raises(BundleRefused, match="larger than 100 bytes"):
        read_contents(zipped(tmp_path / "bundle.zip", ("a", os.urandom(200))))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: (folder / "link").symlink_to("/etc/passwd"), "is a link"),
        (lambda folder: (folder / "linked").symlink_to("/etc"), "is a link"),
        (lambda folder: os.mkfifo(folder / "pipe"), "not a regular file"),
        (lambda folder: (folder / "a\nb").write_text(""), "not a plain path"),
        (lambda folder: (folder / "bad.").mkdir(), "not a plain path"),
    ],
    ids=["link", "linked folder", "pipe", "line end", "folder"],
)
def test_an_unsafe_folder_is_refused(
    tmp_path: Path, make: Callable[[Path], object], words: str
) -> None:
    make(tmp_path)
    with pytest.raises(BundleRefused, match=words):
        read_contents(tmp_path)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleRefused, match="No such file"):
        read_contents(tmp_path / "missing")
