"""Both APIs of OpenAI: a conversation in two steps, files, names, and replies of any kind."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses import Response
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

from support.models.declared_types import faults
from toolbus import (
    FileChunk,
    ModelError,
    Permissions,
    Rule,
    TextChunk,
    ToolFailed,
    Toolkit,
    ToolResult,
    Turn,
    tool,
)
from toolbus.models import openai_chat, openai_responses
from toolbus.models.adapter import Adapter, Plain
from toolbus.turns.model_tools import ModelTool

CHAT: Adapter = openai_chat  # a module is an adapter: mypy checks the functions
RESPONSES: Adapter = openai_responses
BOTH = pytest.mark.parametrize("adapter", [CHAT, RESPONSES], ids=["chat", "responses"])

PNG = FileChunk(b"\x89PNG\r\n\x1a\n...", "a b.png", "application/octet-stream")
PDF = FileChunk(b"%PDF-1.7 ...", "", "application/pdf")
WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
ANIMATED = FileChunk(b"GIF89a...NETSCAPE2.0...", "a.gif", "image/gif")


def picture() -> FileChunk:
    """Draw."""
    return PNG


def report(pages: int = 1) -> FileChunk:
    return PDF


def broken() -> str:
    raise ToolFailed("the disk is full")


def danger() -> str:
    return "never"


KIT = Toolkit("kit", [tool(picture), tool(report), tool(broken), tool(danger)])
CALLS = [
    ("c1", "kit__picture", ""),
    ("c2", "kit__report", '{"pages": 2}'),
    ("c3", "kit__broken", "{}"),
    ("c4", "kit__danger", "{}"),
    ("c5", "kit__absent", "{}"),
    ("c6", "kit__report", '{"pages": 2'),
    ("c7", "kit__report", '{"pages": 3}'),
]


def chat_reply(message: Plain, finish_reason: str = "tool_calls") -> Plain:
    """Return a reply as the client gives it."""
    return ChatCompletion.model_validate(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": None} | message,
                    "finish_reason": finish_reason,
                    "logprobs": None,
                }
            ],
        }
    ).to_dict()


def chat_calls(*calls: tuple[Any, str, Any]) -> list[Plain]:
    return [
        {"id": each, "type": "function", "function": {"name": name, "arguments": arguments}}
        for each, name, arguments in calls
    ]


def response(*items: Mapping[str, Any], **more: Any) -> Plain:
    """Return a response as the client gives it."""
    return Response.model_validate(
        {
            "id": "resp_1",
            "object": "response",
            "created_at": 1_700_000_000.0,
            "status": "completed",
            "model": "m",
            "error": None,
            "incomplete_details": None,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "output": [dict(item) for item in items],
        }
        | more
    ).to_dict()


def response_calls(*calls: tuple[Any, str, Any]) -> list[Plain]:
    return [
        {
            "type": "function_call",
            "id": f"fc_{each}",
            "call_id": each,
            "name": name,
            "arguments": arguments,
            "status": "completed",
        }
        for each, name, arguments in calls
    ]


REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "hm"}],
    "encrypted_content": "gAAAA",
    "status": "completed",
    "content": None,
}
SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}],
}


def reply_of(adapter: Adapter, *calls: tuple[Any, str, Any], **more: Any) -> Plain:
    if adapter is CHAT:
        message = {"content": "I look.", "tool_calls": chat_calls(*calls)}
        return chat_reply(message | more)
    return response(REASONING, SAID, *response_calls(*calls), **more)


def accepted(adapter: Adapter, request: Plain) -> bool:
    """Whether the client's own types take a request, every field of it."""
    chat: Any = CompletionCreateParamsNonStreaming
    declared: Any = chat if adapter is CHAT else ResponseCreateParamsNonStreaming
    assert faults(request | {"model": "m"}, declared) == []
    return bool(json.dumps(request, allow_nan=False, ensure_ascii=False).encode())


