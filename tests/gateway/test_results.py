"""Results and errors of the room in the form of MCP."""

from __future__ import annotations

import asyncio
import base64
import json
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import methods
from pydantic import AnyUrl

from gateway.conftest import REVISIONS, running_gateway
from toolbus import (
    Chunk,
    EmptyChunk,
    FileChunk,
    JsonChunk,
    LinkChunk,
    MixedChunk,
    Overloaded,
    RoomException,
    TextChunk,
    ToolFailed,
    Toolkit,
    tool,
)
from toolbus.wire import ToolkitManifest, ToolManifest
from toolbus_gateway.limits import MAX_RESULT_BYTES
from toolbus_gateway.results import ResultWriter, error_result
from toolbus_gateway.tool_calls import CallSettings
from toolbus_gateway.tool_definitions import ToolDefinition

VERSIONS = ("2025-11-25", "2026-07-28")
LIMIT = 10_000


def definition(output: dict[str, Any] | None = None, *, streaming: bool = False) -> ToolDefinition:
    """Return the definition of a tool."""
    tool = ToolManifest(name="t", input_schema={}, output_schema=output, streaming=streaming)
    return ToolDefinition.of(ToolkitManifest(name="kit"), tool)


async def written(
    *chunks: Chunk, output: dict[str, Any] | None = None, streaming: bool = False
) -> dict[str, Any]:
    """Return a result as it is sent."""
    writer = ResultWriter(definition(output, streaming=streaming), LIMIT)
    for chunk in chunks:
        await writer.add(chunk)
    return sent(writer.result())


def sent(result: types.CallToolResult) -> dict[str, Any]:
    """Return what the SDK sends of a result, in either revision."""
    dumped = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    old, new = (methods.serialize_server_result("tools/call", v, dumped) for v in VERSIONS)
    assert new == {**old, "resultType": "complete"}
    return old


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def resource(uri: str, mime_type: str, **body: str) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, **body}}


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("chunk", "content", "structured"),
    [
        (TextChunk("hi"), [text("hi")], None),
        (TextChunk(""), [], None),
        (EmptyChunk(), [], None),
        (JsonChunk({"ü": None}), [text('{"ü": null}')], {"ü": None}),
        (JsonChunk([2**64 - 1]), [text(f"[{2**64 - 1}]")], {"result": [2**64 - 1]}),
        (JsonChunk(None), [text("null")], {"result": None}),
        (
            FileChunk(b"x", "a.png", "Image/PNG; q=1"),
            [{"type": "image", "data": "eA==", "mimeType": "image/png"}],
            None,
        ),
        (
            FileChunk(b"x", "a", "audio/wav"),
            [{"type": "audio", "data": "eA==", "mimeType": "audio/wav"}],
            None,
        ),
        (
            FileChunk("ü".encode(), "a b\n/ü.txt", "text/plain; charset=utf-8"),
            [resource("toolbus:///a%20b%0A%2F%C3%BC.txt", "text/plain; charset=utf-8", text="ü")],
            None,
        ),
        (
            FileChunk(b"{}", "", "application/ld+json"),
            [resource("toolbus:///file", "application/ld+json", text="{}")],
            None,
        ),
        (
            FileChunk(b"\xff", "a", "text/plain"),
            [resource("toolbus:///a", "text/plain", blob=encoded(b"\xff"))],
            None,
        ),
        (
            FileChunk(b"x", "a", "image"),
            [resource("toolbus:///a", "application/octet-stream", blob="eA==")],
            None,
        ),
        (
            FileChunk(b"x", "a", "text/html; x=\n"),
            [resource("toolbus:///a", "text/html", text="x")],
            None,
        ),
        (
            LinkChunk("https://a/b", "B"),
            [{"type": "resource_link", "uri": "https://a/b", "name": "B"}],
            None,
        ),
        (
            LinkChunk("https://a/ü ü"),
            [
                {
                    "type": "resource_link",
                    "uri": "https://a/%C3%BC%20%C3%BC",
                    "name": "https://a/ü ü",
                }
            ],
            None,
        ),
        (LinkChunk("not a link", "N"), [text("N: not a link")], None),
        (LinkChunk("../x"), [text("../x")], None),
        (
            MixedChunk((TextChunk("see"), JsonChunk({"a": 1}), LinkChunk("urn:x:y"))),
            [
                text("see"),
                text('{"a": 1}'),
                {"type": "resource_link", "uri": "urn:x:y", "name": "urn:x:y"},
            ],
            {"a": 1},
        ),
        (MixedChunk((JsonChunk(1), JsonChunk(2))), [text("1"), text("2")], None),
    ],
)
async def test_chunk_becomes_content(
    chunk: Chunk, content: list[dict[str, Any]], structured: Any
) -> None:
    result = await written(chunk)
    assert result["content"] == content
    assert result.get("structuredContent") == structured
    assert not result["isError"]


