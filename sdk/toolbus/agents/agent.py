"""`Agent`: a model with instructions and tools that answers its askers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any, Never, Self, cast

from opentelemetry import trace

from toolbus.agents.agent_events import AgentEvent, with_waiting
from toolbus.agents.agent_toolkit import MAX_NAME_CHARS, AgentToolkit
from toolbus.agents.answer_progress import complete_step
from toolbus.agents.answer_starts import AnswerStart, QuestionStart, ResumedStart, invalid_argument
from toolbus.agents.asked_agents import AskedAgents
from toolbus.agents.conversation import (
    FORGOTTEN,
    MAX_CONVERSATION_BYTES,
    Conversation,
    Conversations,
    adapter_name,
    conversation_key,
)
from toolbus.agents.loop import agent_loop
from toolbus.agents.model_requests import (
    CallNextModel,
    ModelMiddleware,
    RequestToModel,
    checked_model_middlewares,
)
from toolbus.agents.state_store import StateStore
from toolbus.chunks.chunk_types import FileChunk
from toolbus.chunks.json_values import shown
from toolbus.concurrency.event_loop import running_loop
from toolbus.concurrency.loop_thread import run_on_shared_loop
from toolbus.errors import Unavailable
from toolbus.hosting.in_process import InProcessToolkit
from toolbus.models.adapter import Model, Plain
from toolbus.models.token_usage import TokenUsage
from toolbus.public_names import missing
from toolbus.room.call_form import keyword_options, refuse_unknown
from toolbus.room.room_client import RoomClient
from toolbus.telemetry.propagation import current_trace_id
from toolbus.tool_search.tool_search import ToolBudget
from toolbus.tools.context import ToolContext
from toolbus.tools.middleware import Middleware, checked_middlewares
from toolbus.tools.tool_run import LOCAL
from toolbus.tools.toolkit import Toolkit, checked_records
from toolbus.turns.agent_state import AgentState
from toolbus.turns.approvals import ApprovalQueue, Approve
from toolbus.turns.builders import (
    AnyBuilder,
    ToolkitConfig,
    builder_infos,
    read_configs,
    run_concurrently,
)
from toolbus.turns.parking import ParkedUse
from toolbus.turns.tool_groups import SkillListing, ToolGroup, checked_groups, checked_listings
from toolbus.turns.tool_questions import Answer, checked_answer
from toolbus.turns.tool_use import ToolResult
from toolbus.turns.turn import Turn
from toolbus.turns.turn_options import (
    checked_builders,
    checked_permissions,
    checked_timeout,
)
from toolbus.turns.turn_toolkits import (
    LocalToolkit,
    RequiredToolkit,
    checked_required,
    checked_toolkits,
)
from toolbus.untrusted_text import SHOWN_CHARS

if TYPE_CHECKING:  # most programs record nothing
    from toolbus.permissions.permissions import Permissions
    from toolbus.records.records import Records

__all__ = ["Agent", "RunResult"]

_MAX_TOOLS = 1_000
"""Of what `about` tells: names and descriptions of so many fit one frame, in any script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The answer to one question, and what led to it."""

    text: str
    """The last reply of the model."""
    reason: str
    """Why the agent stopped: "done", "max_steps", "max_tokens" or "parked"."""
    steps: int
    """How many replies the model gave."""
    usage: TokenUsage
    """The tokens of all requests and replies, as the provider counts them."""
    results: tuple[ToolResult, ...]
    """The results of all uses of tools, in the order in which they ended."""
    conversation: tuple[Plain, ...]
    """The messages of the conversation after this question, as the API of the model has them."""
    parked: tuple[ParkedUse, ...] = ()
    """The uses that wait for their results, for which `Agent.resume` goes on; else none."""


class Agent:
    """A model with instructions and tools that answers its askers.

        async with RoomClient(name="helper") as room, Agent(room, model, name="helper"):
            await room.closed()

    While it is entered it hosts a private toolkit of its name, shared with all, whose tool `ask`
    streams an answer: `toolbus chat helper`, or
    `room.stream("helper.ask", {"text": "..."}, participant="helper")`. Each question gets a turn of
    its own, with the tools that it asks for, and makes all calls for its asker. `run` and
    `run_stream_events` ask it within this process; `run_sync` does so without an event loop:

        print(Agent(None, open_model("openai:gpt-5")).run_sync("Why is the sky blue?").text)

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
        approve: Asks a person about a call; without it, what would be asked is denied. "room" asks
            those in the room who may approve calls of the asker, else of the agent: see `Turn`.
        answer: Answers what tools in this process ask, as `Turn` takes it.
        middlewares: What runs around each call of a tool, the first outermost.
        model_middlewares: What stands around each request to the model, the first outermost.
        records: Where each call is recorded.
        store: Where conversations are kept over restarts.
        max_steps: How many replies the model gives to a question at most.
        max_tokens: After how many tokens of a question the model is not asked again.
        tool_budget_tokens: How many tokens the definitions of the room's toolkits may take; above
            it the model gets `tools.search`, `tools.describe` and `tools.call` in their place.
        available: Whether the model gets the public toolkits of the room that are not required.
        max_conversation_bytes: How large the messages of a conversation are at most, as JSON; then
            the oldest questions are left out, with what followed them. A question is asked also if
            it is larger alone, and left out before the next one. Four bytes of text are about one
            token: choose less for a model that reads less.
        description: What it is for, told to those who may ask it. Instructions are not told.
        timeout_s: Seconds for each call of a tool; less where the asker has less time left.
        unknown: Takes nothing: another keyword is a TypeError that names the nearest option.

    Raises `ValueError` and `TypeError` as `Turn` does, and for a value that is none of these.
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
        approve: Approve | None = None,
        answer: Answer | None = None,
        middlewares: Iterable[Middleware] = (),
        model_middlewares: Iterable[ModelMiddleware] = (),
        records: Records | None = None,
        store: StateStore | None = None,
        max_steps: int = 20,
        max_tokens: int | None = None,
        tool_budget_tokens: int = 8_000,
        available: bool = True,
        max_conversation_bytes: int = MAX_CONVERSATION_BYTES,
        description: str = "",
        timeout_s: float = 300.0,
        **unknown: Never,
    ) -> None:
        if unknown:
            refuse_unknown("Agent", unknown, keyword_options(Agent))
        self.name: str = name
        self.model: Model = _checked_model(model)
        self.instructions: str = _checked("instructions", instructions, str, "text")
        self.description: str = _checked("description", description, str, "text")
        self._given_room: RoomClient | None = _checked(
            "room", room, RoomClient | None, "a toolbus.RoomClient or None"
        )
        self._room = self._given_room
        """Where it is started; another one if its toolkit is hosted there."""
        self._always = checked_toolkits("always", always, Toolkit, LocalToolkit)
        self._required = checked_required("required", required)
        self._builders = checked_builders(builders)
        checked = checked_groups(groups)
        self.builders: tuple[AnyBuilder, ...] = (
            *self._builders,
            *(builder for group in checked for builder in group.builders),
        )
        """What a question may ask to be built for it, also by builders of groups."""
        builder_infos(self.builders)  # raises for what is not a builder, and for two of one name
        self._choices: dict[str, Any] = {
            "groups": checked,
            "skills": checked_listings("skills", skills),
            "middlewares": checked_middlewares(middlewares, "agent"),
            "records": checked_records(records, "agent"),
            "approve": approve,
            "answer": checked_answer(answer),
            # Longer than a turn gives by default: an agent that is asked asks its model first.
            "timeout_s": checked_timeout(timeout_s),
        }
        ApprovalQueue(approve, 0)  # raises for what is not a function
        checked_permissions(permissions, approve, AgentState())
        self.permissions: Permissions | None = permissions
        """What each call is judged by; may be replaced, for the questions that begin then."""
        self.on_results: Callable[[Sequence[ToolResult]], None] | None = None
        """Gets the results of all uses of a question at its end, also where it was cancelled."""
        self._model_middlewares = checked_model_middlewares(model_middlewares, "agent")
        self._conversations = Conversations(
            _checked_store(store),
            _at_least(1, "max_conversation_bytes", max_conversation_bytes),
        )
        self._max_steps = _at_least(1, "max_steps", max_steps)
        self._max_tokens = None if max_tokens is None else _at_least(1, "max_tokens", max_tokens)
        self._tool_budget_tokens = _at_least(0, "tool_budget_tokens", tool_budget_tokens)
        self._available: bool = _checked("available", available, bool, "True or False")
        self._budget: ToolBudget | None = None
        """How a turn has the toolkits of the room; None if it does not have them."""
        self.toolkit: AgentToolkit = AgentToolkit(self)
        """What is hosted; `async with agent` hosts it, and so does `serve_toolkits`."""
        self.toolkit.log_filters = self._log_filters()
        self._hosting: AsyncExitStack | None = None
        self._started: AsyncExitStack | None = None
        self._users = 0
        """How often it was started: it may be hosted, and a toolkit of another agent here."""
        self._changing = asyncio.Lock()
        self._starter: asyncio.Task[Any] | None = None
        """The task that starts it now."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where it is started: its toolkits belong to that loop."""

    if not TYPE_CHECKING:  # for checkers it has no such attributes

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name)

    async def __aenter__(self) -> Self:
        """Wait for required toolkits, start the local ones, and host the agent's own.

        Raises:
            RuntimeError: It is entered already, or started on another event loop.
            ValueError: Two of its toolkits have one name.
            NotFound: A required toolkit was not there in time.
            RoomException: The room refuses a required toolkit, or the agent's own.
            Exception: What the `start` of a local tool raised, or the store, such as
                `StateStoreUnavailable`.
        """
        if self._hosting is not None:
            raise RuntimeError(f"the agent {self.name} is entered already")
        self._hosting = AsyncExitStack()
        try:
            async with AsyncExitStack() as stack:
                if self._given_room is None:
                    await self.start(None)
                    stack.push_async_callback(self.stop)
                else:
                    await stack.enter_async_context(self._given_room.host(self.toolkit))
                self._hosting = stack.pop_all()
        except BaseException:
            self._hosting = None
            raise
        return self

    async def __aexit__(self, *raised: Any) -> None:
        stack, self._hosting = self._hosting, None
        if stack is not None:
            await stack.__aexit__(*raised)

    async def start(self, room: RoomClient | None) -> None:
        """Start what lives as long as the agent, without hosting it.

        Its toolkit calls this before it is registered. A program that asks its agent itself calls
        it, and `stop` at its end. Raises as entering the agent.

        Args:
            room: Where its questions are answered; None for an agent of this process alone.
        """
        task = asyncio.current_task()
        if self._starter is task:
            raise ValueError(f"the agent {self.name} is among its own toolkits, or those of these")
        if not self._users and self._starter is None and not self._is_on_its_loop:
            # A lock belongs to a loop.
            self._loop, self._changing = asyncio.get_running_loop(), asyncio.Lock()
        self._check_loop()
        async with self._changing:
            if not self._users:
                self._starter = task
                try:
                    self._started = await self._start(room)
                finally:
                    self._starter = None
            self._users += 1

    @property
    def _is_on_its_loop(self) -> bool:
        return asyncio.get_running_loop() is self._loop

    def _check_loop(self) -> None:
        if not self._is_on_its_loop:
            text = "it is started on another event loop: ask it there, or make another agent"
            raise RuntimeError(f"the agent {self.name}: {text}")

    async def _start(self, room: RoomClient | None) -> AsyncExitStack:
        self._room = room
        self._budget = None
        self._turn(Conversation("", AgentState()), (), None)  # raises for two of one name
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._conversations.open())
            for toolkit in self._local:
                # The turns use them at the same time: who is first starts them.
                await stack.enter_async_context(_started(toolkit, room))
            if room is not None:
                await run_concurrently([toolkit.find(room) for toolkit in self.required])
            if room is not None and self._available:
                budget = ToolBudget(self._tool_budget_tokens, self._local, self.required)
                await stack.enter_async_context(budget.following(room))
                self._budget = budget
            return stack.pop_all()

    def _log_filters(self) -> list[logging.Filter]:
        """Return those of all its toolkits: its process works with the secrets of them all."""
        toolkits = map(_toolkit_of, self._local)
        return [log_filter for toolkit in toolkits for log_filter in toolkit.log_filters]

    @property
    def _local(self) -> list[Toolkit | LocalToolkit]:
        groups = self._choices["groups"]
        return [*self._always, *(kit for group in groups for kit in group.toolkits)]

    @property
    def required(self) -> tuple[RequiredToolkit, ...]:
        """The toolkits of others that it waits for, also those of its groups."""
        groups = self._choices["groups"]
        return (*self._required, *(kit for group in groups for kit in group.required))

    @property
    def uses_room(self) -> bool:
        """Whether its turns have toolkits of its room, for which its token needs grants."""
        return self._available or bool(self.required)

    async def stop(self) -> None:
        """Stop what `start` started, the last one first; once for each `start`."""
        async with self._changing:
            self._users = max(0, self._users - 1)
            if not self._users and self._started is not None:
                stack, self._started = self._started, None
                await stack.aclose()

    async def run(
        self,
        text: str,
        *,
        tools: Sequence[Any] = (),
        files: Iterable[FileChunk] = (),
        conversation: str = "",
        context: ToolContext | None = None,
    ) -> RunResult:
        """Answer a question, and return the answer once it is complete.

        An agent that is not started is started for this question, in its room, and stopped after
        it; its toolkit is not hosted. The conversation goes on with the next question in it, as
        long as the agent, or its `store`, has it.

        Arguments and errors are those of `run_stream_events`; starting raises as `start`.
        """
        return await self._run_to_end(QuestionStart(text, files), tools, conversation, context)

    async def resume(
        self,
        conversation: str,
        results: Mapping[str, Any],
        *,
        tools: Sequence[Any] = (),
        context: ToolContext | None = None,
    ) -> RunResult:
        """Go on with an answer that ended as "parked", also one of an earlier process.

        Starts an agent that is not started, as `run` does. Arguments and errors are those of
        `resume_stream_events`.
        """
        return await self._run_to_end(ResumedStart(results), tools, conversation, context)

    async def _run_to_end(
        self,
        start: AnswerStart,
        tools: Sequence[Any],
        conversation: str,
        context: ToolContext | None,
    ) -> RunResult:
        async with AsyncExitStack() as stack:
            await self.start(self._given_room)
            stack.push_async_callback(self.stop)
            end: AgentEvent = {}
            await start.check(self.model)
            turn, found = await stack.enter_async_context(
                self._open_turn(tools, conversation, context, start.waits_for)
            )
            async with aclosing(self._events(turn, found, start)) as events:
                async for event in events:
                    if isinstance(event, dict) and event["type"] == "end":
                        end = event
            return RunResult(
                text=end["text"],
                reason=end["reason"],
                steps=end["steps"],
                usage=TokenUsage(**end["tokens"]),
                results=tuple(turn.results),
                conversation=tuple(found.state.conversation),
                parked=turn.parked,
            )

    def run_sync(
        self,
        text: str,
        *,
        tools: Sequence[Any] = (),
        files: Iterable[FileChunk] = (),
        conversation: str = "",
    ) -> RunResult:
        """Do as `run`, in a program without an event loop. Ctrl-C cancels the question.

        All agents of a process run their questions on one event loop, on a thread of its own.

        Raises:
            RuntimeError: An event loop runs in this thread, or the agent has a room.
        """
        return self._run_sync(
            "run", QuestionStart(text, files), tools=tools, conversation=conversation
        )

    def resume_sync(
        self, conversation: str, results: Mapping[str, Any], *, tools: Sequence[Any] = ()
    ) -> RunResult:
        """Do as `resume`, in a program without an event loop; raises as `run_sync`, too."""
        return self._run_sync(
            "resume", ResumedStart(results), tools=tools, conversation=conversation
        )

    def _run_sync(
        self, name: str, start: AnswerStart, *, tools: Sequence[Any], conversation: str
    ) -> RunResult:
        if self._given_room is not None:
            text = f"{name}_sync needs an agent without a room, Agent(None, ...)"
            raise RuntimeError(f"{text}; with a room: await agent.{name}(...)")
        if running_loop() is not None:
            raise RuntimeError(f"an event loop runs in this thread: await agent.{name}(...)")

        async def answer() -> RunResult:
            try:
                return await self._run_to_end(start, tools, conversation, None)
            except SystemExit as error:  # would end the loop, which others use
                raise RuntimeError(f"SystemExit: {error.code}") from error

        # Shared, because the connections of a model's client belong to their loop.
        return run_on_shared_loop(answer)

    def run_stream_events(
        self,
        text: str,
        *,
        tools: Sequence[Any] = (),
        files: Iterable[FileChunk] = (),
        conversation: str = "",
        context: ToolContext | None = None,
    ) -> AsyncGenerator[AgentEvent | FileChunk, None]:
        """Answer a question; yield what happens, as `agent_events` says.

        Leave the loop over it with `contextlib.aclosing`: that ends what runs, and what was
        complete stays in the conversation.

        Args:
            text: The question.
            tools: Configs of toolkits to be built for it: JSON objects, or objects of the builders'
                types. Inside a tool they are limited by the grants of its callers.
            files: Pictures and documents for the model.
            conversation: The name of the conversation that it belongs to; questions without one
                belong to one conversation, so a program that serves several people names one for
                each. Its questions are answered one after the other: a tool that asks the agent
                that called it, in the conversation that waits for this tool, waits until its own
                time is over.
            context: Inside a running tool, its context: then the question is asked by its caller.

        Raises:
            InvalidArguments: Text, files or an entry of `tools` cannot be used.
            PermissionDenied: The asker may not have a toolkit of `tools` built.
            NotFound: There is no builder for an entry, or a required toolkit is missing.
            Unavailable: The agent is not started, or the call of `context` has ended.
            RuntimeError: The agent is started on another event loop.
            ConversationUnavailable: The state of the conversation cannot be read, such as that of a
                newer version of toolbus; or uses of it are parked.
            Overloaded: 16 questions wait for the conversation already.
            ModelError: The model gives no reply.
        """
        return with_waiting(self._run(QuestionStart(text, files), tools, conversation, context))

    def resume_stream_events(
        self,
        conversation: str,
        results: Mapping[str, Any],
        *,
        tools: Sequence[Any] = (),
        context: ToolContext | None = None,
    ) -> AsyncGenerator[AgentEvent | FileChunk, None]:
        """Go on with an answer that ended as "parked"; yield what happens, as a question does.

        Where some of its uses have no result yet, that is kept, and the answer ends as "parked"
        again. `interrupt_parked` gives the uses up.

        Args:
            conversation: The name of the conversation.
            results: The result of each use by its id: what a tool may return, a `MixedChunk` of
                several chunks, or a `RoomException` in its place. See `Turn.settle`.
            tools: As of the question, if a tool of these is parked.
            context: As of the question.

        Raises as `run_stream_events` and `Turn.settle`, and `NotFound` if nothing is parked in the
        conversation. If one result is refused, none is taken.
        """
        return with_waiting(self._run(ResumedStart(results), tools, conversation, context))

    async def interrupt_parked(
        self, conversation: str = "", context: ToolContext | None = None
    ) -> None:
        """Give up the parked uses of a conversation: their results are "interrupted".

        The next question goes on from there. Raises as `resume_stream_events`.
        """
        async with self._open_turn((), conversation, context, "results") as (turn, found):
            await turn.interrupt()
            if found.state.adapter == adapter_name(self.model.adapter):
                complete_step(turn, self.model.adapter, found.state.conversation)
            turn.take_results()  # else the next question leaves the conversation out
            await self._conversations.save(found)

    async def about(
        self,
        tools: Sequence[Any] = (),
        conversation: str = "",
        context: ToolContext | None = None,
    ) -> dict[str, Any]:
        """Return what a question would have: name, mode, tools, builders and the conversation.

        `{"name", "mode", "tools": [{"name", "description"}], "builders": [name], "conversation":
        {"messages", "bytes"}}`; `mode` is None without permissions, there are at most 1,000 tools,
        and descriptions are cut. A conversation that was forgotten to make room also has `dropped`,
        the reason that its next question tells, and one that is parked has `parked`, the number of
        uses that wait for their results. The toolkits of `tools` are built, and no model is
        asked. It does not wait for a question that is answered now. Raises as `run_stream_events`.
        """
        async with self._open_turn(tools, conversation, context, "") as (turn, found):
            state: dict[str, Any] = {
                "messages": len(found.state.conversation),
                "bytes": found.bytes,
            }
            if found.is_forgotten:
                state["dropped"] = FORGOTTEN
            if turn.parked:
                state["parked"] = len(turn.parked)
            return {
                "name": self.name,
                "mode": turn.permissions and turn.permissions.mode,
                "tools": [
                    {"name": tool.name, "description": tool.description[:SHOWN_CHARS]}
                    for tool in turn.tools[:_MAX_TOOLS]
                ],
                "builders": [builder.name for builder in self.builders],
                "conversation": state,
            }

    async def forget(self, conversation: str = "", context: ToolContext | None = None) -> None:
        """Begin a conversation anew, also what people have granted in it.

        A state that cannot be read can be forgotten. Raises as `run_stream_events`, and
        `Unavailable` if the store fails.
        """
        key = self._key(conversation, context)
        async with self._conversations.using(key, load=False) as found:
            if context is not None:
                context.enter()
            await self._conversations.forget(found)

    def _key(self, name: object, context: ToolContext | None) -> str:
        """Return the key of a conversation of the asker."""
        if self._started is None:
            text = f"the agent {self.name} is not started: async with Agent(...) as agent"
            raise Unavailable(text, executed="no", retryable=False)
        self._check_loop()
        if not isinstance(name, str) or len(name) > MAX_NAME_CHARS:
            text = f"must be the name of a conversation, of at most {MAX_NAME_CHARS} characters"
            raise invalid_argument("/conversation", text)
        if context is None:
            return conversation_key(LOCAL, None, name)
        return conversation_key(context.caller, context.on_behalf_of, name)

    @asynccontextmanager
    async def _open_turn(
        self,
        tools: Sequence[Any],
        name: str,
        context: ToolContext | None,
        waits_for: str,
    ) -> AsyncIterator[tuple[Turn, Conversation]]:
        """Hold a conversation, and enter a turn.

        Args:
            tools: What is to be built.
            name: The name of the conversation.
            context: That of the tool that asks.
            waits_for: What the conversation has to wait for: a "question", or "results". Empty to
                read it, in any case.
        """
        # Here already: after a `waiting` event a refusal could not say any more that nothing ran.
        # The turn checks again, and builds.
        granted = None if context is None else context.builders
        read_configs(self.builders, tools, granted=granted, limits_objects=False)
        hold = self._conversations.using if waits_for else self._conversations.reading
        async with hold(self._key(name, context)) as conversation:
            conversation.check_waits_for(waits_for)
            async with self._turn(conversation, tools, context) as turn:
                if context is not None:
                    context.enter()
                yield turn, conversation

    async def _run(
        self,
        start: AnswerStart,
        tools: Sequence[Any],
        name: str,
        context: ToolContext | None,
    ) -> AsyncGenerator[AgentEvent | FileChunk, None]:
        await start.check(self.model)
        opened = self._open_turn(tools, name, context, start.waits_for)
        async with opened as (turn, conversation):
            async with aclosing(self._events(turn, conversation, start)) as events:
                async for event in events:
                    yield event

    def _turn(
        self, conversation: Conversation, tools: Sequence[Any], context: ToolContext | None
    ) -> Turn:
        choices = {
            "always": self._always,
            "required": self._required,
            "builders": self._builders,
            "model": self.model,
            "state": conversation.state,
            "permissions": self.permissions,
            **self._choices,
            # The innermost: what other middlewares see of an answer is what the model reads.
            "middlewares": (*self._choices["middlewares"], AskedAgents(conversation.key)),
        }
        if self._budget is not None:
            choices |= self._budget.choices(self._always)
        if context is not None:
            return Turn(context=context, tools=tools, **choices)
        read = read_configs(self.builders, tools)
        own: list[ToolkitConfig] = [request.config for request in read]
        return Turn(self._room, tools=own, **choices)

    async def _events(
        self, turn: Turn, conversation: Conversation, start: AnswerStart
    ) -> AsyncGenerator[AgentEvent | FileChunk, None]:
        async def saving(
            call: RequestToModel, next: CallNextModel
        ) -> AsyncGenerator[Mapping[str, Any], None]:
            # Here, not at the next event: models take long. And the loop can go on with a cut
            # conversation only where it is about to ask.
            conversation.cut()
            self._conversations.save_soon(conversation)
            async with aclosing(next(call)) as events:
                async for event in events:
                    yield event

        has_ended = False
        try:
            for first in await start.enter(turn, conversation, self.model):
                yield first
            running = agent_loop(
                turn,
                self.model,
                conversation.state.conversation,
                instructions=self.instructions,
                max_steps=self._max_steps,
                max_tokens=self._max_tokens,
                middlewares=(saving, *self._model_middlewares),
            )
            async with aclosing(running) as events:
                async for event in events:
                    if isinstance(event, dict) and event["type"] == "end":
                        if trace.get_current_span().get_span_context().trace_flags.sampled:
                            event["trace"] = current_trace_id()
                        has_ended = True
                        conversation.end()
                        await self._conversations.save(conversation)
                    else:  # before the calls of a reply run, so that they are not forgotten
                        self._conversations.save_soon(conversation)
                    yield event
        finally:
            if self.on_results is not None:
                self.on_results(turn.results)
            if not has_ended:
                conversation.end()
                await self._conversations.save(conversation)