@BOTH
async def test_a_reply_and_its_results_are_accepted_in_the_next_request(adapter: Adapter) -> None:
    rules = Permissions("bypass", [Rule(behavior="deny", tool="kit.danger")])
    async with Turn(None, always=[KIT], permissions=rules) as turn:
        conversation = [adapter.user("Draw it.", [PNG, PDF])]
        assert accepted(adapter, adapter.request(turn, conversation, "Be brief."))
        reply = reply_of(adapter, *CALLS)
        before = copy.deepcopy(reply)
        uses = adapter.uses(reply)
        assert [(use.id, use.name, use.arguments) for use in uses] == CALLS
        conversation += adapter.messages(reply, await turn.run(uses[:-1]))
        assert reply == before
        second = adapter.request(turn, conversation)
    assert accepted(adapter, second)
    assert adapter.text(reply) == "I look."
    texts = _result_texts(adapter, conversation)
    assert list(texts) == [call_id for call_id, *_ in CALLS]
    assert texts["c1"] == "[file 'a b.png', application/octet-stream, 11 bytes]"
    assert "application/pdf" in texts["c2"]
    assert "the disk is full. The tool ran." in texts["c3"]
    assert "error permission_denied" in texts["c4"]
    assert "error not_found" in texts["c5"]
    assert "error invalid_arguments: the arguments are not JSON" in texts["c6"]
    assert "interrupted: no result was kept of this call. It is not known" in texts["c7"]


def _result_texts(adapter: Adapter, conversation: list[Plain]) -> dict[str, str]:
    """Return the text of each result by its call, and check where its files are."""
    if adapter is CHAT:
        kinds = [message["role"] for message in conversation]
        assert kinds == ["user", "assistant", *["tool"] * len(CALLS), "user"]
        parts = conversation[-1]["content"]
        assert [part["type"] for part in parts] == ["text", "image_url", "text", "file"]
        assert parts[0]["text"].endswith("of the result of kit.picture, call c1:")
        assert _content(parts[1]["image_url"]["url"]) == ("image/png", PNG.data)
        assert parts[3]["file"]["filename"] == "file.pdf"
        assert _content(parts[3]["file"]["file_data"]) == ("application/pdf", PDF.data)
        return {each["tool_call_id"]: each["content"] for each in conversation[2:-1]}
    kinds = [item["type"] for item in conversation]
    assert kinds[1:3] == ["reasoning", "message"]
    assert kinds[3:] == ["function_call"] * 7 + ["function_call_output"] * 7
    assert conversation[1]["encrypted_content"] == "gAAAA"
    outputs = {item["call_id"]: item["output"] for item in conversation[10:]}
    text, image = outputs["c1"]
    assert (text["type"], image["type"]) == ("input_text", "input_image")
    assert _content(image["image_url"]) == ("image/png", PNG.data)
    assert outputs["c2"][1]["filename"] == "file.pdf"
    return {
        call_id: output if isinstance(output, str) else output[0]["text"]
        for call_id, output in outputs.items()
    }


def _content(url: str) -> tuple[str, bytes]:
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    return kind, base64.b64decode(data)


def turn_with(*schemas: Plain, prompt: str = "") -> Turn:
    """Make what an adapter reads of a turn."""
    tools = [
        ModelTool(f"kit__t{number}", "", schema, cast(Any, SimpleNamespace(name=f"kit.t{number}")))
        for number, schema in enumerate(schemas)
    ]
    return cast(Turn, SimpleNamespace(model_tools=tuple(tools), prompt=lambda: prompt))


@BOTH
def test_instructions_and_prompt_come_first_and_nothing_empty_is_sent(adapter: Adapter) -> None:
    where = {CHAT: lambda made: made["messages"][0]["content"]}.get(adapter)
    read: Callable[[Plain], Any] = where or (lambda made: made["instructions"])
    turn = turn_with(prompt="Rules.")
    said = adapter.user("hello")
    assert read(adapter.request(turn, [said], "Be brief.")) == "Be brief.\n\nRules."
    assert read(adapter.request(turn, [said])) == "Rules."
    bare = adapter.request(turn_with(), [said])
    assert bare == ({"messages": [said]} if where else {"input": [said], "store": False})


