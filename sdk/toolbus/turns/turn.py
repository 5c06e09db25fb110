"""The tools of one turn of an agent: its own, those of others, and those built for this turn.

A turn is made for one message and ends with it. It does not use a model: it lists tools with their
schemas and runs the calls that the agent chooses. It calls on behalf of the sender, so a message
can do no more than its sender may.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Never, Self

from toolbus.chunks.chunk_types import Chunk
from toolbus.chunks.json_values import cut, shown
from toolbus.errors import InvalidResult, Overloaded, RoomException, TooLarge, Unavailable
from toolbus.room.call_form import (
    keyword_options,
    merged_arguments,
    refuse_misplaced,
    refuse_two_names,
    refuse_unknown,
    tool_parts,
)
from toolbus.room.participants import Message
from toolbus.room.room_client import RoomClient
from toolbus.telemetry.turn_spans import TurnSpan
from toolbus.tools.context import ToolContext
from toolbus.tools.middleware import Middleware, checked_middlewares
from toolbus.tools.tool_info import ToolInfo
from toolbus.tools.tool_run import Participant
from toolbus.tools.toolkit import Toolkit, checked_records
from toolbus.turns.agent_state import AgentState
from toolbus.turns.approvals import ApprovalQueue, Approve
from toolbus.turns.builders import AnyBuilder, ToolkitConfig
from toolbus.turns.model_tools import ModelTool, ShownTools, Trust, turn_prompt
from toolbus.turns.parking import ParkedUse, given_result
from toolbus.turns.tool_groups import (
    ActiveGroups,
    SkillListing,
    ToolGroup,
    checked_groups,
    checked_listings,
)
from toolbus.turns.tool_questions import Answer, checked_answer, turn_answers
from toolbus.turns.tool_use import ToolResult, ToolUse
from toolbus.turns.turn_assembly import TurnAssembly
from toolbus.turns.turn_calls import CollectedChunks, CollectedValues, PassedOnChunks, TurnFacts
from toolbus.turns.turn_options import (
    NOT_GIVEN,
    TurnOptions,
    checked_builders,
    checked_context,
    checked_defaults,
    checked_permissions,
    checked_room,
    checked_state,
    end_with,
    requested,
    scope_of,
)
from toolbus.turns.turn_permissions import CallJudge, TurnPermissions
from toolbus.turns.turn_runs import PreparedCalls, PreparedUse, TurnRuns
from toolbus.turns.turn_toolkits import (
    LocalToolkit,
    RequiredToolkit,
    checked_required,
    checked_toolkits,
)
from toolbus.turns.turn_tools import ShownDefinitions, TurnTools

if TYPE_CHECKING:  # most programs record nothing
    from toolbus.client.held_calls import HeldCall
    from toolbus.permissions.permissions import Permissions
    from toolbus.records.records import Records

__all__ = [
    "Turn",
    "TurnTool",
]


TurnTool = ToolInfo
"""A tool that a turn can call, with its description for a model."""

MAX_USES: Final = 1_000
"""How many uses of one reply run. A model that repeats itself writes tens of thousands, whose calls
would hold the event loop for seconds, and the tools of others for longer."""
_OPTIONS = ("timeout_s", "attachment", "input", "caller_context", "on_progress", "on_held")
"""The options of `Turn.invoke`."""

_NOT_ENTERED = "the turn is not entered: async with Turn(...) as turn"


class Turn:
    """The tools of an agent while it answers one message: `async with Turn(room, ...) as turn:`.

    `Turn(None, ...)` needs no room; `Turn(context=context, ...)` is for a tool that is running.

    Entering checks the requested configs, waits for required toolkits, builds the requested ones
    concurrently, and starts the local tools. Leaving cancels running calls and stops the tools in
    reverse order, also when entering fails part-way. A toolkit that several turns use at a time is
    started by the first and stopped by the last of them. A turn is entered once.

    A message is passed as it was received: `Turn(room, message=message)`. Only toolkits that its
    sender's grant `builders` covers are built, and, unless the sender is the agent, all calls in
    the room are made on its behalf: by the turn, by a builder, and by a local tool through
    `context.room`. That needs the grant `act_for`, and the sender must be connected. A local tool
    gets the same context as a remote one: the agent is its `caller`, the sender its
    `on_behalf_of`. The grants of the room's own token limit the tools of toolkits elsewhere: those
    that it may not call are left out, and a line in the log names them, or the patterns that may
    hide some. They do not limit local tools.

    Without a message the agent acts for itself, with all its grants. Then JSON written by others
    is refused: `tools` are configs that this program made.

    Without a room, `Turn(None)`, the caller of the tools is named "local", `context.room` raises
    `Unavailable`, and tools and builders get None as their room.

    Inside a tool the turn is a part of the tool's own call: its calls have the same parent and
    principal, no more time, and end with it, so that `act_for` is not needed. The agent is the
    `caller` of its local tools, and the tool's principal, or else its caller, their
    `on_behalf_of`. JSON of others is built within `context.builders`.

    Args:
        room: The agent's room, entered; None for a turn without one.
        context: Inside a running tool, its context, in place of a room. If that has no room, as in
            `Turn(None)`, the turn has none.
        message: The message to answer; its body's `tools` are the requested configs, as JSON.
        always: Local toolkits that are in every turn; `LocalToolkit(toolkit, alias)` gives one
            another name. Their tools, like those of a toolkit that is its own builder, are started
            with the agent's room.
        required: Toolkits of others, each a `RequiredToolkit` or a name; of one that names tools,
            only those are listed.
        builders: The available builders.
        tools: Without a message, the agent's own requests: objects of its builders' types. With
            one, the requests of the message if they are not its body's `tools`; they too are
            limited by the sender's grant. Inside a tool also JSON, within `context.builders`.
        model: Passed to the builders.
        available: Whether to add every public toolkit of the room that has a host and that the
            token may call. They are listed once, when the turn is entered.
        groups: Toolkits that are active or inactive together. A turn with groups has the toolkit
            `groups`, whose tools switch them.
        skills: Skills that are always active. A turn with skills, also of groups, has the toolkit
            `skills`, whose tools read the active ones.
        middlewares: What runs around each call of the turn, the first outermost; outside those of
            toolkits and tools.
        state: The state that tools in this process find as `context.state`, each toolkit its own
            part; one for this turn alone by default.
        records: Where each call of the turn is recorded, refused ones too.
        timeout_s: Seconds for each call that names no time-out.
        permissions: What each call is judged by, after the middlewares and right before it is
            dispatched. They bind this turn alone: what the host of a tool enforces is its policy.
            Without them every call runs that its grants cover.
        approve: Asks a person about a call, one at a time; without it what would be asked is
            denied. Meanwhile the time-outs of the call stand still. "room" asks those in the room
            who may approve the call: for the principal of the call that the turn serves, whose
            time stands still too, else for the agent itself. It needs a room, whose server is new
            enough; else the call is denied, and the error says why. What the host of a trusted
            owner says that it asks a person about is left to it.
        answer: Answers what tools in this process ask by `ToolContext.ask`: an async function that
            gets the `ToolQuestion` and returns the value, or raises `ApprovalDenied`; or "room" for
            those in the room who may answer, which is the default with `approve="room"`. Without it
            such a question is `Unavailable`.
        approval_timeout_s: Seconds that a question is open, here or at the host of a tool; 0 never
            waits, and None has no limit.
        purpose: What the calls are for, in the agent's words, for those who approve them; at most
            500 characters.
        unknown: Takes nothing: another keyword is a TypeError that names the nearest option.

    Raises `ValueError` if two toolkits have one name, with both owners, `timeout_s` or
    `approval_timeout_s` is not a time, `purpose` is too long, `approve` is given without
    permissions, a message inside a tool, or `required`, `available`, `approve="room"`,
    `answer="room"` or a message without a room, and `TypeError` without room and context or with
    both, for a room that is not a `RoomClient`, a message that is not a `Message`, JSON without a
    message, and anything but toolkits in `always` and `required`, async generators in
    `middlewares`, an `AgentState` as `state`, `Permissions`, and a function or "room" as `approve`
    and `answer`.
    """

    def __init__(  # noqa: PLR0913 - the promised signature
        self,
        room: RoomClient | None = NOT_GIVEN,
        *,
        context: ToolContext | None = None,
        message: Message | None = None,
        always: Iterable[Toolkit | LocalToolkit] = (),
        required: Iterable[RequiredToolkit | str] = (),
        builders: Iterable[AnyBuilder] = (),
        tools: Sequence[Mapping[str, Any] | ToolkitConfig] | None = None,
        model: Any = None,
        available: bool = False,
        groups: Iterable[ToolGroup] = (),
        skills: Iterable[SkillListing] = (),
        middlewares: Iterable[Middleware] = (),
        state: AgentState | None = None,
        records: Records | None = None,
        timeout_s: float = 60.0,
        permissions: Permissions | None = None,
        approve: Approve | None = None,
        answer: Answer | None = None,
        approval_timeout_s: float | None = 300.0,
        purpose: str | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            refuse_unknown("Turn", unknown, keyword_options(Turn))
        inside = checked_context(context)
        checked = checked_state(state)
        self._options = options = TurnOptions(
            room=checked_room(room, inside),
            context=inside,
            message=message,
            always=checked_toolkits("always", always, Toolkit, LocalToolkit),
            required=checked_required("required", required),
            builders=checked_builders(builders),
            tools=requested(message, inside, tools),
            model=model,
            available=available,
            groups=checked_groups(groups),
            skills=checked_listings("skills", skills),
            middlewares=checked_middlewares(middlewares, "turn"),
            state=checked,
            records=checked_records(records, "turn"),
            defaults=checked_defaults(timeout_s, purpose, approval_timeout_s),
            approvals=ApprovalQueue(approve, approval_timeout_s),
            permissions=checked_permissions(permissions, approve, checked),
            answer=checked_answer(answer),
        )
        self._groups = ActiveGroups(options.groups, options.state, options.skills)
        self._assembly = TurnAssembly(options, self._groups)
        self._tools = TurnTools({}, self._groups)
        self._shown = ShownTools((), Trust(), options.state.definitions, self._tools.provider_name)
        self._stack: AsyncExitStack | None = None
        self._runs: TurnRuns | None = None
        self._is_used = False

    async def __aenter__(self) -> Self:
        """Check configs, wait for required toolkits, build and start.

        Raises:
            RuntimeError: The turn was entered before.
            InvalidArguments: A config is invalid, or makes a toolkit whose name is taken; its path
                begins with `/tools`.
            NotFound: There is no builder for an entry, or a required toolkit is missing.
            PermissionDenied: The sender, or somebody behind the call of the tool, may not request
                it.
            Unavailable: The call that it serves has ended, or the room is closed.
            DeadlineExceeded: The time of the call that it serves is over.
            Exception: The exception of a builder, or of the `start` of a tool.
        """
        if self._is_used:
            raise RuntimeError("a turn can be entered once: make a new one for the next message")
        self._is_used = True
        options = self._options
        scope = scope_of(options)
        span = TurnSpan.begin(
            scope.tracing,
            scope.agent.name,
            "" if scope.client is None else scope.client.room,
            None if scope.sender is None else scope.sender.full_name,
        )
        async with AsyncExitStack() as stack:
            if span is not None:
                stack.push(lambda _, error, *__: span.end(error))
            trust = self._assembly.trust(scope)
            facts = TurnFacts(
                scope.agent,
                scope.sender,
                scope.view,
                self._groups.check,
                scope.wants_error_text,
                ShownDefinitions(trust, options.state.definitions),
                scope.builders or (),
                turn_answers(
                    options.answer, scope.view, approves_in_room=options.approvals.is_in_room
                ),
            )
            judge = None
            if options.permissions is not None:
                judge = CallJudge(options.permissions, options.approvals, facts)
            runs = TurnRuns(
                facts, options.middlewares, span, options.records, scope.serves, options.state
            )
            if scope.serves is not None:
                stack.callback(end_with(scope.serves, runs))
            async with scope.in_time():
                entries = await self._assembly.assemble(stack, scope, facts)
            if runs.has_ended:
                raise Unavailable(runs.end_text, executed="no", retryable=False)
            stack.push_async_callback(runs.end)
            self._tools = TurnTools(entries, self._groups)
            self._shown = ShownTools(
                entries.values(),
                trust,
                options.state.definitions,
                self._tools.provider_name,
            )
            self._calls = PreparedCalls(self._tools, runs, judge, options.defaults)
            self._runs = runs
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.__aexit__(kind, error, traceback)

    @property
    def permissions(self) -> TurnPermissions | None:
        """What may run in this turn: its mode, its rules and what was granted; None without."""
        return self._options.permissions

    @property
    def asker(self) -> Participant:
        """For whom it calls: the sender of its message, or whom the call is for that it serves.

        Without either it is the agent itself. Raises `Unavailable` if the turn is not entered.
        """
        facts = self._entered().facts
        return facts.sender or facts.agent

    @property
    def deadline(self) -> float | None:
        """Seconds until the call has to end that it serves, never below 0; None if it need not.

        Raises `Unavailable` if the turn is not entered.
        """
        serves = self._entered().serves
        ends_at = None if serves is None else serves.ends_at
        if ends_at is None:
            return None
        return max(0.0, ends_at - asyncio.get_running_loop().time())

    @property
    def span(self) -> TurnSpan | None:
        """What records it in its trace; None if nothing does."""
        return None if self._runs is None else self._runs.span

    # Tools

    @property
    def tools(self) -> tuple[TurnTool, ...]:
        """The callable tools: those of `always`, then `required`, then those built, then available.

        Those of inactive groups are left out; else the list does not change while the turn is
        entered.
        """
        return self._tools.listed()

    @property
    def model_tools(self) -> tuple[ModelTool, ...]:
        """The tools of `tools`, as a model is shown them.

        Raises `Unavailable` before the turn is entered: a model would be shown no tool.
        """
        if not self._is_used:
            raise Unavailable(_NOT_ENTERED, executed="no", retryable=False)
        return tuple(map(self._shown.of, self.tools))

    @property
    def changed_definitions(self) -> tuple[str, ...]:
        """The toolkits, by name, whose definition differs from that of an earlier turn.

        An earlier turn with the same state has shown their tools to a model, and the owner has
        changed them since, which may be an update or an attack. They are listed here, in the log
        and in the descriptions, in this turn only: `model_tools` shows the new definition, which
        counts from then on. A program that refuses them leaves the turn before.
        """
        return self._shown.changed

    def activate(self, *groups: str) -> None:
        """Activate groups; others stay as they are.

        Raises `NotFound` for an unknown group; then nothing has changed.
        """
        self._groups.switch({self._groups.get(name).name: True for name in groups})

    def deactivate(self, *groups: str) -> None:
        """Deactivate groups; raises as `activate`. Calls that run already are not ended."""
        self._groups.switch({self._groups.get(name).name: False for name in groups})

    def prompt(self, template: str | None = None) -> str:
        """Return what a model should know about the tools that can be called now, as text.

        It has the rules of toolkits in this process, the groups with the instructions of active
        ones, the active skills, what toolkits in this process have to say now (`prompt_text`), and,
        quoted as data, the rules of toolkits that others host.

        Args:
            template: A text with any of `{rules}`, `{groups}`, `{skills}`, `{toolkits}` and
                `{quoted}`.

        Raises `ValueError` for a template with other fields.
        """
        texts = self._tools.prompt_texts()
        return turn_prompt(self.tools, self._groups, texts, template, self._shown.trust)

    def provider_name(self, tool: str | TurnTool) -> str:
        """Return the name of a tool for a model's API: at most 64 of `A-Z a-z 0-9 _ -`.

        It is `toolkit__tool`, or ends with a hash where that would be too long or not unique.

        Raises `NotFound` if the tool is not in this turn.
        """
        return self._tools.provider_name(tool.name if isinstance(tool, TurnTool) else tool)

    def tool_named(self, provider_name: str) -> TurnTool:
        """Return the tool that `provider_name` gave this name.

        Raises `NotFound` if there is none.
        """
        return self._tools.named(provider_name)

    def called(self, use: ToolUse) -> tuple[str, Any]:
        """Return the tool that a use calls, as people write it, and the arguments for it.

        Where the use only names the tool, as one of `tools.call` does, these are the named ones. If
        there is no such tool they are those of the use as it was written.

        Raises `Unavailable` if the turn is not entered.
        """
        self._entered()
        return self._calls.called(use)

    # Calls

    async def call(
        self, tool: str, arguments: Any = None, /, *misplaced: Never, **named: Any
    ) -> Any:
        """Call a tool, written `toolkit.tool`, and return the plain value; raises as `invoke`.

        Arguments are a mapping or keywords, never both. Options are for `invoke`.
        """
        if misplaced:
            refuse_misplaced("call", tool, (arguments, *misplaced), {}, ())
        chunk = await self.invoke(tool, merged_arguments(tool, arguments, named, _OPTIONS))
        return chunk.value

    async def invoke(  # noqa: PLR0913 - the promised signature
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *misplaced: Never,
        timeout_s: float | None = None,
        attachment: Any = None,
        input: Any = None,
        caller_context: Mapping[str, Any] | None = None,
        on_progress: Callable[[Any], None] | None = None,
        on_held: Callable[[HeldCall], None] | None = None,
        **unknown: Never,
    ) -> Chunk:
        """Call a tool of this turn and return its chunk.

        A remote toolkit is pinned to the definition that this turn has read. Local and remote tools
        raise the same errors. The values of a streaming tool become one list, which must fit one
        frame; `stream` gives them as they come.

        Args:
            tool: `toolkit.tool`, one of `tools`.
            arguments: Values by parameter.
            misplaced: Takes nothing, as in `Room.invoke`.
            timeout_s: Seconds within which the call ends; those of the turn by default.
            attachment: An upload: bytes, a path, a `FileChunk`, or an async iterable of bytes.
            input: The values for a tool that takes an input stream: an iterable or an async one.
            caller_context: What the tool finds as `context.caller_context`.
            on_progress: A plain function that gets the value of each progress of the tool.
            on_held: A plain function that gets a `HeldCall` when the call begins to wait for a
                person elsewhere, and another one when it goes on.
            unknown: Takes nothing, as in `Room.invoke`.

        Raises:
            NotFound: The tool is not in this turn.
            InvalidArguments: Its name is not text, or an argument or option is invalid.
            Unavailable: The turn is not entered, or has ended.
            DeadlineExceeded: There was no result in time.
            Cancelled: The turn ended before the call did, or the call was interrupted.
            RoomException: Any other error; `executed` tells whether the tool ran.
            OSError: The attachment cannot be read.
        """
        if misplaced or unknown:
            refuse_misplaced("invoke", tool, (arguments, *misplaced), unknown, _OPTIONS)
        refuse_two_names("invoke", tool, arguments)
        runs = self._entered()
        if not isinstance(tool, str):
            tool_parts(tool)  # raises
        given = {
            "timeout_s": timeout_s,
            "attachment": attachment,
            "input": input,
            "caller_context": caller_context,
            "on_progress": on_progress,
            "on_held": on_held,
        }
        values = CollectedValues(tool)
        call = self._calls.of_program(tool, arguments, given, values)
        chunk = await runs.chunk(call)
        return values.as_one if call.entry.info.streaming else chunk

    async def run(
        self,
        uses: Iterable[ToolUse],
        *,
        timeout_s: float | None = None,
        caller_context: Mapping[str, Any] | None = None,
        on_progress: Callable[[ToolUse, Any], None] | None = None,
        on_held: Callable[[ToolUse, HeldCall], None] | None = None,
        on_result: Callable[[ToolResult], None] | None = None,
    ) -> list[ToolResult]:
        """Run what a model asks for and return one result for each use, in the order asked.

        Consecutive uses of tools that are `concurrency_safe` run side by side, each other one
        alone. Those after the first 1,000 are refused. Whatever happens to a call is its result: it
        is refused, fails, times out or is interrupted. The chunks of a streaming tool must fit one
        frame together.

        If this task is cancelled the calls are interrupted, `CancelledError` is raised as ever, and
        `results` has the interrupted results.

        Args:
            uses: What to run; names may be those of `provider_name` too.
            timeout_s: Seconds for each call; those of the turn by default.
            caller_context: What the tools find as `context.caller_context`.
            on_progress: A plain function that gets the use and the value of each progress.
            on_held: A plain function that gets the use and what `on_held` of `invoke` gets.
            on_result: A plain function that gets each result as soon as its call has ended, in the
                order of the ends.

        A use of an `ExternalTool` of this process that may run is parked: its result is "parked",
        and all results of this step are kept in the state, until `settle` and `take_results`.

        Raises `Unavailable` if the turn is not entered, or a step is parked, and `TypeError` for
        anything but uses.
        """
        runs = self._free()
        if not isinstance(uses, Iterable):
            raise TypeError(f"run takes a list of ToolUse objects, not {shown(uses)}")
        asked = [_checked_use(use) for use in uses]
        prepared = []
        for use in asked[:MAX_USES]:
            progress = partial(on_progress, use) if callable(on_progress) else on_progress
            held = partial(on_held, use) if callable(on_held) else on_held
            given = {
                "timeout_s": timeout_s,
                "caller_context": caller_context,
                "on_progress": progress,
                "on_held": held,
            }
            prepared.append(self._calls.of_use(use, given, CollectedChunks(use.name)))
        refusal = Overloaded(f"the first {MAX_USES} calls of a reply run: this is a later one")
        for use in asked[MAX_USES:]:
            runs.refused(use.name, use.id, refusal)
            prepared.append(PreparedUse(use, error=refusal))
        return await runs.run(prepared, on_result)

    def stream(
        self,
        use: ToolUse,
        *,
        timeout_s: float | None = None,
        caller_context: Mapping[str, Any] | None = None,
        on_progress: Callable[[Any], None] | None = None,
        on_held: Callable[[HeldCall], None] | None = None,
    ) -> AsyncGenerator[Chunk | ToolResult, None]:
        """Run one use and yield its chunks as they come; the `ToolResult` always comes last.

        Any tool can be run so. A slow reader slows a streaming tool down. The result keeps the
        chunks that fit one frame, and counts the others. Leaving the loop interrupts the call:
        leave it with `contextlib.aclosing`, so that it has ended when the block has.

        Args:
            use: What to run, as in `run`.
            timeout_s: Seconds for the whole call; those of the turn by default.
            caller_context: As in `run`.
            on_progress: A plain function that gets the value of each progress.
            on_held: As in `invoke`.

        Raises `Unavailable` if the turn is not entered, or a step is parked, and `TypeError` for
        anything but a use.
        """
        runs = self._free()
        passed_on = PassedOnChunks(_checked_use(use).name)
        given = {
            "timeout_s": timeout_s,
            "caller_context": caller_context,
            "on_progress": on_progress,
            "on_held": on_held,
        }
        return runs.stream(self._calls.of_use(use, given, passed_on))

    async def interrupt(self, use_id: str | None = None) -> None:
        """End the calls of a use, or of the whole turn, and wait until they have ended.

        Their results are "interrupted" and keep the chunks that came; uses that have not begun do
        not begin. A call of `invoke` raises `Cancelled`. A tool that does not end when it is
        cancelled is waited for a few seconds. Parked uses are interrupted too.

        Raises `NotFound` if the turn never had such a use.
        """
        if self._runs is not None:
            await self._runs.interrupt(use_id)

    @property
    def results(self) -> list[ToolResult]:
        """The results of all uses so far, also of those whose task was cancelled."""
        return [] if self._runs is None else list(self._runs.results)

    # Parked uses

    @property
    def state(self) -> AgentState:
        """The state that the turn was made with, or its own one."""
        return self._options.state

    @property
    def parked(self) -> tuple[ParkedUse, ...]:
        """The uses that wait for their results, also of an earlier turn with the same state."""
        step = self._options.state.parked
        return () if step is None else step.open

    async def settle(
        self, use_id: str, /, *chunks: Any, error: RoomException | str | None = None
    ) -> ToolResult:
        """Give the result of a parked use, and return it as the model will get it.

        The call runs once more, with this result in the place of a function: through all
        middlewares, recorded and traced. No permissions judge it again. What is refused leaves the
        use parked.

        Args:
            use_id: The id of the use.
            chunks: What a tool may return: no values for an empty result, several for a result of
                several chunks.
            error: In place of chunks: a text is a `ToolFailed`; an `ApprovalDenied` makes the
                result "denied".

        Raises:
            NotFound: No use of this id is parked, it is settled already, or the turn lacks its
                tool.
            InvalidResult: The result breaks the output schema of the tool, or cannot be sent.
            TooLarge: It has more than the result of a tool may have.
            Unavailable: The turn is not entered, or has ended.
            RoomException: A middleware of the turn or the toolkit refused the call.
        """
        (result,) = await self.settle_all({use_id: (chunks, error)})
        return result

    async def settle_all(
        self, results: Mapping[str, tuple[Sequence[Any], RoomException | str | None]]
    ) -> list[ToolResult]:
        """Settle several uses, in order; raises as `settle`. None is, unless all results fit.

        Args:
            results: Chunks and error of each use, by its id.
        """
        runs = self._entered()
        calls = []
        for use_id, (chunks, error) in results.items():
            parked = runs.parked_use(use_id)
            try:
                given = await given_result(parked.tool, chunks, error)
                calls.append((parked, self._calls.of_parked(parked, given)))
            except (InvalidResult, TooLarge) as refused:
                refused.executed = "no"
                raise
        return [await runs.settle(parked, call) for parked, call in calls]

    def take_results(self) -> list[ToolResult]:
        """Return the results of the step of which uses were parked, in order, and forget it.

        Raises `Unavailable` while one of them is parked, or if the turn is not entered.
        """
        return self._entered().take_results()

    def _free(self) -> TurnRuns:
        runs = self._entered()
        if (step := self._options.state.parked) is not None:
            names = cut(", ".join(use.id for use in step.open) or "take_results has them")
            text = f"a step is parked in the state of this turn: settle its uses first ({names})"
            raise Unavailable(text, executed="no", retryable=False)
        return runs

    def _entered(self) -> TurnRuns:
        if self._stack is None or self._runs is None:
            text = "the turn has ended" if self._is_used else _NOT_ENTERED
            raise Unavailable(text, executed="no", retryable=False)
        if self._runs.has_ended:
            raise Unavailable(self._runs.end_text, executed="no", retryable=False)
        return self._runs


def _checked_use(use: object) -> ToolUse:
    if not isinstance(use, ToolUse):
        raise TypeError(f"a turn runs ToolUse objects, not {shown(use)}")
    return use
