"""The messages API of Anthropic: what goes back, cut and broken replies, streams."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbus import FileChunk, InvalidArguments, TextChunk, ToolFailed, ToolResult, Turn
from toolbus.models import anthropic
from toolbus.models.adapter import Adapter, Plain
from toolbus.models.anthropic import collect, messages, text, text_of, user, uses
from toolbus.models.model_error import ModelError
from toolbus.turns.tool_use import arguments_of

PNG = b"\x89PNG\r\n\x1a\n1"
SAID = {"type": "text", "text": "Yes."}
USE = {"type": "tool_use", "id": "u1", "name": "kit__tool", "input": {"a": 1}}


def reply(*content: Any, stop_reason: str = "end_turn") -> Plain:
    return {"role": "assistant", "content": list(content), "stop_reason": stop_reason}


def sent(*content: Any, stop_reason: str = "end_turn") -> list[Plain]:
    """Return the content that goes back of a reply."""
    made = messages(reply(*content, stop_reason=stop_reason), [])
    return [
        block for message in made if message["role"] == "assistant" for block in message["content"]
    ]


def test_the_module_is_an_adapter() -> None:
    adapter: Adapter = anthropic
    assert adapter.text(reply(SAID)) == "Yes."


# What goes back


@pytest.mark.parametrize(
    "block",
    [
        {"type": "thinking", "thinking": "", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "ZGF0YQ"},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "a"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
        {"type": "of_a_later_release", "anything": [1]},
        {"type": "text", "text": " a ", "citations": [{"type": "page_location", "title": None}]},
        USE | {"caller": {"type": "direct"}, "toolset_name": None},
    ],
)
def test_a_reply_goes_back_as_it_came(block: Plain) -> None:
    assert sent(SAID, block) == [SAID, block]


@pytest.mark.parametrize(
    ("block", "goes_back"),
    [
        ({"type": "text", "text": ""}, []),
        ({"type": "text", "text": " \n"}, []),
        (SAID | {"parsed_output": {"a": 1}}, [SAID]),
        (SAID | {"citations": [{"file_id": None, "a": 1}]}, [SAID | {"citations": [{"a": 1}]}]),
        (USE | {"caller": None}, [USE]),
        (USE | {"input": '{"a": '}, [USE | {"input": {}}]),
        (USE | {"input": '{"a": 1}'}, [USE]),
        (USE | {"input": [1]}, [USE | {"input": {}}]),
        (USE | {"name": "kit.tool"}, [USE | {"name": "kit_tool"}]),
    ],
)
def test_what_the_api_does_not_take_back_is_changed(block: Plain, goes_back: list[Plain]) -> None:
    assert sent(block) == goes_back


def test_a_message_of_nothing_is_left_out() -> None:
    assert messages(reply(), []) == []
    assert messages(reply({"type": "text", "text": ""}), []) == []


@pytest.mark.parametrize("nothing", [{"text": ""}, {"text": " "}, {"text": None}, {}])
async def test_a_text_of_nothing_in_a_saved_conversation_is_not_sent(nothing: Plain) -> None:
    said = {"role": "assistant", "content": [SAID, {"type": "text", **nothing}]}
    async with Turn(None) as turn:
        sent_messages = anthropic.request(turn, [user("hi"), said, user("more")])["messages"]
    assert sent_messages[1] == {"role": "assistant", "content": [SAID]}


def test_uses_without_valid_ids_get_ids_of_their_own_and_each_its_result() -> None:
    others: list[Any] = [USE | {"id": given, "input": {}} for given in ("u1", "a:1", "", None)]
    answer = reply(USE, *others, stop_reason="tool_use")
    ids = [use.id for use in uses(answer)]
    assert len({each for each in ids if re.fullmatch("[A-Za-z0-9_-]+", each)}) == 5
    results = [ToolResult(use_id, "kit.tool", "ok", (TextChunk(use_id),)) for use_id in ids]
    said, told = messages(answer, results[::-1])
    assert [block["id"] for block in said["content"]] == ids
    assert [(block["tool_use_id"], block["content"]) for block in told["content"]] == [
        (use_id, use_id) for use_id in ids
    ]


def test_files_of_all_results_together_are_within_the_limit_of_a_request() -> None:
    files = [FileChunk(b"%PDF-".ljust(size * 2**20), "a.pdf") for size in (12, 12, 9)]
    answer = reply(*(USE | {"id": str(number)} for number in range(3)))
    results = [ToolResult(str(n), "kit.tool", "ok", (file,)) for n, file in enumerate(files)]
    _, told = messages(answer, results)
    assert [isinstance(block["content"], list) for block in told["content"]] == [True, False, True]


def test_an_error_has_no_picture_and_white_space_is_told() -> None:
    picture = FileChunk(PNG, "a.png", "image/png")
    results = [
        ToolResult("u1", "kit.tool", "failed", (picture,), ToolFailed("full")),
        ToolResult("u2", "kit.tool", "ok", (TextChunk("\n"),)),
    ]
    _, told = messages(reply(USE, USE | {"id": "u2"}), results)
    failed, blank = told["content"]
    assert failed["content"].startswith(
        "[file 'a.png', image/png, 9 bytes]\n[the output ends here]"
    )
    assert blank["content"].strip()


# Replies that were cut, and what is no reply

NO_REPLIES: tuple[Any, ...] = (
    *({}, {"content": "a"}, {"content": {}}),
    *(reply(1), reply({"type": "text"})),
)


def test_a_use_that_was_cut_may_be_followed_by_an_empty_text() -> None:
    answer = reply(USE, {"type": "text", "text": ""}, stop_reason="max_tokens")
    with pytest.raises(InvalidArguments):
        arguments_of(uses(answer)[0])


@pytest.mark.parametrize("stop_reason", ["max_tokens", "model_context_window_exceeded"])
def test_a_use_that_was_cut_does_not_run(stop_reason: str) -> None:
    answer = reply(USE, USE | {"id": "u2", "input": {}}, stop_reason=stop_reason)
    first, cut = uses(answer)
    assert arguments_of(first) == {"a": 1}
    with pytest.raises(InvalidArguments) as raised:
        arguments_of(cut)
    failed = ToolResult("u2", "kit__tool", "failed", error=raised.value, executed="no")
    said, told = messages(answer, [ToolResult("u1", "kit.tool", "ok"), failed])
    assert said["content"] == answer["content"]
    assert f"cut here ({stop_reason})" in told["content"][1]["content"]


def test_thinking_that_was_cut_does_not_go_back() -> None:
    thinking = {"type": "thinking", "thinking": "I", "signature": ""}
    assert sent(SAID, thinking, stop_reason="max_tokens") == [SAID]
    assert sent(thinking, SAID) == [thinking, SAID]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (reply(stop_reason="max_tokens"), r"ended \(max_tokens\) before"),
        (reply(SAID, USE, stop_reason="refusal"), "refused: it gave no reason"),
        (
            reply(SAID, stop_reason="refusal") | {"stop_details": {"explanation": "bio\x1b"}},
            r"refused: bio\\x1b",
        ),
        ({"type": "error", "error": {"type": "api_error", "message": "down"}}, "failed: down"),
        *((bad, "a reply is a dict") for bad in (None, [reply(SAID)], "a")),
        *((bad, "messages API") for bad in NO_REPLIES),
        (reply(USE | {"name": None}), "messages API"),
    ],
)
def test_what_cannot_go_on_is_a_model_error(answer: Any, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        uses(answer)


def test_a_pause_has_no_uses_and_goes_back() -> None:
    use = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    answer = reply(use, stop_reason="pause_turn")
    assert uses(answer) == []
    assert messages(answer, []) == [{"role": "assistant", "content": [use]}]


# Messages of the user


@pytest.mark.parametrize(
    ("said", "files", "error"),
    [
        (" ", (), "needs a text or a file"),
        ("a", (FileChunk(PNG + bytes(4 * 2**20), "a.png"),), "does not take"),
        ("a", (FileChunk(b"%PDF-" + bytes(12 * 2**20), "a.pdf"),) * 2, "at most 23,068,672 bytes"),
        ("a", (FileChunk(b"\0\xff", "a.bmp", "image/bmp"),), "does not take"),
    ],
)
def test_a_message_that_the_api_would_refuse(said: str, files: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        user(said, files)


# Streams


def stream(*blocks: tuple[Plain, list[Any]], stop_reason: str = "tool_use") -> list[Plain]:
    events: list[Plain] = [
        {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 5}}},
        {"type": "ping"},
    ]
    for index, (start, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [
            {"type": "content_block_delta", "index": index, "delta": each} for each in deltas
        ]
        events.append({"type": "content_block_stop", "index": index})
    usage = {"output_tokens": 7}
    delta = {"stop_reason": stop_reason}
    return [
        *events,
        {"type": "message_delta", "delta": delta, "usage": usage},
        {"type": "message_stop"},
    ]


def written(*pieces: str) -> tuple[Plain, list[Plain]]:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return USE | {"input": {}}, deltas


def test_a_stream_is_put_together() -> None:
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    thought = [
        {"type": "thinking_delta", "thinking": "I "},
        {"type": "thinking_delta", "thinking": "think"},
        {"type": "signature_delta", "signature": "c2ln"},
    ]
    cited = [
        {"type": "text_delta", "text": "Y"},
        {"type": "citations_delta", "citation": {"type": "page_location"}},
        {"type": "text_delta", "text": "es."},
    ]
    events = stream((thinking, thought), (SAID | {"text": ""}, cited), written("", '{"a"', ": 1}"))
    collected = collect(events)
    assert collected == {
        "content": [
            {"type": "thinking", "thinking": "I think", "signature": "c2ln"},
            SAID | {"citations": [{"type": "page_location"}]},
            USE,
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 5, "output_tokens": 7},
    }
    assert "".join(map(text_of, events)) == text(collected) == "Yes."


def test_additions_that_are_not_known_lose_no_reply() -> None:
    later = {"type": "annotation_delta", "later": "a"}
    compacted = {"type": "compaction_delta", "content": "sum", "encrypted_content": "x"}
    started = ({"type": "compaction", "content": None}, [compacted])
    reply = collect(stream((SAID | {"text": None}, []), (SAID | {"text": ""}, [later]), started))
    assert text(reply) == ""
    assert sent(*reply["content"]) == [
        {"type": "compaction", "content": "sum", "encrypted_content": "x"}
    ]
    thinking = {"type": "thinking", "thinking": None, "signature": ""}
    signed = [{"type": "signature_delta", "signature": each} for each in ("first", "last")]
    (thought,) = collect(stream((thinking, signed)))["content"]
    assert thought == {"type": "thinking", "thinking": "", "signature": "last"}


def test_a_stream_with_a_reason_to_stop_is_whole() -> None:
    events = stream((SAID | {"text": ""}, [{"type": "text_delta", "text": "Yes."}]))
    for missing in ("message_stop", "content_block_stop", "message_start"):
        assert text(collect([each for each in events if each["type"] != missing])) == "Yes."


@pytest.mark.parametrize("pieces", [('{"a": ',), ("[1]",), ('{"a": NaN}',), ("[" * 100_000,)])
def test_arguments_that_are_no_object_become_a_failed_result(pieces: tuple[str, ...]) -> None:
    collected = collect(stream(written(*pieces)))
    (use,) = uses(collected)
    with pytest.raises(InvalidArguments):
        arguments_of(use)
    assert messages(collected, [])[0]["content"] == [USE | {"input": {}}]


@pytest.mark.parametrize(
    ("events", "words", "retryable"),
    [
        ([], "ended before", True),
        (stream()[:-2], "ended before", True),
        (stream(stop_reason=""), "ended before", True),
        ([*stream()[:-2], {"type": "message_stop"}], "ended before", True),
        (
            [{"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}],
            "busy",
            True,
        ),
        ([{"type": "error"}], "failed", False),
        ([{"type": "content_block_delta", "index": 0, "delta": {}}], "messages API", False),
        ([None], "messages API", False),
    ],
)
def test_a_stream_that_broke_off(events: Any, words: str, retryable: bool) -> None:
    with pytest.raises(ModelError, match=words) as raised:
        collect(events)
    assert raised.value.retryable is retryable


# Anything


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
KINDS = ("text", "tool_use", "thinking", "max_tokens", "refusal")
FIELDS = ("type", "text", "name", "input", "id", "citations", "caller", "signature")
BLOCK = st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(KINDS) | JSON)
REPLY = JSON | st.fixed_dictionaries(
    {"content": st.lists(BLOCK | JSON, max_size=3)},
    optional={key: st.sampled_from(KINDS) | JSON for key in ("stop_reason", "id", "stop_details")},
)
EVENT = JSON | st.fixed_dictionaries(
    {"type": st.sampled_from([event["type"] for event in stream((SAID, [USE]))])},
    optional={
        "index": st.integers(0, 1) | JSON,
        "message": REPLY,
        "content_block": BLOCK | JSON,
        "usage": JSON,
        "delta": st.fixed_dictionaries(
            {"type": st.sampled_from(["text_delta", "input_json_delta", "citations_delta"])},
            optional={"text": JSON, "partial_json": JSON, "citation": JSON},
        )
        | JSON,
    },
)


FUNCTIONS: list[Callable[[Any], Any]] = [uses, text, lambda answer: messages(answer, [])]


@given(REPLY, st.lists(EVENT, max_size=6))
def test_whatever_comes_is_a_reply_or_a_model_error(answer: Any, events: list[Any]) -> None:
    for event in events:
        assert isinstance(text_of(event), str)
    for function in FUNCTIONS:
        for read in (lambda: answer, lambda: collect(events)):
            try:
                function(read())
            except ModelError:
                pass
