"""A scripted agent for the demo: no model, but turns as an agent with a model has them.

It answers each message named "question" from a turn of its own: which tools there are is decided by
what the message asks for and what its sender's grant covers, and each tool that was built is called
once. The answer says what the turn could see and what its tools said.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from pydantic import Field

from toolbus import (
    AgentsGrant,
    ApiScope,
    EventStream,
    Message,
    RequiredToolkit,
    Room,
    RoomClient,
    RoomEvent,
    RoomException,
    ToolContext,
    Toolkit,
    ToolkitBuilder,
    ToolkitConfig,
    Turn,
    builder_infos,
    tool,
)

__all__ = ["AGENT", "AGENT_SCOPE", "ANSWER", "QUESTION", "working_agent"]

AGENT = "agent"
"""The agent's name."""
AGENT_SCOPE = ApiScope(
    agents=AgentsGrant(use_tools=True, call=True, act_for=("*",), deny=("sql.describe",)),
    messaging=True,
)
"""What the agent may do: call for whoever asks, and everything of `sql` but `describe`."""
QUESTION = "question"
"""The name of messages that it answers; their body is `{"tools": [config, ...]}`."""
ANSWER = "answer"
"""The name of its answers."""

_WAIT_S = 5.0


def _asker(context: ToolContext) -> str:
    """Name whoever sent the message: the agent calls its own tools on behalf of that one."""
    return (context.on_behalf_of or context.caller).name


class LargestConfig(ToolkitConfig):
    """The largest packages of one source."""

    source: str = Field(min_length=1, description="Where they come from, such as python.")
    count: int = Field(3, ge=1, le=10, description="How many.")


class Largest(ToolkitBuilder[LargestConfig]):
    """Builds a tool that asks `sql`, for whoever asked for it."""

    async def make(self, room: Room, model: Any, config: LargestConfig) -> Toolkit:
        """Make a toolkit with one tool, bound to the config."""
        select = "SELECT name FROM packages WHERE source = ? AND size_bytes IS NOT NULL"
        query = f"{select} ORDER BY size_bytes DESC LIMIT {config.count}"

        @tool
        async def packages(context: ToolContext) -> str:
            """Name the largest packages of the source that the turn was made for."""
            room = context.room
            answer = await room.call("sql.query", sql=query, parameters=[config.source])
            names = ", ".join(str(row[0]) for row in answer["rows"])
            return f"of {config.source}, for {_asker(context)}: {names}"

        return Toolkit("largest", [packages])


class GreetingConfig(ToolkitConfig):
    """A greeting."""

    word: str = Field("hello", max_length=40)


class Greeting(ToolkitBuilder[GreetingConfig]):
    """Builds a tool that needs no room."""

    async def make(self, room: Room, model: Any, config: GreetingConfig) -> Toolkit:
        """Make a toolkit with one tool, bound to the config."""

        @tool
        async def say(context: ToolContext) -> str:
            """Greet whoever asks."""
            return f"{config.word}, {_asker(context)}"

        return Toolkit("greeting", [say])


_DIARY = Toolkit("diary", description="What the agent keeps to itself.")
_BUILDERS = (Largest("largest", LargestConfig), Greeting("greeting", GreetingConfig), _DIARY)


@asynccontextmanager
async def working_agent(room: RoomClient) -> AsyncIterator[None]:
    """Let the agent answer in a room of its own for as long as the block runs.

    Inside the block it listens, and others can list what it builds.
    """
    async with room.events(["messages"]) as events:
        working = asyncio.create_task(_work(room, events))
        try:
            await room.offer_builders(builder_infos(_BUILDERS))
            yield
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


async def _work(room: RoomClient, events: EventStream[RoomEvent]) -> None:
    async for event in events:
        message = event.message
        if message is not None and message.name == QUESTION:
            answer = await _answer(room, message)
            with suppress(RoomException):  # whoever asked may have left
                await room.send(message.sender.name, ANSWER, answer)


async def _answer(room: RoomClient, message: Message) -> dict[str, Any]:
    """Answer one message from a turn of its own."""
    turn = Turn(
        room,
        message=message,
        required=[RequiredToolkit("sql", timeout_s=_WAIT_S)],
        builders=_BUILDERS,
    )
    try:
        async with turn:
            built = [each.name for each in turn.tools if each.toolkit != "sql"]
            said = [str(await turn.call(name)) for name in built]
            return {"tools": [each.name for each in turn.tools], "said": said}
    except RoomException as error:
        return {"refused": error.code, "message": error.message}
