"""Replies that pause, that have thousands of calls, and whose text comes in unusual events."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing, suppress
from typing import Any

from support.models.event_model import Model, says
from toolbus import Agent, Toolkit, tool
from toolbus.models import anthropic, openai_chat, openai_responses
from toolbus.turns.turn import MAX_USES

SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}


def message(stop_reason: str, *blocks: dict[str, Any]) -> list[Any]:
    """Return the events of a reply of Anthropic."""
    events: list[Any] = [{"type": "message_start", "message": {"content": []}}]
    for index, block in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_stop", "index": index})
    return [*events, {"type": "message_delta", "delta": {"stop_reason": stop_reason}}]


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


async def answer(model: Model, *questions: str, **options: Any) -> list[Any]:
    """Return the events of the answer to the last question."""
    events: list[Any] = []
    async with Agent(None, model, name="ann", **options) as agent:
        for question in questions:
            async with aclosing(agent.run_stream_events(question)) as answering:
                events = [event async for event in answering]
    return events


async def test_a_paused_reply_goes_on_and_both_parts_are_the_answer() -> None:
    paused = message("pause_turn", text("Searching. "), SEARCH)
    model = Model(paused, paused, message("end_turn", FOUND, text("The answer.")))
    model.adapter = anthropic
    events = await answer(model, "hi")
    assert events[-1]["text"] == "Searching. Searching. The answer."
    assert (events[-1]["reason"], events[-1]["steps"]) == ("done", 3)
    sent = model.requests[-1]["messages"]
    assert [each["role"] for each in sent] == ["user", "assistant"]
    assert sent[-1]["content"] == [text("Searching. "), SEARCH] * 2


async def test_a_paused_reply_that_never_went_on_has_no_open_call_in_the_next_request() -> None:
    paused = message("pause_turn", text("Searching. "), SEARCH)
    done = message("end_turn", SEARCH, FOUND, text("Done."))
    model = Model(paused, done, message("end_turn", text("Again.")))
    model.adapter = anthropic
    events = await answer(model, "hi", "and?", "more?", max_steps=1)
    assert events[-1]["text"] == "Again."
    blocks = [each["content"] for each in model.requests[-1]["messages"] if each["role"] != "user"]
    assert [text("Searching. ")] in blocks
    assert [SEARCH, FOUND, text("Done.")] in blocks


async def test_calls_beyond_a_thousand_are_refused_while_others_run() -> None:
    ran: list[int] = []

    @tool(concurrency_safe=True)
    async def hit(number: int) -> None:
        ran.append(number)

    uses = [{"id": f"c{n}", "name": "kit.hit", "arguments": {"number": n}} for n in range(20_000)]
    turns_of_others: Counter[str] = Counter()

    async def run_beside() -> None:
        while True:
            turns_of_others["all"] += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(run_beside())
    model = Model(says("", *uses), says("done"))
    events = await answer(model, "hi", always=[Toolkit("kit", [hit])])
    beside.cancel()
    with suppress(asyncio.CancelledError):
        await beside
    assert ran == [*range(MAX_USES)]
    assert turns_of_others["all"] > 20_000 / 100
    results = [event for event in events if event["type"] == "tool_result"]
    assert {event["id"] for event in results if event["executed"] == "yes"} == {
        f"c{number}" for number in ran
    }
    heard = model.requests[-1]["messages"][-1]["results"]
    assert len(heard) == len(results) == 20_000
    assert all("The tool did not run." in each["text"] for each in heard[MAX_USES:])


def choice(index: int, said: str, end: str | None = None) -> dict[str, Any]:
    delta = {"content": said} if said else {}
    return {"choices": [{"index": index, "delta": delta, "finish_reason": end}]}


async def test_text_in_events_of_other_kinds_is_shown_and_is_in_the_answer() -> None:
    item = {"type": "message", "content": [{"type": "output_text", "text": "Whisper"}]}
    response = {"status": "completed", "output": [item]}
    replies: list[tuple[Any, list[Any]]] = [
        (openai_chat, [choice(0, "Wh"), choice(1, "isper"), choice(2, "", "stop")]),
        (openai_chat, [choice(0, "Wh"), choice(1, "isper"), choice(0, "", "stop")]),
        (openai_responses, [{"type": "response.completed", "response": response}]),
    ]
    for adapter, reply in replies:
        model = Model(reply)
        model.adapter = adapter
        events = await answer(model, "hi")
        assert "".join(each["text"] for each in events if each["type"] == "text") == "Whisper"
        assert events[-1]["text"] == "Whisper"


async def test_of_several_choices_the_first_is_the_answer() -> None:
    several = [choice(0, "A"), choice(1, "B"), choice(0, "", "stop"), choice(1, "", "stop")]
    for reply in (several, [choice(0, "A", "stop"), choice(1, "B", "stop")]):
        model = Model(reply)
        model.adapter = openai_chat
        assert (await answer(model, "hi"))[-1]["text"] == "A"
