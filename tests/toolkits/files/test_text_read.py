"""What `read` shows of a file."""

from __future__ import annotations

import hashlib
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from toolbus import FileChunk, ToolContext, ToolFailed
from toolbus.tools.context import run_of
from toolbus.tools.tool_run import LocalRun
from toolbus_toolkits.files import Files, reading
from toolbus_toolkits.files.text import TextScan, read_text


class Reader:
    """Reads one file."""

    def __init__(self, root: Path) -> None:
        self._files = Files(root)
        self.path = root / "a.txt"

    async def __call__(self, data: bytes | None = None, **arguments: Any) -> Any:
        if data is not None:
            self.path.write_bytes(data)
        given = {"path": "a.txt", **arguments}
        return (await self._files.execute(ToolContext(), "read", given)).value


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"", "[the file is empty]"),
        (b"\xef\xbb\xbf", "[the file is empty]"),
        (b"\n", "     1\t"),
        (b"a\r\n\tb\rc\r\n", "     1\ta\n     2\t\tb\rc"),
        (b"a\nb", "     1\ta\n     2\tb\n[the last line has no line end]"),
        (b"a\r", "     1\ta\r\n[the last line has no line end]"),
        ("\ufeffä\n".encode(), "     1\tä"),
        ("\ufeffa\n€\n".encode("utf-16-le"), "     1\ta\n     2\t€\n[the encoding is UTF-16]"),
        ("\ufeffa\n😀\n".encode("utf-32-be"), "     1\ta\n     2\t😀\n[the encoding is UTF-32]"),
        (b"\xe4\x80\n", "     1\tä€\n[the encoding is Windows-1252]"),
        (b"\xe4\x81\n", "     1\tä\x81\n[the encoding is Latin-1]"),
        (b"\xef\xbb\xbf\xe4\n", "     1\tï»¿ä\n[the encoding is Windows-1252]"),
    ],
)
async def test_text_of_each_encoding_is_shown_by_lines(
    read: Reader, data: bytes, shown: str
) -> None:
    result = await read(data)
    token = hashlib.blake2b(data, digest_size=12).hexdigest()
    assert result == {"text": shown, "token": token, "truncated": False}


@pytest.mark.parametrize(
    ("arguments", "shown", "truncated"),
    [
        ({"limit": 2}, "     1\ta\n     2\tb\n[lines 1 to 2 of 4: read on with offset=3]", True),
        ({"offset": 3}, "     3\tc\n     4\td", False),
        ({"offset": 5}, "[the file has 4 lines: there is no line 5]", False),
        ({"offset": 2, "limit": 1}, "     2\tb\n[lines 2 to 2 of 4: read on with offset=3]", True),
    ],
)
async def test_a_word_says_what_is_not_shown(
    read: Reader, arguments: Any, shown: str, truncated: bool
) -> None:
    result = await read(b"a\nb\nc\nd\n", **arguments)
    assert (result["text"], result["truncated"]) == (shown, truncated)


async def test_long_lines_and_long_results_are_cut(read: Reader) -> None:
    long = "ä" * 5_000
    result = await read(f"a\n{long}\nb\n".encode())
    first, second, third, note = result["text"].split("\n")
    assert second == f"     2\t{'ä' * 2_000}[cut: 3,000 more characters]"
    assert note == "[cut: line 2; read one as a whole by its offset, limit=1]"
    assert (first, third, result["truncated"]) == ("     1\ta", "     3\tb", True)
    alone = await read(offset=2, limit=1)
    assert alone["text"].startswith(f"     2\t{long}\n[lines 2 to 2")
    endless = await read(b"x" * 3_000_000, limit=1)
    assert len(endless["text"]) < 100_000
    assert "more of this line can be shown; `get`" in endless["text"]
    many = await read(b"x" * 1_000 + b"\n" + (b"y" * 999 + b"\n") * 500)
    assert len(many["text"]) < 100_000
    assert many["text"].endswith("[lines 1 to 98 of 501: read on with offset=99]")


async def test_a_line_that_was_cut_was_not_seen(tmp_path: Path) -> None:
    toolkit = Files(tmp_path)
    context = ToolContext()
    (tmp_path / "a.txt").write_text("x" * 3_000)

    async def call(tool: str, **arguments: Any) -> Any:
        return await toolkit.execute(context, tool, {"path": "a.txt", **arguments})

    await call("read")
    with pytest.raises(ToolFailed, match="line 1; read them first"):
        await call("edit", old_text="x" * 3_000, new_text="y")
    await call("read", limit=1)
    await call("edit", old_text="x" * 3_000, new_text="y")


