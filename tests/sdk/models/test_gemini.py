"""The API of Gemini: what goes back, ids and files of results, unusable replies, streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

from toolbus import FileChunk, InvalidArguments, TextChunk, ToolResult
from toolbus.models import gemini
from toolbus.models.adapter import Adapter, Plain
from toolbus.models.gemini import collect, messages, text, text_of, user, uses
from toolbus.models.model_error import ModelError
from toolbus.turns.tool_use import arguments_of

PNG = FileChunk(b"\x89PNG\r\n\x1a\n1", "a.png", "image/png")
SAID = {"text": "Yes."}
CALL = {"function_call": {"name": "kit__tool", "args": {"a": 1}}}


def reply(*parts: Any, finish_reason: str = "STOP", **fields: Any) -> Plain:
    content = {"role": "model", "parts": list(parts)}
    return {"candidates": [{"content": content, "finish_reason": finish_reason}], **fields}


def test_the_module_is_an_adapter() -> None:
    adapter: Adapter = gemini
    assert adapter.text(reply({"text": "I think", "thought": True}, SAID)) == "Yes."


# What goes back


@pytest.mark.parametrize(
    "part",
    [
        {"text": "I think", "thought": True},
        {"text": "", "thought_signature": "c2ln"},
        {"executable_code": {"code": "1+1", "language": "PYTHON"}},
        {"code_execution_result": {"outcome": "OUTCOME_OK", "output": "2"}},
        {"inline_data": {"mime_type": "image/png", "data": "_-8="}},
        CALL | {"thought_signature": "c2ln"},
        {"functionCall": {"name": "kit__tool", "args": {}}, "thoughtSignature": "c2ln"},
    ],
)
def test_a_reply_goes_back_as_it_came(part: Plain) -> None:
    said, *_ = messages(reply(SAID, part), [])
    assert said == {"role": "model", "parts": [SAID, part]}
    types.Content.model_validate(said)


@pytest.mark.parametrize(
    ("part", "goes_back"),
    [
        ({"text": ""}, []),
        ({}, []),
        ({"thought": True, "text": None}, []),
        ({"function_call": {"name": "a", "args": [1]}}, [{"function_call": {"name": "a"}}]),
        ({"functionCall": {"name": "a", "args": None}}, [{"functionCall": {"name": "a"}}]),
    ],
)
def test_what_the_api_does_not_take_back_is_changed(part: Plain, goes_back: list[Plain]) -> None:
    made = messages(reply(part), [])
    assert [
        each for content in made if content["role"] == "model" for each in content["parts"]
    ] == (goes_back)


def test_calls_without_ids_get_ids_that_their_responses_do_not_have() -> None:
    named = {"function_call": {"id": "1", "name": "kit__tool", "args": {}}}
    answer = reply(CALL, named, CALL, response_id="r")
    ids = [use.id for use in uses(answer)]
    assert ids[1] == "1"
    assert len({*ids, *(use.id for use in uses(answer | {"response_id": "other"}))}) == 5
    results = [ToolResult(each, "kit.tool", "ok", (TextChunk(each),)) for each in ids]
    _, told = messages(answer, results[::-1])
    assert [part["function_response"] for part in told["parts"]] == [
        {"name": "kit__tool", "response": {"output": ids[0]}},
        {"name": "kit__tool", "response": {"output": "1"}, "id": "1"},
        {"name": "kit__tool", "response": {"output": ids[2]}},
    ]


@pytest.mark.parametrize(
    ("version", "takes_files"),
    [
        ("gemini-3-pro-preview", True),
        ("models/gemini-3.1-flash", True),
        ("gemini-10-pro", True),
        ("gemini-2.5-flash", False),
        ("gemini-1.5-pro", False),
        (None, False),
    ],
)
def test_files_are_in_the_response_or_follow_all_responses(
    version: str | None, takes_files: bool
) -> None:
    answer = reply(CALL, CALL, model_version=version)
    results = [ToolResult(use.id, "kit.tool", "ok", (PNG,)) for use in uses(answer)]
    _, told = messages(answer, results)
    content = types.Content.model_validate(told)
    first, second, *beside = content.parts or []
    for part in (first, second):
        assert part.function_response is not None
        assert part.function_response.response == {"output": "[file 'a.png', image/png, 9 bytes]"}
        assert bool(part.function_response.parts) is takes_files
    texts = [part.text for part in beside]
    expected = [f"[files of the result of call {n}, kit__tool]" for n in (1, 2)]
    assert texts == ([] if takes_files else [expected[0], None, expected[1], None])


# Replies that cannot be used


@pytest.mark.parametrize("after", [(), ({"text": ""},)], ids=["last", "before no text"])
def test_a_call_that_may_be_cut_does_not_run(after: tuple[Plain, ...]) -> None:
    first, cut = uses(reply(CALL, CALL, *after, finish_reason="MAX_TOKENS"))
    assert arguments_of(first) == {"a": 1}
    with pytest.raises(InvalidArguments):
        arguments_of(cut)
    _, told = messages(reply(CALL, finish_reason="MAX_TOKENS"), [])
    assert "cut here (MAX_TOKENS)" in told["parts"][0]["function_response"]["response"]["error"]


@pytest.mark.parametrize(
    ("answer", "words", "retryable"),
    [
        (reply(finish_reason="MAX_TOKENS"), r"ended \(MAX_TOKENS\) before", False),
        (reply(SAID, finish_reason="SAFETY"), "cannot be used: SAFETY", False),
        (reply(finish_reason="MALFORMED_FUNCTION_CALL"), "MALFORMED_FUNCTION_CALL", True),
        ({"prompt_feedback": {"block_reason": "SAFETY"}}, "blocked: SAFETY", False),
        ({"promptFeedback": {"blockReason": "SAFETY"}, "candidates": []}, "blocked", False),
        ({"candidates": []}, "no reply", True),
        ({"error": {"code": 503, "message": "busy\x1b"}}, r"busy\\x1b", True),
        ({"error": {"code": 400}}, "400", False),
        (None, "a reply is a dict", False),
        ([reply(SAID)], "a reply is a dict", False),
        (reply(1), "not of the Gemini API", False),
        (reply({"text": 1}), "a text that is none", False),
        (reply({"function_call": {"args": {}}}), "not complete", False),
        (reply({"function_call": {"name": "a", "will_continue": True}}), "not complete", False),
    ],
)
def test_what_cannot_go_on_is_a_model_error(answer: Any, words: str, retryable: bool) -> None:
    with pytest.raises(ModelError, match=words) as raised:
        uses(answer)
    assert raised.value.retryable is retryable


def test_a_reply_of_the_rest_api_is_read() -> None:
    call = {"functionCall": {"name": "kit__tool", "args": {"a": 1}}}
    candidate = {"content": {"parts": [call]}, "finishReason": "STOP"}
    (use,) = uses({"candidates": [candidate], "responseId": "r"})
    assert (use.name, use.arguments) == ("kit__tool", {"a": 1})


def test_an_empty_reply_ends_the_loop() -> None:
    answer = {"candidates": [{"finish_reason": "STOP"}]}
    assert (uses(answer), text(answer), messages(answer, [])) == ([], "", [])


# Messages of the user


def test_a_message_of_the_user() -> None:
    files = [PNG, FileChunk(b"a,b", "c.csv", "text/csv"), FileChunk(b"1", "d.mp3", "audio/mpeg")]
    content = types.Content.model_validate(user("Look", files))
    assert [part.text for part in content.parts or ()] == [
        "Look",
        None,
        "[file 'c.csv', text/csv, 3 bytes]\na,b",
        None,
    ]


@pytest.mark.parametrize(
    ("said", "files", "error"),
    [
        (" ", (), "needs a text or a file"),
        ("a", (FileChunk(b"", "a.mp3", "audio/mpeg"),), "does not take"),
        ("a", (FileChunk(b"GIF89a", "a.gif", "image/gif"),), "does not take"),
        ("a", (FileChunk(b"%PDF-" + bytes(8 * 2**20), "a.pdf"),) * 2, "at most 15,728,640 bytes"),
    ],
)
def test_a_message_that_the_api_would_refuse(said: str, files: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        user(said, files)


# Streams


def chunk(*parts: Plain, **fields: Any) -> Plain:
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, **fields}]}


def test_a_stream_is_put_together() -> None:
    signed = {"text": "es", "thought_signature": "c2ln"}
    events = [
        chunk({"text": "I ", "thought": True}) | {"response_id": "r"},
        chunk({"text": "think", "thought": True}, {"text": "Y"}),
        {"candidates": [{"index": 1, "content": {"parts": [{"text": "other"}]}}]},
        chunk(signed),
        chunk({"text": "."}, CALL),
        {"usage_metadata": {"total_token_count": 5}},
        chunk({"text": ""}, finish_reason="STOP"),
    ]
    collected = collect(events)
    assert collected == {
        "response_id": "r",
        "usage_metadata": {"total_token_count": 5},
        **reply(
            {"text": "I think", "thought": True},
            {"text": "Y"},
            signed,
            {"text": "."},
            CALL,
            {"text": ""},
        ),
    }
    assert "".join(map(text_of, events)) == text(collected) == "Yes."


@pytest.mark.parametrize(
    ("events", "words", "retryable"),
    [
        ([], "ended before", True),
        ([chunk(SAID)], "ended before", True),
        ([chunk(SAID), {"error": {"code": 429, "message": "slow"}}], "slow", True),
        ([chunk(SAID), {"prompt_feedback": {"block_reason": "SAFETY"}}], "blocked", False),
        ([None], "no reply", False),
    ],
)
def test_a_stream_that_broke_off(events: Any, words: str, retryable: bool) -> None:
    with pytest.raises(ModelError, match=words) as raised:
        uses(collect(events))
    assert raised.value.retryable is retryable


# Anything


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
CALLS = st.fixed_dictionaries(
    {"name": st.just("a")}, optional={"args": JSON, "id": JSON, "willContinue": JSON}
)
PART = st.fixed_dictionaries(
    {},
    optional={"text": st.just("a") | JSON, "thought": JSON, "function_call": CALLS | JSON},
)
CANDIDATE = st.fixed_dictionaries(
    {"content": JSON | st.fixed_dictionaries({"parts": JSON | st.lists(PART | JSON, max_size=3)})},
    optional={"finish_reason": st.just("MAX_TOKENS") | JSON, "index": JSON},
)
REPLY = JSON | st.fixed_dictionaries(
    {},
    optional={
        "candidates": st.lists(CANDIDATE | JSON, max_size=2) | JSON,
        "promptFeedback": st.dictionaries(st.just("blockReason"), JSON) | JSON,
        "error": st.dictionaries(st.sampled_from(["code", "message"]), JSON) | JSON,
        "response_id": JSON,
        "model_version": JSON,
    },
)
FUNCTIONS: list[Callable[[Any], Any]] = [uses, text, lambda answer: messages(answer, [])]


@given(REPLY, st.lists(REPLY, max_size=4))
def test_whatever_comes_is_a_reply_or_a_model_error(answer: Any, events: list[Any]) -> None:
    assert isinstance(text_of(answer), str)
    for function in FUNCTIONS:
        for read in (lambda: answer, lambda: collect(events)):
            try:
                function(read())
            except ModelError:
                pass
