"""Replies as each API sends them, whole and as the events of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

__all__ = [
    "APIS",
    "INPUT_TOKENS",
    "OUTPUT_TOKENS",
    "Says",
    "chat_counts",
    "events_of",
    "whole_reply",
]

APIS = ("openai-chat", "openai-responses", "anthropic", "gemini")
INPUT_TOKENS = 9
OUTPUT_TOKENS = 4
"""How many tokens each request and each reply has, those of a cache and of thoughts included."""
_CHAT_USAGE = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS}
SIGNATURE = "b3BhcXVl"  # base64: the Gemini client reads it as bytes


@dataclass(frozen=True)
class Says:
    """What a model says: a thought where the API gives one, then text, then uses of tools."""

    text: str = ""
    uses: tuple[tuple[str, Mapping[str, Any] | str], ...] = ()
    """Name and arguments; text is sent as it is, by APIs whose arguments are text."""
    number: int = field(default_factory=count(1).__next__)

    def ids(self) -> Iterator[tuple[str, str, Any]]:
        """Give id, name and arguments of each use."""
        for position, (name, arguments) in enumerate(self.uses):
            yield f"call_{self.number}_{position}", name, arguments


def whole_reply(api: str, says: Says) -> dict[str, Any]:
    """Return the body of a response."""
    return _WHOLE[api](says)


def events_of(api: str, says: Says) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give the events of a streamed response: name and data."""
    return _EVENTS[api](says)


def _chat(says: Says) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": says.text or None,
        "refusal": None,
        "annotations": [],
        "reasoning_content": f"opaque {says.number}",
        "of_a_vendor": says.number,  # compatible servers add fields and want them back
    }
    if says.uses:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": _text(given)}}
            for id_, name, given in says.ids()
        ]
    finish = "tool_calls" if says.uses else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    return _chat_head(says, "chat.completion") | {"choices": [choice], "usage": _CHAT_USAGE}


def chat_counts(says: Says) -> dict[str, Any]:
    """Return the last event of a streamed chat completion, for whoever asks for it."""
    return _chat_head(says, "chat.completion.chunk") | {"choices": [], "usage": _CHAT_USAGE}


