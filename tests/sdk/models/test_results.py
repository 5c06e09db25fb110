"""Results and files as the API of a model gets them."""

from __future__ import annotations

import re

import pytest

from toolbus import Chunk, FileChunk, JsonChunk, TextChunk, ToolFailed, ToolResult, ToolUse
from toolbus.models.results import (
    MAX_RESULT_CHARS,
    MAX_RESULT_FILES,
    data_url,
    media_type,
    paired,
    result_parts,
    user_parts,
)

PNG = FileChunk(b"\x89PNG\r\n\x1a\n1", "a.png", "image/png")
LABEL = "[file 'a.png', image/png, 9 bytes]"


def _is_picture(file: FileChunk) -> bool:
    return media_type(file).startswith("image/")


@pytest.mark.parametrize(
    ("chunks", "text", "files"),
    [
        ((), "(no output)", 0),
        ((PNG,), LABEL, 1),
        ((TextChunk("see"), PNG, TextChunk("end")), f"see\n{LABEL}\nend", 1),
        ((FileChunk(b"a"), FileChunk(b"b"), PNG, FileChunk(b"c")), f"ab\n{LABEL}\nc", 1),
        ((FileChunk(b"junk", "a.png", "image/png"), JsonChunk(1)), "junk\n1", 0),
        ((FileChunk.from_path("absent", None, "image/png"),), "not in memory", 0),
        ((PNG,) * 30, LABEL, MAX_RESULT_FILES),
        ((FileChunk(PNG.data.ljust(2**24), "a.png", "image/png"),), "16777216 bytes]", 0),
        ((TextChunk("\ud800"),), "\ufffd", 0),
    ],
)
def test_a_result_is_a_text_and_the_files_that_are_taken(
    chunks: tuple[Chunk, ...], text: str, files: int
) -> None:
    parts = result_parts(ToolResult("1", "kit.tool", "ok", chunks), _is_picture)
    assert text in parts.text
    assert len(parts.files) == files


def test_a_long_text_is_cut_in_its_middle_and_its_error_stays() -> None:
    error = ToolFailed("the disk is full")
    text = "a" * 10 * 2**20
    result = ToolResult("1", "kit.tool", "failed", (TextChunk(text),), error)
    cut = result_parts(result, _is_picture).text
    assert MAX_RESULT_CHARS - 100 < len(cut) <= MAX_RESULT_CHARS
    note = re.search(r"\n\[(\d+) characters are left out here\]\n", cut)
    assert note
    assert len(cut) - len(note[0]) + int(note[1]) == len(result.for_model())
    assert "the disk is full. The tool ran." in cut


def test_each_use_has_its_result_also_where_ids_repeat_and_results_are_missing() -> None:
    uses = [ToolUse(each, "kit__tool") for each in ("a", "b", "a", "c")]
    results = [ToolResult(each, f"{number}", "ok") for number, each in enumerate("caa")]
    pairs = paired(uses, results)
    assert [(each.id, each.tool) for each in pairs] == [
        *[("a", "1"), ("b", "kit__tool"), ("a", "2"), ("c", "0")]
    ]
    assert pairs[1].state == "interrupted"
    assert "It is not known whether the tool ran." in pairs[1].for_model()
    with pytest.raises(ValueError, match="no use for the result 'x'"):
        paired(uses, [ToolResult("x", "kit.tool", "ok")])


@pytest.mark.parametrize(
    ("data", "declared", "found"),
    [
        (PNG.data, "image/png", "image/png"),
        (PNG.data, "", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/png; q=1", "image/jpeg"),
        (b"\xff\xd8\xff\xe0", "image/jpg", "image/jpeg"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "application/octet-stream", "image/webp"),
        (b"%PDF-1.7", "application/x-pdf", "application/pdf"),
        (b"GIF89a", "Text/Plain", "text/plain"),
        (b"<html>", "image/gif", ""),
        (b"", "image/png", ""),
        (b"\0", "application/octet-stream", "application/octet-stream"),
    ],
)
def test_the_type_of_a_file_is_what_its_bytes_are(data: bytes, declared: str, found: str) -> None:
    assert media_type(FileChunk(data, "a", declared)) == found


def test_a_message_of_the_user_has_texts_and_files_that_are_taken() -> None:
    notes = FileChunk("ä".encode(), "n.md", "text/markdown")
    label = "[file 'n.md', text/markdown, 2 bytes]"
    assert user_parts("look", [PNG, notes], _is_picture) == ["look", PNG, f"{label}\nä"]
    assert user_parts("\ud800", [], _is_picture) == ["\ufffd"]
    assert data_url(PNG) == "data:image/png;base64,iVBORw0KGgox"


@pytest.mark.parametrize(
    ("text", "files", "words"),
    [
        (" ", [], "needs a text or a file"),
        ("", [FileChunk.from_path("absent")], "read it first"),
        ("", [b"bytes"], "FileChunks"),
        ("", [FileChunk(b"", "e.txt", "text/plain")], "does not take"),
        ("", [FileChunk(b"\xff", "v.txt", "text/plain")], "does not take"),
        ("", [FileChunk(b"junk", "a.png", "image/png")], "'a.png', image/png, 4 bytes"),
    ],
)
def test_what_a_provider_does_not_take_of_a_user_is_refused(
    text: str, files: list[FileChunk], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        user_parts(text, files, _is_picture)
