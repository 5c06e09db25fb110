"""The toolkit of an agent: `ask` streams an answer, `about` describes, `forget` begins anew.

And how the toolkits of other agents are called. The model of an agent reads of another one's answer
what it says at its end, not the events; these are progress of the call. Each conversation that asks
has a conversation of its own with each agent that it asks. So a chain of agents that comes back to
one of them finds no conversation that it holds itself, and ends where all chains do, at the depth
of nested calls.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from hashlib import sha256
from typing import Any, Final, Protocol

from toolbus.agents.agent_events import EVENT_TYPES, MAX_END_CHARS, AgentEvent, fitted_to_chunk
from toolbus.chunks.chunk_types import Chunk, FileChunk, JsonChunk, TextChunk
from toolbus.chunks.json_values import cut
from toolbus.errors import RoomException, ToolFailed
from toolbus.models.model_error import ModelError
from toolbus.room.participants import BuilderInfo
from toolbus.room.room_client import RoomClient
from toolbus.service.remote_toolkit import RemoteToolkit
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.middleware import CallNext, ToolCall
from toolbus.tools.tool import Tool
from toolbus.tools.toolkit import MAX_RESULT_BYTES
from toolbus.turns.builders import AnyBuilder, builder_infos
from toolbus.wire import pack_body
from toolbus.wire.flow_control import MAX_PROGRESS_BYTES

__all__ = ["MAX_NAME_CHARS", "AgentToolkit", "AskedAgents", "HostedAgent"]

MAX_NAME_CHARS: Final = 200
"""Of the name of a conversation: callers choose it, and it is a key in memory and in a store."""
_AGENT = "agent"
"""The annotation of the toolkit of an agent; its value is true. Anybody can claim it."""
_TOOLS = frozenset({"ask", "about", "forget"})
_MAX_SHOWN_CHARS = 2_000
"""Of a text in a progress: of the answer so far its end, of a result its beginning."""
_MAX_FILE_BYTES = 3 * MAX_RESULT_BYTES // 4
"""Of the files of one answer together; what a turn keeps of a stream has to hold its text too."""
_OFFERING: dict[RoomClient, list[HostedAgent]] = {}
"""The agents with builders that each participant hosts."""
_END_S = 2.0
"""For taking builders back at the end, which is not worth a longer wait."""
_CONVERSATION = {
    "type": "string",
    "maxLength": MAX_NAME_CHARS,
    "description": "The name of the conversation that it belongs to; each asker has its own.",
    "default": "",
}


class HostedAgent(Protocol):
    """What the toolkit of an agent needs of it: an `Agent`."""

    name: str
    description: str
    builders: tuple[AnyBuilder, ...]
    """What a question may ask to be built for it."""

    async def start(self, room: RoomClient | None) -> None:
        """Start what lives as long as the agent; once for each `stop`."""

    async def stop(self) -> None:
        """Stop what `start` started."""

    def run_stream_events(
        self,
        text: str,
        *,
        tools: Sequence[Any] = (),
        files: Iterable[FileChunk] = (),
        conversation: str = "",
        context: ToolContext | None = None,
    ) -> AsyncGenerator[AgentEvent | FileChunk, None]:
        """Answer a question; yield its events."""

    async def about(
        self, tools: Sequence[Any] = (), conversation: str = "", context: ToolContext | None = None
    ) -> dict[str, Any]:
        """Return what a question would have."""

    async def forget(self, conversation: str = "", context: ToolContext | None = None) -> None:
        """Begin a conversation anew."""


def _tools(agent: HostedAgent) -> dict[str, Any]:
    """Return the schema of what a question may ask to be built."""
    names = ", ".join(builder.name for builder in agent.builders) or "none"
    return {
        "type": "array",
        "items": {"type": "object"},
        "description": "Toolkits to build for it: objects with `name` and its configuration."
        f" There are: {names}.",
        "default": [],
    }


def _words(text: str, agent: HostedAgent) -> str:
    return f"{text} {agent.description}".strip()


@contextmanager
def _refusing(context: ToolContext) -> Iterator[None]:
    """Tell the asker what was refused before anything was asked, and why a model gave no reply."""
    try:
        yield
    except ModelError as error:
        raise ToolFailed(
            str(error), retryable=error.retryable, retry_after_s=error.retry_after_s
        ) from error
    except RoomException as error:
        if error.executed == "no" and not run_of(context).entered:
            context.refuse(error)
        raise


class _AgentTool(Tool):
    marks_entry = True
    affinity = "caller"
    """Of several hosts of one agent each has its own conversations: an asker stays with one."""

    def __init__(self, agent: HostedAgent, properties: dict[str, Any], *required: str) -> None:
        properties = {**properties, "conversation": _CONVERSATION}
        super().__init__(
            input_schema={
                "properties": properties,
                "required": [*required],
                "additionalProperties": False,
            }
        )
        self._agent = agent


class _Ask(_AgentTool):
    name = "ask"
    concurrency_safe = True  # a model may ask several agents at once; each conversation is in order

    def __init__(self, agent: HostedAgent) -> None:
        text = {"type": "string", "description": "The question or the task, with all it needs."}
        super().__init__(agent, {"text": text, "tools": _tools(agent)}, "text")
        self.description = _words(f"Ask the agent {agent.name}, and get its answer.", agent)

    async def start(self, room: Any) -> None:
        await self._agent.start(room)

    async def stop(self) -> None:
        await self._agent.stop()

    async def execute(
        self,
        context: ToolContext,
        /,
        text: str,
        tools: Sequence[Any] = (),
        conversation: str = "",
        attachment: FileChunk | None = None,
    ) -> AsyncGenerator[AgentEvent | FileChunk, None]:
        """Yield the events of the answer."""
        with _refusing(context):
            answer = self._agent.run_stream_events(
                text,
                tools=tools,
                files=() if attachment is None else (attachment,),
                conversation=conversation,
                context=context,
            )
            async with aclosing(answer) as events:
                async for event in events:
                    yield fitted_to_chunk(event)


class _About(_AgentTool):
    name = "about"
    description = "Name, mode, tools, builders and size of the conversation; asks no model."
    read_only = True

    async def execute(
        self, context: ToolContext, /, tools: Sequence[Any] = (), conversation: str = ""
    ) -> dict[str, Any]:
        with _refusing(context):
            return await self._agent.about(tools, conversation, context)


class _Forget(_AgentTool):
    name = "forget"
    description = "Begin a conversation anew: the agent forgets what was said in it."
    idempotent = True
    destructive = True

    async def execute(self, context: ToolContext, /, conversation: str = "") -> None:
        with _refusing(context):
            await self._agent.forget(conversation, context)


class AgentToolkit(RemoteToolkit):
    """The toolkit of an agent, private and shared with all who address it."""

    def __init__(self, agent: HostedAgent) -> None:
        super().__init__(
            agent.name,
            [_Ask(agent), _About(agent, {"tools": _tools(agent)}), _Forget(agent, {})],
            description=_words("An agent.", agent),
            annotations={_AGENT: True},
            public=False,
            shared_with=["*"],
        )
        self._agent = agent

    @asynccontextmanager
    async def hosting(self, room: RoomClient) -> AsyncIterator[None]:
        """Publish what the agent builds on request, while it is hosted."""
        if not self._agent.builders:
            yield
            return
        agents = _OFFERING.setdefault(room, [])
        agents.append(self._agent)
        try:
            await _offer(room)
            yield
        finally:
            agents.remove(self._agent)
            if not agents:
                del _OFFERING[room]
            with suppress(RoomException, TimeoutError):  # the room may be closed, or cut off
                async with asyncio.timeout(_END_S):
                    await _offer(room)


async def _offer(room: RoomClient) -> None:
    """Publish the builders of all agents of a participant, which has one list of them."""
    found: dict[str, BuilderInfo] = {}
    for agent in _OFFERING.get(room, ()):
        for info in builder_infos(agent.builders):
            found.setdefault(info.name, info)
    await room.offer_builders(found.values())


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
        if tool.toolkit_annotations.get(_AGENT) is True and tool.tool in _TOOLS:
            call = self._in_own_conversation(call)
            if tool.streaming:
                async for chunk in _answered(call, next):
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
    last = reader.unfinished
    if reader.left_out:
        last += f"\n[files that are left out: {reader.left_out}]"
    if last:
        yield TextChunk(last)


class _AnswerReader:
    """Reads one answer: its events become progress of the call, its end the result."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
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
