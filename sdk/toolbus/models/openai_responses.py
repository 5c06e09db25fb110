"""OpenAI's responses API: an `Adapter`.

- Tools are `tools`, strict where the schema has a strict form.
- Instructions and prompt are `instructions`.
- `store` is false: the conversation is sent whole, and nothing is kept by the provider. Reasoning
  goes back encrypted, which the API gives by default. It is not asked for by `include`: that is
  for older versions, and models that do not reason refuse it ("Encrypted content is not supported
  with this model").
- The items of a reply go back in their order, each as it is apart from what the API gives and does
  not take: nulls, `created_by`, `status` of reasoning, and `parsed` and `parsed_arguments`, which
  the client makes. Reasoning without encrypted or plain content is left out, since it is only the
  name of what was not kept ("Items are not persisted when `store` is set to false"), and so is
  reasoning at the end of a reply that was cut ("provided without its required following item").
  Names and arguments of calls that a server would refuse are repaired.
- Each result is a `function_call_output` after them, in the order of the calls, errors too: a text,
  or a list with the text, pictures and files (PDF, DOCX, PPTX, XLSX).
- Calls of custom tools are uses like others; what they get is no JSON, and the result says so.
  Items of tools that the provider runs itself are no uses.

What the API takes: developers.openai.com/api/reference/responses, and the types of the package
`openai`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from toolbus.chunks.chunk_types import FileChunk
from toolbus.chunks.json_values import shown
from toolbus.models.adapter import Conversation, Plain
from toolbus.models.api_errors import api_error
from toolbus.models.call_arguments import (
    call_use,
    cut_words,
    is_placeholder,
    joined_arguments,
    settled_uses,
)
from toolbus.models.endings import Ending
from toolbus.models.model_error import ModelError
from toolbus.models.reply_values import as_list, as_object
from toolbus.models.results import data_url, media_type, paired, result_parts, user_parts, within
from toolbus.models.shared_parts import (
    MAX_OPENAI_FILE_BYTES,
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

_OFFICE = "application/vnd.openxmlformats-officedocument"
_DOCUMENTS = {
    "application/pdf": ".pdf",
    f"{_OFFICE}.wordprocessingml.document": ".docx",
    f"{_OFFICE}.presentationml.presentation": ".pptx",
    f"{_OFFICE}.spreadsheetml.sheet": ".xlsx",
}
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Items that ask for a result, and the field with what the tool gets."""
_OF_ANY_MODEL = frozenset({"message", *_CALLS, *(f"{kind}_output" for kind in _CALLS)})
"""Items that each model takes. Others are reasoning, or of tools that the provider runs itself."""
_NOT_WHOLE = ("incomplete", "in_progress")
_ENDED = ("response.completed", "response.incomplete")
_MESSAGE = {"type": "message", "role": "assistant", "content": []}
_PIECES: Mapping[str, tuple[str, Plain]] = {
    "response.function_call_arguments": ("arguments", {"type": "function_call"}),
    "response.custom_tool_call_input": ("input", {"type": "custom_tool_call"}),
    "response.output_text": ("text", _MESSAGE),
    "response.refusal": ("refusal", _MESSAGE),
}
"""Events that have pieces of an item: the field in which the last one has the whole, and the item
of a piece that came without one."""
_NOT_INPUT = frozenset({"created_by", "parsed", "parsed_arguments"})
_NULLABLE = frozenset({"result", "code", "outputs", "keys"})
"""Fields that have to be there, null too: of generated images, of the code interpreter and of the
computer."""
_WITH_PARTS = ("content", "summary", "action")
"""Fields of items whose parts have fields of the API. Others may have values of tools."""


# Requests


def definitions(turn: Turn) -> list[Plain]:
    """Return the tools as `tools` of a request; see `Adapter`."""
    found: list[Plain] = []
    for tool, form in formed_tools(turn, OPENAI):
        definition: Plain = {"type": "function", "name": tool.name}
        if tool.description:
            definition["description"] = tool.description
        found.append(definition | {"parameters": form.schema, "strict": form.strict})
    return found


