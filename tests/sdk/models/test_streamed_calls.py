"""A tool runs with the arguments that the model wrote, or not at all, however a server sends them.

Each row is a stream, and what runs of it in a turn. `purge` would take everything by default.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from toolbus import ModelError, Toolkit, Turn, tool
from toolbus.models import anthropic, gemini, openai_chat, openai_responses
from toolbus.models.adapter import Adapter, Plain

CHAT: Adapter = openai_chat
RESPONSES: Adapter = openai_responses
ANTHROPIC: Adapter = anthropic
GEMINI: Adapter = gemini

PURGE, PING = "kit__purge", "kit__ping"
X, Y = '{"folder": "/x"}', '{"folder": "/y"}'
REFUSED, NAMELESS = ["purge refused"], ["purge refused", " refused"]


async def outcome(adapter: Adapter, events: Sequence[Plain]) -> list[str]:
    """Return what the calls of a stream do: what runs, with its folder, and what is refused."""
    ran: list[str] = []

    async def purge(folder: str = "/everything", depth: int = 0) -> None:
        ran.append(f"purge {folder}")

    async def ping() -> None:
        ran.append("ping")

    reply = adapter.collect(events)
    async with Turn(None, always=[Toolkit("kit", [tool(purge), tool(ping)])]) as turn:
        results = await turn.run(adapter.uses(reply))
    conversation = str(adapter.messages(reply, results))
    for result in results:
        assert (result.executed == "yes") is (result.state == "ok")
        if result.error is not None:
            assert result.error.message[:40] in conversation, "the model reads why"
            ran.append(f"{result.tool.removeprefix('kit.')} refused")
    return [each.replace("kit__", "") for each in ran]


# Chat completions


def chat(*pieces: tuple[Any, Any, Any, Any], end: str = "tool_calls") -> list[Plain]:
    """Return a stream with pieces of calls: index, id, name, arguments; None leaves a field out."""
    events: list[Plain] = []
    for index, call_id, name, arguments in pieces:
        function = {"name": name, "arguments": arguments}
        call = {"index": index, "id": call_id, "type": "function"} | {
            "function": {key: value for key, value in function.items() if value is not None}
        }
        delta = {"tool_calls": [{key: value for key, value in call.items() if value is not None}]}
        events.append({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    return [*events, {"choices": [{"index": 0, "delta": {}, "finish_reason": end}]}]


CHATS: list[tuple[list[tuple[Any, Any, Any, Any]], str | list[str]]] = [
    # A piece without a name goes on with the call of its index or its id, whatever else it has.
    ([(0, "A", PURGE, ""), (0, "B", None, X)], ["purge /x"]),
    ([(0, "A", PURGE, ""), (0, "B", None, X[:5]), (0, "C", None, X[5:])], ["purge /x"]),
    ([(0, "A", PURGE, None), (0, None, None, X)], ["purge /x"]),
    ([(None, "A", PURGE, ""), (None, "B", None, X)], ["purge /x"]),
    ([(None, "A", PURGE, ""), (0, None, None, X)], ["purge /x"]),
    ([(0, "A", PURGE, ""), (1, "A", None, X)], ["purge /x"]),
    ([(0, "A", PURGE, ""), (0, "B", PURGE, ""), (0, "A", None, X), (0, "B", None, Y)], "xy"),
    ([("0", None, PURGE, ""), ("1", None, PURGE, Y), ("0", None, None, X)], "xy"),
    # Of no call, or of two: what may have lost its arguments does not run.
    ([(0, "A", PURGE, ""), (1, "B", None, X)], NAMELESS),
    ([(0, "A", PURGE, "{}"), (1, None, None, X)], NAMELESS),
    ([(0, "A", PURGE, ""), (1, "B", PING, ""), (1, "A", None, X)], ["ping", *NAMELESS]),
    ([(None, "D", PURGE, ""), (None, "A", PURGE, ""), (None, "B", PURGE, Y), (None, "C", None, X)],
     ["purge /y", *REFUSED, *NAMELESS]),
    ([(0, None, None, X), (0, "A", PURGE, "")], [" refused", "purge refused"]),
    ([(0, "A", PURGE, ""), (1, "B", PURGE, ""), (None, None, None, X)], [*REFUSED, *NAMELESS]),
    ([(0, "A", PURGE, X[:-3]), (1, None, None, "x"), (0, None, None, '"}')], NAMELESS),
    ([(0, "A", PURGE, X), (0, "A", None, Y), (1, "B", PURGE, "")], REFUSED * 2),
    # An id and a name begin a call; without an id, what follows whole arguments does.
    ([(0, "A", PURGE, X), (0, "B", PURGE, Y)], "xy"),
    ([(0, None, PURGE, {"folder": "/x"}), (0, None, PURGE, {"folder": "/y"})], "xy"),
    ([(0, None, PURGE, {"folder": "/x"}), (0, None, PURGE, Y)], "xy"),
    ([(None, None, PURGE, X), (None, None, PURGE, {"folder": "/y"})], "xy"),
    ([(0, "A", PURGE, ""), (0, "B", PURGE, X)], ["purge /x", "purge refused"]),
    ([(0, "A", PING, ""), (0, "B", PING, "")], ["ping", "ping"]),
    ([(0, None, PURGE, "{}"), (0, None, PURGE, X)], ["purge /x", "purge refused"]),
    # Names.
    ([(0, "A", "kit__pu", ""), (0, "A", "rge", ""), (0, "A", None, X)], ["purge /x"]),
    ([(0, "A", "kit__", None), (0, None, "purge", X)], ["purge /x"]),
    ([(None, None, "kit__", None), (None, None, "purge", X)], ["purge /x"]),
    ([(0, "A", PURGE, X[:5]), (0, "A", PURGE, X[5:])], ["purge /x"]),
    ([(0, "A", "kit__pu", ""), (0, "A", "rge", ""), (0, "A", PURGE, X)], ["purge /x"]),
    ([(0, "A", PURGE, X[:5]), (0, "A", "kit__ping", X[5:])], ["purge refused", "ping refused"]),
    ([(0, "A", None, X)], [" refused"]),
    # Arguments.
    ([(0, "A", PURGE, "{}"), (0, None, None, X)], ["purge /x"]),
    ([(0, "A", PURGE, "{}"), (0, "A", PURGE, X)], ["purge /x"]),
    ([(0, "A", PURGE, {}), (0, "A", None, X)], ["purge /x"]),
    ([(0, "A", PURGE, "{"), (0, "A", None, "} {}"), (0, "A", None, X)], ["purge /x"]),
    ([(0, "A", PURGE, X[:5]), (0, "A", None, X[5:]), (0, "A", None, X)], ["purge /x"]),
    ([(0, "A", PURGE, {"folder": "/x"}), (0, "A", None, X)], ["purge /x"]),
    ([(0, "A", PURGE, {"folder": "/x"}), (0, "A", None, {"depth": 1})], REFUSED),
    ([(0, "A", PURGE, {"folder": "/x"}), (0, "A", None, {"folder": "/y"})], REFUSED),
    ([(0, "A", PURGE, X), (0, "A", None, "{}")], REFUSED),
    ([(0, "A", PURGE, X), (0, "A", None, Y)], REFUSED),
    ([(0, "A", PURGE, '{"depth": 1}'), (0, "A", None, '{"depth": true}')], REFUSED),
    ([(0, "A", PURGE, {"folder": "/x"}), (0, "A", None, '{"depth"')], REFUSED),
    ([(0, "A", PURGE, X[:9])], REFUSED),
    ([(0, "A", PURGE, None)], REFUSED),
    ([(0, "A", PING, None)], ["ping"]),
    # So do Claude's models behind other servers write a call without arguments.
    ([(0, "A", PURGE, "")], ["purge /everything"]),
    ([(0, "A", PURGE, "{}")], ["purge /everything"]),
]  # fmt: skip


@pytest.mark.parametrize(("pieces", "wanted"), CHATS)
async def test_pieces_of_chat_completions_run_what_they_say_for_certain(
    pieces: list[tuple[Any, Any, Any, Any]], wanted: str | list[str]
) -> None:
    expected = [f"purge /{each}" for each in wanted] if isinstance(wanted, str) else wanted
    assert await outcome(CHAT, chat(*pieces)) == expected


@pytest.mark.parametrize("arguments", ["", None, "{}", {}, X[:9]])
async def test_a_call_in_a_chat_completion_that_was_cut_does_not_run(arguments: Any) -> None:
    assert await outcome(CHAT, chat((0, "A", PURGE, arguments), end="length")) == REFUSED
    assert await outcome(CHAT, chat((0, "A", PURGE, X), end="length")) == ["purge /x"]
    again = chat((0, "A", PURGE, arguments), end="insufficient_system_resource") + chat()
    assert await outcome(CHAT, again) == REFUSED, "a later reason takes back nothing"


async def test_a_call_without_a_list_and_one_of_the_former_api_are_read() -> None:
    pieces = chat((0, "A", "kit__pu", ""), (0, "A", "rge", X))
    deltas = [event["choices"][0]["delta"] for event in pieces]
    for delta in deltas[:2]:
        delta["tool_calls"] = delta["tool_calls"][0]
    assert await outcome(CHAT, pieces) == ["purge /x"]
    for delta in deltas[:2]:
        delta["function_call"] = delta.pop("tool_calls")["function"]
    assert await outcome(CHAT, pieces) == ["purge /x"]


async def test_calls_in_another_choice_than_the_one_that_ends_with_them_run() -> None:
    events = chat((0, "A", PURGE, X[:5]), (0, None, None, X[5:]))
    end = events[-1]["choices"][0]
    events[-1] = {"choices": [end, end | {"index": 1}]}
    for event in events[:-1]:
        event["choices"][0]["index"] = 1
    assert await outcome(CHAT, events) == ["purge /x"]
    end["finish_reason"] = "stop"
    assert await outcome(CHAT, events) == []


# Messages of Anthropic


def blocks(*given: tuple[int, Any, Sequence[Any]], ends: bool = True) -> list[Plain]:
    """Return a stream of uses of `purge`: index, input at the start, pieces of the input.

    A piece that is an object is a delta of another type.
    """
    events: list[Plain] = [{"type": "message_start", "message": {"content": []}}]
    for number, (index, start, pieces) in enumerate(given):
        block = {"type": "tool_use", "id": f"t{number}", "name": PURGE}
        block |= {} if start is None else {"input": start}
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        for piece in pieces:
            delta = {"type": "input_json_delta", "partial_json": piece}
            delta = piece if isinstance(piece, dict) else delta
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events += [{"type": "content_block_stop", "index": index}] if ends else []
    end = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": None}
    return [*events, end, {"type": "message_stop"}]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([(0, {"folder": "/x"}, [])], ["purge /x"]),
        ([(0, {"folder": "/x"}, [""])], ["purge /x"]),
        ([(0, {"folder": "/x"}, [X[:5], X[5:]])], ["purge /x"]),
        ([(0, X, [""])], ["purge /x"]),
        ([(0, {}, [X])], ["purge /x"]),
        ([(0, None, [X])], ["purge /x"]),
        ([(0, {}, ["{}", X])], ["purge /x"]),
        ([(0, {"folder": "/x"}, [Y])], REFUSED),
        ([(0, {"folder": "/x"}, ['{"depth": 1}'])], REFUSED),
        ([(0, {"folder": "/x"}, ["{}"])], REFUSED),
        ([(0, {}, [X[:9]])], REFUSED),
        ([(0, None, [])], REFUSED),
        ([(0, {}, [{"type": "input_later_delta", "later": X}])], REFUSED),
        ([(0, {}, [X, {"type": "input_later_delta", "later": X}])], REFUSED),
        ([(0, {}, [""])], ["purge /everything"]),  # so the API says that there are none
        ([(0, {}, [X]), (0, {}, [Y])], ["purge /x", "purge /y"]),
        ([(0, {"folder": "/x"}, []), (0, {}, [Y])], ["purge /x", "purge /y"]),
    ],
)
async def test_blocks_of_anthropic_run_what_they_say_for_certain(
    given: list[tuple[int, Any, Sequence[Any]]], wanted: list[str]
) -> None:
    assert await outcome(ANTHROPIC, blocks(*given)) == wanted


async def test_a_block_without_an_end_runs_only_with_arguments_that_came() -> None:
    assert await outcome(ANTHROPIC, blocks((0, {}, [X]), ends=False)) == ["purge /x"]
    assert await outcome(ANTHROPIC, blocks((0, {}, [""]), ends=False)) == REFUSED
    both = blocks((0, {}, []), (0, {}, [X]), ends=False)
    assert await outcome(ANTHROPIC, both) == ["purge /x", "purge refused"]


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (4, {"index": 2}),
        (3, {"content_block": {"type": "text", "text": ""}}),
        (3, {"type": "of_no_kind"}),
        (3, {"content_block": {"type": "tool_use", "name": ""}}),
    ],
)
async def test_an_input_of_no_use_leaves_no_use_with_empty_arguments(
    number: int, change: Plain
) -> None:
    events = blocks((0, {}, []), (1, {}, [X]))
    events[number] = events[number] | change
    late = [  # the input after the end of its block
        *events[:4],
        events[5],
        events[4],
        *events[6:],
    ]
    for each in (events, late):
        results = await outcome(ANTHROPIC, each)
        assert set(results) == {" refused", *REFUSED}


@pytest.mark.parametrize("reason", ["max_tokens", "length", "network_error"])
async def test_a_use_of_a_reply_that_was_cut_does_not_run_by_defaults(reason: str) -> None:
    events = blocks((0, {}, [""]))
    cut = events[-2] | {"delta": {"stop_reason": reason}}
    for changes in ([cut], [cut, events[-2]], [events[-2], cut]):
        assert await outcome(ANTHROPIC, [*events[:-2], *changes, events[-1]]) == REFUSED


def test_a_text_without_the_start_of_its_block_is_read() -> None:
    delta = {"type": "text_delta", "text": "noon"}
    event = {"type": "content_block_delta", "index": 1, "delta": delta}
    stop = {"type": "content_block_stop", "index": 0}
    reply = ANTHROPIC.collect([stop, *blocks()[:-2], event, *blocks()[-2:]])
    assert ANTHROPIC.text(reply) == "noon"
    event["delta"] = {"type": "signature_delta", "signature": "s"}
    reply = ANTHROPIC.collect([*blocks()[:-2], event, *blocks()[-2:]])
    assert reply["content"] == [{"type": "thinking", "thinking": "", "signature": "s"}]


# Responses


def item(arguments: Any, call_id: str | None = "A", **more: Any) -> Plain:
    named = {} if call_id is None else {"call_id": call_id, "id": f"f{call_id}"}
    return {"type": "function_call", "name": PURGE, "arguments": arguments, **named, **more}


def added(arguments: Any = "", call_id: str | None = "A", **place: Any) -> Plain:
    return {"type": "response.output_item.added", "item": item(arguments, call_id), **place}


def done(arguments: Any, call_id: str | None = "A", **place: Any) -> Plain:
    return {"type": "response.output_item.done", "item": item(arguments, call_id), **place}


def delta(text: str, **place: Any) -> Plain:
    return {"type": "response.function_call_arguments.delta", "delta": text, **place}


def written(text: str, **place: Any) -> Plain:
    return {"type": "response.function_call_arguments.done", "arguments": text, **place}


AT: Plain = {"output_index": 0}
NEXT: Plain = {"output_index": 1}


RESPONSE_ROWS: list[tuple[list[Plain], Any, str | list[str]]] = [
    # The last event counts, as far as it has arguments.
    ([], [item(X)], ["purge /x"]),
    ([added(**AT), delta(Y, **AT), written(Y, **AT), done(Y, **AT)], [item(X)], ["purge /x"]),
    ([added(**AT), delta(X, **AT), done(X, **AT)], [item("")], ["purge /x"]),
    ([added(**AT), delta(X, **AT), done(X, **AT)], [item(None)], ["purge /x"]),
    ([done(X, **AT)], [item("{}")], REFUSED),
    ([done("{}", **AT)], [item("{}")], ["purge /everything"]),
    ([added(**AT), done("", **AT)], [item("")], ["purge /everything"]),
    ([done(X, "A", **AT), done(Y, "B", **NEXT)], [item("", "B"), item("", "A")], "yx"),
    ([done(X, "A", **AT), done(Y, "B", **NEXT)], [item("", "C"), item("", "D")], "xy"),
    ([done(X, "A", **AT), done(Y, "B", **NEXT)], [item(Y, "B")], ["purge /y", "purge refused"]),
    ([done(X, None, **AT)], [{"type": "message", "role": "assistant", "content": []}], REFUSED),
    # Without it, what came last.
    ([added(**AT), delta(X[:5], **AT), delta(X[5:], **AT)], [], ["purge /x"]),
    ([added(**AT), delta(X[:5], **AT), written(X, **AT)], None, ["purge /x"]),
    ([added(**AT), delta(Y, **AT), written(X, **AT)], [], ["purge /x"]),
    ([added(**AT), delta(X, **AT), done("", **AT)], [], ["purge /x"]),
    ([added(**AT), delta(X, **AT), done("{}", **AT)], [], REFUSED),
    ([added(X, **AT), delta("", **AT)], [], ["purge /x"]),
    ([added(X, **AT), delta(X, **AT)], [], ["purge /x"]),
    ([added(X, **AT), delta(Y, **AT)], [], REFUSED),
    ([added("{}", **AT), delta(X, **AT)], [], ["purge /x"]),
    ([added(**AT)], [], REFUSED),
    ([added(**AT), delta(X[:5], **AT)], [], REFUSED),
    # Without an index, by id; without an id, the only one.
    ([added(), delta(X, item_id="fA")], [], ["purge /x"]),
    ([added(), added("", "B"), delta(Y, item_id="fB"), delta(X, item_id="fA")], [], "xy"),
    ([added("", None), delta(X)], [], ["purge /x"]),
    ([added("", None), added("", None), delta(X)], [], [*REFUSED, *NAMELESS]),
    ([added("", None), delta(X), done("", None), added("", None), delta(Y), done("", None)],
     [], "xy"),
    # The index or the id alone is wrong, or the pieces come first.
    ([added("", "A", **AT), delta(X, **AT), added("", "B", **NEXT), delta(Y, **NEXT),
      done("", "A", **NEXT)], [item("", "A"), item("", "B")], "xy"),
    ([added(**AT), delta(X, **NEXT, item_id="fA"), done("", **AT)], [], ["purge /x"]),
    ([added(**AT), delta(X, **AT, item_id="f?"), done("", **AT)], [], ["purge /x"]),
    ([delta(X, **AT, item_id="fA"), added(**AT), done("", **AT)], [], ["purge /x"]),
    ([delta(X, **AT, item_id="fA"), done("", **AT)], [], ["purge /x"]),
    ([added(**AT), delta(X, **AT), added(**AT), done("", **AT)], [], ["purge /x"]),
    ([added("", "A", **AT), delta(X, **AT), added("", "B", **AT), delta(Y, **AT)], [], "xy"),
    ([added("", "A", **AT), added("", "B", **AT), delta(Y, item_id="fB", **AT),
      delta(X, item_id="fA", **AT)], [item("", "A"), item("", "B")], "xy"),
    ([done(X, "A", **AT), done(Y, "B", **AT)], [], "xy"),
    ([added("", "A", **AT), delta(X, **AT), done("", "B", **AT)], [], ["purge /x"]),
    ([done(X, "A", **AT), added("", "B", **NEXT), delta(Y, **NEXT), done("", "A", **NEXT)],
     [], "xy"),
    ([done(X, None, **AT), added("", None, **AT), delta(Y, **AT), done("", None, **AT)],
     [], "xy"),
    ([added("", "A", **AT), delta(X, **AT), {**done("", "A", **AT),
      "item": item("", "A", name=None)}], [item("", "A")], ["purge /x"]),
    ([done(X, "A", **AT), done("", "B", **NEXT)], [item("", "B")], REFUSED * 2),
    # Pieces that may be of any call leave none with empty arguments.
    ([added(**AT), delta(X, **NEXT), done("", **AT)], [], NAMELESS),
    ([added(**AT), delta(X, **NEXT), done("", **AT)], [item("")], NAMELESS),
    ([added("", "A", **AT), added("", "B", **NEXT), delta(X, item_id="fA", **NEXT),
      done("", "A", **AT), done("", "B", **NEXT)], [], [*REFUSED, *NAMELESS]),
]  # fmt: skip


@pytest.mark.parametrize(("events", "output", "wanted"), RESPONSE_ROWS)
async def test_events_of_responses_run_what_they_say_for_certain(
    events: list[Plain], output: Any, wanted: str | list[str]
) -> None:
    expected = [f"purge /{each}" for each in wanted] if isinstance(wanted, str) else wanted
    response = {"id": "r", "status": "completed", "output": output}
    end = {"type": "response.completed", "response": response}
    assert await outcome(RESPONSES, [*events, end]) == expected


@pytest.mark.parametrize("output", [[], None, [{"type": "message", "content": []}]])
@pytest.mark.parametrize("place", [{}, AT, AT | {"item_id": "m"}])
def test_a_text_that_only_earlier_events_have_is_read_once(output: Any, place: Plain) -> None:
    text: Plain = {"type": "response.output_text.delta", "delta": "noon"} | place
    response = {"status": "completed", "output": output}
    end = {"type": "response.completed", "response": response}
    message = {"type": "message", "content": [{"type": "output_text", "text": "noon"}]}
    whole = {"type": "response.output_item.done", "item": message} | AT
    for events in ([text, end], [text, whole, end], [whole, end]):
        assert RESPONSES.text(RESPONSES.collect(events)) == "noon"


@pytest.mark.parametrize(
    ("adapter", "events"),
    [
        (CHAT, chat((0, "A", PURGE, X), (1, "A", PURGE, X))),
        (RESPONSES, [{"type": "response.completed", "response": {"output": [item(X), item(X)]}}]),
        (ANTHROPIC, blocks(*[(0, {}, [X])] * 2)),
    ],
)
async def test_a_call_that_comes_twice_with_one_id_runs_once(
    adapter: Adapter, events: list[Plain]
) -> None:
    renamed = json.loads(json.dumps(events).replace('"t1"', '"t0"'))
    assert await outcome(adapter, renamed) == ["purge /x"]


# Gemini


def call(args: Any, call_id: str | None = None, name: str = PURGE) -> Plain:
    named = {"name": name} if call_id is None else {"name": name, "id": call_id}
    return {"functionCall": named if args is None else named | {"args": args}}


@pytest.mark.parametrize(
    ("chunks", "wanted"),
    [
        ([[call({"folder": "/x"}), call({"folder": "/y"})]], ["purge /x", "purge /y"]),
        ([[call({"folder": "/x"})], [call({"folder": "/x"})]], ["purge /x", "purge /x"]),
        ([[call(X)]], ["purge /x"]),
        ([[call([X])]], REFUSED),
        ([[call({}, "1")], [call({"folder": "/x"}, "1")]], ["purge /x"]),
        ([[call({"folder": "/x"}, "1")], [call({"folder": "/x"}, "1")]], ["purge /x"]),
        ([[call({"folder": "/x"}, "1")], [call({"folder": "/y"}, "1")]], REFUSED),
        ([[call({"folder": "/x"}, "1")], [call({}, "1")]], REFUSED),
        ([[call({"folder": "/x"}, "1")], [call({"folder": "/y"}, "2")]], ["purge /x", "purge /y"]),
        ([[call(None)]], ["purge /everything"]),  # the API leaves out what is empty
        ([[call(None, name=PING), call({}, name=PING)]], ["ping", "ping"]),
    ],
)
async def test_calls_of_gemini_run_what_they_say_for_certain(
    chunks: list[list[Plain]], wanted: list[str]
) -> None:
    events: list[Plain] = [{"candidates": [{"content": {"parts": each}}]} for each in chunks]
    events.append({"candidates": [{"finishReason": "STOP"}]})
    assert await outcome(GEMINI, events) == wanted


@pytest.mark.parametrize("reason", ["MAX_TOKENS", "MALFORMED_FUNCTION_CALL", "OTHER"])
async def test_a_call_of_gemini_in_a_reply_that_was_cut_does_not_run(reason: str) -> None:
    part: Plain = {"content": {"parts": [call(None)]}}
    events: list[Plain] = [{"candidates": [part | {"finishReason": reason}]}]
    for each in (events, [*events, {"candidates": [{"finishReason": "STOP"}]}]):
        try:
            assert await outcome(GEMINI, each) == REFUSED
        except ModelError:
            assert reason != "MAX_TOKENS"


def test_arguments_of_gemini_in_pieces_are_an_error() -> None:
    pieces: Plain = {"partialArgs": [{"jsonPath": "$.folder", "stringValue": "/x"}]}
    part = {"functionCall": {"name": PURGE} | pieces}
    events = [{"candidates": [{"content": {"parts": [part]}, "finishReason": "STOP"}]}]
    with pytest.raises(ModelError, match="not complete"):
        GEMINI.uses(GEMINI.collect(events))