@BOTH
def test_a_schema_without_strict_form_is_plain(adapter: Adapter) -> None:
    open_object = {"type": "object", "properties": {"a": {"type": "object"}}}
    closed = {"type": "object", "properties": {}, "additionalProperties": False}
    definitions = adapter.definitions(turn_with(closed, open_object))
    found = [each.get("function", each) for each in definitions]
    assert [(each["name"], each["strict"]) for each in found] == [
        ("kit__t0", True),
        ("kit__t1", False),
    ]


@BOTH
@pytest.mark.parametrize("count", [0, 1_000])
def test_no_tool_is_left_out(adapter: Adapter, count: int) -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    assert len(adapter.definitions(turn_with(*[schema] * count))) == count


@pytest.mark.parametrize(
    ("file", "chat", "responses"),
    [
        (PNG, "image_url", "input_image"),
        (PDF, "file", "input_file"),
        (FileChunk(b"RIFF", "a.wav", "audio/x-wav"), "input_audio", None),
        (FileChunk(b"PK\3\4\xff", "../Ä.DOCX", WORD), None, "input_file"),
        (FileChunk(b"\xff", "a.docx", WORD), None, None),
        (FileChunk(b"a,b", "a.csv", "text/csv"), "text", "input_text"),
        (ANIMATED, None, None),
        (FileChunk(b"junk", "a.png", "image/png"), None, None),
        (FileChunk(b"\xff", "a.bin"), None, None),
        (FileChunk.from_path("absent.png"), None, None),
    ],
)
def test_a_file_of_the_user_goes_as_the_api_takes_it(
    file: FileChunk, chat: str | None, responses: str | None
) -> None:
    for adapter, kind in ((CHAT, chat), (RESPONSES, responses)):
        if kind is None:
            with pytest.raises(ValueError, match=r"\[file "):
                adapter.user("see", [file])
        else:
            message = adapter.user("see", [file])
            assert [part["type"] for part in message["content"]][1] == kind
            assert accepted(adapter, adapter.request(turn_with(), [message]))


@BOTH
def test_files_are_within_the_limit_of_a_request_together(adapter: Adapter) -> None:
    large = FileChunk(b"%PDF-" + bytes(15 * 2**20 - 5), name="a.pdf", mime_type="application/pdf")
    reply = reply_of(adapter, *((f"c{number}", "kit.read", "{}") for number in range(4)))
    results = [ToolResult(f"c{number}", "kit.read", "ok", (large,)) for number in range(4)]
    assert json.dumps(adapter.messages(reply, results)).count(";base64,") == 3
    with pytest.raises(ValueError, match="the files of a message have at most 50,000,000 bytes"):
        adapter.user("Read them.", [large] * 4)


# Replies of other servers, and broken ones


@BOTH
def test_ids_that_are_missing_or_repeat_are_made_and_stay_the_same(adapter: Adapter) -> None:
    calls = [("a", "kit__t", "{}"), ("", "kit__t", "{}"), ("a", "kit__t", '{"a": 1}')]
    reply = reply_of(adapter, *calls)
    ids = [use.id for use in adapter.uses(reply)]
    assert ids[0] == "a"
    assert len({*ids}) == 3
    results = [ToolResult(each, "kit.t", "ok", (TextChunk(each),)) for each in reversed(ids)]
    sent = adapter.messages(reply, results)
    request = adapter.request(turn_with(), [adapter.user("x"), *sent])
    assert accepted(adapter, request)
    if adapter is CHAT:
        assert [call["id"] for call in sent[0]["tool_calls"]] == ids
        assert [(each["tool_call_id"], each["content"]) for each in sent[1:]] == [
            (each, each) for each in ids
        ]
    else:
        assert [each["call_id"] for each in sent[2:]] == ids + ids
        assert [each["output"] for each in sent[5:]] == ids


