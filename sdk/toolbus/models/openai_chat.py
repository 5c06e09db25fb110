"""OpenAI's chat completions, which most other servers of models have too: an `Adapter`.

- Tools are `tools`, strict where the schema has a strict form. All are sent: OpenAI takes 128,
  other servers more or fewer, and each says so.
- Instructions and prompt are the first message, with the role `system`. Every server knows it, and
  OpenAI reads it as `developer` for the models that have that.
- The message of a reply's first choice goes back once, with all its calls and with what other
  servers add, such as `reasoning_content`. Nulls are left out; what a server would refuse is
  repaired: ids, names and arguments of calls, an empty message, more than 128 calls.
- Each result is a message of the role `tool`, in the order of the calls, errors too. That takes
  only text, so pictures and PDF go into one message of the user after them, each behind a text
  that names its call.
- Calls of custom tools, and `function_call`, are uses like others; what a custom tool gets is no
  JSON, and the result says so.

What the API takes: developers.openai.com/api/reference/chat, and the types of the package `openai`.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from typing import Any

from toolbus.chunks.chunk_types import FileChunk
from toolbus.models.adapter import Conversation, Plain
from toolbus.models.api_errors import api_error
from toolbus.models.call_arguments import (
    call_use,
    is_placeholder,
    joined_arguments,
    settled_uses,
    whole_object,
)
from toolbus.models.endings import Ending, first_cut, is_cut
from toolbus.models.model_error import ModelError
from toolbus.models.reply_values import as_list, as_object, as_text
from toolbus.models.results import data_url, media_type, paired, result_parts, user_parts, within
from toolbus.models.shared_parts import (
    FILLER,
    MAX_OPENAI_FILE_BYTES,
    alternating,
    broken_off,
    call_ids,
    checked_conversation,
    checked_reply,
    file_name,
    formed_tools,
    is_picture,
    sent_arguments,
    sent_name,
    system_text,
    without_repeats,
)
from toolbus.models.token_usage import TokenUsage, count_of, counts_in
from toolbus.schemas.forms import OPENAI
from toolbus.turns.tool_use import ToolResult, ToolUse, file_label
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

_AUDIO = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
_MAX_CALLS = 128
"""How many calls OpenAI takes in one message, of which a model may write more
(openai/openai-dotnet#317)."""
_LONG_NAME_CHARS = 1_000
"""No tool has so long a name; joining its pieces further would take longer with each of them."""
_CALLS = {"function": "arguments", "custom": "input"}
"""The fields of a call with what is called, and in each the one with what the tool gets."""
_CALL_FIELDS = frozenset({"tool_calls", "function_call"})
_READ_ANEW = _CALL_FIELDS | {"audio", "parsed"}
"""Fields of a reply's message that do not go back as they are. `parsed` is made by the client."""
_OF_ANY_MODEL = ("role", "content", "refusal", "name", "tool_calls")
"""Fields of a reply's message that each model takes. Others have thoughts, or what one server
keeps."""
_PORTABLE_ID = re.compile(r"[A-Za-z0-9]{9}")
_TEXTS = ("text", "refusal", "thinking", "reasoning")
"""Types of parts of a content that are read as text, or that are thoughts."""
_WHOLE = frozenset({"role", "id", "type", "name", "index", "format"})
"""Fields whose text is whole in each piece that has it: pieces of it are not joined."""


# Requests


def definitions(turn: Turn) -> list[Plain]:
    """Return the tools as `tools` of a request; see `Adapter`."""
    found: list[Plain] = []
    for tool, form in formed_tools(turn, OPENAI):
        function: Plain = {"name": tool.name}
        if tool.description:
            function["description"] = tool.description
        function |= {"parameters": form.schema, "strict": form.strict}
        found.append({"type": "function", "function": function})
    return found


def request(turn: Turn, conversation: Conversation, instructions: str = "") -> Plain:
    """Return `messages`, and `tools` where there are any; see `Adapter`."""
    # Some servers refuse empty messages of the model.
    sent = (
        message
        for message in checked_conversation(conversation)
        if message.get("role") != "assistant" or _has_content(message)
    )
    made: Plain = {"messages": alternating(sent, {"role": "assistant", "content": FILLER})}
    if system := system_text(turn, instructions):
        made["messages"].insert(0, {"role": "system", "content": system})
    if tools := definitions(turn):
        made["tools"] = tools
    return made


def _has_content(message: Mapping[str, Any]) -> bool:
    """Whether a message of the model has calls, or more than white space and thoughts."""
    parts = [part for part in as_list(message.get("content")) if isinstance(part, dict)]
    is_further = any(part.get("type") not in _TEXTS or part.get("refusal") for part in parts)
    further = is_further or message.get("tool_calls") or message.get("audio")
    return bool(further or _text_of_message(message).strip())


def portable(conversation: Conversation) -> list[Plain]:
    """Return messages as another model takes them; see `Adapter`.

    Ids of calls have nine letters and digits then: Mistral takes no others.
    """
    found: list[Plain] = []
    for message in map(dict, conversation):
        if message.get("role") == "tool":
            message["tool_call_id"] = _portable_id(message.get("tool_call_id"))
        elif message.get("role") == "assistant":
            message = {name: message[name] for name in _OF_ANY_MODEL if name in message}
            if isinstance(content := message.get("content"), list):
                parts = [part for part in content if isinstance(part, dict)]
                message["content"] = [p for p in parts if p.get("type") in ("text", "refusal")]
            if calls := message.get("tool_calls"):
                kinds = [call.get("type", "function") for call in calls]
                message["tool_calls"] = [
                    {"id": _portable_id(call.get("id")), "type": kind, kind: call.get(kind)}
                    for call, kind in zip(calls, kinds, strict=True)
                ]
        found.append(message)
    return found


def _portable_id(call_id: object) -> object:
    if not isinstance(call_id, str) or _PORTABLE_ID.fullmatch(call_id):
        return call_id
    return sha256(call_id.encode(errors="replace")).hexdigest()[:9]


def user(text: str, files: Iterable[FileChunk] = ()) -> Plain:
    """Return a message of the user; see `Adapter`.

    Pictures (PNG, JPEG, WebP, GIF that is not animated), PDF and, for models that hear, WAV and
    MP3, of at most 50 MB together. Files of text are part of the text.
    """
    parts = user_parts(text, files, _takes_of_user, MAX_OPENAI_FILE_BYTES)
    if len(parts) == 1 and isinstance(parts[0], str):
        return {"role": "user", "content": parts[0]}
    return {"role": "user", "content": [_part(part) for part in parts]}


def _takes(file: FileChunk) -> bool:
    is_document = media_type(file) == "application/pdf" and len(file.data) <= MAX_OPENAI_FILE_BYTES
    return is_document or is_picture(file)


def _takes_of_user(file: FileChunk) -> bool:
    # Not of a result: a model that does not hear refuses the request, and each further one.
    if media_type(file) in _AUDIO:
        return 0 < len(file.data) <= MAX_OPENAI_FILE_BYTES
    return _takes(file)


def _part(part: str | FileChunk) -> Plain:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = media_type(part)
    if audio := _AUDIO.get(kind):
        data = b64encode(part.data).decode()
        return {"type": "input_audio", "input_audio": {"data": data, "format": audio}}
    if kind == "application/pdf":
        file = {"filename": file_name(part, ".pdf"), "file_data": data_url(part)}
        return {"type": "file", "file": file}
    return {"type": "image_url", "image_url": {"url": data_url(part)}}


# Replies


def uses(reply: Mapping[str, Any]) -> list[ToolUse]:
    """Return the calls of the first choice; see `Adapter`. Raises `ModelError` without one."""
    return _read(reply)[1]


def text(reply: Mapping[str, Any]) -> str:
    """Return the content of the first choice, and its refusal; see `Adapter`.

    Raises `ModelError` without a choice.
    """
    return _text_of_message(_first_choice(checked_reply(reply, "choices"))["message"])


def ending(reply: Mapping[str, Any]) -> Ending:
    """Return how the first choice ended; see `Adapter`. Raises `ModelError` without one."""
    choice = _first_choice(checked_reply(reply, "choices"))
    message = choice["message"]
    is_empty = not (_has_content(message) or message.get("images") or uses(reply))
    return Ending(as_text(choice.get("finish_reason")), is_empty)


def usage(reported: Mapping[str, Any]) -> TokenUsage:
    """Return the tokens that the server counted; most servers tell them in an event at the end."""
    counts = counts_in(reported, "usage")
    return TokenUsage(count_of(counts, "prompt_tokens"), count_of(counts, "completion_tokens"))


def messages(reply: Mapping[str, Any], results: Sequence[ToolResult]) -> list[Plain]:
    """Return the message of the reply, one for each result, and one with their files.

    See `Adapter`. Raises `ModelError` for a reply without a choice.
    """
    message, asked = _read(reply)
    answers: list[Plain] = [message]
    takes = within(MAX_OPENAI_FILE_BYTES, _takes)
    files: list[Plain] = []
    calls: list[Plain] = message.get("tool_calls", [])
    if len(calls) > _MAX_CALLS:
        message["tool_calls"] = calls[:_MAX_CALLS]
    for number, (use, result) in enumerate(zip(asked, paired(asked, results), strict=True)):
        if number and number % _MAX_CALLS == 0:
            more = calls[number : number + _MAX_CALLS]
            answers.append({"role": "assistant", "content": None, "tool_calls": more})
        parts = result_parts(result, takes)
        answers.append({"role": "tool", "tool_call_id": use.id, "content": parts.text})
        for file in parts.files:
            label = f"{file_label(file)} of the result of {result.tool}, call {use.id}:"
            files += [_part(label), _part(file)]
    if files:
        answers.append({"role": "user", "content": files})
    return answers


def _first_choice(reply: Plain) -> Plain:
    """Return the first choice, whose message is an object."""
    choice = next(iter(as_list(reply.get("choices"))), None)
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        raise ModelError("the reply has no choice with a message")
    if error := choice.get("error"):
        raise api_error(error)
    return choice


def _read(reply: Mapping[str, Any]) -> tuple[Plain, list[ToolUse]]:
    """Return the message of a reply as it goes back, and what it asks for."""
    checked = checked_reply(reply, "choices")
    choice = _first_choice(checked)
    message = choice["message"]
    calls = without_repeats(_call_list(message.get("tool_calls")), "id")
    if not calls and isinstance(message.get("function_call"), dict):
        calls = [{"function": message["function_call"]}]
    ids = call_ids([call.get("id") for call in calls], checked)
    reason = choice.get("finish_reason")
    cut = str(reason) if is_cut(reason) else ""
    asked: list[ToolUse] = []
    sent: list[Plain] = []
    for call, call_id in zip(calls, ids, strict=True):
        kind = "function"
        if isinstance(call.get("custom"), dict) and not call.get("function"):
            kind = "custom"
        field = _CALLS[kind]
        called = as_object(call.get(kind))
        use = call_use(call_id, called.get("name"), called.get(field), cut)
        asked.append(use)
        written = sent_arguments(use.arguments, field)
        called = {**called, "name": sent_name(called.get("name")), field: written}
        rest = {name: value for name, value in call.items() if value is not None}
        sent.append({**rest, "id": call_id, "type": kind, kind: called})
    return _sent_message(message, sent), settled_uses(asked)


def _call_list(found: object) -> list[Plain]:
    """Return the calls of a message; some servers send one without a list."""
    return [call for call in as_list(found) or [found] if isinstance(call, dict)]


def _sent_message(message: Plain, calls: list[Plain]) -> Plain:
    """Return the message of a reply as it goes back: with a content or calls, as it has to be."""
    sent = {
        name: value
        for name, value in message.items()
        if name not in _READ_ANEW and (value is not None or name == "content")
    }
    sent["role"] = "assistant"
    audio = message.get("audio")
    if isinstance(audio, dict) and isinstance(audio.get("id"), str):
        sent["audio"] = {"id": audio["id"]}
    if calls:
        sent["tool_calls"] = calls
    if not isinstance(sent.get("content", ""), str | list) or sent.get("content") == []:
        sent["content"] = None
    if not sent.get("content") and not calls and "audio" not in sent:
        # A refusal is a part of the content there: without content the message would be refused.
        refusal = sent.pop("refusal", None)
        sent["content"] = ""
        if as_text(refusal):
            sent["content"] = [{"type": "refusal", "refusal": refusal}]
    return sent


def _text_of_message(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [as_text(as_object(part).get("text")) or as_text(part) for part in parts]
    return "".join((*texts, as_text(message.get("refusal"))))


# Streams


def text_of(event: Mapping[str, Any]) -> str:
    """Return the content, or refusal, that an event adds to the first choice; see `Adapter`."""
    return "".join(
        _text_of_message(choice["delta"])
        for choice in _choices_of(event)
        if choice.get("index") in (0, None) and isinstance(choice.get("delta"), dict)
    )


def collect(events: Iterable[Mapping[str, Any]]) -> Plain:
    """Put a streamed reply together; see `Adapter`.

    Servers differ in how they send calls: in pieces or whole, with an id once, in each piece or
    never, and some with one `index` for all of them, or none.
    """
    reply: Plain = {}
    pieces: list[tuple[int, Plain]] = []
    for event in events:
        if not isinstance(event, Mapping):
            raise ModelError("an event of the stream is no object", retryable=True)
        if error := event.get("error"):
            raise api_error(error)
        reply |= {name: value for name, value in event.items() if value is not None}
        for choice in _choices_of(event):
            index = choice.get("index")
            pieces.append((index if isinstance(index, int) else 0, choice))
    choices: dict[int, list[Plain]] = {}
    is_one = _is_one_choice(pieces)
    for index, piece in pieces:
        choices.setdefault(0 if is_one else index, []).append(piece)
    reply.pop("obfuscation", None)  # padding of the events
    try:
        reply["choices"] = [_joined_choice(index, choices[index]) for index in sorted(choices)]
    except RecursionError:
        raise ModelError("the reply is nested too deeply") from None
    if not choices or not reply["choices"][0].get("finish_reason"):
        raise broken_off()
    _take_calls_of_others(*reply["choices"])
    return reply | {"object": "chat.completion"}


def _take_calls_of_others(first: Plain, *others: Plain) -> None:
    """Give the first choice the calls that it ended with, where others have them.

    Gateways to Claude make a choice of each block.
    """
    message = first["message"]
    if first["finish_reason"] == "tool_calls" and "tool_calls" not in message:
        calls = [call for other in others for call in other["message"].get("tool_calls", ())]
        if calls:
            message["tool_calls"] = calls


def _choices_of(event: Mapping[str, Any]) -> list[Plain]:
    """Return the choices that an event adds to; none for the event with the usage."""
    choices = as_list(as_object(event).get("choices"))
    return [choice for choice in choices if isinstance(choice, dict)]


def _is_one_choice(pieces: Sequence[tuple[int, Plain]]) -> bool:
    """Whether the indexes of choices number the pieces of one choice.

    Of several choices each has an end of its own, and their pieces come in turn.
    """
    ends = [bool(piece.get("finish_reason")) for _, piece in pieces]
    indexes = [index for index, piece in pieces if piece.get("delta")]
    return ends.count(True) == 1 and ends[-1] and indexes == sorted(indexes)


def _joined_choice(index: int, pieces: Sequence[Plain]) -> Plain:
    deltas = [piece["delta"] for piece in pieces if isinstance(piece.get("delta"), dict)]
    calls, former_calls = _Calls(), _Calls()
    for delta in deltas:
        for call in _call_list(delta.get("tool_calls")):
            calls.add(call)
        if isinstance(delta.get("function_call"), dict):
            former_calls.add({"function": delta["function_call"]})
    texts = [{key: delta[key] for key in delta if key not in _CALL_FIELDS} for delta in deltas]
    message: Plain = {"role": "assistant", "content": None} | _joined_objects(texts)
    if found := calls.found or former_calls.found:
        message["tool_calls"] = [call.joined() for call in found]
    choice: Plain = {"logprobs": None, "finish_reason": None}
    for piece in pieces:
        reason = first_cut(choice["finish_reason"], piece.get("finish_reason"))
        choice |= {name: value for name, value in piece.items() if value not in (None, "")}
        choice["finish_reason"] = reason
    logprobs = [piece["logprobs"] for piece in pieces if isinstance(piece.get("logprobs"), dict)]
    if logprobs:
        choice["logprobs"] = _joined_objects(logprobs)
    choice.pop("delta", None)
    return choice | {"index": index, "message": message}


@dataclass(slots=True)
class _Call:
    """A call whose pieces come."""

    index: object
    id: str = ""
    name: str = ""
    arguments: list[Any] = field(default_factory=list)
    """Their pieces, without empty ones."""
    has_empty: bool = False
    """Whether some piece of them was an empty text."""
    pieces: list[Plain] = field(default_factory=list)
    """What else they have."""
    following: _Call | None = None
    """The next call with its index, or with none as it has none."""

    def add(self, piece: Plain) -> None:
        """Add a piece, without its index: that is no part of a whole reply."""
        name = as_text(_function(piece).get("name"))
        self.id = self.id or as_text(piece.get("id"))
        # Else it is repeated, or too long to be that of a tool.
        if name != self.name and len(self.name) < _LONG_NAME_CHARS:
            self.name += name
        rest = {key: value for key, value in piece.items() if key != "index"}
        if isinstance(function := piece.get("function"), dict):
            arguments = function.get("arguments")
            if arguments == "":
                self.has_empty = True
            elif arguments is not None:
                self.arguments.append(arguments)
            named = ("name", "arguments")
            rest["function"] = {key: function[key] for key in function if key not in named}
        self.pieces.append(rest)

    def is_ended_by(self, piece: Plain) -> bool:
        """Whether a piece with a name and the same index, or with none, begins another call."""
        call_id = as_text(piece.get("id"))
        has_ids = bool(call_id and self.id)
        if has_ids and call_id != self.id:
            return True
        if not self.arguments:
            return False  # the name comes in pieces, or again
        if as_text(_function(piece).get("name")) != self.name:
            return bool(self.name) or not has_ids
        if has_ids:
            return False
        # The same name again, and no id to tell: another call if the only piece was a whole one.
        further = _function(piece).get("arguments")
        begins = isinstance(further, dict) or str(further or "").lstrip().startswith("{")
        return begins and len(self.arguments) == 1 and whole_object(self.arguments[0]) is not None

    def joined(self) -> Plain:
        """Return the whole call."""
        call = _joined_objects(self.pieces)
        arguments = joined_arguments(self.arguments or [""] * self.has_empty)
        if self._may_have_lost(arguments):
            arguments = None
        function = call.get("function")
        if isinstance(function, dict):
            if self.name:
                function["name"] = self.name
            if arguments is not None:
                function["arguments"] = arguments
        return call

    def _may_have_lost(self, arguments: Any) -> bool:
        """Whether the arguments of the following call may be those of this one."""
        other = self.following
        if other is None or not is_placeholder(arguments):
            return False
        are_distinct = self.id != other.id or self.name != other.name
        return not self.arguments or not (
            are_distinct or is_placeholder(joined_arguments(other.arguments))
        )


class _Calls:
    """The calls of a message whose pieces come, in the order in which they begin.

    A piece with a name may begin a call. One without a name goes on with a call: it has the id of
    that call, or its index, or neither, and then there is only one that it can be of. Where id and
    index contradict each other, or are of no call, it becomes a call without a name.
    """

    def __init__(self) -> None:
        self.found: list[_Call] = []
        self._by_index: dict[object, _Call] = {}
        """The latest of each index; of those without an index by None."""
        self._by_id: dict[str, _Call] = {}

    def add(self, piece: Plain) -> None:
        """Add a piece to its call."""
        index = piece.get("index")
        if not isinstance(index, int | str):
            index = None
        if as_text(_function(piece).get("name")):
            call = self._latest(index, as_text(piece.get("id")))
            if call is not None and call.is_ended_by(piece):
                call = None
        else:
            call = self._continued(index, as_text(piece.get("id")))
        if call is None:
            call = _Call(index)
            self.found.append(call)
            if index in self._by_index:
                self._by_index[index].following = call
        call.add(piece)
        self._by_index[index] = call
        if call_id := as_text(piece.get("id")):
            self._by_id.setdefault(call_id, call)

    def _latest(self, index: int | str | None, call_id: str) -> _Call | None:
        """Return the call that a piece with a name belongs to, unless that begins another one."""
        if index is not None:
            return self._by_index.get(index)
        if call_id:
            return self._by_id.get(call_id)
        return next(reversed(self.found), None)

    def _continued(self, index: int | str | None, call_id: str) -> _Call | None:
        """Return the call that a piece without a name belongs to; None if that is not certain."""
        known = self._by_id.get(call_id)
        at = None if index is None else self._by_index.get(index)
        if at is not None:
            if known is None or known.id != call_id or at.id == call_id:
                return at  # an id that began no call tells nothing against the index
            return known if known.index == index else None  # several calls have this index
        if known is not None:
            return known
        latest = next(reversed(self.found), None)
        if latest is None or not (index is None or latest.index is None):
            return None
        # Where calls have an index, one that is missing may be that of any of them.
        is_next = index is None and latest.index is None and not call_id
        return latest if is_next or len(self.found) == 1 else None


def _function(piece: Plain) -> Mapping[str, Any]:
    return as_object(piece.get("function") or piece.get("custom"))


def _joined_objects(pieces: Sequence[Plain]) -> Plain:
    """Join the fields of pieces; null is no value of a field that another piece has."""
    values: dict[str, list[Any]] = {}
    for piece in pieces:
        for name, value in piece.items():
            found = values.setdefault(name, [])
            if value is not None:
                found.append(value)
    return {name: _joined(name, found) for name, found in values.items()}


def _joined(name: str, values: Sequence[Any]) -> Any:
    """Return the value of a field from those of its pieces, in order.

    Texts and lists are joined, objects field by field, and of all others the last one counts.
    """
    if len(values) < 2:
        return next(iter(values), None)
    if name in _WHOLE:
        return next((value for value in values if value != ""), "")
    if all(isinstance(value, str) for value in values):
        return "".join(values)
    if all(isinstance(value, dict) for value in values):
        return _joined_objects(values)
    if all(isinstance(value, list) for value in values):
        return _joined_lists(values)
    if name == "content":  # parts from one event, and text from another
        parts = [
            value if isinstance(value, list) else [{"type": "text", "text": as_text(value)}]
            for value in values
        ]
        return list(chain.from_iterable(parts))
    return values[-1]


def _joined_lists(lists: Sequence[list[Any]]) -> list[Any]:
    """Join lists; objects with an `index` are pieces of the item of that index and type."""
    items = list(chain.from_iterable(lists))
    if not all(isinstance(item, dict) and isinstance(item.get("index"), int) for item in items):
        return items
    types: dict[int, str] = {}
    """The latest of each index: that of a piece without a type."""
    joined: dict[tuple[int, str], list[Plain]] = {}
    for item in items:
        index = item["index"]
        types[index] = as_text(item.get("type")) or types.get(index, "")
        joined.setdefault((index, types[index]), []).append(item)
    return [_joined_objects(pieces) for pieces in joined.values()]
