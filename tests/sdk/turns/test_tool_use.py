"""Results of uses: their values, their text, and the words for a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolbus import (
    ApprovalDenied,
    ApprovalExpired,
    Cancelled,
    Chunk,
    DeadlineExceeded,
    EmptyChunk,
    FileChunk,
    InvalidArguments,
    JsonChunk,
    LinkChunk,
    Overloaded,
    PermissionDenied,
    RoomException,
    TextChunk,
    ToolFailed,
    ToolResult,
    ToolUse,
)
from toolbus.turns.tool_use import state_of

EURO = "€".encode()


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        ((), ""),
        ((EmptyChunk(),), ""),
        ((TextChunk("one"), TextChunk("two")), "onetwo"),
        ((JsonChunk({"a": "ä"}), JsonChunk(2)), '{"a": "ä"}\n2'),
        ((TextChunk("rows:"), JsonChunk([1]), TextChunk("end")), "rows:\n[1]\nend"),
        ((FileChunk(b"5 " + EURO[:1]), FileChunk(EURO[1:])), "5 €"),
        ((FileChunk(b"\xff\x00", "a.png", "image/png"),), "[file 'a.png', image/png, 2 bytes]"),
        ((LinkChunk("https://example.org/a"),), "https://example.org/a"),
    ],
)
def test_chunks_are_joined_where_their_kind_allows_it(chunks: tuple[Chunk, ...], text: str) -> None:
    result = ToolResult("1", "kit.tool", "ok", chunks, streaming=True)
    assert result.text == text
    assert result.chunks == chunks
    assert result.for_model() == (text or "(no output)")


def test_model_reads_the_names_of_text_files_and_their_start() -> None:
    files = (FileChunk(b"x" * 29_998, "a", "text/csv"), FileChunk(b"yyy", "b"), FileChunk(b"z"))
    beside = ToolResult("1", "kit.tool", "ok", (JsonChunk(1), *files)).for_model()
    assert beside.splitlines() == [
        *("1", "[file 'a', text/csv, 29998 bytes]", "x" * 29_998),
        *("[file 'b', application/octet-stream, 3 bytes]", "yy"),
        *("[1 characters are left out here]", "z"),
    ]
    alone = ToolResult("1", "kit.tool", "ok", (FileChunk(b"x" * 40_000, "a"),)).for_model()
    assert alone == f"[file 'a', application/octet-stream, 40000 bytes]\n{'x' * 40_000}"


def test_bytes_of_texts_and_files_are_joined_and_other_values_refused() -> None:
    joined = ToolResult("1", "kit.tool", "ok", (FileChunk(b"a"), TextChunk("€"), EmptyChunk()))
    assert joined.data == b"a" + EURO
    for chunk in (JsonChunk(1), LinkChunk("x"), FileChunk.from_path(Path("absent"))):
        with pytest.raises(ValueError, match=r"neither text nor bytes|not completely in memory"):
            _ = ToolResult("1", "kit.tool", "ok", (chunk,)).data
    assert "not in memory" in ToolResult("1", "t", "ok", (FileChunk.from_path("absent"),)).text


def test_value_is_one_value_or_the_list_of_a_stream() -> None:
    one, two = JsonChunk(1), TextChunk("x")
    assert ToolResult("1", "kit.tool", "ok", (one,)).value == 1
    assert ToolResult("1", "kit.tool", "failed", ()).value is None
    assert ToolResult("1", "kit.tool", "ok", (one, two), streaming=True).value == [1, "x"]


@pytest.mark.parametrize(
    ("error", "state", "words"),
    [
        (
            InvalidArguments("/city: must be text"),
            "failed",
            "error invalid_arguments: /city: must be text. The tool did not run. Correct the",
        ),
        (ToolFailed("no such account."), "failed", "no such account. The tool ran."),
        (
            DeadlineExceeded("no reply in time", executed="maybe"),
            "failed",
            "not known whether the tool ran. Find out whether it took effect",
        ),
        (Overloaded("busy", retry_after_s=2), "failed", "It may be called again after 2 s."),
        (ApprovalDenied("refused"), "denied", "Do not call it again: a person refused it."),
        (PermissionDenied("no grant"), "denied", "Do not call it again: it is not permitted."),
        (
            PermissionDenied("a rule", details={"rule": {"behavior": "deny", "match": "x"}}),
            "denied",
            "Do not repeat it: with these arguments it is not permitted.",
        ),
        (
            PermissionDenied("a rule", details={"rule": {"match": "x"}, "hint": "by path"}),
            "denied",
            "Do not repeat it: a call that is changed so may be permitted.",
        ),
        (
            PermissionDenied("it cannot be read", details={"uncertain": True}),
            "denied",
            "Do not repeat it: a call that the tool can judge may be permitted.",
        ),
        (ApprovalExpired("nobody"), "denied", "ask before you call it again."),
        (PermissionDenied("too late", executed="yes"), "failed", "The tool ran. Do not call it"),
        (Cancelled("it was interrupted", executed="no"), "interrupted", "interrupted: it was"),
        (Cancelled("x", executed="yes"), "interrupted", "x. The tool ran. Find out whether"),
    ],
)
def test_words_for_a_model_have_code_execution_and_next_step(
    error: RoomException, state: Any, words: str
) -> None:
    result = ToolResult("1", "kit.tool", state, (), error, error.executed)
    assert words in result.for_model()
    assert ("Find out" in result.for_model()) == ("Find out" in words)
    assert state in ("interrupted", state_of(error))
    partial = ToolResult("1", "kit.tool", state, (TextChunk("half"),), error, omitted=3)
    assert partial.for_model().startswith("half\n[3 more chunks]\n[the output ends here]\n")


def test_use_without_text_as_id_or_name_is_refused() -> None:
    bad: Any = 7
    with pytest.raises(TypeError, match="ToolUse: id must be text, not int"):
        ToolUse(bad, "kit.tool")
    with pytest.raises(TypeError, match="ToolUse: name must be text, not int"):
        ToolUse("1", bad)
