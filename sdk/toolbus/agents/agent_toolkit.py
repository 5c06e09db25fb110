"""The toolkit of an agent: `ask` streams an answer, `about` describes, `forget` begins anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, Final, Protocol

from toolbus.agents.agent_events import AgentEvent, fitted_to_chunk
from toolbus.agents.asked_agents import AGENT_ANNOTATION
from toolbus.chunks.chunk_types import FileChunk
from toolbus.errors import RoomException, ToolFailed
from toolbus.models.model_error import ModelError
from toolbus.room.participants import BuilderInfo
from toolbus.room.room_client import RoomClient
from toolbus.service.remote_toolkit import RemoteToolkit
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.tool import Tool
from toolbus.turns.builders import AnyBuilder, builder_infos

__all__ = ["MAX_NAME_CHARS", "AgentToolkit", "HostedAgent"]

MAX_NAME_CHARS: Final = 200
"""Of the name of a conversation: callers choose it, and it is a key in memory and in a store."""
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
            annotations={AGENT_ANNOTATION: True},
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