@given(
    pieces=st.lists(
        st.sampled_from([b"a", b"\n", b"\r\n", b"\xc3\xa4", b"\xe4", b"bcd"]), max_size=30
    ),
    wide=st.sampled_from(["", "utf-16-le", "utf-32-be"]),
    offset=st.integers(1, 8),
    limit=st.integers(1, 8),
    size=st.integers(4, 9),
)
@example([b"abc\r", b"\nd"], "", 1, 5, 4)
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
async def test_a_file_is_read_in_blocks_as_if_it_were_one(
    read: Reader,
    pieces: list[bytes],
    wide: str,
    offset: int,
    limit: int,
    size: int,
) -> None:
    data = b"".join(pieces)
    if wide:
        data = ("\ufeff" + data.decode("latin-1")).encode(wide)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reading, "_BLOCK_BYTES", size)
        result = await read(data, offset=offset, limit=limit)
    lines = read_text(data)[1].shown.split("\n")
    if not lines[-1]:
        lines.pop()
    shown = result["text"].split("\n")
    if shown[-1].startswith("["):
        shown.pop()
    wanted = lines[offset - 1 : offset - 1 + limit]
    assert shown == [f"{number:6}\t{line}" for number, line in enumerate(wanted, offset)]
    assert result["token"] == read_text(data)[0]


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (b"\x89PNG\r\n\x1a\n\0", "image/png"),
        (b"\xff\xd8\xff\0", "image/jpeg"),
        (b"GIF89a\0", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"%PDF-1.7\n", "application/pdf"),
    ],
)
async def test_images_come_as_files(read: Reader, data: bytes, media_type: str) -> None:
    file = await read(data)
    assert isinstance(file, FileChunk)
    assert (file.data, file.name, file.mime_type) == (data, "a.txt", media_type)


async def test_a_text_that_begins_like_an_image_is_text(read: Reader) -> None:
    assert (await read(b"GIF89a is a format\n"))["text"] == "     1\tGIF89a is a format"


@pytest.mark.parametrize(
    ("data", "reason", "words"),
    [
        (b"a\0b", "binary", r"a.txt is no text \(3 bytes\): it has NUL; `get`"),
        (b"x" * 2_000_000 + b"\0", "binary", "it has NUL"),
        (b"\xff\xfea", "binary", "it is no UTF-16"),
        (b"\xff\xd8\xff" + bytes(15 * 2**20), "too_large", "15,728,643 bytes.*`get`"),
    ],
)
async def test_what_is_no_text_is_refused_with_a_hint(
    read: Reader, data: bytes, reason: str, words: str
) -> None:
    with pytest.raises(ToolFailed, match=words) as raised:
        await read(data)
    assert raised.value.details == {"reason": reason}


async def test_a_file_that_grows_while_it_is_read_ends_where_it_ended(
    read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Growing(TextScan):
        def feed(self, block: bytes) -> bytes:
            with read.path.open("ab") as file:
                file.write(block * 2)
            return super().feed(block)

    class Shrinking(TextScan):
        def feed(self, block: bytes) -> bytes:
            os.truncate(read.path, 10_001)
            return super().feed(block)

    monkeypatch.setattr(reading, "_BLOCK_BYTES", 4)
    monkeypatch.setattr(reading, "TextScan", Growing)
    result = await read(b"one\ntwo\n")
    assert result["text"] == "     1\tone\n     2\ttwo"
    assert result["token"] == hashlib.blake2b(b"one\ntwo\n", digest_size=12).hexdigest()
    monkeypatch.setattr(reading, "TextScan", Shrinking)
    result = await read(b"one\n" * 5_000)  # more than is read ahead
    data = read.path.read_bytes()
    assert len(data) == 10_001
    assert result["token"] == hashlib.blake2b(data, digest_size=12).hexdigest()


async def test_a_part_of_a_large_file_is_read_in_bounded_memory(read: Reader) -> None:
    read.path.write_bytes((b"x" * 99 + b"\n") * 300_000)
    tracemalloc.start()
    try:
        result = await read(offset=299_000, limit=2)
        assert tracemalloc.get_traced_memory()[1] < 6 * 2**20
    finally:
        tracemalloc.stop()
    assert result["text"].endswith("[lines 299000 to 299001 of 300000: read on with offset=299002]")


async def test_a_cancelled_read_ends(
    read: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ToolContext(run=LocalRun())

    class Cancelling(TextScan):
        def feed(self, block: bytes) -> bytes:
            assert not context.cancelled
            run_of(context).cancel()
            return super().feed(block)

    monkeypatch.setattr(reading, "TextScan", Cancelling)
    read.path.write_bytes(b"x" * 3 * 2**20)
    with pytest.raises(ToolFailed, match="cancelled"):
        await Files(tmp_path).execute(context, "read", {"path": "a.txt"})
