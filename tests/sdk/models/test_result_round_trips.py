"""Any result of ours, through each provider's words and back."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.models.wire_replies import APIS, Says, whole_reply
from toolbus import (
    Chunk,
    EmptyChunk,
    FileChunk,
    JsonChunk,
    LinkChunk,
    TextChunk,
    ToolFailed,
    ToolResult,
)
from toolbus.models import anthropic, gemini, openai_chat, openai_responses

ADAPTERS: dict[str, Any] = {
    "openai-chat": openai_chat,
    "openai-responses": openai_responses,
    "anthropic": anthropic,
    "gemini": gemini,
}
TEXT = st.text(max_size=20).filter(lambda text: text.isprintable())
FILES = [
    FileChunk(b"\x89PNG\r\n\x1a\n\x00\xff", "a.png", "image/png"),
    FileChunk(b"%PDF-1.4\n\xff\xfe", "b.pdf", "application/pdf"),
]
VALUES = st.one_of(TEXT, st.integers(), st.none(), st.dictionaries(TEXT, TEXT, max_size=2))
CHUNKS: st.SearchStrategy[Chunk] = st.one_of(
    st.builds(TextChunk, TEXT),
    st.builds(JsonChunk, VALUES),
    st.builds(LinkChunk, st.just("https://example.org/")),
    st.just(EmptyChunk()),
    st.sampled_from(FILES),
)
FAILURES = st.one_of(st.none(), st.builds(ToolFailed, TEXT))
RESULTS = st.lists(st.tuples(st.lists(CHUNKS, max_size=3), FAILURES), min_size=1, max_size=3)


def texts_and_files(value: Any) -> Iterator[str | bytes]:
    """Yield what a message carries: texts, and the bytes of files."""
    if isinstance(value, list):
        for each in value:
            yield from texts_and_files(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            if isinstance(each, dict | list):
                yield from texts_and_files(each)
            elif name in ("data", "file_data", "url", "image_url"):
                yield b64decode(each.rpartition(",")[2])
            elif name in ("text", "content", "output", "error"):
                yield each


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(found=RESULTS)
def test_a_result_is_what_the_model_reads(
    api: str, found: list[tuple[list[Chunk], ToolFailed | None]]
) -> None:
    adapter = ADAPTERS[api]
    says = Says(uses=tuple(("kit__tool", {"number": number}) for number in range(len(found))))
    reply = whole_reply(api, says)
    results = [
        ToolResult(
            use.id, "kit.tool", "failed" if error else "ok", chunks=tuple(chunks), error=error
        )
        for use, (chunks, error) in zip(adapter.uses(reply), found, strict=True)
    ]
    sent = json.loads(json.dumps(adapter.messages(reply, results)))
    answers = [message for message in sent if message.get("role") not in ("assistant", "model")]
    answers = [each for each in answers if each.get("type") not in ("function_call", "reasoning")]
    read = list(texts_and_files(answers))
    place = 0
    for result in results:
        has_files = any(isinstance(chunk, FileChunk) for chunk in result.chunks)
        if not has_files:
            place = read.index(result.for_model(), place) + 1
        elif result.error is not None:
            assert any(result.error.message in each for each in read if isinstance(each, str))
    # Anthropic takes no files in an error.
    files = [
        chunk.data
        for result in results
        if api != "anthropic" or result.error is None
        for chunk in result.chunks
        if isinstance(chunk, FileChunk)
    ]
    assert [each for each in read if isinstance(each, bytes)] == files