@pytest.mark.parametrize("reason", ["max_tokens", "model_length", "error", "abort"])
def test_compatible_servers_have_other_words_for_a_reply_that_was_cut(reason: str) -> None:
    answer = reply_of(CHAT, ("a", "kit__t", ""))
    answer["choices"][0]["finish_reason"] = reason
    assert "was cut" in CHAT.uses(answer)[0].invalid


@BOTH
@pytest.mark.parametrize(
    ("written", "is_cut", "used", "sent"),
    [
        ('{"a": 1}', False, '{"a": 1}', '{"a": 1}'),
        ('{"a": 1}', True, '{"a": 1}', '{"a": 1}'),
        ("", False, "", "{}"),
        (None, False, None, "{}"),
        ("null", False, "null", "{}"),
        (" ", True, "cut", "{}"),
        ("{}", True, "cut", "{}"),
        (None, True, "cut", "{}"),
        ('{"a": ', False, '{"a": ', '{"invalid_json": "{\\"a\\": "}'),
        ("[1]", False, "[1]", '{"invalid_json": "[1]"}'),
        ('{"a": NaN}', False, '{"a": NaN}', '{"invalid_json": "{\\"a\\": NaN}"}'),
        ("[" * 9_999, False, "[" * 9_999, f'{{"invalid_json": "{"[" * 9_999}"}}'),
        ({"a": "\ud800"}, False, {"a": "\ufffd"}, '{"a": "\ufffd"}'),
        (7, False, "7", '{"invalid_json": "7"}'),
    ],
)
def test_arguments_go_to_the_turn_as_written_and_back_as_an_object(
    adapter: Adapter, written: Any, is_cut: bool, used: Any, sent: str
) -> None:
    reply = reply_of(adapter, ("a", "kit__t", "{}"))
    if adapter is CHAT:
        reply["choices"][0]["finish_reason"] = "length" if is_cut else "tool_calls"
        call = reply["choices"][0]["message"]["tool_calls"][0]["function"]
    else:
        reply["status"] = "incomplete" if is_cut else "completed"
        call = reply["output"][-1]
    call["arguments"] = written
    (use,) = adapter.uses(reply)
    if used == "cut":
        assert "was cut" in use.invalid
    else:
        assert (use.arguments, use.invalid) == (used, "")
    back = adapter.messages(reply, [])
    calls = [back[0]["tool_calls"][0]["function"]] if adapter is CHAT else back[2:3]
    assert calls[0]["arguments"] == sent


def test_a_call_that_the_server_calls_incomplete_does_not_run_with_closed_json() -> None:
    reply = reply_of(RESPONSES, ("a", "kit__t", '{"a": 1}'))
    reply["output"][-1]["status"] = "incomplete"
    (use,) = RESPONSES.uses(reply)
    assert "was cut" in use.invalid
    assert "the reply was cut here" in RESPONSES.messages(reply, [])[-1]["output"]


@BOTH
@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("multi_tool_use.parallel", "multi_tool_use_parallel"),
        ("", "unnamed"),
        ("ä" * 99, "_" * 64),
        (7, "7"),
        (None, "unnamed"),
    ],
)
def test_a_name_that_the_api_refuses_is_written_so_that_it_takes_it(
    adapter: Adapter, name: Any, sent: str
) -> None:
    reply = reply_of(adapter, ("a", "kit__t", "{}"))
    if adapter is CHAT:
        reply["choices"][0]["message"]["tool_calls"][0]["function"]["name"] = name
    else:
        reply["output"][-1]["name"] = name
    assert [use.name for use in adapter.uses(reply)] == [name if isinstance(name, str) else ""]
    back = adapter.messages(reply, [])
    call = back[0]["tool_calls"][0]["function"] if adapter is CHAT else back[2]
    assert call["name"] == sent


