"""`Agent`: a model with instructions and tools that answers whoever asks it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from toolbus.agents.agent_state import AgentState
from toolbus.agents.builders import AnyBuilder, ToolkitConfig, builder_infos, read_configs
from toolbus.agents.questions import Ask
from toolbus.agents.skill_listing import SkillListing
from toolbus.agents.tool_groups import ToolGroup
from toolbus.agents.turn import Turn
from toolbus.agents.turn_toolkits import LocalToolkit, RequiredToolkit
from toolbus.chunks.chunk_types import FileChunk
from toolbus.conversations.agent_events import AgentEvent
from toolbus.conversations.agent_toolkit import AgentToolkit
from toolbus.conversations.conversation import Conversation, Conversations, conversation_key
from toolbus.conversations.loop import answer
from toolbus.conversations.model_calls import ModelMiddleware
from toolbus.conversations.state_store import StateStore
from toolbus.models.adapter import Model, Plain
from toolbus.room.room_client import RoomClient
from toolbus.tools.context import ToolContext
from toolbus.tools.middleware import Middleware
from toolbus.tools.tool_run import LOCAL
from toolbus.tools.toolkit import Toolkit

if TYPE_CHECKING:  # most programs record nothing
    from toolbus.permissions.permissions import Permissions
    from toolbus.records.records import Records

__all__ = ["Agent"]


class Agent:
    """A model with instructions and tools that answers whoever asks it.

        async with RoomClient(name="helper") as room, Agent(room, model, name="helper"):
            await room.closed()

    While it is entered it hosts a private toolkit of its name, shared with all, whose tool `ask`
    streams an answer: `toolbus chat helper`, or `room.stream("helper.ask", {"text": "..."})`. Each
    question gets a turn of its own, with the tools that it asks for, and makes all calls for its
    asker. `answer` is the same within this process.

    Args:
        room: The agent's room; None for an agent that is asked in this process alone.
        model: The model; `open_model` makes one.
        name: The name of its toolkit.
        instructions: What the model is told before everything else.
        always: Local toolkits that live as long as the agent.
        required: Toolkits of others, which it waits for before it can be asked.
        builders: What a question may ask to be built for it; offered to the room.
        groups: Toolkits that are active or inactive together.
        skills: Skills that are always active.
        permissions: What each call is judged by. They bind this agent alone.
        ask: Asks a person about a call; without it, what would be asked is denied.
        middlewares: What runs around each call of a tool, the first outermost.
        model_middlewares: What stands around each request to the model, the first outermost.
        records: Where each call is recorded.
        store: Where conversations are kept over restarts.
        max_steps: How many replies the model gives to a question at most.
        max_tokens: After how many tokens of a question the model is not asked again.
        tool_budget_tokens: How many tokens the definitions of the room's toolkits may take; above
            it the model gets `tools.search`, `tools.describe` and `tools.call` in their place.
        available: Whether the model gets the public toolkits of the room that are not required.

    Raises `ValueError` and `TypeError` as `Turn` does.
    """

    def __init__(  # noqa: PLR0913 - the promised signature
        self,
        room: RoomClient | None,
        model: Model,
        *,
        name: str = "agent",
        instructions: str = "",
        always: Iterable[Toolkit | LocalToolkit] = (),
        required: Iterable[RequiredToolkit | str] = (),
        builders: Iterable[AnyBuilder] = (),
        groups: Iterable[ToolGroup] = (),
        skills: Iterable[SkillListing] = (),
        permissions: Permissions | None = None,
        ask: Ask | None = None,
        middlewares: Iterable[Middleware] = (),
        model_middlewares: Iterable[ModelMiddleware] = (),
        records: Records | None = None,
        store: StateStore | None = None,
        max_steps: int = 20,
        max_tokens: int | None = None,
        tool_budget_tokens: int = 8_000,
        available: bool = True,
    ) -> None:
        self.name: str = name
        self.model: Model = model
        self.instructions: str = instructions
        self._room = room
        self._always = tuple(always)
        self._required = tuple(required)
        self.builders: tuple[AnyBuilder, ...] = tuple(builders)
        self._choices: dict[str, Any] = {
            "groups": tuple(groups),
            "skills": tuple(skills),
            "middlewares": tuple(middlewares),
            "records": records,
            "ask": ask,
        }
        self.permissions: Permissions | None = permissions
        """What each call is judged by; may be replaced, for the questions that begin then."""
        self._model_middlewares = tuple(model_middlewares)
        self._conversations = Conversations(store)
        self._max_steps = max_steps
        self._max_tokens = max_tokens
        self._tool_budget_tokens = tool_budget_tokens
        self._available = available and room is not None
        self.toolkit: AgentToolkit = AgentToolkit(self)
        """What is hosted; `async with agent` hosts it, and so does `serve_toolkits`."""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Wait for required toolkits, start the local ones, and host the agent's own.

        Raises what `Turn` raises when it is entered, and `RoomException` if the room refuses the
        agent's toolkit.
        """
        async with AsyncExitStack() as stack:
            if self._room is None:
                await self.start(None)
                stack.push_async_callback(self.stop)
            else:
                await stack.enter_async_context(self._room.host(self.toolkit))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)

    async def start(self, room: RoomClient | None) -> None:
        """Start what lives as long as the agent. Called by its toolkit, before it is registered."""
        self._room = room
        # Toolkits that several turns use at a time are started by the first of these: this one.
        self._lasting = Turn(
            room, always=self._always, required=self._required, groups=self._choices["groups"]
        )
        await self._lasting.__aenter__()

    async def stop(self) -> None:
        """Stop what `start` started."""
        await self._lasting.__aexit__(None, None, None)

    async def offer(self, room: RoomClient) -> None:
        """Publish the builders."""
        await room.offer_builders(builder_infos(self.builders))

    def answer(
        self,
        text: str,
        *,
        tools: Sequence[Any] = (),
        files: Iterable[FileChunk] = (),
        conversation: str = "",
        context: ToolContext | None = None,
    ) -> AsyncGenerator[AgentEvent | FileChunk, None]:
        """Answer a question; yield what happens, as `agent_events` says.

        Args:
            text: The question.
            tools: Configs of toolkits to be built for it: JSON objects, or objects of the builders'
                types. Inside a tool they are limited by the grants of its callers.
            files: Pictures and documents for the model.
            conversation: The name of the conversation that it belongs to.
            context: Inside a running tool, its context: then the question is asked by its caller.
        """
        return self._answer(text, tools, files, conversation, context)

    async def _answer(
        self,
        text: str,
        tools: Sequence[Any],
        files: Iterable[FileChunk],
        name: str,
        context: ToolContext | None,
    ) -> AsyncGenerator[AgentEvent | FileChunk, None]:
        caller = LOCAL if context is None else context.caller
        principal = None if context is None else context.on_behalf_of
        key = conversation_key(caller, principal, name)
        async with self._conversations.using(key) as conversation:
            turn = self._turn(conversation.state, tools, context)
            async with turn:
                if context is not None:
                    context.enter()
                async with aclosing(self._events(turn, conversation, text, files)) as events:
                    async for event in events:
                        yield event

    def _turn(self, state: AgentState, tools: Sequence[Any], context: ToolContext | None) -> Turn:
        choices = {
            "always": self._always,
            "required": self._required,
            "builders": self.builders,
            "available": self._available,
            "model": self.model,
            "state": state,
            "permissions": self.permissions,
            **self._choices,
        }
        if context is not None:
            return Turn(context=context, tools=tools, **choices)
        own: list[ToolkitConfig] = [each.config for each in read_configs(self.builders, tools)]
        return Turn(self._room, tools=own, **choices)

    async def _events(
        self, turn: Turn, conversation: Conversation, text: str, files: Iterable[FileChunk]
    ) -> AsyncGenerator[AgentEvent | FileChunk, None]:
        said: list[Plain] = conversation.state.conversation
        said.append(self.model.adapter.user(text, files))
        before = saved = len(said)
        happening = answer(
            turn,
            self.model,
            said,
            instructions=self.instructions,
            max_steps=self._max_steps,
            max_tokens=self._max_tokens,
            middlewares=self._model_middlewares,
        )
        try:
            async with aclosing(happening) as events:
                async for event in events:
                    if len(said) > saved:  # a step is complete
                        saved = len(said)
                        await self._conversations.save(conversation)
                    yield event
        finally:
            if len(said) == before:
                said.pop()  # nothing answers it: it is not asked
            await self._conversations.save(conversation)
