"""A scripted agent for the demo: it has no model, but takes turns as an agent with a model does.

It handles each message named "question" in its own turn: the turn's tools are those that the
message requests and its sender's grant allows, and each tool that was built is called once. The
answer contains the turn's tools and their results.
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

__all__ = ["AGENT", "AGENT_SCOPE", "ANSWER", "QUESTION", "running_agent"]

AGENT = "agent"
"""The agent's name."""
AGENT_SCOPE = ApiScope(
    agents=AgentsGrant(use_tools=True, call=True, act_for=("*",), deny=("sql.describe",)),
    messaging=True,
)
"""The agent may call on behalf of any sender, and all tools of `sql` but `describe`."""
QUESTION = "question"
"""The name of the messages it handles; their body is `{"tools": [config, ...]}`."""
ANSWER = "answer"
"""The name of its answers."""

_WAIT_S = 5.0


def _requester(context: ToolContext) -> str:
    """Return the sender's name: the agent calls its own tools on behalf of the sender."""
    return (context.on_behalf_of or context.caller).full_name


class LargestConfig(ToolkitConfig):
    """The largest packages of one source."""

    source: str = Field(min_length=1, description="The source, such as python.")
    count: int = Field(3, ge=1, le=10, description="How many.")


class Largest(ToolkitBuilder[LargestConfig]):
    """Builds a tool that queries `sql` on behalf of the sender."""

    async def make(self, room: Room, model: Any, config: LargestConfig) -> Toolkit:
        """Make a toolkit with one tool, bound to the config."""
        select = "SELECT name FROM packages WHERE source = ? AND size_bytes IS NOT NULL"
        query = f"{select} ORDER BY size_bytes DESC LIMIT {config.count}"

        @tool
        async def packages(context: ToolContext) -> str:
            """Name the largest packages of the configured source."""
            room = context.room
            answer = await room.call("sql.query", sql=query, parameters=[config.source])
            names = ", ".join(str(row[0]) for row in answer["rows"])
            return f"of {config.source}, for {_requester(context)}: {names}"

        return Toolkit("largest", [packages])


class GreetingConfig(ToolkitConfig):
    """A greeting."""

    word: str = Field("hello", max_length=40)


class Greeting(ToolkitBuilder[GreetingConfig]):
    """Builds a tool that does not use the room."""

    async def make(self, room: Room, model: Any, config: GreetingConfig) -> Toolkit:
        """Make a toolkit with one tool, bound to the config."""

        @tool
        async def say(context: ToolContext) -> str:
            """Greet the sender."""
            return f"{config.word}, {_requester(context)}"

        return Toolkit("greeting", [say])


_DIARY = Toolkit("diary", description="Private notes of the agent.")
_BUILDERS = (Largest("largest", LargestConfig), Greeting("greeting", GreetingConfig), _DIARY)


@asynccontextmanager
async def running_agent(room: RoomClient) -> AsyncIterator[None]:
    """Run the agent within the block, on its own connection.

    Inside the block it handles messages, and others can list its builders.
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
            with suppress(RoomException):  # the sender may have left
                await room.send(message.sender.full_name, ANSWER, answer)


async def _answer(room: RoomClient, message: Message) -> dict[str, Any]:
    """Handle one message in its own turn."""
    turn = Turn(
        room,
        message=message,
        required=[RequiredToolkit("sql", timeout_s=_WAIT_S)],
        builders=_BUILDERS,
    )
    try:
        async with turn:
            built = [each.name for each in turn.tools if each.toolkit != "sql"]
            results = [str(await turn.call(name)) for name in built]
            return {"tools": [each.name for each in turn.tools], "results": results}
    except RoomException as error:
        return {"refused": error.code, "message": error.message}