@pytest.mark.parametrize(
    ("message", "sent"),
    [
        ({"content": "hi", "refusal": None, "annotations": [], "audio": None}, {"content": "hi"}),
        ({"content": None, "tool_calls": []}, {"content": ""}),
        ({"content": "", "tool_calls": None, "function_call": None}, {"content": ""}),
        (
            {"content": None, "refusal": "No."},
            {"content": [{"type": "refusal", "refusal": "No."}]},
        ),
        (
            {"content": None, "reasoning_content": "hm"},
            {"content": "", "reasoning_content": "hm"},
        ),
        (
            {
                "content": None,
                "audio": {"id": "a1", "data": "UklG", "expires_at": 9, "transcript": "hi"},
            },
            {"content": None, "audio": {"id": "a1"}},
        ),
        (
            {"content": [{"type": "text", "text": "hi"}], "refusal": "No."},
            {"content": [{"type": "text", "text": "hi"}], "refusal": "No."},
        ),
    ],
)
def test_a_message_goes_back_as_it_is_but_for_what_chat_refuses(
    message: Plain, sent: Plain
) -> None:
    reply = chat_reply({}, "stop")
    reply["choices"][0]["message"] = {"role": "assistant"} | message
    (found,) = CHAT.messages(reply, [])
    found.pop("annotations", None)
    assert found == {"role": "assistant"} | sent
    texts = [message["refusal"]] if message.get("refusal") else []
    content = message["content"]
    said = content[0]["text"] if isinstance(content, list) else content or ""
    assert CHAT.text(reply) == said + "".join(texts)


def test_a_content_that_is_one_part_is_read_as_a_list_of_it() -> None:
    reply = chat_reply({}, "stop")
    reply["choices"][0]["message"]["content"] = {"type": "text", "text": "hi"}
    assert CHAT.text(reply) == "hi"
    assert not CHAT.ending(reply).is_empty


