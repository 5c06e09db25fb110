"""No conversation is stuck: each request is one that the strictest server of its API takes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.models.model_server import KEY, Broken, ModelServer, model_server
from support.models.strict_rules import refusals
from support.models.wire_replies import APIS, Says
from toolbus import (
    Agent,
    CallNextModel,
    FileChunk,
    FunctionTool,
    ModelError,
    RequestToModel,
    SqliteStateStore,
    Toolkit,
    tool,
)
from toolbus.models.registry import open_model
from toolbus.turns.agent_state import AgentState

each_api = pytest.mark.parametrize("api", APIS)
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
LOOK: tuple[str, dict[str, Any]] = ("kit__look", {})


def both() -> Says:
    return Says("I look.", (LOOK, ("kit__say", {"word": "a"})))


WORDS = {
    "type": "object",
    "properties": {"word": {"enum": ["", "a", None]}, "n": {"const": ""}},
    "required": ["word", "unknown"],
}


class Kit:
    """Tools of an agent; `waits` lets the next call of `look` wait."""

    def __init__(self) -> None:
        self.waits = False
        self.waiting = asyncio.Event()

        @tool
        async def look() -> FileChunk:
            """Return a picture."""
            if self.waits:
                self.waiting.set()
                await asyncio.Event().wait()
            return FileChunk(PNG, "dot.png", "image/png")

        async def say(**given: Any) -> str:
            """Say a word."""
            return "said"

        self.toolkit = Toolkit("kit", [look, FunctionTool(say, args_schema=WORDS)])


@contextlib.asynccontextmanager
async def agent_of(
    api: str, server: ModelServer, name: str = "m", **options: Any
) -> AsyncIterator[tuple[Agent, Kit]]:
    model = open_model(f"{api}:{name}", server.url(api), api_key=KEY, max_retries=0)
    kit = Kit()
    async with contextlib.aclosing(model):
        async with Agent(None, model, name="ann", always=[kit.toolkit], **options) as agent:
            yield agent, kit


async def ask(agent: Agent, text: str = "Look.") -> str:
    """Return the answer, or the class of the error."""
    try:
        return (await agent.run(text)).text
    except ModelError as error:
        return str(error)


@each_api
async def test_conversation_goes_on_after_a_limit_an_empty_reply_and_a_failure(api: str) -> None:
    script: list[Says | Broken] = [
        both(),
        Says("Fine."),
        Says(""),
        both(),
        Says(""),
        Broken(400, b"no"),
        Says("Good."),
    ]
    # A limit of two steps: the second question ends with results, files among them.
    limit: list[Says | Broken] = [Says("", (LOOK,)), both(), Says("Well.")]
    async with model_server(*script, *limit, compares=False) as server:
        async with agent_of(api, server, max_steps=2) as (agent, _):
            answers = [await ask(agent) for _ in range(7)]
    assert server.wrongs == []
    assert server.script == []
    assert answers[:1] == ["Fine."]
    assert "before the model said anything" in answers[1]
    assert answers[2] == "I look."
    assert "400" in answers[3]
    assert answers[4:] == ["Good.", "I look.", "Well."]


@each_api
async def test_conversation_goes_on_after_a_call_that_was_interrupted(api: str) -> None:
    async with model_server(both(), Says("Fine."), Says("Well."), compares=False) as server:
        async with agent_of(api, server) as (agent, kit):
            kit.waits = True
            task = asyncio.create_task(ask(agent))
            await kit.waiting.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            kit.waits = False
            assert [await ask(agent), await ask(agent)] == ["Fine.", "Well."]
    assert server.wrongs == []


@each_api
@pytest.mark.parametrize("other", ["m", "other"])
async def test_conversation_goes_on_with_another_model_and_on_another_server(
    api: str, other: str, tmp_path: Path
) -> None:
    store = str(tmp_path / "states.db")
    async with model_server(both(), Says("Fine."), both(), Says("Well.")) as server:
        for _ in range(2):  # a restart with the same model: its thoughts stay
            async with agent_of(api, server, store=SqliteStateStore(store)) as (agent, _):
                await ask(agent)
    assert server.wrongs == []
    async with model_server(both(), Says("Fine."), Says("Well."), compares=False) as second:
        async with agent_of(api, second, other, store=SqliteStateStore(store)) as (agent, _):
            assert [await ask(agent), await ask(agent)] == ["Fine.", "Well."]
    assert second.wrongs == []
    assert json.dumps(second.requests[0]).count("I look.") == 2, "what was said is still there"


@each_api
async def test_a_model_that_takes_over_within_a_question_gets_no_thoughts_of_the_first(
    api: str,
) -> None:
    first: list[Says | Broken] = [both(), Broken(503, b"busy"), both(), Says("Well.")]
    second: list[Says | Broken] = [both(), Broken(503, b"busy")]
    async with (
        model_server(*first, compares=False) as server,
        model_server(*second, compares=False) as spare,
    ):
        other = open_model(f"{api}:spare", spare.url(api), api_key=KEY, max_retries=0)

        async def fallback(call: RequestToModel, next: CallNextModel) -> AsyncIterator[Any]:
            try:
                async for event in next(call):
                    yield event
            except ModelError:
                async for event in next(call.replace(model=other)):
                    yield event

        async with contextlib.aclosing(other):
            async with agent_of(api, server, model_middlewares=[fallback]) as (agent, _):
                assert await ask(agent) == "Well."
    assert (server.wrongs, spare.wrongs) == ([], [])
    assert (len(server.requests), len(spare.requests)) == (4, 1)


RESULT = "called"
SAVED: dict[str, list[dict[str, Any]]] = {
    "openai-chat": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "reasoning_content": "opaque 0"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": " \n"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "kit__look", "arguments": "{}"},
                    "extra_content": {"google": {"thought_signature": "opaque 0"}},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": RESULT},
        {"role": "user", "content": [{"type": "text", "text": "a file"}]},
        {"role": "assistant", "content": []},
    ],
    "openai-responses": [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "opaque 0"},
        {
            "type": "message",
            "id": "msg",
            "role": "assistant",
            "content": [{"type": "output_text", "text": ""}],
        },
        {"role": "user", "content": "b"},
        {"type": "function_call", "id": "fc", "call_id": "c", "name": "n", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": RESULT},
    ],
    "anthropic": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [{"type": "text", "text": " "}]},
        {"role": "user", "content": "b"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "opaque 0"},
                {"type": "redacted_thinking", "data": "opaque 0"},
                {"type": "text", "text": ""},
                {"type": "tool_use", "id": "c", "name": "kit__look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c", "content": RESULT}],
        },
    ],
    "gemini": [
        {"role": "user", "parts": [{"text": "a"}]},
        {"role": "model", "parts": [{"text": ""}]},
        {"role": "user", "parts": [{"text": "b"}]},
        {
            "role": "model",
            "parts": [
                {"text": "opaque 0", "thought": True},
                {
                    "function_call": {"name": "kit__look", "args": {}},
                    "thought_signature": "b3BhcXVl",
                },
            ],
        },
        {
            "role": "user",
            "parts": [{"function_response": {"name": "kit__look", "response": {"output": RESULT}}}],
        },
    ],
}
"""Conversations as they were saved before, without a mark of the model."""


@each_api
async def test_a_saved_conversation_that_a_server_refused_is_mended(
    api: str, tmp_path: Path
) -> None:
    adapter = api.replace("-", "_")
    state = json.loads(
        AgentState(conversation=SAVED[api], adapter=adapter, questions=[0]).to_json()
    )
    del state["model"]
    store = SqliteStateStore(str(tmp_path / "states.db"))
    await store.save('[["", "local"], null, ""]', json.dumps({**state, "version": 4}))
    async with model_server(Says("Fine."), Says("Well."), compares=False) as server:
        async with agent_of(api, server, store=store) as (agent, _):
            assert [await ask(agent, "c"), await ask(agent, "d")] == ["Fine.", "Well."]
    assert server.wrongs == []
    assert RESULT in json.dumps(server.requests[1])


@each_api
def test_the_strict_server_refuses_what_was_saved(api: str) -> None:
    field = {"openai-responses": "input", "gemini": "contents"}.get(api, "messages")
    saved = json.loads(json.dumps(SAVED[api]).replace("function_", "function"))
    camel = json.dumps(saved).replace("functioncall", "functionCall")
    camel = camel.replace("functionresponse", "functionResponse")
    body = {field: json.loads(camel) if api == "gemini" else SAVED[api]}
    assert len(refusals(api, body, [])) >= 3
