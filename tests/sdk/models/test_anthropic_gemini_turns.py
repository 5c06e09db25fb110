"""Anthropic and Gemini: a conversation of two steps in a turn, by the types of their clients."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from anthropic.types import Message
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from google.genai import types
from pydantic import TypeAdapter

from toolbus import FileChunk, Permissions, Rule, ToolFailed, Toolkit, Turn, tool
from toolbus.models import anthropic, gemini
from toolbus.models.adapter import Adapter, Plain

PNG = b"\x89PNG\r\n\x1a\n1"
PDF = b"%PDF-1.7 1"
SIGNATURE = b"\xfb\xef\xff\x00signature"
NAMES = ("echo", "picture", "document", "broken", "secret", "wait", "stop", "lost")
WORDS = (
    "hihi",
    "[file 'a.png', image/png, 9 bytes]",
    "[file 'b.pdf', application/octet-stream, 10 bytes]",
    "error tool_failed: the disk is full",
    "error permission_denied",
    "interrupted",
    "stopped",
    "interrupted: no result was kept",
)


@tool
def echo(text: str, times: int = 1) -> str:
    """Repeat a text."""
    return text * times


@tool
def picture() -> FileChunk:
    return FileChunk(PNG, "a.png", "image/png")


@tool
def document() -> FileChunk:
    return FileChunk(PDF, "b.pdf")


@tool
def broken() -> None:
    raise ToolFailed("the disk is full")


@tool
def secret() -> str:
    return "never"


@tool
def lost() -> str:
    return "its result is not kept"


async def converse(adapter: Adapter, first: Plain, last: Plain) -> list[Plain]:
    """Run a step and its answer; return the requests before, between and after them.

    The results are a text, a picture, a document, an error, a denial, an interruption, and none.
    """
    turns: list[Turn] = []

    @tool(concurrency_safe=True)
    async def stop() -> str:
        await turns[0].interrupt("use_wait")
        return "stopped"

    @tool(concurrency_safe=True)
    async def wait() -> None:
        await asyncio.Event().wait()

    rules = [Rule(behavior="deny", tool="kit.secret")]
    kit = Toolkit("kit", [echo, picture, document, broken, secret, wait, stop, lost], rules=["Be"])
    async with Turn(None, always=[kit], permissions=Permissions("bypass", rules)) as turn:
        turns.append(turn)
        conversation = [adapter.user("Look", [FileChunk(PNG, "c.png", "image/png")])]
        requests = [adapter.request(turn, conversation, "You help.")]
        results = await turn.run(adapter.uses(first))
        conversation += adapter.messages(first, results[:-1])
        requests.append(adapter.request(turn, conversation))
        assert adapter.uses(last) == []
        assert adapter.text(last) == "Done."
        conversation += adapter.messages(last, [])
        return [*requests, adapter.request(turn, conversation)]


def accepted(value: Any) -> Any:
    """Read the lazy iterators of pydantic."""
    if isinstance(value, Mapping):
        return {key: accepted(part) for key, part in value.items()}
    if isinstance(value, Iterator | list):
        return [accepted(part) for part in value]
    return value


async def test_anthropic() -> None:
    arguments: dict[str, Any] = {"echo": {"text": "hi", "times": 2}}
    said = [
        {"type": "thinking", "thinking": "", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "ZGF0YQ"},
        {"type": "text", "text": "I look.", "citations": None},
    ]
    asked = [
        {
            "type": "tool_use",
            "id": f"use_{name}",
            "name": f"kit__{name}",
            "input": arguments.get(name, {}),
            "caller": {"type": "direct"},
        }
        for name in NAMES
    ]
    usage = {"input_tokens": 1, "output_tokens": 1}
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "usage": usage}
    first = Message(**start, content=[*said, *asked], stop_reason="tool_use")
    done = {"type": "text", "text": "Done."}
    last = Message(**start, content=[done], stop_reason="end_turn")

    requests = await converse(anthropic, first.to_dict(), last.to_dict())

    form = TypeAdapter(MessageCreateParamsNonStreaming)
    for request in requests:
        request["model"] = "m"
        assert accepted(form.validate_python(request)) == request  # without keys that are dropped
    before, between, after = requests
    assert before["max_tokens"] == 8_192
    assert before["tools"][0] == {
        "name": "kit__echo",
        "description": "Repeat a text.",
        "input_schema": before["tools"][0]["input_schema"],
        "strict": True,
    }
    assert before["system"].startswith("You help.\n\n")
    assert [each["name"] for each in before["tools"]] == [f"kit__{name}" for name in NAMES]
    user, reply, results = between["messages"]
    assert [each["type"] for each in user["content"]] == ["image", "text"]
    assert reply == {"role": "assistant", "content": [*said, *asked]}
    blocks = results["content"]
    assert {each["type"] for each in blocks} == {"tool_result"}
    assert [each["tool_use_id"] for each in blocks] == [each["id"] for each in asked]
    assert [each.get("is_error", False) for each in blocks] == [
        *(False, False, False, True, True, True, False, True)
    ]
    told = [each["content"] for each in blocks]
    for words, content in zip(WORDS, told, strict=True):
        assert (content if isinstance(content, str) else content[0]["text"]).startswith(words)
    assert told[1][1]["source"]["data"] == b64encode(PNG).decode()
    assert told[2][1]["source"] == {
        "type": "base64",
        "media_type": "application/pdf",
        "data": b64encode(PDF).decode(),
    }
    assert after["messages"][3:] == [{"role": "assistant", "content": [done]}]


async def test_gemini() -> None:
    asked = [
        types.Part(
            function_call=types.FunctionCall(
                name=f"kit__{name}",
                id=f"use_{name}" if name == "wait" else None,
                args={"text": "hi", "times": 2} if name == "echo" else None,
            ),
            thought_signature=SIGNATURE if name == "echo" else None,
        )
        for name in NAMES
    ]
    said = [
        types.Part(text="I think", thought=True),
        types.Part(text="I look.", thought_signature=SIGNATURE),
        types.Part(
            executable_code=types.ExecutableCode(code="1+1", language=types.Language.PYTHON)
        ),
    ]

    def reply(*parts: types.Part) -> Plain:
        content = types.Content(role="model", parts=list(parts))
        candidate = types.Candidate(content=content, finish_reason=types.FinishReason.STOP)
        response = types.GenerateContentResponse(
            candidates=[candidate], model_version="gemini-3-pro", response_id="r1"
        )
        return response.model_dump(mode="json", exclude_none=True)

    requests = await converse(gemini, reply(*said, *asked), reply(types.Part(text="Done.")))

    for request in requests:
        types.GenerateContentConfig.model_validate(request["config"])
    before, between, after = requests
    config = before["config"]
    assert config["automatic_function_calling"] == {"disable": True}
    assert config["system_instruction"].startswith("You help.\n\n")
    (declared,) = config["tools"]
    names = [each["name"] for each in declared["function_declarations"]]
    assert declared["function_declarations"][0]["description"] == "Repeat a text."
    assert names == [f"kit__{name}" for name in NAMES]
    user, model, results = [types.Content.model_validate(each) for each in between["contents"]]
    assert user.parts is not None
    assert user.parts[1].inline_data == types.Blob(data=PNG, mime_type="image/png")
    assert model == types.Content(role="model", parts=[*said, *asked])
    assert results.role == "user"
    responses = [part.function_response for part in results.parts or ()]
    for name, words, response in zip(NAMES, WORDS, responses, strict=True):
        assert response is not None
        assert response.name == f"kit__{name}"
        assert response.id == ("use_wait" if name == "wait" else None)
        key = "output" if name in ("echo", "picture", "document", "stop") else "error"
        assert response.response is not None
        assert response.response[key].startswith(words)
    files = [response.parts for response in responses if response and response.parts]
    assert [part.inline_data.data for (part,) in files if part.inline_data] == [PNG, PDF]
    assert after["contents"][3:] == [{"role": "model", "parts": [{"text": "Done."}]}]


@pytest.mark.parametrize("adapter", [anthropic, gemini])
def test_tools_are_declared_alone(adapter: Adapter) -> None:
    def turn(*schemas: dict[str, Any]) -> Any:
        tools = [
            SimpleNamespace(
                name="kit__tool",
                description="",
                input_schema=schema,
                tool=SimpleNamespace(name="kit.tool"),
            )
            for schema in schemas
        ]
        return SimpleNamespace(model_tools=tools, prompt=lambda: " ")

    assert set(adapter.request(turn(), [], "")) <= {"contents", "config", "messages", "max_tokens"}
    union = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    schema = {"type": "object", "properties": {"a": union}, "required": ["a"]}
    opened = schema | {"additionalProperties": {"type": "integer"}}
    others = [schema | {"title": str(number)} for number in range(20)]
    definitions = adapter.definitions(turn(opened, *others))
    # A map has no strict form; 16 unions in a request are the limit of Anthropic.
    strict = [each.get("strict", False) for each in definitions]
    assert strict == [False, *(adapter is anthropic and n < 16 for n in range(20))]
