"""The messages API of Anthropic, as an `Adapter`.

A reply goes back as it came, thinking blocks with their signatures, the blocks of server tools and
citations included. What the API gives and does not take back is changed, and nothing else:

- a text block of nothing but white space is left out, and so is a message of nothing else (the API
  joins consecutive messages of the user); so is thinking without a signature where a reply was cut;
- `parsed_output` of a text, `file_id` of a citation and a `caller` that is null are left out;
- a `tool_use` whose `input` is no object, since the reply broke off within it, has an empty one;
  one without a valid id of its own gets one; a name has other characters as `_`.

The limits of files are those of https://platform.claude.com/docs/en/build-with-claude/vision and
https://platform.claude.com/docs/en/build-with-claude/pdf-support.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolbus.chunks.carried_values import repaired
from toolbus.chunks.chunk_types import FileChunk
from toolbus.errors import InvalidArguments
from toolbus.models.adapter import Conversation, Plain
from toolbus.models.api_errors import api_error
from toolbus.models.call_arguments import (
    call_use,
    cut_words,
    is_placeholder,
    joined_arguments,
    settled_uses,
)
from toolbus.models.endings import Ending, first_cut, is_cut
from toolbus.models.model_error import ModelError
from toolbus.models.reply_values import as_object, as_text
from toolbus.models.results import Takes, media_type, paired, result_parts, user_parts, within
from toolbus.models.shared_parts import (
    FILLER,
    alternating,
    broken_off,
    call_ids,
    checked_conversation,
    formed_tools,
    reason_text,
    sendable,
    sent_name,
    system_text,
    without_repeats,
)
from toolbus.models.token_usage import TokenUsage, count_of, counts_in
from toolbus.schemas.forms import ANTHROPIC, strict_within_limits
from toolbus.turns.tool_use import ToolResult, ToolUse, arguments_of
from toolbus.turns.turn import Turn

__all__ = [
    "DEFAULT_MAX_TOKENS",
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

DEFAULT_MAX_TOKENS = 8_192
"""The API requires a limit. The client takes this one for each model, also without streaming."""

_MAX_IMAGE_BYTES = 5 * 2**20 * 3 // 4
"""5 MiB in Base64: the smallest limit of the clouds that serve the API."""
_MAX_FILE_BYTES = 22 * 2**20
"""Of all files of a message: the API takes requests of 32 MB, which is 24 MB before Base64."""
_MAX_TITLE_CHARS = 500
"""The API refuses a longer one: `RequestDocumentBlock` of its description (OpenAPI)."""
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_PDF = "application/pdf"

_OF_ONE_MODEL = frozenset({"citations", "caller"})
"""Fields of blocks that name what a server tool has found, encrypted."""
_SERVER_CALLS = ("server_tool_use", "mcp_tool_use")
_CUT = frozenset({"max_tokens", "model_context_window_exceeded"})
"""Reasons to stop at any place of a reply, also in the middle of a tool's input."""
_DELTAS = ("text_delta", "thinking_delta", "signature_delta")
_LAST_COUNTS = ("signature", "encrypted_content")
"""Fields that one delta has as a whole: the client of the API takes the last one."""


def definitions(turn: Turn) -> list[Plain]:
    """Return the tools that can be called now.

    They are strict if their schemas have strict forms, the first ones within the limits of the API
    for all strict tools of a request.

    Raises `ValueError` as `Adapter.definitions`.
    """
    tools = formed_tools(turn, ANTHROPIC)
    forms = strict_within_limits(form for _, form in tools)
    found: list[Plain] = []
    for (tool, _), form in zip(tools, forms, strict=True):
        made: Plain = {"name": tool.name, "input_schema": form.schema}
        if tool.description:
            made["description"] = tool.description
        if form.strict:
            made["strict"] = True
        found.append(made)
    return found