def _chat_head(says: Says, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{says.number}", "object": kind, "created": 1, "model": "stub"}


def _chat_events(says: Says) -> Iterator[tuple[str, dict[str, Any]]]:
    def event(delta: dict[str, Any], finish: str | None = None) -> tuple[str, dict[str, Any]]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return "", _chat_head(says, "chat.completion.chunk") | {"choices": [choice]}

    yield event({"role": "assistant", "content": "" if says.text else None, "refusal": None})
    yield event({"reasoning_content": f"opaque {says.number}"})
    for piece in _pieces(says.text):
        yield event({"content": piece})
    for index, (id_, name, given) in enumerate(says.ids()):
        function = {"name": name, "arguments": ""}
        call = {"index": index, "id": id_, "type": "function", "function": function}
        yield event({"tool_calls": [call]})
        for piece in _pieces(_text(given)):
            yield event({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield event({}, "tool_calls" if says.uses else "stop")


def _responses(says: Says) -> dict[str, Any]:
    return _response_head(says) | {
        "status": "completed",
        "output": list(_items(says)),
        "usage": {
            "input_tokens": INPUT_TOKENS,
            "input_tokens_details": {"cached_tokens": 5},
            "output_tokens": OUTPUT_TOKENS,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
        },
    }


def _response_head(says: Says) -> dict[str, Any]:
    return {
        "id": f"resp_{says.number}",
        "object": "response",
        "created_at": 1,
        "model": "stub",
        "status": "in_progress",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
    }


def _items(says: Says) -> Iterator[dict[str, Any]]:
    number = says.number
    yield {
        "type": "reasoning",
        "id": f"rs_{number}",
        "summary": [],
        "encrypted_content": f"opaque {number}",
    }
    if says.text:
        content = {"type": "output_text", "text": says.text, "annotations": [], "logprobs": []}
        head = {"type": "message", "id": f"msg_{number}", "role": "assistant"}
        yield head | {"status": "completed", "content": [content]}
    for id_, name, given in says.ids():
        call = {"call_id": id_, "name": name, "arguments": _text(given)}
        yield {"type": "function_call", "id": f"fc_{id_}", "status": "completed"} | call


def _responses_events(says: Says) -> Iterator[tuple[str, dict[str, Any]]]:
    numbers = count()

    def event(kind: str, **data: Any) -> tuple[str, dict[str, Any]]:
        return kind, {"type": kind, "sequence_number": next(numbers)} | data

    yield event("response.created", response=_response_head(says))
    for index, item in enumerate(_items(says)):
        place = {"output_index": index}
        begun = item | {"status": "in_progress"} if "status" in item else item
        if item["type"] == "function_call":
            yield event("response.output_item.added", item=begun | {"arguments": ""}, **place)
            inside = place | {"item_id": item["id"]}
            for piece in _pieces(item["arguments"]):
                yield event("response.function_call_arguments.delta", delta=piece, **inside)
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield event("response.function_call_arguments.done", **done, **inside)
        elif item["type"] == "message":
            yield event("response.output_item.added", item=begun | {"content": []}, **place)
            part = item["content"][0]
            inside = place | {"item_id": item["id"], "content_index": 0}
            yield event("response.content_part.added", part=part | {"text": ""}, **inside)
            for piece in _pieces(says.text):
                yield event("response.output_text.delta", delta=piece, logprobs=[], **inside)
            yield event("response.output_text.done", text=says.text, logprobs=[], **inside)
            yield event("response.content_part.done", part=part, **inside)
        else:
            yield event("response.output_item.added", item=begun, **place)
        yield event("response.output_item.done", item=item, **place)
    yield event("response.completed", response=_responses(says))


def _anthropic(says: Says) -> dict[str, Any]:
    stop = "tool_use" if says.uses else "end_turn"
    head = _anthropic_head(says)
    usage = head["usage"] | {"output_tokens": OUTPUT_TOKENS}
    return head | {"content": list(_blocks(says)), "stop_reason": stop, "usage": usage}


def _anthropic_head(says: Says) -> dict[str, Any]:
    return {
        "id": f"msg_{says.number}",
        "type": "message",
        "role": "assistant",
        "model": "stub",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": INPUT_TOKENS - 5,
            "cache_creation_input_tokens": 2,
            "cache_read_input_tokens": 3,
            "output_tokens": 1,
        },
    }


def _blocks(says: Says) -> Iterator[dict[str, Any]]:
    yield {"type": "thinking", "thinking": "hm", "signature": f"opaque {says.number}"}
    if says.text:
        yield {"type": "text", "text": says.text, "citations": None}
    for id_, name, given in says.ids():
        yield {"type": "tool_use", "id": id_, "name": name, "input": given}


def _anthropic_events(says: Says) -> Iterator[tuple[str, dict[str, Any]]]:
    def event(kind: str, **data: Any) -> tuple[str, dict[str, Any]]:
        return kind, {"type": kind} | data

    yield event("message_start", message=_anthropic_head(says))
    yield event("ping")
    for index, block in enumerate(_blocks(says)):
        deltas: list[dict[str, Any]]
        if block["type"] == "thinking":
            begun = block | {"thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        elif block["type"] == "text":
            begun = block | {"text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
        else:
            begun, pieces = block | {"input": {}}, _pieces(_text(block["input"]))
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        yield event("content_block_start", index=index, content_block=begun)
        for delta in deltas:
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    stop = {"stop_reason": "tool_use" if says.uses else "end_turn", "stop_sequence": None}
    yield event(
        "message_delta", delta=stop, usage={"input_tokens": None, "output_tokens": OUTPUT_TOKENS}
    )
    yield event("message_stop")


def _gemini(says: Says, parts: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0}
    candidate["content"] = {
        "role": "model",
        "parts": list(_parts(says)) if parts is None else parts,
    }
    if parts is None:
        candidate["finishReason"] = "STOP"
    usage = {"promptTokenCount": INPUT_TOKENS}
    if parts is None:
        usage |= {"candidatesTokenCount": OUTPUT_TOKENS - 2, "thoughtsTokenCount": 2}
    head = {"modelVersion": "stub", "responseId": f"r{says.number}"}
    return {"candidates": [candidate], "usageMetadata": usage} | head


def _parts(says: Says) -> Iterator[dict[str, Any]]:
    yield {"text": f"opaque {says.number}", "thought": True}
    if says.text:
        yield {"text": says.text}
    for position, (_, name, given) in enumerate(says.ids()):
        # This API often sends no id, and signs only the first of several calls.
        signed = {} if position else {"thoughtSignature": SIGNATURE}
        yield {"functionCall": {"name": name, "args": given}} | signed


def _gemini_events(says: Says) -> Iterator[tuple[str, dict[str, Any]]]:
    for part in _parts(says):
        pieces = _pieces(part["text"]) if "text" in part else []
        for piece in pieces:
            yield "", _gemini(says, [part | {"text": piece}])
        if not pieces:
            yield "", _gemini(says, [part])
    end = _gemini(says)
    end["candidates"][0]["content"]["parts"] = [{"text": ""}]
    yield "", end


def _pieces(text: str) -> list[str]:
    return [text[start : start + 7] for start in range(0, len(text), 7)]


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


_WHOLE = {
    "openai-chat": _chat,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
}
_EVENTS = {
    "openai-chat": _chat_events,
    "openai-responses": _responses_events,
    "anthropic": _anthropic_events,
    "gemini": _gemini_events,
}
