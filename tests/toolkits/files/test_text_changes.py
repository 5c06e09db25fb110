"""What `write`, `edit` and `insert` make of the bytes of a file."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from support.patience import PATIENCE_S
from toolbus import Participant, ToolContext, ToolFailed
from toolbus_toolkits.files import Files, diffs, planning, text_tools
from toolbus_toolkits.files.diffs import Block, lines_of, unified_diff
from toolbus_toolkits.files.seen import Seen, SeenFiles, Span
from toolbus_toolkits.workspace import replaced

ENCODINGS = {
    "utf-8": b"",
    "utf-8-sig": b"\xef\xbb\xbf",
    "utf-16-le": b"\xff\xfe",
    "utf-16-be": b"\xfe\xff",
    "utf-32-le": b"\xff\xfe\0\0",
    "utf-32-be": b"\0\0\xfe\xff",
    "cp1252": b"",
    "latin-1": b"",
}


class Caller:
    """Calls the tools for one caller."""

    def __init__(self, root: Path) -> None:
        self._files = Files(root)
        self._context = ToolContext()
        self.path = root / "a.txt"

    async def __call__(self, tool: str, **arguments: Any) -> Any:
        given = {"path": "a.txt", **arguments}
        return (await self._files.execute(self._context, tool, given)).value

    async def changed(self, data: bytes, tool: str, **arguments: Any) -> bytes:
        """Return what a tool makes of some bytes, which were read before."""
        self.path.write_bytes(data)
        await self("read")
        await self(tool, **arguments)
        return self.path.read_bytes()

    async def preview(self, tool: str, **arguments: Any) -> str:
        """Return what an assessment shows of a call."""
        (found,) = (known for known in self._files.tools if known.name == tool)
        return (await found.assess(self._context, {"path": "a.txt", **arguments})).preview

    async def reason(self, tool: str, **arguments: Any) -> str:
        """Return why a tool fails."""
        before = self.path.read_bytes() if self.path.exists() else None
        with pytest.raises(ToolFailed) as raised:
            await self(tool, **arguments)
        assert (self.path.read_bytes() if self.path.exists() else None) == before
        assert raised.value.executed == "no"
        return f"{raised.value.details['reason']}: {raised.value.message}"


@pytest.fixture
def call(tmp_path: Path) -> Caller:
    return Caller(tmp_path)


units = st.sampled_from(["x", "ä", " ", "\t", "\n", "\r\n", "\n\n", "\rz", "line"])
texts = st.lists(units, max_size=12).map("".join)


@given(before=texts, old=texts, new=texts, after=texts, encoding=st.sampled_from([*ENCODINGS]))
@example("\r\n\n", "\n", "", "\r\n", "utf-16-le")
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
async def test_all_that_is_not_replaced_keeps_its_bytes(
    call: Caller, before: str, old: str, new: str, after: str, encoding: str
) -> None:
    # The first bytes are no UTF-8, and the last ones of Latin-1 no Windows-1252.
    begin = "ÿ\n" + ("\x81" if encoding == "latin-1" else "")
    codec = encoding.removesuffix("-sig")
    bom = ENCODINGS[encoding]
    old = f"<{old}>"
    new = f"<{new}>"
    assume(old.replace("\r\n", "\n") != new.replace("\r\n", "\n"))
    parts = [part.encode(codec) for part in (begin + before, old, after)]
    plain = old.replace("\r\n", "\n")
    data = await call.changed(bom + b"".join(parts), "edit", old_text=plain, new_text=new)
    assert data.startswith(bom + parts[0])
    assert data.endswith(parts[2])
    middle = data[len(bom + parts[0]) : len(data) - len(parts[2])].decode(codec)
    assert middle.replace("\r\n", "\n") == new.replace("\r\n", "\n")
    # And what was written is seen: the next change needs no other read.
    await call("edit", old_text=new, new_text=old)
    assert call.path.read_bytes().startswith(bom + parts[0] + "<".encode(codec))


@pytest.mark.parametrize(
    ("data", "old", "new", "becomes"),
    [
        (b"a\r\nb\r\n", "a\nb", "1\n2\n3", b"1\r\n2\r\n3\r\n"),
        (b"a\nb\r\nc\r\n", "a\n", "1\n2\n", b"1\n2\nb\r\nc\r\n"),  # that of what is replaced
        (b"a\nb\r\nc\r\n", "a", "1\n2", b"1\r\n2\nb\r\nc\r\n"),  # that of most lines
        (b"a\r\nb\nc\n", "a\nb\nc", "a\nB\nc", b"a\r\nB\nc\n"),
        (b"a\nb\n", "a\r\nb", "c\r\nd", b"c\nd\n"),
        (b"a", "a", "b\n", b"b\n"),
        (b"a\rb\n", "\r", "", b"ab\n"),
        (b"a\r\r\nb\n", "a\r\n", "c\r\n", b"c\r\r\nb\n"),  # as `read` shows it
        (b"caf\xe9", "caf", "th\u20ac", b"th\x80\xe9"),
    ],
)
async def test_new_text_gets_the_line_ends_of_the_file(
    call: Caller, data: bytes, old: str, new: str, becomes: bytes
) -> None:
    assert await call.changed(data, "edit", old_text=old, new_text=new) == becomes


@pytest.mark.parametrize(
    ("data", "line", "text", "becomes"),
    [
        (b"a\nb\n", 0, "x", b"x\na\nb\n"),
        (b"a\r\nb\r\n", 1, "x\ny\n", b"a\r\nx\r\ny\r\nb\r\n"),
        (b"a\nb", 2, "x\n", b"a\nb\nx"),
        (b"a\nb\n", 2, "x", b"a\nb\nx\n"),
        (b"", 0, "x", b"x\n"),
        (b"\xff\xfea\0", 1, "b", b"\xff\xfea\0\n\0b\0"),
    ],
)
async def test_lines_are_inserted(
    call: Caller, data: bytes, line: int, text: str, becomes: bytes
) -> None:
    assert await call.changed(data, "insert", line=line, text=text) == becomes


@pytest.mark.parametrize(
    ("data", "text", "becomes"),
    [
        (b"a\r\nb\r\n", "x\ny", b"x\r\ny"),
        (b"\xef\xbb\xbfa\n", "x\r\n", b"\xef\xbb\xbfx\n"),
        (b"\xef\xbb\xbfa\n", "\ufeffx\n", b"\xef\xbb\xbfx\n"),
        (b"\xe9", "\u20ac\n", b"\x80\n"),
        (b"", "x\r\n", b"x\r\n"),
    ],
)
async def test_a_file_that_is_written_keeps_its_encoding_and_line_ends(
    call: Caller, data: bytes, text: str, becomes: bytes
) -> None:
    assert await call.changed(data, "write", text=text) == becomes


BIG = b"x" * (16 * 2**20 + 1)


@pytest.mark.parametrize(
    ("data", "tool", "arguments", "reason"),
    [
        (None, "edit", {"old_text": "a", "new_text": "b"}, "no_such_file: the file does not"),
        (None, "write", {"text": "a\0"}, "encoding: a text with NUL"),
        (b"a\n", "edit", {"old_text": "", "new_text": "b"}, "no_change: old_text is empty"),
        (b"a\n", "edit", {"old_text": "a", "new_text": "a"}, "no_change: .* are the same"),
        (b"a\n", "edit", {"old_text": "b", "new_text": "c"}, "not_found: .*: read the file again"),
        (b"a\n\tb  c\n", "edit", {"old_text": "b c", "new_text": "x"}, "white space .* line 2: "),
        (b"a\nb\n", "edit", {"old_text": "     2\tb", "new_text": "x"}, "not_found: .* numbers"),
        (
            b"a\nba\na\n",
            "edit",
            {"old_text": "a", "new_text": "b"},
            "ambiguous: .* 3 times.*1, 2, 3:",
        ),
        (b"aaa", "edit", {"old_text": "aa", "new_text": "b"}, "ambiguous: .* 2 times"),
        (b"\xe9", "edit", {"old_text": "\xe9", "new_text": "\u2192"}, "encoding: .*1252.*U\\+2192"),
        (b"\xe9\n", "insert", {"line": 0, "text": "\xc3\xa9"}, None),
        (b"\xe9", "edit", {"old_text": "\xe9", "new_text": "\xc3\xa9"}, "encoding: .* another one"),
        (
            b"a\n",
            "insert",
            {"line": 0, "text": "\ufeff"},
            "one: leave out the U.FEFF",
        ),
        (b"a\n", "insert", {"line": 2, "text": "b"}, "no_such_line: the file has 1 lines"),
        (b"a\0b", "write", {"text": "b", "token": "x"}, "binary: a.txt is no text: it has NUL"),
        (b"\xff\xfea", "write", {"text": "b", "token": "x"}, "binary: .* no UTF-16"),
        (BIG, "write", {"text": "b"}, "too_large: a.txt has 16,777,217 bytes"),
        (
            b"x" * 200_000,
            "edit",
            {"old_text": "x", "new_text": "y", "replace_all": True},
            "too_large: .* 200,000 times",
        ),
        (
            b"x" * 1_000,
            "edit",
            {"old_text": "x", "new_text": "y" * 100_000, "replace_all": True},
            "too_large: the file would have 100,000,000 characters",
        ),
    ],
)
async def test_a_change_that_cannot_be_made_says_why_and_writes_nothing(
    call: Caller, data: bytes | None, tool: str, arguments: Any, reason: str | None
) -> None:
    if data is not None:
        call.path.write_bytes(data)
        if len(data) < len(BIG) and b"\0" not in data and data[:1] != b"\xff":
            await call("read")
    if reason is None:
        await call(tool, **arguments)
    else:
        assert re.search(reason, await call.reason(tool, **arguments))


@pytest.mark.parametrize(
    ("text", "old", "words"),
    [
        (
            "say “hi”",
            'say "hi"',
            "the file has (U+201C, U+201D) and characters that old_text has (U+0022)",
        ),
        (
            'say "hi"',
            "say “hi”",
            "the file has (U+0022) and characters that old_text has (U+201C, U+201D)",
        ),
        (
            "it\u2019s “x”",
            "it's",
            "the file has (U+2019) and characters that old_text has (U+0027)",
        ),
        ("ä f\uff08x\uff09", "f(x)", "the file has (U+FF08, U+FF09)"),
        ("a \u2013 b", "a - b", "the file has (U+2013)"),
        (
            "cafe\u0301",
            "caf\u00e9",
            "the file has (U+0065, U+0301) and characters that old_text has (U+00E9)",
        ),
        ("x\u200by", "xy", "the file has (U+200B)"),
        ("x\u00a0 y", "x y", "the file has (U+00A0)"),
        ("x\ty", "x y", "the file has (U+0009)"),
    ],
)
async def test_where_characters_look_alike_the_line_and_they_are_named(
    call: Caller, text: str, old: str, words: str
) -> None:
    call.path.write_text(f"é first\n\n{text}\n")
    await call("read")
    with pytest.raises(ToolFailed) as failed:
        await call("edit", old_text=old, new_text="z")
    assert words in failed.value.message
    assert "line 3: " in failed.value.message


async def test_only_lines_that_were_seen_are_changed(call: Caller) -> None:
    numbers = range(1, 11)
    call.path.write_text("".join(f"line {number}.\n" for number in numbers))
    unread = {"old_text": "line 2.", "new_text": "x"}
    assert (await call.reason("edit", **unread)).startswith("never_read: a.txt exists, and you")
    await call("read", offset=4, limit=3)
    assert (await call.reason("edit", **unread)).startswith("never_read: the file is to be changed")
    everywhere = {"old_text": ".", "new_text": "!", "replace_all": True}
    assert "line 1; read them first" in await call.reason("edit", **everywhere)
    assert "lines 6 to 7;" in await call.reason("edit", old_text="line 6.\nline 7", new_text="x")
    for line in (2, 7, 10):
        assert (await call.reason("insert", line=line, text="x")).startswith("never_read")
    # What was seen moves with the lines before it.
    await call("insert", line=3, text="3a\n3b")
    await call("edit", old_text="line 6.\n", new_text="")
    assert (await call.reason("edit", old_text="line 7.", new_text="x")).startswith("never_read")
    await call("edit", old_text="3b\nline 4", new_text="x")
    assert (await call.reason("write", text="x")).startswith("never_read: the file has lines")
    await call("read", limit=3)
    await call("read", offset=6)
    await call("edit", **everywhere)
    await call("write", text="done\n")
    assert call.path.read_text() == "done\n"


async def test_a_file_that_others_change_is_not_overwritten(call: Caller) -> None:
    call.path.write_text("a\n")
    first = (await call("read"))["token"]
    status = os.stat(call.path)
    call.path.write_text("b\n")
    os.utime(call.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    for tool, arguments in (
        ("write", {"text": "c\n"}),
        ("edit", {"old_text": "b", "new_text": "c"}),
        ("insert", {"line": 1, "text": "c"}),
    ):
        assert (await call.reason(tool, **arguments)).startswith("changed")
        assert (await call.reason(tool, **arguments, token=first)).startswith("changed")
    call.path.unlink()
    assert (await call.reason("write", text="c", token=first)).startswith("changed")
    await call("write", text="c")
    assert call.path.read_text() == "c"
    # By its own change: to read it again would tell the caller nothing.
    assert "the token of your last read or change, or none" in await call.reason(
        "edit", old_text="c", new_text="d", token=first
    )


@pytest.mark.parametrize("before", [None, b"old\n"])
@pytest.mark.parametrize("meanwhile", [None, b"new\n", b"older\n"])
async def test_what_others_write_before_the_last_step_is_not_lost(
    call: Caller,
    monkeypatch: pytest.MonkeyPatch,
    before: bytes | None,
    meanwhile: bytes | None,
) -> None:
    def planned(*arguments: Any, **options: Any) -> Any:
        plan = planning.planned(*arguments, **options)
        if meanwhile is not None:
            call.path.write_bytes(meanwhile)
        elif before is not None:
            call.path.unlink()
        return plan

    if before is not None:
        call.path.write_bytes(before)
        await call("read")
    monkeypatch.setattr(text_tools, "planned", planned)
    if before is meanwhile:
        await call("write", text="mine")
        return
    with pytest.raises(ToolFailed) as raised:
        await call("write", text="mine")
    assert (raised.value.details["reason"], raised.value.executed) == ("changed", "no")
    assert (call.path.read_bytes() if call.path.exists() else None) == meanwhile


async def test_an_assessment_shows_the_diff_and_nothing_that_was_not_read(call: Caller) -> None:
    call.path.write_text("secret\n")
    changes: list[tuple[str, dict[str, Any]]] = [
        ("insert", {"line": 1, "text": "more"}),
        ("edit", {"old_text": "secret", "new_text": "open"}),
        ("write", {"text": "x\n"}),
    ]
    for tool, arguments in changes:
        unread = await call.preview(tool, **arguments)
        assert unread.startswith("[it would change nothing: a.txt exists, and you have not read")
    await call("read")
    for tool, arguments in changes:
        preview = await call.preview(tool, **arguments)
        assert preview == (await call(tool, **arguments))["diff"] != ""
    assert call.path.read_text() == "x\n"


async def test_a_full_disk_leaves_the_file_as_it_was(
    call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    call.path.write_text("a\n")
    await call("read")
    monkeypatch.setattr(text_tools, "replaced", full)
    assert (await call.reason("write", text="b")).startswith("no_space")


async def test_a_cancelled_change_is_not_made_later(
    call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def held(*arguments: Any) -> None:
        begun.set()
        go_on.wait(PATIENCE_S)
        try:
            replaced(*arguments)
        finally:
            loop.call_soon_threadsafe(ended.set)

    monkeypatch.setattr(text_tools, "replaced", held)
    writing = asyncio.create_task(call("write", text="b"))
    assert await asyncio.to_thread(begun.wait, 10)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    go_on.set()
    await ended.wait()
    assert not call.path.exists()


async def test_who_has_got_a_file_has_seen_all_of_it(call: Caller) -> None:
    call.path.write_text("a\nb\nc\n")
    for first, second in (("get", "read"), ("read", "get")):
        for tool in (first, second):
            found = await call(tool, **({"limit": 1} if tool == "read" else {}))
            if tool == "get":
                await found.read()
        await call("edit", old_text="b", new_text=f"b {first}")
        await call("write", text="a\nb\nc\n")


def test_what_is_remembered_is_bounded() -> None:
    seen = SeenFiles()
    scattered = Seen("t", 1_000).added((number, number) for number in range(1, 1_000, 2))
    assert len(scattered.lines) == 64
    state: dict[str, Any] = {}
    agent = SimpleNamespace(state=state)
    for number in range(300):
        seen.add(cast(ToolContext, agent), f"/{number}", scattered)
    assert len(state["seen"]) == 256
    assert seen.of(cast(ToolContext, agent), "/299") == scattered
    assert seen.of(cast(ToolContext, agent), "/1") is None
    assert len(json.dumps(state)) < 300_000
    for number in range(1_001):
        seen.add(ToolContext(caller=Participant(id="", name=f"{number}")), "/a", scattered)
    assert seen.of(ToolContext(caller=Participant(id="", name="0")), "/a") is None
    assert seen.of(ToolContext(caller=Participant(id="", name="1")), "/a") == scattered


spans = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), max_size=5)


@given(seen=st.sets(st.integers(1, 20)), gaps=spans)
def test_what_was_seen_moves_with_its_lines(
    seen: set[int], gaps: list[tuple[int, int, int]]
) -> None:
    lines: list[bool] = [number in seen for number in range(1, 21)]
    expected, replaced, at = [], [], 0
    for gap, removed, added in gaps:
        removed = min(removed, 20 - at - gap)
        if at + gap > 20:
            break
        replaced.append(Span(at + gap + 1, removed, added))
        expected += lines[at : at + gap] + [True] * added
        at += gap + removed
    expected += lines[at:]
    before = Seen("1", 20).added((number, number) for number in seen)
    after = before.changed("2", len(expected), replaced)
    assert [after.has(number, number) for number in range(1, len(expected) + 1)] == expected
    assert after.is_whole == all(expected)


def _applied(diff: str, before: list[str]) -> list[str]:
    """Apply a unified diff, strictly."""
    result: list[str] = []
    at = 0
    for line in diff.split("\n")[2:]:
        if found := re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", line):
            start = int(found[1]) - (found[2] != "0")
            result += before[at:start]
            at = start
            assert len(result) == int(found[3]) - (found[4] != "0")
            continue
        if line[0] in " -":
            assert before[at] == line[1:]
            at += 1
        if line[0] in " +":
            result.append(line[1:])
    return result + before[at:]


@given(
    before=st.lists(st.sampled_from("abcd"), max_size=30),
    after=st.lists(st.sampled_from("abcd"), max_size=30),
)
def test_a_diff_turns_one_text_into_the_other(before: list[str], after: list[str]) -> None:
    blocks = [Block(0, len(before), 0, len(after))]
    diff = unified_diff(before, after, blocks, names=("a", "b"), max_chars=10_000)
    assert (_applied(diff, before) if diff else before) == after


def test_a_diff_of_texts_with_nothing_in_common_is_made_in_bounded_work() -> None:
    before = [f"{number % 7}" for number in range(100_000)]
    after = [f"{number % 11}" for number in range(100_000)]
    blocks = [Block(0, len(before), 0, len(after))]
    diff = unified_diff(before, after, blocks, names=("a", "b"), max_chars=1_000)
    assert len(diff) < 1_100
    assert "-0\n-1\n" in diff
    assert "more lines are removed here]\n+7\n+8\n" in diff
    assert " lines are left out here, of " in diff
    assert diff.endswith("\n+9")
    assert lines_of("a\nb") == ["a", "b\n\\ No newline at end of file"]


def test_a_diff_of_many_blocks_is_bounded_in_work_and_in_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diffs, "_MAX_STEPS", 1_000)
    before = ["a", "kept", "b", "end"] * 1_000
    after = ["c", "kept", "end"] * 1_000
    blocks = [Block(4 * n, 4 * n + 3, 3 * n, 3 * n + 2) for n in range(1_000)]
    diff = unified_diff(before, after, blocks, names=("a", "b"), max_chars=100_000)
    assert " kept\n-b\n" in diff
    assert diff.endswith(" end\n-a\n-kept\n-b\n+c\n+kept\n end")
    diff = unified_diff(before, after, blocks, names=("a", "b"), max_chars=1_000)
    assert len(diff) < 1_100
    # Both ends, and how much is left out between them.
    lines = diff.split("\n")[2:]
    (at,) = (at for at, line in enumerate(lines) if "left out" in line)
    counts = re.fullmatch(
        r"\[([0-9,]+) lines are left out here, of ([0-9,]+) characters\]", lines[at]
    )
    assert counts is not None
    gone, chars = (int(count.replace(",", "")) for count in counts.groups())
    whole = unified_diff(before, after, blocks, names=("a", "b"), max_chars=100_000)
    expected = whole.split("\n")[2:]
    assert lines[:at] == expected[:at]
    assert lines[at + 1 :] == expected[at + gone :]
    assert len(lines) > at + 1
    assert chars == sum(len(line) + 1 for line in expected[at : at + gone])


def test_of_a_long_line_a_diff_shows_where_it_differs() -> None:
    before, after = ("x" * 5_000 + middle + "y" * 5_000 for middle in ("old", "new"))
    blocks = [Block(0, 1, 0, 1)]
    diff = unified_diff([before], [after], blocks, names=("a", "b"), max_chars=10_000)
    _, removed, added = diff.rsplit("\n", 2)
    assert removed.startswith(f"-[4,900 characters before]{'x' * 100}old")
    assert added.startswith(f"+[4,900 characters before]{'x' * 100}new")
    assert added.endswith("y[cut: 3,103 more characters]")
    diff = unified_diff(
        lines_of(before), lines_of(after), blocks, names=("a", "b"), max_chars=10_000
    )
    assert diff.endswith("y[cut: 3,103 more characters]\n\\ No newline at end of file")