def test_fields_of_other_servers_and_unusual_calls_go_back_with_their_message() -> None:
    custom = {"id": "b", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    signed = chat_calls(("a", "kit__t", "{}"))[0] | {"extra_content": {"google": {"s": "x"}}}
    message = {"tool_calls": [signed, custom], "reasoning_content": "hm"}
    reply = chat_reply(message)
    reply["choices"][0]["message"]["tool_calls"][0]["custom"] = None
    assert [(use.name, use.arguments) for use in CHAT.uses(reply)] == [
        ("kit__t", "{}"),
        ("sql", "select 1"),
    ]
    sent = CHAT.messages(reply, [])[0]
    assert sent == {"role": "assistant", "content": None} | message
    legacy = chat_reply({"function_call": {"name": "kit__t", "arguments": "{}"}}, "function_call")
    (use,) = CHAT.uses(legacy)
    back = CHAT.messages(legacy, [])
    assert back[0]["tool_calls"][0]["id"] == use.id == back[1]["tool_call_id"]
    assert "function_call" not in back[0]


def test_more_calls_than_one_message_may_have_go_back_in_several() -> None:
    reply = chat_reply({"tool_calls": chat_calls(*[(f"c{n}", "t", "{}") for n in range(200)])})
    sent = CHAT.messages(reply, [])
    assert accepted(CHAT, CHAT.request(turn_with(), sent))
    assert [len(each["tool_calls"]) for each in sent if each["role"] == "assistant"] == [128, 72]
    owed: list[str] = []
    for message in sent:
        if message["role"] == "assistant":
            assert owed == []
            owed = [call["id"] for call in message["tool_calls"]]
        else:
            assert message["tool_call_id"] == owed.pop(0)
    assert owed == []


def test_items_go_back_in_order_without_what_responses_refuse() -> None:
    call = response_calls(("a", "kit__t", "{}"))[0]
    program = {"type": "program", "caller_id": "p1"}
    items: list[Plain] = [
        REASONING,
        SAID | {"phase": "commentary"},
        call | {"status": None, "namespace": None, "parsed_arguments": {}, "caller": program},
        {"type": "custom_tool_call", "call_id": "b", "name": "sql", "input": "select 1"},
        {
            "type": "web_search_call",
            "id": "ws",
            "status": "completed",
            "action": {"type": "search"},
        },
        {"type": "code_interpreter_call", "id": "ci", "status": "completed", "code": None}
        | {"container_id": "c", "outputs": None},
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": None},
    ]
    reply = response() | {"output": items}
    assert [use.name for use in RESPONSES.uses(reply)] == ["kit__t", "sql"]
    sent = RESPONSES.messages(reply, [])
    assert accepted(RESPONSES, RESPONSES.request(turn_with(), sent))
    assert sent[0] == {key: REASONING[key] for key in REASONING.keys() - {"status", "content"}}
    assert sent[1] == items[1]
    assert sent[2] == {key: call[key] for key in call if key != "status"} | {"caller": program}
    assert sent[3:6] == items[3:6]
    assert [(each["type"], each["call_id"]) for each in sent[6:]] == [
        ("function_call_output", "a"),
        ("custom_tool_call_output", "b"),
    ]
    assert sent[6]["caller"] == program
    cut = reply | {"output": [SAID, REASONING], "status": "incomplete"}
    assert RESPONSES.messages(cut, []) == [SAID]
    items.append(items.pop(0))  # one that has no item after it
    items.append(SAID)
    kept = RESPONSES.messages(reply | {"store": True}, [])
    assert [each["id"] for each in kept if each["type"] == "reasoning"] == ["rs_2", "rs_1"]


@pytest.mark.parametrize(
    ("adapter", "reply", "words"),
    [
        (CHAT, {"choices": []}, "no choice"),
        (CHAT, {"error": {"code": 429, "message": "slow\ndown"}}, r"failed: slow\\ndown"),
        (CHAT, {"choices": [{"error": "bad", "message": {}}]}, "bad"),
        (CHAT, {"choices": [{"message": None}]}, "no choice"),
        (RESPONSES, {"status": "failed", "error": {"code": "server_error"}}, "server_error"),
        (RESPONSES, {"status": "queued", "output": []}, "'queued'"),
        (RESPONSES, {"status": "completed"}, "no list of items"),
        (CHAT, "text", "not a value of str"),
        (RESPONSES, None, "not a value of NoneType"),
    ],
)
def test_what_is_no_reply_is_an_error_of_the_model(
    adapter: Adapter, reply: Any, words: str
) -> None:
    for read in (adapter.uses, adapter.text, lambda reply: adapter.messages(reply, [])):
        with pytest.raises(ModelError, match=words):
            read(reply)
    assert _error(adapter, {"error": {"code": 429}}).retryable
    assert _error(adapter, {"error": {"code": 429}}).status == 429
    assert not _error(adapter, {"error": {"code": ["x"]}}).retryable


def _error(adapter: Adapter, reply: Plain) -> ModelError:
    with pytest.raises(ModelError) as caught:
        adapter.uses(reply)
    return caught.value


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = (
        "choices message delta content tool_calls function_call custom function name arguments id "
        "index type refusal audio finish_reason error output status call_id text summary action "
        "logprobs item response"
    ).split()
    kinds = "function custom message function_call custom_tool_call reasoning output_text".split()
    return st.dictionaries(
        st.sampled_from(names), inner | st.sampled_from([*kinds, "length", "stop"]), max_size=6
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | _objects(inner),
    max_leaves=12,
)


@BOTH
@given(value=_objects(JSON), items=st.lists(_objects(JSON), max_size=3))
def test_any_json_is_a_reply_or_an_error(adapter: Adapter, value: Any, items: list[Any]) -> None:
    message = {"content": value.get("content"), "tool_calls": items}
    choice = value | {"message": value | message, "delta": value | message}
    for reply in (value, {"choices": [choice]}, {"output": items}, {"output": [value | SAID]}):
        try:
            uses = adapter.uses(reply)
            adapter.text(reply)
            sent = adapter.messages(reply, [])
        except ModelError:
            continue
        assert len({use.id for use in uses}) == len(uses)
        json.dumps(sent, allow_nan=False, ensure_ascii=False).encode()
    events = [value, {"choices": [choice]}, {"type": "response.output_item.done"} | value]
    ends = [{"choices": [choice | {"finish_reason": "stop"}]}, {"type": "response.completed"}]
    for stream in ([*items, *events], [*events, *ends], items):
        for event in stream:
            assert isinstance(adapter.text_of(event), str)
        try:
            adapter.uses(adapter.collect(stream))
        except ModelError:
            continue


# Streams


def chunk(delta: Plain | None, finish_reason: str | None = None, **more: Any) -> Plain:
    """Return an event of a chat completion as the client gives it."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return ChatCompletionChunk.model_validate(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": "m",
            "choices": [] if delta is None else [choice],
        }
        | more
    ).to_dict()


def piece(index: int | None, call_id: str | None, name: str | None, arguments: Any) -> Plain:
    """Return an event with a piece of a call; None leaves a field out."""
    function = {"name": name, "arguments": arguments}
    call = {"index": index, "id": call_id, "function": function}
    event = chunk({})
    event["choices"][0]["delta"] = {
        "tool_calls": [{key: each for key, each in call.items() if each is not None}]
    }
    return event


WHOLE = {"rows": [{"index": 0, "id": "x"}, {"index": 0, "id": "y"}]}  # arguments as an object
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def test_a_streamed_chat_completion_is_the_same_as_a_whole_one() -> None:
    calls = [("c1", "kit__a", '{"x": 1}'), ("c2", "kit__b", "")]
    more: Plain = {"content": "I look.", "refusal": None, "reasoning_content": "so so"}
    whole = chat_reply(more | {"tool_calls": chat_calls(*calls)}) | {"usage": USAGE}
    events = [
        chunk({"role": "assistant", "content": "", "refusal": None}),
        chunk({"reasoning_content": "so "}, obfuscation="x"),
        chunk({"reasoning_content": "so"}),
        chunk({"content": "I "}),
        chunk({"content": "look."}),
        chunk({"tool_calls": [{"index": 0, "type": "function"} | chat_calls(calls[0])[0]]}),
        chunk({"tool_calls": [{"index": 1, "type": "function"} | chat_calls(calls[1])[0]]}),
        chunk({}, "tool_calls"),
        chunk(None, usage=USAGE),
    ]
    first = events[5]["choices"][0]["delta"]["tool_calls"][0]["function"]
    first["arguments"] = ""
    events[6:6] = [piece(0, None, None, '{"x"'), piece(0, None, None, ": 1}")]
    assert "".join(map(CHAT.text_of, events)) == "I look."
    assert CHAT.collect(iter(events)) == whole


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        ([(0, "a", "t", "{"), (0, "a", "t", "}")], [("a", "t", "{}")]),
        ([(0, "a", "t", ""), (0, "", "", "{}"), (1, "b", "t", "{}")], "ab"),
        (
            [(0, "a", "t", "{"), (1, "b", "t", "{"), (0, None, None, "}"), (1, None, None, "}")],
            "ab",
        ),
        ([(0, "a", "t", "{}"), (0, "b", "t", "{"), (0, None, None, "}")], "ab"),
        ([(None, "a", "t", "{}"), (None, "b", "t", "{"), (None, None, None, "}")], "ab"),
        ([(None, "a", "t", "{"), (None, "b", "t", "{}"), (None, "a", None, "}")], "ab"),
        ([(None, None, "t", "{}"), (None, None, "t", "{}")], [(None, "t", "{}")] * 2),
        ([(0, "", "t", "{}"), (0, "", "t", "{}")], [("", "t", "{}")] * 2),
        ([(0, "", "t", ""), (0, "", "t", "{"), (0, "", "t", "}")], [("", "t", "{}")]),
        ([(0, None, "t", "{}"), (0, None, "u", "{}")], [(None, "t", "{}"), (None, "u", "{}")]),
        ([(0, None, "t", "{"), (0, "a", None, "}")], [("a", "t", "{}")]),
        ([(0, "a", "t", WHOLE)], [("a", "t", WHOLE)]),
    ],
)
def test_calls_are_put_together_as_servers_send_them(
    pieces: list[tuple[Any, Any, Any, Any]], calls: str | list[tuple[Any, str, Any]]
) -> None:
    wanted = [(each, "t", "{}") for each in calls] if isinstance(calls, str) else calls
    reply = CHAT.collect([*(piece(*each) for each in pieces), chunk({}, "tool_calls")])
    found = reply["choices"][0]["message"]["tool_calls"]
    assert [
        (call.get("id"), call["function"]["name"], call["function"]["arguments"]) for call in found
    ] == wanted
    whole = chat_reply({}) | {"id": reply["id"]}
    whole["choices"][0]["message"]["tool_calls"] = found
    assert CHAT.messages(reply, []) == CHAT.messages(whole, [])


def test_parts_and_reasoning_in_pieces_are_joined() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    detail = {"type": "reasoning.text", "index": 0, "format": "v1"}
    secret = {"type": "reasoning.encrypted", "index": 0, "data": "D"}
    events = [
        chunk({"content": None, "reasoning_details": [detail | {"text": "h"}]}),
        chunk({"content": None, "reasoning_details": [secret, detail | {"text": "m"}]}),
        chunk({"content": None, "reasoning_details": [{"index": 0, "signature": "s"}]}),
        chunk({}, "stop"),
    ]
    for event, content in zip(events, ([thinking], "hi", None, " you"), strict=True):
        event["choices"][0]["delta"]["content"] = content
    message = CHAT.collect(events)["choices"][0]["message"]
    assert message["reasoning_details"] == [detail | {"text": "hm", "signature": "s"}, secret]
    assert message["content"][0] == thinking
    assert CHAT.text({"choices": [{"message": message}]}) == "hi you"
    assert "".join(map(CHAT.text_of, events)) == "hi you"


def test_streamed_responses_end_with_the_whole_one() -> None:
    whole = reply_of(RESPONSES, ("a", "kit__t", "{}"))
    delta = {"type": "response.output_text.delta"}
    deltas: list[Plain] = [delta | {"delta": each} for each in ("I ", "look.")]
    done: list[Plain] = [
        {"type": "response.output_item.done", "output_index": index, "item": item}
        for index, item in reversed([*enumerate(whole["output"])])
    ]
    begun = {"type": "response.created", "response": whole | {"status": "in_progress"}}
    for kind in ("completed", "incomplete"):
        end = {"type": f"response.{kind}", "response": whole | {"status": kind}}
        assert RESPONSES.collect([begun, *deltas, *done, end]) == whole | {"status": kind}
        end["response"] = whole | {"status": kind, "output": []}
        assert RESPONSES.collect([begun, *deltas, *done, end]) == whole | {"status": kind}
    assert "".join(map(RESPONSES.text_of, [begun, *deltas, *done])) == RESPONSES.text(whole)


@pytest.mark.parametrize(
    ("adapter", "events", "words", "retryable"),
    [
        (CHAT, [], "ended before", True),
        (CHAT, [piece(0, "a", "t", '{"x": 1}')], "ended before", True),
        (CHAT, [chunk(None, usage=USAGE)], "ended before", True),
        (
            CHAT,
            [chunk({"content": "x"}), {"error": {"message": "lost", "code": 502}}],
            "lost",
            True,
        ),
        (CHAT, ["text"], "no object", True),
        (RESPONSES, [], "ended before", True),
        (RESPONSES, [{"type": "response.completed"}], "ended before", True),
        (RESPONSES, [{"type": "error", "code": "server_error", "message": "oh"}], ": oh", True),
        (RESPONSES, [{"type": "error", "error": {"message": "no"}}], "no", False),
        (RESPONSES, [{"type": "response.failed", "response": {"error": None}}], "failed", False),
        (
            RESPONSES,
            [{"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded"}}}],
            "rate_limit_exceeded",
            True,
        ),
        (RESPONSES, [7], "no object", True),
    ],
)
def test_a_stream_that_breaks_off_is_an_error(
    adapter: Adapter, events: list[Any], words: str, retryable: bool
) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        adapter.collect(events)
    assert caught.value.retryable is retryable