def request(turn: Turn, conversation: Conversation, instructions: str = "") -> Plain:
    """Return `input` and `store`, and `instructions` and `tools` where there are any.

    See `Adapter`.
    """
    made: Plain = {"input": _sent_items(checked_conversation(conversation)), "store": False}
    if system := system_text(turn, instructions):
        made["instructions"] = system
    if tools := definitions(turn):
        made["tools"] = tools
    return made


def _sent_items(conversation: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return items without empty messages of the model, and without their reasoning.

    The API refuses reasoning without what followed it.
    """
    found: list[Mapping[str, Any]] = []
    for item in conversation:
        if item.get("role") == "assistant" and not "".join(_texts_of(dict(item))).strip():
            while found and found[-1].get("type") == "reasoning":
                found.pop()
            continue
        found.append(item)
    return found


def portable(conversation: Conversation) -> list[Plain]:
    """Return items as another model takes them; see `Adapter`.

    Items have no ids then: the API refuses one whose reasoning it knows and does not get.
    """
    return [
        {name: value for name, value in item.items() if name != "id"}
        for item in conversation
        if str(item.get("type", "message")) in _OF_ANY_MODEL
    ]


def user(text: str, files: Iterable[FileChunk] = ()) -> Plain:
    """Return a message of the user; see `Adapter`.

    Pictures (PNG, JPEG, WebP, GIF that is not animated), PDF, DOCX, PPTX and XLSX of at most 50 MB
    together. Files of text are part of the text.
    """
    parts = user_parts(text, files, _takes, MAX_OPENAI_FILE_BYTES)
    return {"type": "message", "role": "user", "content": [_part(part) for part in parts]}


def _takes(file: FileChunk) -> bool:
    kind = media_type(file)
    if kind not in _DOCUMENTS:
        return is_picture(file)
    # The files of office programs are ZIP archives.
    begins = b"%PDF-" if kind == "application/pdf" else b"PK\x03\x04"
    return file.data.startswith(begins) and len(file.data) <= MAX_OPENAI_FILE_BYTES


def _part(part: str | FileChunk) -> Plain:
    if isinstance(part, str):
        return {"type": "input_text", "text": part}
    if extension := _DOCUMENTS.get(media_type(part)):
        name = file_name(part, extension)
        return {"type": "input_file", "filename": name, "file_data": data_url(part)}
    return {"type": "input_image", "image_url": data_url(part), "detail": "auto"}


# Replies


def uses(reply: Mapping[str, Any]) -> list[ToolUse]:
    """Return the calls of functions and custom tools; see `Adapter`.

    Raises `ModelError` for a reply that failed or has not ended.
    """
    return [use for _, use in _read(reply) if use is not None]


def text(reply: Mapping[str, Any]) -> str:
    """Return the texts and refusals of all messages; see `Adapter`.

    Raises `ModelError` for a reply that failed or has not ended.
    """
    return "".join(piece for item in _items(_ended_reply(reply)) for piece in _texts_of(item))


def ending(reply: Mapping[str, Any]) -> Ending:
    """Return how the reply ended; see `Adapter`. Raises `ModelError` as `text`."""
    checked = _ended_reply(reply)
    why = as_object(checked.get("incomplete_details")).get("reason")
    kinds = {str(item.get("type", "message")) for item in _items(checked)}
    is_empty = kinds <= {"message", "reasoning"} and not text(reply).strip()
    return Ending(str(why or checked.get("status", "completed")), is_empty)


def usage(reported: Mapping[str, Any]) -> TokenUsage:
    """Return the tokens that the API counted; the last event tells them."""
    counts = counts_in(reported, "usage", "response")
    return TokenUsage(count_of(counts, "input_tokens"), count_of(counts, "output_tokens"))


def messages(reply: Mapping[str, Any], results: Sequence[ToolResult]) -> list[Plain]:
    """Return the items of the reply, and an output for each of its calls; see `Adapter`.

    Raises `ModelError` for a reply that failed or has not ended.
    """
    read = _read(reply)
    items = [item for item, _ in read]
    while items and items[-1].get("type") == "reasoning":
        items.pop()
    calls = [(item, use) for item, use in read if use is not None]
    pairs = paired([use for _, use in calls], results)
    takes = within(MAX_OPENAI_FILE_BYTES, _takes)
    for (item, use), result in zip(calls, pairs, strict=True):
        parts = result_parts(result, takes)
        output: Plain = {"type": f"{item['type']}_output", "call_id": use.id, "output": parts.text}
        if parts.files:
            output["output"] = [_part(parts.text), *map(_part, parts.files)]
        if isinstance(item.get("caller"), dict):  # a program of the model, which waits for it
            output["caller"] = item["caller"]
        items.append(output)
    return items


def _ended_reply(reply: Mapping[str, Any]) -> Plain:
    checked = checked_reply(reply, "output")
    status = checked.get("status", "completed")
    if status not in ("completed", "incomplete"):
        raise ModelError(f"the reply is {shown(status)}")
    if not isinstance(checked.get("output"), list):
        raise ModelError("the reply has no list of items as its output")
    return checked


def _items(reply: Plain) -> list[Plain]:
    return [item for item in reply["output"] if isinstance(item, dict)]


def _read(reply: Mapping[str, Any]) -> list[tuple[Plain, ToolUse | None]]:
    """Return the items of a reply as they go back, each with what it asks for."""
    checked = _ended_reply(reply)
    items = without_repeats(_items(checked), "call_id")
    items = [item for item in items if not _is_only_named(item, checked)]
    ids = iter(call_ids([item.get("call_id") for item in items if _is_call(item)], checked))
    asked: list[ToolUse] = []
    sent: list[Plain] = []
    for item in items:
        back = _sent_item(item)
        if field := _CALLS.get(str(item.get("type"))):
            cut = ""
            if checked.get("status") == "incomplete" or item.get("status") in _NOT_WHOLE:
                cut = "incomplete"
            use = call_use(next(ids), item.get("name"), item.get(field), cut)
            if item.get("status") == "incomplete":
                # The server says so of this very call: it may have closed the JSON itself.
                use = replace(use, invalid=cut_words(cut))
            asked.append(use)
            written = sent_arguments(use.arguments, field)
            back |= {"call_id": use.id, "name": sent_name(item.get("name")), field: written}
        sent.append(back)
    uses = iter(settled_uses(asked))
    return [(back, next(uses) if _is_call(back) else None) for back in sent]


def _is_only_named(item: Plain, reply: Plain) -> bool:
    """Whether an item is reasoning without its content, of a reply that was not kept."""
    has_content = item.get("encrypted_content") or item.get("content")
    return item.get("type") == "reasoning" and not has_content and reply.get("store") is not True


def _sent_item(item: Plain) -> Plain:
    sent: Plain = _input_fields(item)
    for name in _WITH_PARTS:
        if isinstance(sent.get(name), list):
            sent[name] = [*map(_input_fields, sent[name])]
        elif name in sent:
            sent[name] = _input_fields(sent[name])
    if item.get("type") == "reasoning":
        sent.pop("status", None)
    return sent


def _input_fields(value: Any) -> Any:
    """Return an object without the fields that the API gives and does not take."""
    if not isinstance(value, dict):
        return value
    return {
        name: field
        for name, field in value.items()
        if name not in _NOT_INPUT and (field is not None or name in _NULLABLE)
    }


def _texts_of(item: Plain) -> list[str]:
    """Return the texts and refusals of a message; none of another item."""
    if item.get("type", "message") != "message":
        return []
    content = item.get("content")
    if isinstance(content, str):
        return [content]
    texts: list[str] = []
    for part in as_list(content):
        match part:
            case {"type": "output_text", "text": str(text)}:
                texts.append(text)
            case {"type": "refusal", "refusal": str(text)}:
                texts.append(text)
    return texts


# Streams


def text_of(event: Mapping[str, Any]) -> str:
    """Return the text, or refusal, that an event adds to a message; see `Adapter`."""
    match event:
        case {"type": "response.output_text.delta" | "response.refusal.delta", "delta": str(added)}:
            return added
    return ""


def collect(events: Iterable[Mapping[str, Any]]) -> Plain:
    """Return the response that ends a stream; see `Adapter`."""
    streamed = _StreamedItems()
    for event in events:
        if not isinstance(event, Mapping):
            raise ModelError("an event of the stream is no object", retryable=True)
        kind = event.get("type")
        response = event.get("response")
        if kind in _ENDED and isinstance(response, Mapping):
            return {**response, "output": streamed.completed(response.get("output"))}
        if kind == "response.failed":
            raise api_error(as_object(response).get("error") or "the response failed")
        if kind == "error" or event.get("error"):
            raise api_error(event.get("error") or event)
        streamed.add(event)
    raise broken_off()


@dataclass(slots=True)
class _StreamedItem:
    """What the events of a stream have of one item."""

    index: int | None
    item: Plain = field(default_factory=dict)
    pieces: list[Any] = field(default_factory=list)
    """Of the arguments of a call, or of the text of a message."""
    whole: Any = None
    """The same at its end."""
    is_given: bool = False
    """Whether an event had the item itself, not only pieces of it."""
    is_done: bool = False
    """Whether an event had the whole item."""
    has_ended: bool = False

    def is_other(self, item: Plain, change: str) -> bool:
        """Whether an item is not this one, though it has the same index or id."""
        if self._differs("type", item) or (change == "added" and self.is_done):
            return True
        return (change == "added" or self.is_done) and self._differs("call_id", item)

    def _differs(self, name: str, item: Plain) -> bool:
        mine, theirs = self.item.get(name), item.get(name)
        return bool(mine and theirs and mine != theirs)

    def end(self, item: Plain) -> None:
        """Take the whole item; a name that it has not stays."""
        names = ("name", "call_id", "id")
        self.item = item | {
            name: self.item[name] for name in names if self.item.get(name) and not item.get(name)
        }
        self.is_done = self.has_ended = True

    def begin(self, item: Plain) -> None:
        """Take an item that begins; arguments that it has already are a piece of them."""
        self.item = item
        if name := _CALLS.get(str(item.get("type"))):
            self.item = item | {name: None}
            self.pieces.insert(0, item.get(name))

    def joined(self) -> Plain:
        """Return the item with its arguments, or its text."""
        if name := _CALLS.get(str(self.item.get("type"))):
            written = _later(joined_arguments(self.pieces), self.whole)
            arguments = _later(written, self.item.get(name))
            if not self.has_ended and is_placeholder(arguments):
                arguments = None  # they may have been lost
            if arguments is None and not self.is_given:
                return {}
            return self.item | {name: arguments}
        text = self.whole or "".join(piece for piece in self.pieces if isinstance(piece, str))
        if not text or self.item.get("type") != "message" or any(_texts_of(self.item)):
            return self.item
        return self.item | {"content": [{"type": "output_text", "text": text, "annotations": []}]}


class _StreamedItems:
    """The items of a response as the events before its end have them.

    The last event has the whole response. Some servers leave items out there, or the arguments of
    calls, and some send no event at the end of an item.
    """

    def __init__(self) -> None:
        self._items: list[_StreamedItem] = []
        self._by_index: dict[int, _StreamedItem] = {}
        """The latest of each index of the output."""
        self._by_id: dict[str, _StreamedItem] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        """Read an event of an item; others are passed over.

        Pieces that are of no item for certain become one without a name, which does not run.
        """
        kind, _, change = str(event.get("type")).rpartition(".")
        item = event.get("item")
        if kind == "response.output_item" and isinstance(item, dict):
            streamed = self._of(event, item)
            if streamed is None or streamed.is_other(item, change):
                streamed = self._begin(event)
            for name in _ids_of(item):
                self._by_id.setdefault(name, streamed)
            streamed.is_given = True
            if change == "added":
                streamed.begin(item)
            elif change == "done":
                streamed.end(item)
        elif kind in _PIECES:
            field, begun = _PIECES[kind]
            streamed = self._of(event, {"id": event.get("item_id")})
            if streamed is None or streamed.is_other(begun, change):
                streamed = self._begin(event)
                streamed.item = dict(begun)
            if change == "delta":
                streamed.pieces.append(event.get("delta"))
            elif change == "done":
                streamed.whole = event.get(field)
                streamed.has_ended = True

    def _begin(self, event: Mapping[str, Any]) -> _StreamedItem:
        index = event.get("output_index")
        begun = _StreamedItem(index if isinstance(index, int) else None)
        self._items.append(begun)
        if begun.index is not None:
            self._by_index[begun.index] = begun
        if isinstance(item_id := event.get("item_id"), str):
            self._by_id.setdefault(item_id, begun)
        return begun

    def _of(self, event: Mapping[str, Any], item: Plain) -> _StreamedItem | None:
        """Return the item of an event: by id, by index, or else the only one that has not ended.

        None if there is none, or if id and index of a piece are of different items.
        """
        ids = _ids_of(item)
        index = event.get("output_index")
        at = self._by_index.get(index) if isinstance(index, int) else None
        known = next((self._by_id[name] for name in ids if name in self._by_id), None)
        if known is not None:
            if at is None or known.index == index:
                return known
            if "item" not in event:
                return None
            return at if known.is_done else known
        if ids or isinstance(index, int):
            return at
        if event.get("type") == "response.output_item.added":
            return None
        found = [candidate for candidate in self._items if not candidate.has_ended] or self._items
        return found[0] if len(found) == 1 else None

    def completed(self, output: object) -> list[Any]:
        """Return the items of the whole response.

        Args:
            output: Its items by the last event, which count, but for arguments that it has not.
        """
        in_order = sorted(
            self._items, key=lambda streamed: (streamed.index is None, streamed.index or 0)
        )
        pairs = [(streamed, streamed.joined()) for streamed in in_order]
        completed = [item for streamed, item in pairs if streamed.is_given or _is_call(item)]
        if isinstance(output, list) and output:
            completed = _with_calls_of(output, [item for item in completed if _is_call(item)])
        if not any(_texts_of(item) for item in completed if isinstance(item, dict)):
            texts = [(streamed.is_given, item) for streamed, item in pairs if any(_texts_of(item))]
            given = [item for is_given, item in texts if is_given]
            completed += given or [item for _, item in texts]
        return completed


def _with_calls_of(output: list[Any], calls: list[Plain]) -> list[Any]:
    """Return the items of the last event with what only earlier events have of calls."""
    places = [place for place, item in enumerate(output) if _is_call(item)]
    by_id = {str(item["call_id"]): item for item in calls if item.get("call_id")}
    ids = {str(output[place].get("call_id")) for place in places}
    completed = list(output)
    for number, place in enumerate(places):
        earlier = by_id.get(str(output[place].get("call_id")))
        if earlier is None and len(calls) == len(places):
            earlier = calls[number]
        call = output[place]
        if earlier and all(call.get(key) == earlier.get(key) for key in ("type", "name")):
            written = _later(_arguments(earlier), _arguments(call))
            completed[place] = call | {_CALLS[call["type"]]: written}
    found = {str(_arguments(completed[place])) for place in places}
    begun = [_arguments(call) for call in calls]
    if not all(is_placeholder(arguments) or str(arguments) in found for arguments in begun):
        # Arguments that no call has any more may be those of a call without any.
        for place in places:
            if is_placeholder(_arguments(completed[place])):
                completed[place] = completed[place] | {_CALLS[completed[place]["type"]]: None}
    if len(calls) > len(places):
        # Which of them the model wants is not certain: as cut ones, the model reads of them.
        lost = [item for item in calls if str(item.get("call_id")) not in ids and item.get("name")]
        completed += [item | {"status": "incomplete"} for item in lost]
    return completed + [item for item in calls if not item.get("name") and not _ids_of(item)]


def _arguments(call: Plain) -> Any:
    return call.get(_CALLS[call["type"]])


def _is_call(item: object) -> bool:
    return isinstance(item, dict) and str(item.get("type")) in _CALLS


def _ids_of(item: Plain) -> list[str]:
    """Return by what the events of an item name it: some servers change its `id` in each."""
    return [value for name in ("id", "call_id") if isinstance(value := item.get(name), str)]


def _later(earlier: Any, later: Any) -> Any:
    """Return arguments that came twice: the later ones are whole, unless they may be none at all.

    Then both have to be the same, or the earlier ones a placeholder.
    """
    return joined_arguments([earlier, later]) if is_placeholder(later) else later
