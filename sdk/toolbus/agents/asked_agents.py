"""The calls by which an agent asks other agents: its model reads answers, people see how they come.

The model of an agent reads of another one's answer what it says at its end, not the events. These
are progress of the call instead. In between, each conversation that asks has a conversation of its
own with each agent that it asks. So a chain of agents that comes back to one of them finds no
conversation that it holds itself, and ends where all chains do, at the depth of nested calls.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from hashlib import sha256
from typing import Any

from toolbus.agents.agent_events import EVENT_TYPES, MAX_END_CHARS
from toolbus.chunks.chunk_types import Chunk, FileChunk, JsonChunk, TextChunk
from toolbus.chunks.json_values import cut
from toolbus.tools.context import ToolContext
from toolbus.tools.middleware import CallNext, ToolCall
from toolbus.tools.toolkit import MAX_RESULT_BYTES
from toolbus.wire import pack_body
from toolbus.wire.flow_control import MAX_PROGRESS_BYTES

__all__ = ["AGENT", "AskedAgents"]

AGENT = "agent"
"""The annotation of the toolkit of an agent; its value is true. Anybody can claim it."""
_TOOLS = frozenset({"ask", "about", "forget"})
_MAX_SHOWN_CHARS = 2_000
"""Of a text in a progress: of the answer so far its end, of a result its beginning."""
_MAX_FILE_BYTES = 3 * MAX_RESULT_BYTES // 4
"""Of the files of one answer together; what a turn keeps of a stream has to hold its text too."""


class AskedAgents:
    """A middleware of a turn, around the calls of toolkits that say they are of an agent.

    What such a toolkit yields that is not an event of an agent is passed on as it is.

    Args:
        conversation: The key of the conversation that the turn belongs to.
    """

    def __init__(self, conversation: str) -> None:
        self._conversation = conversation

    async def __call__(self, call: ToolCall, next: CallNext, /) -> AsyncGenerator[Chunk, None]:
        """Run the call in a conversation of its own, and yield the answer."""
        tool = call.tool
        if tool.toolkit_annotations.get(AGENT) is True and tool.tool in _TOOLS:
            call = self._in_own_conversation(call)
            if tool.streaming:
                async for chunk in _answered(call, next):
                    yield chunk
                return
        async for chunk in next(call):
            yield chunk

    def _in_own_conversation(self, call: ToolCall) -> ToolCall:
        properties = call.tool.input_schema.get("properties")
        schema = properties.get("conversation") if isinstance(properties, dict) else None
        if not isinstance(schema, dict) or schema.get("type") != "string":
            return call  # it means something else
        named = [self._conversation, call.arguments.get("conversation", "")]
        name = sha256(json.dumps(named, default=str).encode()).hexdigest()[:32]
        return call.replace(arguments={**call.arguments, "conversation": name})


async def _answered(call: ToolCall, next: CallNext) -> AsyncGenerator[Chunk, None]:
    reader = _AnswerReader(call.context)
    try:
        async for chunk in next(call):
            if (passed := await reader.read(chunk)) is not None:
                yield passed
    except Exception:
        if reader.unfinished:
            yield TextChunk(reader.unfinished)
        raise
    if last := reader.unfinished + reader.note:
        yield TextChunk(last)


class _AnswerReader:
    """Reads one answer: its events become progress, its end the result.

    Args:
        context: The context of the call, which gets the progress.
    """

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._left_bytes = _MAX_FILE_BYTES
        self._left_out = 0
        self.unfinished: str = ""
        """What the agent says in its current reply; empty once it has ended."""

    async def read(self, chunk: Chunk) -> Chunk | None:
        """Return what of a chunk is a part of the result; None for progress."""
        if isinstance(chunk, FileChunk):
            return await self._file(chunk)
        event = chunk.value if isinstance(chunk, JsonChunk) else None
        if not isinstance(event, dict) or not isinstance(kind := event.get("type"), str):
            return chunk
        text = event.get("text", "")
        if kind == "end" and isinstance(text, str):
            self.unfinished = ""
            return TextChunk(_last_words(event, text))
        if kind == "end" or kind not in EVENT_TYPES:
            return chunk  # it is not of an agent
        if kind == "text" and isinstance(text, str):
            self.unfinished = (self.unfinished + text)[:MAX_END_CHARS]
            event = {"type": "text", "text": self.unfinished[-_MAX_SHOWN_CHARS:]}
        elif kind in ("restart", "tool_call"):
            self.unfinished = ""
        elif kind == "tool_result":
            event = {**event, "text": str(text)[:_MAX_SHOWN_CHARS]}
        # The agent that asks tells itself that it waits.
        if kind != "waiting" and len(pack_body(event)) <= MAX_PROGRESS_BYTES:
            self._context.emit(event)
        return None

    async def _file(self, file: FileChunk) -> FileChunk | None:
        """Return a file in memory; None for one that is left out, and read all the same.

        A file that is dropped unread would end the call.
        """
        data = bytearray()
        async for piece in file.pieces():
            if len(data) <= self._left_bytes:
                data += piece
        if len(data) > self._left_bytes:
            self._left_out += 1
            return None
        self._left_bytes -= len(data)
        return FileChunk(bytes(data), file.name, file.mime_type)

    @property
    def note(self) -> str:
        """The line about files that are left out; empty if none is."""
        return f"\n[files that are left out: {self._left_out}]" if self._left_out else ""


def _last_words(event: Mapping[str, Any], text: str) -> str:
    """Return the text of an answer, and what is to be known of it."""
    notes = []
    if isinstance(omitted := event.get("omitted"), int):
        notes.append(f"\n[{omitted} more characters]")
    if (reason := event.get("reason")) != "done":
        notes.append(f"\n[the agent ended early: {cut(str(reason))}]")
    return text + "".join(notes)
