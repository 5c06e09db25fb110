"""How the toolkits of other agents are called, and how their answers are read.

The model of an agent reads of another one's answer what it says at its end, not the events; these
are progress of the call. Each conversation that asks has a conversation of its own with each agent
that it asks. So a chain of agents that comes back to one of them finds no conversation that it
holds itself, and ends where all chains do, at the depth of nested calls.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping
from hashlib import sha256
from typing import Any, Final

from toolbus.agents.agent_events import EVENT_TYPES, MAX_END_CHARS, AgentEvent
from toolbus.chunks.chunk_types import Chunk, FileChunk, JsonChunk, TextChunk
from toolbus.chunks.json_values import cut
from toolbus.tools.middleware import CallNext, ToolCall
from toolbus.tools.toolkit import MAX_RESULT_BYTES
from toolbus.wire import pack_body
from toolbus.wire.flow_control import MAX_PROGRESS_BYTES

__all__ = ["AGENT_ANNOTATION", "AskedAgents", "is_of_agent", "read_answer"]

AGENT_ANNOTATION: Final = "agent"
"""The annotation of the toolkit of an agent; its value is true. Anybody can claim it."""
_TOOLS = frozenset({"ask", "about", "forget"})
_TOLD_BY_ASKER = frozenset({"waiting", "held", "resumed"})
_MAX_SHOWN_CHARS = 2_000
"""Of a text in a progress: of the answer so far its end, of a result its beginning."""
_MAX_FILE_BYTES = 3 * MAX_RESULT_BYTES // 4
"""Of the files of one answer together; what a turn keeps of a stream has to hold its text too."""


def is_of_agent(tool: str, toolkit_annotations: Mapping[str, Any]) -> bool:
    """Whether a tool is one of an agent, as its toolkit says; `tool` is its own name."""
    return toolkit_annotations.get(AGENT_ANNOTATION) is True and tool in _TOOLS


class AskedAgents:
    """A middleware of a turn, around the calls of toolkits that say they are of an agent.

    What such a toolkit yields that is not an event of an agent is passed on as it is. The turn
    belongs to the conversation with the given key.
    """

    def __init__(self, conversation: str) -> None:
        self._conversation = conversation

    async def __call__(self, call: ToolCall, next: CallNext, /) -> AsyncGenerator[Chunk, None]:
        """Run the call in a conversation of its own, and yield the answer."""
        tool = call.tool
        if is_of_agent(tool.tool, tool.toolkit_annotations):
            call = self._in_own_conversation(call)
            if tool.streaming:
                async for chunk in read_answer(next(call), call.context.emit):
                    yield chunk
                return
        async for chunk in next(call):
            yield chunk

    def _in_own_conversation(self, call: ToolCall) -> ToolCall:
        match call.tool.input_schema:
            case {"properties": {"conversation": {"type": "string"}}}:
                named = [self._conversation, call.arguments.get("conversation", "")]
                name = sha256(json.dumps(named, default=str).encode()).hexdigest()[:32]
                return call.replace(arguments={**call.arguments, "conversation": name})
        return call  # it means something else


async def read_answer(
    chunks: AsyncIterable[Chunk], emit: Callable[[AgentEvent], object]
) -> AsyncGenerator[Chunk, None]:
    """Read the answer of an agent as one result: the text of its end, and its files.

    An answer that breaks off gives the text so far before its error. Chunks that are no events of
    an agent are passed on as they are. Of the files of an answer those beyond 12 MiB together are
    left out, which the text says.

    Args:
        chunks: What the tool `ask` of an agent yields.
        emit: Called with each event, its texts cut, for progress.
    """
    reader = _AnswerReader(emit)
    try:
        async for chunk in chunks:
            if (passed := await reader.read(chunk)) is not None:
                yield passed
    except Exception:
        if reader.unfinished:
            yield TextChunk(reader.unfinished)
        raise
    last = reader.unfinished
    if reader.left_out:
        last += f"\n[files that are left out: {reader.left_out}]"
    if last:
        yield TextChunk(last)


class _AnswerReader:
    """Reads one answer: its events become progress of the call, its end the result."""

    def __init__(self, emit: Callable[[AgentEvent], object]) -> None:
        self._emit = emit
        self._left_bytes = _MAX_FILE_BYTES
        self.left_out: int = 0
        """How many files are left out."""
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
        # The agent that asks tells itself that it waits, for a person too.
        if kind not in _TOLD_BY_ASKER and len(pack_body(event)) <= MAX_PROGRESS_BYTES:
            self._emit(event)
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
            self.left_out += 1
            return None
        self._left_bytes -= len(data)
        return FileChunk(bytes(data), file.name, file.mime_type)


def _last_words(event: Mapping[str, Any], text: str) -> str:
    """Return the text of an answer, and what is to be known of it."""
    notes = []
    if isinstance(omitted := event.get("omitted"), int):
        notes.append(f"\n[{omitted} more characters]")
    if (reason := event.get("reason")) != "done":
        notes.append(f"\n[the agent ended early: {cut(str(reason))}]")
    return text + "".join(notes)
