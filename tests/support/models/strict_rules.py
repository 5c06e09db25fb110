"""What the strictest known server of each API refuses in a request.

Rules that hold for any conversation, also one that was interrupted, saved, or begun with another
model; `wire_rules` compares a request with what the model said, which this does not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from support.models.wire_replies import SIGNATURE, Says

__all__ = ["refusals"]

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FOREIGN_ID = re.compile(r"[A-Za-z0-9]{9}")
_THOUGHT = re.compile(r"opaque (\d+)")


def refusals(api: str, body: Any, said: Sequence[Says]) -> list[str]:
    """Return why a server refuses a request; empty if it takes it.

    Args:
        api: The API.
        body: The body of the request.
        said: What this server has said in the conversation.
    """
    return [*_RULES[api](body, said), *_foreign_thoughts(body, said)]


def _foreign_thoughts(body: Any, said: Sequence[Says]) -> Iterator[str]:
    text = json.dumps(body)
    own = {says.number for says in said}
    foreign = {int(number) for number in _THOUGHT.findall(text)} - own
    if foreign:
        yield f"the thoughts of the replies {foreign} are of another model"
    if text.count(SIGNATURE) > sum(bool(says.uses) for says in said):
        yield "a signature is of another model"


def _chat(body: Any, said: Sequence[Says]) -> Iterator[str]:
    messages = body["messages"]
    system = sum(message["role"] == "system" for message in messages)
    if any(message["role"] == "system" for message in messages[system:]):
        yield "a system message is not the first"
    yield from _chat_order(messages[system:])
    for number, message in enumerate(messages):
        if _is_blank(message.get("content")) and not message.get("tool_calls"):
            yield f"message {number}, {message['role']}: must not be empty"
    ids = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
    yield from _wrong_ids(ids, own={id_ for says in said for id_, *_ in says.ids()})
    for tool in body.get("tools", ()):
        yield from _wrong_schema(tool["function"]["parameters"])


def _chat_order(messages: Sequence[Any]) -> Iterator[str]:
    owed: list[str] = []
    before = "assistant"
    for number, message in enumerate(messages):
        role = message["role"]
        where = f"message {number}, {role}"
        if role == "tool":
            if not owed or message["tool_call_id"] != owed.pop(0):
                yield f"{where}: the result does not follow its call"
        elif owed:
            yield f"{where}: the calls {owed} have no results"
            owed = []
        if role in ("user", "assistant") and (role == before or (role, before) == ("user", "tool")):
            yield f"{where}: Unexpected role {role!r} after role {before!r}"
        owed += [call["id"] for call in message.get("tool_calls") or []]
        before = role
    if before not in ("user", "tool"):
        yield "the last message is the model's"


def _responses(body: Any, said: Sequence[Says]) -> Iterator[str]:
    items = body["input"]
    for number, item in enumerate(items):
        kind = item.get("type", "message")
        if kind == "message" and _is_blank(item.get("content")):
            yield f"item {number} is empty"
        after = items[number + 1] if number + 1 < len(items) else {}
        is_followed = after.get("role") == "assistant" or after.get("type") in (
            *("reasoning", "function_call", "custom_tool_call"),
        )
        if kind == "reasoning" and not is_followed:
            yield f"item {number} of type 'reasoning' was provided without its following item"
    calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
    results = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    if calls != results:
        yield f"the calls {calls} have the results {results}"
    if items[0].get("role") != "user" or items[-1].get("role") == "assistant":
        yield "the first item is the user's, and the last one is not the model's"
    yield from (f"the id {id_!r}" for id_ in calls if not _ID.fullmatch(id_))
    own = {name for says in said for name in (f"rs_{says.number}", f"msg_{says.number}")}
    own |= {f"fc_{id_}" for says in said for id_, *_ in says.ids()}
    foreign = {item["id"] for item in items if "id" in item} - own
    if foreign:
        yield f"the items {foreign} are provided without their required 'reasoning' item"
    for tool in body.get("tools", ()):
        yield from _wrong_schema(tool["parameters"])


def _anthropic(body: Any, _: Sequence[Says]) -> Iterator[str]:
    messages = body["messages"]
    yield from _alternation([message["role"] for message in messages], "assistant")
    asked: list[str] = []
    for number, message in enumerate(messages):
        content = message["content"]
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        if not blocks or any(_is_blank(b["text"]) for b in blocks if b["type"] == "text"):
            yield f"messages.{number}: text content blocks must be non-empty"
        first = [block.get("tool_use_id") for block in blocks[: len(asked)]]
        if first != asked:
            yield f"messages.{number}: `tool_use` ids {asked} without `tool_result` at the start"
        asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
        yield from (f"the id {id_!r}" for id_ in asked if not _ID.fullmatch(id_))
    last = messages[-1]
    if last["role"] == "assistant" and last["content"][-1].get("text", "").endswith((" ", "\n")):
        yield "final assistant content cannot end with trailing whitespace"
    for tool in body.get("tools", ()):
        yield from _wrong_schema(tool["input_schema"])


def _gemini(body: Any, _: Sequence[Says]) -> Iterator[str]:
    contents = body["contents"]
    yield from _alternation([content["role"] for content in contents], "model")
    asked: list[str] = []
    for number, content in enumerate(contents):
        parts = content.get("parts") or []
        if not parts or any(part.get("text") == "" for part in parts):
            yield f"contents[{number}].parts must not be empty"
        found = [part["functionResponse"]["name"] for part in parts if "functionResponse" in part]
        if found != asked:
            yield f"contents[{number}]: the calls {asked} have the responses {found}"
        asked = [part["functionCall"]["name"] for part in parts if "functionCall" in part]
    for tool in body.get("tools", ()):
        for declaration in tool["functionDeclarations"]:
            names = ("parametersJsonSchema", "parameters_json_schema")  # by version of the client
            [schema] = [declaration[name] for name in names if name in declaration]
            yield from _wrong_schema(schema)
            for part in _parts(schema):
                if any(value in ("", None) for value in part.get("enum", ())):
                    yield f"enum: cannot be empty: {part}"


def _alternation(roles: Sequence[str], own: str) -> Iterator[str]:
    expected = ["user", own] * len(roles)
    if list(roles) != expected[: len(roles)]:
        yield f"roles must alternate, beginning with user: {roles}"
    if roles[-1] != "user":
        yield "the last message is the model's"


def _wrong_ids(ids: Sequence[str], own: set[str]) -> Iterator[str]:
    if len({*ids}) < len(ids):
        yield "an id occurs twice"
    for id_ in ids:
        if not (_FOREIGN_ID if id_ not in own else _ID).fullmatch(id_):
            yield f"Tool call id was {id_} but must be a-z, A-Z, 0-9, with a length of 9"


def _is_blank(content: Any) -> bool:
    if isinstance(content, list):
        texts = [part.get("text", part.get("refusal", "file")) for part in content]
        return not content or not all(str(text).strip() for text in texts)
    return not (content or "").strip()


def _wrong_schema(schema: Any) -> Iterator[str]:
    for part in _parts(schema):
        if {*part.get("required", ())} - {*part.get("properties", ())}:
            yield f"required has what is no property: {part}"
        if part.get("enum", True) == []:
            yield f"enum is empty: {part}"


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        held: list[Any] = [schema.get("items"), schema.get("additionalProperties")]
        for name in ("properties", "$defs"):
            held += schema.get(name, {}).values()
        for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
            held += schema.get(name, ())
        for part in held:
            yield from _parts(part)


_RULES: dict[str, Any] = {
    "openai-chat": _chat,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
}