def request(turn: Turn, conversation: Conversation, instructions: str = "") -> Plain:
    """Return `messages`, `system`, `tools` and `max_tokens` of a request; see `Adapter.request`."""
    sent = _sent_messages(_without_open_calls(checked_conversation(conversation)))
    made: Plain = {"max_tokens": DEFAULT_MAX_TOKENS, "messages": sent}
    if system := system_text(turn, instructions):
        made["system"] = system
    if tools := definitions(turn):
        made["tools"] = tools
    return made


def _sent_messages(conversation: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages whose roles alternate, without empty ones and empty texts."""
    found: list[Mapping[str, Any]] = []
    for message in conversation:
        content = message.get("content")
        blocks = [{"type": "text", "text": content or ""}]
        if isinstance(content, list):
            blocks = content
        sent = [block for block in blocks if not _is_empty_text(block)]
        if not sent:
            continue
        is_of_model = message.get("role") == "assistant"
        if is_of_model and found and found[-1].get("role") == "assistant":
            sent = [*found.pop()["content"], *sent]  # it went on after a pause
        if is_of_model or len(sent) < len(blocks):
            message = {**message, "content": sent}
        found.append(message)
    if found and found[-1].get("role") == "assistant":
        *before, last = found[-1]["content"]
        if last.get("type") == "text":  # the API refuses white space at the end of what goes on
            last = {**last, "text": last["text"].rstrip()}
        found[-1] = {**found[-1], "content": [*before, last]}
    return alternating(found, {"role": "assistant", "content": [{"type": "text", "text": FILLER}]})


def _is_empty_text(block: Any) -> bool:
    fields = as_object(block)
    return fields.get("type") == "text" and not as_text(fields.get("text")).strip()


def portable(conversation: Conversation) -> list[Plain]:
    """Return messages as another model takes them; see `Adapter`."""
    found: list[Plain] = []
    for message in map(dict, conversation):
        if message.get("role") == "assistant" and isinstance(message.get("content"), list):
            message["content"] = [
                {name: value for name, value in block.items() if name not in _OF_ONE_MODEL}
                for block in message["content"]
                if block.get("type") in ("text", "tool_use")
            ]
        found.append(message)
    return found


def _without_open_calls(conversation: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the messages without calls of the provider's tools that will have no result.

    A paused reply ends with such a call, whose result is in the reply that goes on with it. Where
    something else follows, the API refuses the call.
    """
    sent: list[Mapping[str, Any]] = []
    has_results_of: set[Any] = set()
    is_open = True  # the reply may go on: nothing follows
    for message in reversed(conversation):
        content = message.get("content")
        if message.get("role") != "assistant" or not isinstance(content, list):
            is_open = False
            has_results_of.clear()
            sent.append(message)
            continue
        blocks = [block for block in content if isinstance(block, Mapping)]
        has_results_of |= {str(block.get("tool_use_id")) for block in blocks}
        left = [
            block
            for block in content
            if is_open
            or as_object(block).get("type") not in _SERVER_CALLS
            or str(block.get("id")) in has_results_of
        ]
        if left == content:
            sent.append(message)
        elif left:
            sent.append({**message, "content": left})
    return sent[::-1]


def user(text: str, files: Iterable[FileChunk] = ()) -> Plain:
    """Return a message of the user.

    The API takes JPEG, PNG, GIF and WebP of 3.75 MiB each, and PDF; text in UTF-8 is sent as text.
    Files of a message have 22 MiB together.

    Raises `ValueError` for any other file, one that is not in memory, and an empty message.
    """
    parts = user_parts(text, files, _takes, _MAX_FILE_BYTES)
    # Models read a text best after the pictures that it is about.
    parts.sort(key=lambda part: isinstance(part, str))
    return {"role": "user", "content": [_user_block(part) for part in parts]}


def uses(reply: Mapping[str, Any]) -> list[ToolUse]:
    """Return what the model asks for, in order; empty if this reply ends the loop.

    A use in which the reply was cut is invalid: the turn makes a failed result of it and never runs
    it with half of its arguments.

    Raises `ModelError` for what is no reply, for a refusal, and for a reply that was cut before the
    model said anything.
    """
    found = [use for _, use in _blocks(reply) if use is not None]
    reason = _stop_reason(reply)
    if reason == "refusal":
        why = as_object(reply.get("stop_details")).get("explanation") or "it gave no reason"
        raise ModelError(f"the model refused: {reason_text(why)}")
    if reason in _CUT and not found and not text(reply).strip():
        raise ModelError(f"the reply ended ({reason}) before the model said anything")
    return found


def text(reply: Mapping[str, Any]) -> str:
    """Return the text of the reply. Raises `ModelError` for what is no reply."""
    return "".join(block["text"] for block, _ in _blocks(reply) if block["type"] == "text")


def ending(reply: Mapping[str, Any]) -> Ending:
    """Return how the reply ended. Raises `ModelError` for what is no reply."""
    kinds = {block["type"] for block, _ in _blocks(reply)}
    is_empty = kinds <= {"text", "thinking", "redacted_thinking"} and not text(reply).strip()
    return Ending(_stop_reason(reply), is_empty)


def usage(reported: Mapping[str, Any]) -> TokenUsage:
    """Return the tokens that the API counted; it tells those of its cache apart.

    Of a stream, `message_start` tells those of the request, and `message_delta` those of the reply
    so far: platform.claude.com/docs/en/build-with-claude/streaming.
    """
    counts = counts_in(reported, "usage", "message")
    cached = ("cache_creation_input_tokens", "cache_read_input_tokens")
    return TokenUsage(count_of(counts, "input_tokens", *cached), count_of(counts, "output_tokens"))


def messages(reply: Mapping[str, Any], results: Sequence[ToolResult]) -> list[Plain]:
    """Return the reply, and in one message of the user the results of all its uses, in order.

    Pictures and PDF files are in the result that they belong to, up to 22 MiB together. The API
    takes only text in a result that is an error.

    Raises `ModelError` for what is no reply, and `ValueError` for a result of no use.
    """
    blocks = _blocks(reply)
    reason = _stop_reason(reply)
    sent = [_sent(block, use) for block, use in blocks if not _is_refused(block, reason)]
    asked = [use for _, use in blocks if use is not None]
    takes = within(_MAX_FILE_BYTES, _takes)
    answers = [
        _result_block(use, result, takes)
        for use, result in zip(asked, paired(asked, results), strict=True)
    ]
    made = [("assistant", sent), ("user", answers)]
    return [{"role": role, "content": content} for role, content in made if content]


def collect(events: Iterable[Mapping[str, Any]]) -> Plain:
    """Put the raw events of a stream together; events of unknown types are passed over.

    Blocks are in the order in which they begin, also where several have one index. The input of a
    use that is not one JSON object for certain stays the text that came: see `uses`. A stream with
    a reason to stop is whole, also where a server leaves out the ends of blocks or of the message.

    Raises `ModelError` for an `error`, and for a stream that ends without a reason to stop.
    """
    try:
        message, blocks = _streamed(events)
        # A proxy may close a stream that broke off: a use without its input would run.
        if message.get("stop_reason"):
            return message | {"content": [block.joined() for block in blocks]}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelError("the stream has an event that is not of the messages API") from error
    raise broken_off()


def _streamed(events: Iterable[Mapping[str, Any]]) -> tuple[Plain, list[_StreamedBlock]]:
    """Return the message of a stream, and its blocks in the order in which they begin."""
    message: Plain = {}
    begun: list[_StreamedBlock] = []
    blocks: dict[Any, _StreamedBlock] = {}
    for event in events:
        index = event.get("index")
        block = blocks.get(index)
        match event["type"]:
            case "message_start":
                message = {**event["message"], "stop_reason": None}
            case "content_block_start":
                begun.append(_StreamedBlock(event["content_block"]))
                blocks[index] = begun[-1]
            case "content_block_stop" if block is not None:
                block.has_ended = True
            case "content_block_delta":
                delta = event["delta"]
                taking = _taking(delta, block)
                if taking is not block:
                    begun.append(taking)
                    blocks[index] = taking
                taking.add(delta)
            case "message_delta":
                # A null in it takes back nothing.
                usage = {**(message.get("usage") or {}), **_not_null(event.get("usage"))}
                change = _not_null(event.get("delta"))
                reason = first_cut(message.get("stop_reason"), change.get("stop_reason"))
                message |= {**change, "stop_reason": reason, "usage": usage}
            case "message_stop":
                break
            case "error":
                raise api_error(event)
    return message, begun


def _taking(delta: Mapping[str, Any], block: _StreamedBlock | None) -> _StreamedBlock:
    """Return the block that a delta is of: the one with its index, or a new one.

    An input that is of no use for certain becomes a use without a name, which does not run.
    """
    if block is not None and block.takes(delta):
        return block
    if delta["type"] == "input_json_delta":
        return _StreamedBlock({"type": "tool_use", "name": ""})
    if delta["type"] in ("thinking_delta", "signature_delta"):
        return _StreamedBlock({"type": "thinking"})
    return _StreamedBlock({"type": "text"})


def _not_null(fields: Mapping[str, Any] | None) -> Plain:
    return {name: value for name, value in (fields or {}).items() if value is not None}


def text_of(event: Mapping[str, Any]) -> str:
    """Return the text that an event of a stream adds to `text`."""
    match event:
        case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": str(added)}}:
            return added
        case {"type": "content_block_start", "content_block": {"type": "text", "text": str(added)}}:
            return added
    return ""


def _blocks(reply: object) -> list[tuple[Plain, ToolUse | None]]:
    """Return the blocks of a reply, and for each `tool_use` what the turn runs.

    Raises `ModelError` for what is no reply.
    """
    found = sendable(reply)
    if found.get("type") == "error":
        raise api_error(found)
    content = found.get("content")
    if not isinstance(content, list) or not all(map(_is_block, content)):
        raise ModelError("this is no reply of the messages API")
    content = without_repeats(content, "id")
    asked = [block for block in content if block["type"] == "tool_use"]
    # Other servers that speak this API may give any text.
    given = [_ID.fullmatch(as_text(block.get("id"))) and block["id"] for block in asked]
    ids = call_ids(given, found)
    uses = settled_uses(
        [
            call_use(use_id, block["name"], block.get("input"))
            for use_id, block in zip(ids, asked, strict=True)
        ]
    )
    non_empty = [block for block in content if block["type"] != "text" or block["text"].strip()]
    if asked and asked[-1] is non_empty[-1] and is_cut(reason := _stop_reason(found)):
        uses[-1] = replace(uses[-1], invalid=cut_words(reason))
    following = iter(uses)
    return [(block, next(following) if block["type"] == "tool_use" else None) for block in content]


def _is_block(block: object) -> bool:
    match block:
        case {"type": "tool_use", "name": str()} | {"type": "text", "text": str()}:
            return True
        case {"type": str(kind)}:
            return kind not in ("tool_use", "text")
    return False


def _stop_reason(reply: Mapping[str, Any]) -> str:
    return as_text(reply.get("stop_reason"))


def _is_refused(block: Plain, stop_reason: str) -> bool:
    """Whether the API does not take back a block that it gave."""
    if block["type"] == "thinking":
        return stop_reason in _CUT and not block.get("signature")
    return _is_empty_text(block)


def _sent(block: Plain, use: ToolUse | None) -> Plain:
    """Return a block of a reply as the API takes it back."""
    sent = dict(block)
    if use is not None:
        sent |= {"id": use.id, "name": sent_name(use.name), "input": sent.get("input")}
    if not isinstance(sent.get("input", {}), Mapping):
        sent["input"] = _input(sent["input"], {})
    if sent.get("caller", block) is None:
        del sent["caller"]
    if block["type"] == "text":
        sent.pop("parsed_output", None)
        citations = sent.get("citations")
        if isinstance(citations, list):
            sent["citations"] = [_without_file(citation) for citation in citations]
    return sent


def _without_file(citation: Any) -> Any:
    if not isinstance(citation, Mapping) or "file_id" not in citation:
        return citation
    return {name: value for name, value in citation.items() if name != "file_id"}


def _result_block(use: ToolUse, result: ToolResult, takes: Takes) -> Plain:
    is_error = result.state != "ok"
    words, files = result_parts(result, lambda file: not is_error and takes(file))
    content: Any = words if words.strip() else "(only white space)"
    if files:
        content = [_user_block(content), *(_user_block(file) for file in files)]
    made = {"type": "tool_result", "tool_use_id": use.id, "content": content}
    if is_error:
        made["is_error"] = True
    return made


def _takes(file: FileChunk) -> bool:
    kind = media_type(file)
    return kind == _PDF or (kind in _IMAGES and len(file.data) <= _MAX_IMAGE_BYTES)


def _user_block(part: str | FileChunk) -> Plain:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = media_type(part)
    data = b64encode(part.data).decode()
    source = {"type": "base64", "media_type": kind, "data": data}
    if kind != _PDF:
        return {"type": "image", "source": source}
    made: Plain = {"type": "document", "source": source}
    if part.name.strip():
        made["title"] = repaired(part.name[:_MAX_TITLE_CHARS])
    return made


def _input(written: Any, otherwise: Any) -> Any:
    """Return a tool's input that was written as JSON text, or something else if it is no object."""
    try:
        return arguments_of(ToolUse("", "", written))
    except InvalidArguments:
        return otherwise


class _StreamedBlock:
    """A block of a stream: what it began with, and what was added."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        self.has_ended = False
        """Whether the event of its end has come."""
        self._start = dict(start)
        # Joined at the end: adding each delta to the text would copy all of it each time.
        self._texts: dict[str, list[str]] = {}
        self._written: list[Any] = []
        self._citations: list[Any] = []
        self._is_read = True
        """Whether the type of each delta is known."""

    def add(self, delta: Mapping[str, Any]) -> None:
        """Add what a delta has. One of an unknown type is an addition that others do without."""
        kind = delta["type"]
        if kind == "input_json_delta":
            if self._start.get("type") not in ("text", "thinking"):
                self._written.append(delta.get("partial_json"))
        elif kind == "citations_delta":
            self._citations.append(delta["citation"])
        elif kind in _DELTAS or kind == f"{self._start.get('type')}_delta":
            for name, value in delta.items():
                if isinstance(value, str) and name not in ("type", *_LAST_COUNTS):
                    self._texts.setdefault(name, []).append(value)
                elif value is not None and name != "type":
                    self._start[name] = value
        else:
            self._is_read = False

    def takes(self, delta: Mapping[str, Any]) -> bool:
        """Whether a delta can be of this block: an input is of a use that has not ended."""
        has_input = str(self._start.get("type")).endswith("_use")
        is_input = delta["type"] == "input_json_delta" and delta.get("partial_json") != ""
        return not is_input or (has_input and not self.has_ended)

    def joined(self) -> Plain:
        """Return the whole block."""
        made = self._start
        for name, added in self._texts.items():
            made[name] = (made.get(name) or "") + "".join(added)
        for name in ("text", "thinking"):
            if made.get("type") == name:
                made[name] = made.get(name) or ""
        if self._citations:
            made["citations"] = [*(made.get("citations") or ()), *self._citations]
        if "input" in made or self._written:
            made["input"] = self._input(made.pop("input", None))
        return made

    def _input(self, begun: Any) -> Any:
        """Return the input: an object if it is certain, None if it never came, or else its text."""
        # Most servers begin with an empty object, and some with the whole input.
        pieces = [piece for piece in (begun, *self._written) if piece != {}]
        written = joined_arguments(pieces or [begun])
        if not self._is_read:
            return f"(of an unknown form) {written}"
        if not self.has_ended and is_placeholder(written):
            return None
        return None if written is None else _input(written, written)
