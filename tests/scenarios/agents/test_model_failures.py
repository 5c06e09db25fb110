"""An agent whose model fails, through a real client and a real room: what its asker gets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from support.models.model_server import KEY, Broken, ModelServer, model_server
from support.models.wire_replies import APIS, Says
from toolbus import (
    Agent,
    ModelBudget,
    ModelRetries,
    RoomClient,
    RoomException,
    Toolkit,
    open_model,
    tool,
)
from toolbus_server.testing import room_of


@tool(read_only=True)
async def look() -> str:
    """Look again."""
    return "nothing new"


@asynccontextmanager
async def agent_with(
    *script: Says | Broken, api: str = "anthropic", **options: Any
) -> AsyncIterator[tuple[RoomClient, ModelServer, Any]]:
    """Host an agent of a scripted server; yield an asker, the server and the model."""
    async with model_server(*script) as server, room_of("ann", "helper") as (ann, helper):
        model = open_model(f"{api}:stub", server.url(api), api_key=KEY, max_retries=0)
        own = Toolkit("eyes", [look])
        async with aclosing(model), Agent(helper, model, name="helper", always=[own], **options):
            yield ann, server, model
        assert server.wrongs == []


async def asked(room: RoomClient) -> list[Any]:
    async with room.stream("helper.ask", {"text": "q"}, participant="helper") as chunks:
        return [chunk.value async for chunk in chunks]


async def failure(room: RoomClient) -> RoomException:
    with pytest.raises(RoomException) as caught:
        await asked(room)
    return caught.value


def said(events: list[Any]) -> str:
    """Return the text that counts, as a reader of the events puts it together."""
    text = ""
    for event in events:
        if event["type"] == "restart":
            text = ""
        text += event["text"] if event["type"] == "text" else ""
    assert text == events[-1]["text"]
    return text


BUSY = Broken(429, b'{"error": {"message": "slow down"}}', {"retry-after": "0"})
DOWN = Broken(500, b"<html>a gateway")
CUT = Broken(after=Says("half of an answer"), is_cut=True)
CLOSED = Broken(after=Says("half of an answer"))
SILENT = Broken(after=Says("half of an answer"), waits=True)
NEVER = Broken(waits=True)
GARBAGE = Broken(after=Says("half"), body=b"event: message_start\ndata: {\n\n")
OVERLOADED = Broken(
    after=Says("half"),
    body=b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error"}}\n\n',
)
REFUSED = Broken(401, b'{"error": {"message": "who are you"}}')


@pytest.mark.parametrize(
    ("answer", "words", "may_pass", "restarts"),
    [
        (BUSY, "answered 429: slow down", True, 0),
        (DOWN, "answered 500", True, 0),
        (CUT, "broke off", True, 1),
        (CLOSED, "ended before the reply did", True, 1),
        (OVERLOADED, "overloaded_error", True, 1),
        (GARBAGE, "sent what is no reply", False, 0),
        (REFUSED, "answered 401: who are you", False, 0),
    ],
    ids=["429", "500", "cut", "closed", "overloaded", "garbage", "401"],
)
async def test_a_failed_question_has_words_and_the_conversation_goes_on(
    answer: Broken, words: str, may_pass: bool, restarts: int
) -> None:
    async with agent_with(Says("hello"), answer, Says("again")) as (ann, server, _):
        assert said(await asked(ann)) == "hello"
        error = await failure(ann)
        assert (error.code, error.executed, error.retryable) == ("tool_failed", "yes", may_pass)
        assert words in error.message
        assert KEY not in error.message
        assert said(await asked(ann)) == "again"
        assert [len(each["messages"]) for each in server.requests] == [1, 3, 3]
    again = [ModelRetries(backoff_s=0)]
    async with agent_with(answer, Says("hello"), model_middlewares=again) as (ann, server, _):
        if not may_pass:
            assert words in (await failure(ann)).message
            return
        events = await asked(ann)
        assert said(events) == "hello"
        assert [event["type"] for event in events].count("restart") == restarts
        assert len(server.requests) == 2


@pytest.mark.parametrize("answer", [SILENT, NEVER], ids=["silent", "never"])
async def test_a_model_that_says_nothing_more_is_left_and_the_conversation_goes_on(
    answer: Broken,
) -> None:
    async with agent_with(answer, Says("again")) as (ann, server, model):
        model._timeout_s = 0.3
        assert "did not answer within 0.3 s" in (await failure(ann)).message
        await server.left.wait()
        model._timeout_s = 60.0
        assert said(await asked(ann)) == "again"


async def test_the_pause_of_the_provider_is_told() -> None:
    full = Broken(429, b"{}", {"retry-after": "7"})
    async with agent_with(full) as (ann, _, _):
        assert (await failure(ann)).retry_after_s == 7.0


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("answer", [SILENT, NEVER], ids=["silent", "never"])
async def test_no_request_goes_on_after_its_asker_has_left(api: str, answer: Broken) -> None:
    async with agent_with(answer, api=api, model_middlewares=[ModelRetries()]) as (ann, server, _):
        async with ann.stream("helper.ask", {"text": "q"}, participant="helper"):
            await server.waiting.wait()
        await server.left.wait()
        await ann.invoke("helper.forget", participant="helper")  # waits for the end of the question
        assert len(server.requests) == 1


async def test_who_leaves_while_a_retry_waits_leaves_no_request() -> None:
    full = Broken(429, b"{}", {"retry-after": "50"})
    script = Broken(after=Says("half"), is_cut=True), full
    middlewares = [ModelRetries(backoff_s=0)]
    async with agent_with(*script, model_middlewares=middlewares) as (ann, server, _):
        async with ann.stream("helper.ask", {"text": "q"}, participant="helper") as chunks:
            async for chunk in chunks:
                event: Any = chunk.value
                if event["type"] == "restart":
                    break
        await ann.invoke("helper.forget", participant="helper")
        assert len(server.requests) <= 2


async def test_a_model_that_asks_for_ever_ends_at_its_steps() -> None:
    script = [Says("I look", (("eyes__look", {}),)) for _ in range(3)]
    async with agent_with(*script, Says("fine"), max_steps=3) as (ann, server, _):
        end: dict[str, Any] = (await asked(ann))[-1]
        assert (end["reason"], end["steps"], end["text"]) == ("max_steps", 3, "I look")
        assert end["tokens"] == {"input": 27, "output": 12}
        assert said(await asked(ann)) == "fine"
        assert len(server.requests) == 4


async def test_a_budget_is_one_for_all_conversations_and_says_when_there_is_more() -> None:
    budget = ModelBudget(20, per="asker")
    async with agent_with(Says("a"), Says("b"), model_middlewares=[budget]) as (ann, server, _):
        await asked(ann)
        await asked(ann)
        error = await failure(ann)
        assert "the budget of this asker, 20 tokens in 86400 s, is used up" in error.message
        assert error.retryable
        assert (error.retry_after_s or 0) > 80_000
        assert len(server.requests) == 2
