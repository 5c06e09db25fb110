"""Judges the body of a request as the API would: by the client's own types, and by its rules.

What a model said before must come back unchanged, whatever the client's types say of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import anthropic.types.message_create_params as anthropic_params
import openai.types.chat.completion_create_params as chat_params
import openai.types.responses.response_create_params as responses_params
from google.genai import types as gemini_types
from pydantic import ValidationError

from support.models.declared_types import faults
from support.models.wire_replies import SIGNATURE, Says, whole_reply

__all__ = ["wrongs"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_GEMINI_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")
_FILLER = "OK."
"""What stands for the model between two messages for it, such as a result and its files."""
_PARAMETER = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def wrongs(api: str, body: Any, said: Sequence[Says]) -> list[str]:
    """Return what is wrong with a request.

    Args:
        api: The API.
        body: The body of the request.
        said: What the model has said in this conversation.
    """
    return list(_RULES[api](body, said))


def _chat(body: Any, said: Sequence[Says]) -> Iterator[str]:
    messages = body.get("messages") or [{}]
    own = [message for message in messages if message.get("role") == "assistant"]
    own = [message for message in own if message.get("content") != _FILLER]
    hint: Any = chat_params.CompletionCreateParamsStreaming
    hint = hint if body.get("stream") else chat_params.CompletionCreateParamsNonStreaming
    checked = [message for message in messages if message.get("role") != "assistant"]
    yield from faults(body | {"messages": checked}, hint, "body")
    tools = body.get("tools", [])
    if tools == [] and "tools" in body:
        yield "tools is empty"
    yield from _names(tool["function"]["name"] for tool in tools)
    for tool in tools:
        if tool["function"].get("strict"):
            yield from _open_parts(tool["function"]["parameters"])
    yield from _differences(map(_chat_wanted, said), map(_chat_essence, own))
    yield from _empty_texts(checked)
    if not body.get("stream"):
        numbers = (message.get("of_a_vendor") for message in own)
        yield from _differences((each.number for each in said), numbers)
    yield from _unpaired_messages(messages)


def _unpaired_messages(messages: Any) -> Iterator[str]:
    owed: list[str] = []
    for message in [*messages, {}]:
        if message.get("role") == "tool":
            if not owed or message["tool_call_id"] != owed.pop(0):
                yield f"the result {message['tool_call_id']} does not follow its use in order"
            continue
        if owed:
            yield f"the uses {owed} have no result"
        owed = [call["id"] for call in message.get("tool_calls") or []]
        for call in message.get("tool_calls") or []:
            if _object_in(call["function"]["arguments"]) is None:  # other servers refuse that
                yield f"the arguments of {call['id']} are no object"


def _chat_wanted(says: Says) -> tuple[Any, ...]:
    message = whole_reply("openai-chat", says)["choices"][0]["message"]
    return _chat_essence(message)


def _chat_essence(message: dict[str, Any]) -> tuple[Any, ...]:
    calls = [
        (call["id"], call["function"]["name"], _object_in(call["function"]["arguments"]) or {})
        for call in message.get("tool_calls") or []
    ]
    return (message.get("content") or "", *calls)


def _object_in(arguments: str) -> dict[str, Any] | None:
    """Return the object of arguments, without what stands for text that is none."""
    try:
        value = json.loads(arguments, parse_constant=lambda _: 1 / 0)
    except (ValueError, RecursionError, ArithmeticError):
        return None
    if not isinstance(value, dict):
        return None
    return {name: each for name, each in value.items() if name != "invalid_json"}


def _responses(body: Any, said: Sequence[Says]) -> Iterator[str]:
    items = body.get("input") or [{}]
    own = [each for each in items if each.get("type") in ("reasoning", "function_call")]
    own += [each for each in items if each.get("role") == "assistant"]
    checked = [each for each in items if each not in own]
    hint: Any = responses_params.ResponseCreateParamsStreaming
    hint = hint if body.get("stream") else responses_params.ResponseCreateParamsNonStreaming
    yield from faults(body | {"input": checked}, hint, "body")
    if "model" not in body:
        yield "no model"
    tools = body.get("tools", [])
    yield from _names(tool["name"] for tool in tools)
    for tool in tools:
        if tool.get("strict"):
            yield from _open_parts(tool["parameters"])
    yield from _empty_texts(checked)
    if "include" in body:  # encrypted reasoning comes without, and some models refuse it
        yield "Encrypted content is not supported with this model"
    wanted = [part for each in said for part in _responses_wanted(each)]
    yield from _differences(wanted, (_item_essence(each) for each in items if each in own))
    calls = [each["call_id"] for each in items if each.get("type") == "function_call"]
    results = [each["call_id"] for each in items if each.get("type") == "function_call_output"]
    if calls != results:
        yield f"the uses {calls} have the results {results}"
    after = [items.index(each) for each in items if each.get("type") == "function_call_output"]
    befores = [items.index(each) for each in items if each.get("type") == "function_call"]
    if any(result < use for use, result in zip(befores, after, strict=False)):
        yield "a result stands before its use"


def _responses_wanted(says: Says) -> Iterator[tuple[Any, ...]]:
    yield ("reasoning", f"rs_{says.number}", f"opaque {says.number}")
    if says.text:
        yield ("message", f"msg_{says.number}", says.text)
    yield from (("call", *each[:2]) for each in says.ids())


def _item_essence(item: dict[str, Any]) -> tuple[Any, ...]:
    if item.get("type") == "reasoning":
        return ("reasoning", item["id"], item["encrypted_content"])
    if item.get("type") == "function_call":
        return ("call", item["call_id"], item["name"])
    return ("message", item.get("id"), "".join(part["text"] for part in item["content"]))


def _anthropic(body: Any, said: Sequence[Says]) -> Iterator[str]:
    messages = body.get("messages") or [{}]
    own = [message for message in messages if message.get("role") == "assistant"]
    own = [each for each in own if each["content"] != [{"type": "text", "text": _FILLER}]]
    hint: Any = anthropic_params.MessageCreateParamsStreaming
    hint = hint if body.get("stream") else anthropic_params.MessageCreateParamsNonStreaming
    yield from faults(body, hint, "body")
    if messages[0].get("role") != "user":
        yield "the first message is not of the user"
    if body.get("system") in ("", []):
        yield "system is empty"
    yield from _names(tool["name"] for tool in body.get("tools", []))
    for tool in body.get("tools", []):
        schema = tool["input_schema"]
        if schema.get("type") != "object" or any(
            key in schema for key in ("oneOf", "allOf", "anyOf")
        ):
            yield f"{tool['name']}: the schema must be an object without oneOf, allOf and anyOf"
        yield from (
            f"{tool['name']}: a property {name!r}"
            for name in schema.get("properties", {})
            if not _PARAMETER.fullmatch(name)
        )
        if tool.get("strict"):
            yield from _open_parts(schema, all_required=False)
    wanted = [tuple(_anthropic_wanted(each)) for each in said]
    yield from _differences(wanted, (_blocks_essence(message["content"]) for message in own))
    yield from _empty_texts(messages)
    asked: list[str] = []
    for message in [*messages, {}]:
        blocks = _list(message.get("content"))
        results = [each["tool_use_id"] for each in blocks if each.get("type") == "tool_result"]
        first = [each.get("tool_use_id") for each in blocks[: len(asked)]]
        if results != asked or first != asked:
            yield f"the uses {asked} have the results {results}, which must stand first"
        asked = [block["id"] for block in blocks if block.get("type") == "tool_use"]


def _blocks_essence(blocks: Any) -> tuple[Any, ...]:
    return tuple(
        tuple(
            block.get(key)
            for key in ("thinking", "signature", "text", "id", "name", "input")
            if block.get(key) is not None
        )
        for block in _list(blocks)
    )


def _anthropic_wanted(says: Says) -> Iterator[tuple[Any, ...]]:
    yield ("hm", f"opaque {says.number}")
    if says.text:
        yield (says.text,)
    yield from says.ids()


def _gemini(body: Any, said: Sequence[Says]) -> Iterator[str]:
    known = {
        *("contents", "tools", "toolConfig", "systemInstruction", "generationConfig"),
        *("safetySettings", "cachedContent"),
    }
    yield from (f"body has no {key}" for key in body.keys() - known)
    contents = body.get("contents") or [{}]
    yield from _not_validated(gemini_types.Content, *contents)
    yield from _not_validated(gemini_types.Content, body.get("systemInstruction", {}))
    yield from _not_validated(gemini_types.Tool, *body.get("tools", []))
    yield from _not_validated(gemini_types.GenerationConfig, body.get("generationConfig", {}))
    declarations = [each for tool in body.get("tools", []) for each in tool["functionDeclarations"]]
    yield from _names((each["name"] for each in declarations), _GEMINI_NAME)
    for declaration in declarations:
        if not declaration.get("description"):
            yield f"{declaration['name']} has no description"
        if "parameters" in declaration and "parametersJsonSchema" in declaration:
            yield f"{declaration['name']} has parameters twice"
    for content in contents:
        if content.get("role") not in ("user", "model") or not content.get("parts"):
            yield f"a content needs a role and parts: {content}"
        for part in content.get("parts", []):
            data = part.keys() - {"thought", "thoughtSignature"}
            if len(data) != 1 or (part.get("text") == "" and "thoughtSignature" not in part):
                yield f"a part must have one datum: {part}"
    own = [each for each in contents if each.get("role") == "model"]
    said_by_model = [each for each in own if each["parts"] != [{"text": _FILLER}]]
    wanted = [(each.text, *(use[1:] for use in each.ids())) for each in said]
    yield from _differences(wanted, map(_parts_essence, said_by_model))
    for content, after in zip(contents, [*contents[1:], {}], strict=True):
        if content in own:
            yield from _unpaired_calls(content, after)


def _not_validated(model: Any, *values: Any) -> Iterator[str]:
    for value in values:
        try:
            model.model_validate(value)
        except ValidationError as error:
            yield f"{model.__name__}: {error}"


def _unpaired_calls(content: Any, after: Any) -> Iterator[str]:
    calls = [part for part in content["parts"] if "functionCall" in part]
    parts = after.get("parts", [])
    results = [part["functionResponse"] for part in parts if "functionResponse" in part]
    asked = [part["functionCall"]["name"] for part in calls]
    if asked != [each["name"] for each in results]:
        yield f"the uses {asked} have the results {results}"
    if calls and calls[0].get("thoughtSignature") != SIGNATURE:
        yield "the signature of the thought is missing"
    if any(not isinstance(each.get("response"), dict) for each in results):
        yield "a response must be an object"


def _parts_essence(content: dict[str, Any]) -> tuple[Any, ...]:
    parts = content["parts"]
    text = "".join(each.get("text", "") for each in parts if not each.get("thought"))
    calls = [each["functionCall"] for each in parts if "functionCall" in each]
    return (text, *((call["name"], call.get("args") or {}) for call in calls))


def _differences(wanted: Iterable[Any], found: Iterable[Any]) -> Iterator[str]:
    expected, came = list(wanted), list(found)
    if expected != came:
        yield f"the model said {expected}, and {came} came back"


def _names(names: Iterable[str], pattern: re.Pattern[str] = _NAME) -> Iterator[str]:
    found = list(names)
    yield from (f"the name {name!r}" for name in found if not pattern.fullmatch(name))
    if len({*found}) < len(found):
        yield "names occur twice"


def _open_parts(schema: Any, *, all_required: bool = True) -> Iterator[str]:
    """Give the objects of a strict schema that are open, or whose properties are optional."""
    for part in _parts_of(schema):
        if part.get("type") == "object" or "properties" in part:
            names = part.get("properties", {}).keys()
            if part.get("additionalProperties") is not False:
                yield f"an open object: {part}"
            if all_required and {*part.get("required", [])} != {*names}:
                yield f"optional properties: {part}"


def _parts_of(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for key in ("properties", "$defs", "definitions"):
            for each in schema.get(key, {}).values():
                yield from _parts_of(each)
        for key in ("anyOf", "items"):
            for each in _list(schema.get(key)):
                yield from _parts_of(each)


def _empty_texts(messages: Any) -> Iterator[str]:
    """Give the texts that are empty or white, at any depth of content and output."""
    for message in messages:
        for key in ("text", "content", "output"):
            value = message.get(key)
            if isinstance(value, str) and not value.strip() and message.get("type") != "thinking":
                yield f"empty text: {message}"
            if isinstance(value, list):
                if not value:
                    yield f"empty content: {message}"
                yield from _empty_texts(value)


def _list(value: Any) -> list[Any]:
    if value is None or isinstance(value, str):
        return []
    return value if isinstance(value, list) else [value]


_RULES = {
    "openai-chat": _chat,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
}
