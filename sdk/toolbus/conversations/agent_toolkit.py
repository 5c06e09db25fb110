"""The toolkit of an agent: `ask` streams an answer, `forget` begins a conversation anew."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from toolbus.chunks.chunk_types import FileChunk
from toolbus.conversations.agent_events import AgentEvent
from toolbus.room.room_client import RoomClient
from toolbus.service.remote_toolkit import RemoteToolkit
from toolbus.tools.context import ToolContext
from toolbus.tools.tool import Tool

if TYPE_CHECKING:
    from toolbus.conversations.agent import Agent

__all__ = ["AgentToolkit"]

_ASK_SCHEMA: Mapping[str, Any] = {
    "properties": {
        "text": {"type": "string", "description": "The question or the task."},
        "tools": {
            "type": "array",
            "items": {"type": "object"},
            "description": "Toolkits to build for it: objects with `name` and its configuration.",
            "default": [],
        },
        "conversation": {
            "type": "string",
            "maxLength": 200,
            "description": "The name of the conversation that it belongs to.",
            "default": "",
        },
    },
    "required": ["text"],
}


class _Ask(Tool):
    """Streams an answer."""

    name = "ask"
    description = "Ask the agent, and get its answer as a stream of events."
    marks_entry = True

    def __init__(self, agent: Agent) -> None:
        super().__init__(input_schema=dict(_ASK_SCHEMA))
        self._agent = agent

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
    ) -> AsyncGenerator[AgentEvent | FileChunk, None]:
        """Yield the events of the answer."""
        events = self._agent.answer(text, tools=tools, conversation=conversation, context=context)
        async with aclosing(events):
            async for event in events:
                yield event


class AgentToolkit(RemoteToolkit):
    """The toolkit of an agent, private and shared with all who address it.

    Args:
        agent: The agent.
    """

    def __init__(self, agent: Agent) -> None:
        super().__init__(
            agent.name,
            [_Ask(agent)],
            description="An agent: ask it.",
            annotations={"agent": True},
            public=False,
            shared_with=["*"],
        )
        self._agent = agent

    @asynccontextmanager
    async def hosting(self, room: RoomClient) -> AsyncIterator[None]:
        """Publish what the agent builds on request, while it is hosted."""
        await self._agent.offer(room)
        yield
