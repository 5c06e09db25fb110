"""The API of Gemini (`generateContent`), as an `Adapter`.

A reply's content goes back as it came: thoughts, code that the model ran and thought signatures
(which are Base64 in plain JSON; the client of Google reads that). What the API does not take back
is changed, and nothing else:

- a part without content, or with an empty text and no thought signature, is left out, and so is a
  content that has no other (contents of one role may follow each other);
- `args` of a function call that are no object are left out.

Replies may also have the names of the REST API, such as `functionCall` for `function_call`. Of
several candidates the first one is the reply. The limits of files are those of
https://ai.google.dev/gemini-api/docs/image-understanding, .../document-processing, .../audio,
.../video-understanding and .../function-calling (multimodal function responses).
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolbus.chunks.chunk_types import FileChunk
from toolbus.models.adapter import Conversation, Plain
from toolbus.models.api_errors import api_error
from toolbus.models.call_arguments import call_use, cut_words, joined_arguments, whole_object
from toolbus.models.endings import Ending, first_cut
from toolbus.models.model_error import ModelError
from toolbus.models.reply_values import as_object, as_text
from toolbus.models.results import media_type, paired, result_parts, user_parts, within
from toolbus.models.shared_parts import (
    FILLER,
    alternating,
    broken_off,
    call_ids,
    checked_conversation,
    formed_tools,
    reason_text,
    sendable,
    system_text,
)
from toolbus.models.token_usage import TokenUsage, count_of, counts_in
from toolbus.schemas.forms import GEMINI
from toolbus.turns.tool_use import ToolResult, ToolUse
from toolbus.turns.turn import Turn

__all__ = [
    "collect",
    "definitions",
    "ending",
    "messages",
    "portable",
    "request",
    "text",
    "text_of",
    "usage",
    "user",
    "uses",
]

_MAX_FILE_BYTES = 15 * 2**20
"""Of all files of a message: the API takes requests of 20 MB with data in them, and Base64 adds a
third."""
_RESULT_TYPES = frozenset({"image/jpeg", "image/png", "image/webp", "application/pdf"})
"""Types that a function response may have; text files are part of its text."""
_USER_TYPES = _RESULT_TYPES | {
    "image/heic",
    "image/heif",
    "audio/aac",
    "audio/aiff",
    "audio/flac",
    "audio/mp3",
    "audio/mpeg",
    "audio/ogg",
    "audio/wav",
    "video/3gpp",
    "video/avi",
    "video/mov",
    "video/mp4",
    "video/mpeg",
    "video/mpg",
    "video/quicktime",
    "video/webm",
    "video/wmv",
    "video/x-flv",
}
_FILES_IN_RESPONSE = re.compile(r"gemini-(?:[3-9]|[1-9]\d)(?!\d)")
"""Models that take files in a function response. Older ones refuse the request."""
_SIGNATURES = frozenset({"thought_signature", "thoughtSignature"})
_ENDS = frozenset({"STOP", "MAX_TOKENS", "FINISH_REASON_UNSPECIFIED", ""})
"""Finish reasons of a reply that can be used; after any other one it was filtered or is broken."""
_CHANCE = frozenset(
    {"MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL", "OTHER"}
)
"""Finish reasons that the same request may not meet again."""


def definitions(turn: Turn) -> list[Plain]:
    """Return the function declarations of the tools that can be called now.

    Raises `ValueError` as `Adapter.definitions`.
    """
    return [
        {
            "name": tool.name,
            "description": tool.description or tool.name,  # the API requires one
            "parameters_json_schema": form.schema,
        }
        for tool, form in formed_tools(turn, GEMINI)
    ]


def request(turn: Turn, conversation: Conversation, instructions: str = "") -> Plain:
    """Return `contents` and `config` of a request; see `Adapter.request`."""
    # Else the client would call Python functions that it finds among the tools.
    config: Plain = {"automatic_function_calling": {"disable": True}}
    if system := system_text(turn, instructions):
        config["system_instruction"] = system
    if tools := definitions(turn):
        config["tools"] = [{"function_declarations": tools}]
    contents = checked_conversation(conversation)
    sent = (
        content
        for content in contents
        if content.get("role") != "model"
        or any(map(_is_sent, _content_parts({"content": content})))
    )
    filler = {"role": "model", "parts": [{"text": FILLER}]}
    return {"contents": alternating(sent, filler), "config": config}


def portable(conversation: Conversation) -> list[Plain]:
    """Return contents as another model takes them; see `Adapter`."""
    found: list[Plain] = []
    for content in map(dict, conversation):
        if content.get("role") == "model":
            content["parts"] = [
                {name: value for name, value in part.items() if name not in _SIGNATURES}
                for part in content.get("parts") or ()
                if not part.get("thought")
            ]
        found.append(content)
    return found


def user(text: str, files: Iterable[FileChunk] = ()) -> Plain:
    """Return a content of the user.

    The API takes pictures (JPEG, PNG, WebP, HEIC, HEIF), PDF, and the usual types of audio and
    video; text in UTF-8 is sent as text. Files of a content have 15 MiB together.

    Raises `ValueError` for any other file, one that is not in memory, and an empty message.
    """
    parts = user_parts(
        text,
        files,
        lambda file: bool(file.data) and media_type(file) in _USER_TYPES,
        _MAX_FILE_BYTES,
    )
    return {"role": "user", "parts": [*map(_part, parts)]}


def uses(reply: Mapping[str, Any]) -> list[ToolUse]:
    """Return what the model asks for, in order; empty if this reply ends the loop.

    A call without an id gets one, the same each time the reply is read.

    Raises `ModelError` for what is no reply, for a blocked prompt, and for a reply that was
    filtered, is malformed, or ended at its limit before the model said anything.
    """
    found = [use for _, use in _parts(reply) if use is not None]
    candidate = _candidate(reply)
    reason = _finish_reason(candidate)
    if reason not in _ENDS:
        why = _field(candidate, "finish_message")
        words = f"the reply of the model cannot be used: {reason_text(reason)}"
        if why:
            words = f"{words}: {reason_text(why)}"
        raise ModelError(words, retryable=reason in _CHANCE)
    if reason == "MAX_TOKENS" and not found and not text(reply).strip():
        raise ModelError("the reply ended (MAX_TOKENS) before the model said anything")
    return found


def text(reply: Mapping[str, Any]) -> str:
    """Return the text of the reply, without thoughts. Raises `ModelError` for what is no reply."""
    return "".join(
        part["text"]
        for part, _ in _parts(reply)
        if isinstance(part.get("text"), str) and not part.get("thought")
    )


def ending(reply: Mapping[str, Any]) -> Ending:
    """Return how the reply ended. Raises `ModelError` for what is no reply."""
    found = [part for part, _ in _parts(reply) if not part.get("thought")]
    used = {name for part in found for name, value in part.items() if value is not None}
    is_empty = used <= {"text", "thought", *_SIGNATURES} and not text(reply).strip()
    return Ending(_finish_reason(_candidate(reply)), is_empty)


def usage(reported: Mapping[str, Any]) -> TokenUsage:
    """Return the tokens that the API counted; it tells thoughts apart. Each chunk tells them."""
    counts = counts_in(reported, "usage_metadata")
    return TokenUsage(
        count_of(counts, "prompt_token_count", "tool_use_prompt_token_count"),
        count_of(counts, "candidates_token_count", "thoughts_token_count"),
    )


def messages(reply: Mapping[str, Any], results: Sequence[ToolResult]) -> list[Plain]:
    """Return the model's content, and one of the user with the responses to all its calls.

    A response has the text of its result as `output`, or as `error`. JSON is sent as text: numbers
    of the API's structures are floating-point, which changes large ids. Pictures and PDF files, up
    to 15 MiB together, are in the response that they belong to; for models before Gemini 3 they
    follow all responses, each after a text that names the call.

    Raises `ModelError` for what is no reply, and `ValueError` for a result of no use.
    """
    parts = _parts(reply)
    asked = [(_field(part, "function_call"), use) for part, use in parts if use is not None]
    pairs = paired([use for _, use in asked], results)
    takes_files = _FILES_IN_RESPONSE.search(str(_field(reply, "model_version")))
    takes = within(_MAX_FILE_BYTES, lambda file: media_type(file) in _RESULT_TYPES)
    responses: list[Plain] = []
    beside: list[Plain] = []
    for (call, _), result in zip(asked, pairs, strict=True):
        words, files = result_parts(result, takes)
        key = "output" if result.state == "ok" else "error"
        response: Plain = {"name": call["name"], "response": {key: words}}
        if isinstance(call.get("id"), str) and call["id"]:
            response["id"] = call["id"]
        if takes_files and files:
            response["parts"] = [*map(_part, files)]
        elif files:
            place = f"call {len(responses) + 1}, {call['name']}"
            beside += [{"text": f"[files of the result of {place}]"}, *map(_part, files)]
        responses.append({"function_response": response})
    sent = [_sent(part, use) for part, use in parts if _is_sent(part)]
    made = [("model", sent), ("user", [*responses, *beside])]
    return [{"role": role, "parts": content} for role, content in made if content]


def collect(events: Iterable[Mapping[str, Any]]) -> Plain:
    """Put the chunks of a stream together, each a whole response with what came since the last one.

    Consecutive texts of one kind are joined; a part with a thought signature stays alone.

    Raises `ModelError` for an error, for a stream that ends before a finish reason came, and for
    arguments of a call in pieces, which are sent only on request.
    """
    reply: Plain = {}
    candidate: Plain = {}
    parts: list[tuple[Plain, list[str]]] = []
    places: dict[tuple[str, str], int] = {}
    """Where in `parts` a call with an id is."""
    for event in events:
        if not isinstance(event, Mapping) or event.get("error") is not None:
            raise _no_reply(event)
        reply |= event
        chunk = _first(event)
        reason = first_cut(_finish_reason(candidate), _finish_reason(chunk))
        candidate |= {name: value for name, value in chunk.items() if value is not None}
        if reason != _finish_reason(candidate):
            candidate["finish_reason"] = reason
        for part in _content_parts(chunk):
            if (call := _call_key(part)) is not None:
                if call in places:
                    parts[places[call]] = (_one_call(parts[places[call]][0], part), [])
                    continue
                places[call] = len(parts)
            is_text = _is_plain_text(part)
            if is_text and parts and _is_plain_text(parts[-1][0], of=part):
                parts[-1][1].append(part["text"])
            else:
                parts.append((part, [part["text"]] if is_text else []))
    if not _finish_reason(candidate):
        if _block_reason(reply) is None:
            raise broken_off()
        return reply | {"candidates": []}
    # Joined at the end: adding each piece to the text would copy all of it each time.
    joined = [part | {"text": "".join(texts)} if texts else part for part, texts in parts]
    candidate["content"] = {"role": "model", "parts": joined}
    return reply | {"candidates": [candidate]}


def _call_key(part: Plain) -> tuple[str, str] | None:
    """Return id and name of a call; None for other parts, and for a call without an id."""
    call = as_object(_field(part, "function_call"))
    call_id = as_text(call.get("id"))
    return (call_id, call["name"]) if call_id else None


def _one_call(earlier: Plain, later: Plain) -> Plain:
    """Return a call that came twice; if its arguments differ, they are a text that does not run."""
    calls = [_field(part, "function_call") for part in (earlier, later)]
    arguments = joined_arguments([call.get("args") for call in calls])
    whole = whole_object(arguments)
    args = {"args": arguments if whole is None else whole}
    return _with_call(earlier | later, calls[0] | calls[1] | args)


def _with_call(part: Plain, call: Plain) -> Plain:
    """Return a part with another function call, under the name that it has there."""
    name = "function_call" if "function_call" in part else "functionCall"
    return {**part, name: call}


def text_of(event: Mapping[str, Any]) -> str:
    """Return the text that a chunk of a stream adds to `text`."""
    try:
        return text({"candidates": [_first(event)]})
    except ModelError:  # `collect` raises it
        return ""


def _first(event: Any) -> Plain:
    """Return the candidate of a chunk that belongs to the reply; empty if it has none."""
    match event:
        case {"candidates": [*candidates]}:
            for candidate in candidates:
                if isinstance(candidate, Mapping) and candidate.get("index") in (None, 0):
                    return dict(candidate)
    return {}


def _parts(reply: object) -> list[tuple[Plain, ToolUse | None]]:
    """Return the parts of a reply, and for each function call what the turn runs.

    Raises `ModelError` for what is no reply.
    """
    found = sendable(reply)
    candidate = _candidate(found)
    parts = _content_parts(candidate)
    calls = [_field(part, "function_call") for part in parts]
    given = [call.get("id") for call in calls if call is not None]
    ids = iter(call_ids(given, {"id": _field(found, "response_id")}))
    is_cut = _finish_reason(candidate) == "MAX_TOKENS"
    # The last chunk of a stream may have nothing but a text that is empty.
    end = max((number for number, part in enumerate(parts, 1) if part.get("text") != ""), default=0)
    uses: list[ToolUse | None] = []
    for number, call in enumerate(calls, 1):
        if call is None:
            uses.append(None)
            continue
        # `args` are optional in this API, and a call comes whole: without them it has none.
        use = call_use(next(ids), call["name"], call.get("args") or {})
        if is_cut and number == end:
            use = replace(use, invalid=cut_words("MAX_TOKENS"))
        uses.append(use)
    return list(zip(parts, uses, strict=True))


def _candidate(reply: Mapping[str, Any]) -> Plain:
    """Return the candidate that is the reply. Raises `ModelError` if there is none."""
    match reply.get("candidates"):
        case [dict() as candidate, *_]:
            return candidate
    raise _no_reply(reply)


def _content_parts(candidate: Plain) -> list[Plain]:
    """Return the parts of a candidate; none if it has no content. Raises `ModelError`."""
    parts = candidate.get("content")
    if isinstance(parts, Mapping):
        parts = parts.get("parts")
    if parts is None:
        return []
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        raise ModelError("the reply has a content that is not of the Gemini API")
    for part in parts:
        if not isinstance(part.get("text"), str | None):
            raise ModelError("the reply has a text that is none")
        match _field(part, "function_call"):
            case None:
                pass
            case {"name": str(name)} as call if name and not _has_pieces(call):
                pass
            case _:
                raise ModelError("the reply has a function call that is not complete")
    return parts


def _has_pieces(call: Mapping[str, Any]) -> bool:
    """Whether the arguments of a call come in pieces."""
    return bool(_field(call, "will_continue") or _field(call, "partial_args"))


def _is_plain_text(part: Plain, of: Plain | None = None) -> bool:
    """Whether a part is nothing but a text, and one that goes on with another text, if given."""
    used = {name for name, value in part.items() if value is not None}
    is_alike = of is None or bool(part.get("thought")) == bool(of.get("thought"))
    return is_alike and "text" in used and used <= {"text", "thought"}


def _is_sent(part: Plain) -> bool:
    """Whether the API takes back a part that it gave."""
    used = {name: value for name, value in part.items() if value is not None and name != "thought"}
    return used not in ({}, {"text": ""})


def _sent(part: Plain, use: ToolUse | None) -> Plain:
    """Return a part of a reply as the API takes it back."""
    call = _field(part, "function_call")
    if use is None or isinstance(call.get("args", {}), Mapping):
        return part
    return _with_call(part, {key: value for key, value in call.items() if key != "args"})


def _part(part: str | FileChunk) -> Plain:
    if isinstance(part, str):
        return {"text": part}
    data = b64encode(part.data).decode()
    return {"inline_data": {"mime_type": media_type(part), "data": data}}


def _field(value: Mapping[str, Any], name: str) -> Any:
    """Return a field by its name in the client of Python, or that of the REST API."""
    found = value.get(name)
    if found is None:
        first, *others = name.split("_")
        found = value.get(first + "".join(word.title() for word in others))
    return found


def _finish_reason(candidate: Plain) -> str:
    return as_text(_field(candidate, "finish_reason"))


def _block_reason(reply: Mapping[str, Any]) -> Any:
    return _field(as_object(_field(reply, "prompt_feedback")), "block_reason")


def _no_reply(reply: Any) -> ModelError:
    """Return the error for a response without a candidate."""
    if not isinstance(reply, Mapping):
        return ModelError("this is no reply of the Gemini API")
    if reply.get("error") is not None:
        return api_error(reply)
    reason = _block_reason(reply)
    if reason is None:
        return ModelError("the model gave no reply", retryable=True)
    return ModelError(f"the prompt was blocked: {reason_text(reason)}")