def _toolkit_of(local: Toolkit | LocalToolkit) -> Toolkit:
    return local.toolkit if isinstance(local, LocalToolkit) else local


@asynccontextmanager
async def _started(local: Toolkit | LocalToolkit, room: RoomClient | None) -> AsyncIterator[None]:
    """Keep a toolkit started; what a `start` raises has a note with the name of the toolkit."""
    toolkit = _toolkit_of(local)
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(InProcessToolkit.of(toolkit).started(room))
        except Exception as error:
            error.add_note(f"raised by the start of toolkit {toolkit.name}")
            raise
        yield


def _checked_model(model: object) -> Model:
    if hasattr(model, "adapter") and callable(getattr(model, "stream", None)):
        return cast("Model", model)
    text = f"model must be a Model, with adapter and stream, not {shown(model)}"
    raise TypeError(f'{text}: open_model("...") makes one')


def _checked(option: str, value: Any, kind: type | UnionType, words: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{option} must be {words}, not {shown(value)}")
    return value


def _checked_store(store: object) -> StateStore | None:
    methods = ("load", "save", "delete", "aclose")
    if store is None or all(callable(getattr(store, method, None)) for method in methods):
        return cast("StateStore | None", store)
    raise TypeError(
        f"store must be a StateStore, such as SqliteStateStore(path), not {shown(store)}"
    )


def _at_least(least: int, option: str, value: object) -> int:
    if type(value) is int and value >= least:
        return value
    raise ValueError(f"{option} must be a whole number of {least} or more, not {shown(value)}")