@pytest.mark.parametrize(
    ("chunk", "output", "structured"),
    [
        (TextChunk("a"), {"type": "string"}, {"result": "a"}),
        (EmptyChunk(), {"type": ["object", "null"]}, {"result": None}),
        (JsonChunk({"a": 1}), {"type": "object"}, {"a": 1}),
        (JsonChunk({"a": 1}), {"type": ["object", "null"]}, {"result": {"a": 1}}),
        (MixedChunk((TextChunk("x"), JsonChunk([1]))), {"type": "array"}, {"result": [1]}),
        (FileChunk(b"[1]", "result.json", "application/json"), {"type": "array"}, {"result": [1]}),
        *(
            (FileChunk(data, "result.json", "application/json"), {"type": "array"}, None)
            for data in (
                b"[",
                "[1]".encode("utf-16"),
                b'["\\ud800"]',
                b"[NaN]",
                b"[" * 99 + b"]" * 99,
            )
        ),
        (LinkChunk("urn:x:y"), {"type": "array"}, None),
        (JsonChunk([str(2**64)], ("/0",)), {"type": "array", "items": {"type": "integer"}}, None),
    ],
)
async def test_result_has_what_clients_check_or_is_an_error_of_a_tool_that_ran(
    chunk: Chunk, output: dict[str, Any], structured: Any
) -> None:
    result = await written(chunk, output=output)
    assert result.get("structuredContent") == structured
    assert result["isError"] is (structured is None)
    if structured is None:
        error = result["_meta"]["toolbus/error"]
        assert (error["code"], error["executed"]) == ("invalid_result", "yes")


@pytest.mark.parametrize("text", ["[]," * 20_000 + "[]", "0," * 250_000 + "0"])
async def test_json_of_very_many_parts_is_text_alone(text: str) -> None:
    found = JsonChunk(json.loads(f"[{text}]"))
    for chunk in (found, FileChunk(f"[{text}]".encode(), "result.json", "application/json")):
        writer = ResultWriter(definition({"type": "array"}), MAX_RESULT_BYTES)
        await writer.add(chunk)
        result = writer.result()
        assert (len(result.content), result.structured_content, result.is_error) == (2, None, True)


async def test_places_that_json_cannot_carry_are_named() -> None:
    result = await written(JsonChunk(["nan", 1], ("/0",)))
    assert result["_meta"] == {"toolbus/as_text": ["/result/0"]}


@pytest.mark.parametrize(
    ("chunks", "shown", "size", "left_out"),
    [
        ([FileChunk(b"x" * LIMIT, "a\nb")], [], 10_000, ["the file a\\nb (10,000 bytes)"]),
        (
            [FileChunk(b"x" * LIMIT, ""), TextChunk("the answer")],
            ["the answer"],
            10_000,
            ["the file without a name (10,000 bytes)"],
        ),
        (
            [TextChunk("a"), TextChunk("ü" * LIMIT), TextChunk("b"), JsonChunk(2)],
            ["a"],
            20_002,
            ["a text, with all texts after it (20,000 bytes)"],
        ),
        (
            [FileChunk(b"x" * LIMIT, f"{n}") for n in range(30)],
            [],
            300_000,
            [*(f"the file {n} (10,000 bytes)" for n in range(20)), "and more"],
        ),
        ([TextChunk("x")] * 100, ["x"] * 19, 81, ["a text, with all texts after it (1 bytes)"]),
    ],
)
async def test_what_is_too_large_is_named_with_its_size(
    chunks: list[Chunk], shown: list[str], size: int, left_out: list[str]
) -> None:
    result = await written(*chunks, streaming=True)
    *content, last = result["content"]
    assert [block["text"] for block in content] == shown
    assert last["text"] == (
        "the tool ran (executed: yes), but a result here has at most 10,000 bytes;"
        f" {size:,} bytes are left out: {'; '.join(left_out)}"
    )
    assert result["isError"]
    assert result["_meta"]["toolbus/error"]["executed"] == "yes"
    assert result["_meta"]["toolbus/error"]["code"] == "too_large"


async def test_failed_call_shows_what_came_before_its_error() -> None:
    writer = ResultWriter(definition(streaming=True), LIMIT)
    await writer.add(TextChunk("so far"))
    await writer.add(FileChunk(b"x" * LIMIT, "a"))
    result = sent(writer.failed(ToolFailed("broke")))
    shown = [block["text"] for block in result["content"]]
    assert shown[:2] == ["so far", "broke (tool_failed; executed: yes)"]
    assert "the file a (10,000 bytes)" in shown[2]


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (ToolFailed("no", details={"a": [1]}), {"retryable": False, "details": {"a": [1]}}),
        (Overloaded("busy", retry_after_s=2.0), {"retryable": True, "retry_after_s": 2.0}),
    ],
)
def test_error_has_words_for_models_and_facts_for_programs(
    error: RoomException, facts: dict[str, Any]
) -> None:
    result = sent(error_result(error))
    assert result["isError"]
    (block,) = result["content"]
    assert block["text"] == f"{error.message} ({error.code}; executed: {error.executed})"
    found = result["_meta"]["toolbus/error"]
    assert found | {"code": error.code, "executed": error.executed, **facts} == found


async def test_stream_of_any_size_takes_little_memory() -> None:
    piece = b"x" * 100_000

    async def pieces() -> AsyncGenerator[bytes, None]:
        for _ in range(1_000):
            yield piece

    writer = ResultWriter(definition(streaming=True), LIMIT)
    tracemalloc.start()
    try:
        await writer.add(FileChunk.from_pieces(pieces(), "big"))
        for number in range(20_000):
            await writer.add(JsonChunk([number]))
            await writer.add(LinkChunk(f"urn:x:{number}"))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert "the file big (100,000,000 bytes)" in sent(writer.result())["content"][-1]["text"]


_TEXTS = st.text(max_size=20)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | _TEXTS
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(_TEXTS, part, max_size=3),
    max_leaves=10,
)
_PARTS = st.one_of(
    st.builds(TextChunk, _TEXTS),
    st.builds(JsonChunk, _JSON),
    st.builds(FileChunk, st.binary(max_size=50), _TEXTS, _TEXTS | st.just("text/\n; ")),
    st.builds(LinkChunk, _TEXTS | st.builds("{}:{}".format, _TEXTS, _TEXTS), _TEXTS),
    st.just(EmptyChunk()),
)
_OUTPUTS = st.sampled_from([None, {"type": "object"}, {"type": "array"}, {"type": "string"}])


@given(st.lists(_PARTS, max_size=5), _OUTPUTS, st.booleans())
def test_sdk_refuses_no_result(
    parts: list[Chunk], output: dict[str, Any] | None, streaming: bool
) -> None:
    chunks = parts if streaming else [MixedChunk(tuple(parts)) if parts[1:] else EmptyChunk()]
    result = asyncio.run(written(*chunks, output=output, streaming=streaming))
    structured = result.get("structuredContent")
    assert isinstance(structured, dict | None)
    assert result["isError"] or structured is not None or output is None or streaming
    for block in result["content"]:
        if block["type"] in ("resource", "resource_link"):
            AnyUrl(block.get("uri") or block["resource"]["uri"])


@tool
async def huge(pieces: int) -> FileChunk:
    async def content() -> AsyncIterator[bytes]:
        for _ in range(pieces):
            yield b"x" * 65_536

    return FileChunk.from_pieces(content(), "huge.bin")


@tool
async def broken() -> str:
    raise ToolFailed("x" * 10_000, details={"large": "x" * 100_000})


@pytest.mark.parametrize("mode", REVISIONS)
async def test_large_file_is_read_to_its_end_and_named(mode: str) -> None:
    async with (
        running_gateway(calls=CallSettings(max_result_bytes=100_000)) as door,
        door.server.room("host") as host,
        host.host(Toolkit("files", [huge, broken])),
        door.client(mode) as client,
    ):
        result = await client.call_tool("files__huge", {"pieces": 100})
        assert result.is_error
        assert "huge.bin (6,553,600 bytes)" in getattr(result.content[-1], "text", "")
        assert result.meta is not None
        assert result.meta["toolbus/error"]["executed"] == "yes"
        result = await client.call_tool("files__broken", {})
        assert len(result.model_dump_json()) < 10_000
