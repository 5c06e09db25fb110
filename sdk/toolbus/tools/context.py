"""The context of a running tool: the facts of its call, as its author sees them.

The runner of the tool sets the facts. How far the run has come is in `tool_run`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from toolbus.auth.grants import ToolPatterns, is_toolkit_name
from toolbus.chunks.chunk_types import Chunk, EmptyChunk
from toolbus.errors import RoomException, Unavailable
from toolbus.permissions.assessment import Assessment
from toolbus.tools.approvers import DEFAULT_APPROVAL_S
from toolbus.tools.call_room import CallRoom
from toolbus.tools.tool_run import (
    LOCAL,
    LOCAL_THREADS,
    LocalRun,
    OnChunk,
    Participant,
    RunSync,
    ToolRun,
)
from toolbus.untrusted_text import one_line

if TYPE_CHECKING:  # few tools ask a person
    from toolbus.tools.questions import Answerer

__all__ = ["ToolContext", "own_call", "run_of"]

_Error = TypeVar("_Error", bound=RoomException)


_REFUSALS = frozenset(
    "not_found permission_denied invalid_arguments no_host definition_changed loop_detected".split()
)
"""How a call ends that is refused whenever it is made: a question about it ends likewise."""
_ASSESS_S = 4.0
"""Less than the 5 s that the asker waits, so that there is an answer in place of a missing one."""
_ENDLESS_S = 2.0**31 - 1
"""The longest time-out of a call: the deadline of the call around it ends it before."""


class ToolContext:
    """The call that a tool is running for.

    A tool takes it as a parameter annotated `ToolContext`. `ToolContext()` is enough to run a tool
    locally, in a test for instance.

    Args:
        room: The room, bound to this call: what it calls is this call's child.
        caller: The caller; a participant named "local" by default.
        on_behalf_of: The principal for whom the caller acts, if any.
        caller_context: The caller's own data; not checked.
        deadline_at: The deadline of the call, by `clock`; None if it has none.
        clock: A monotonic clock in seconds; `time.monotonic` by default.
        run_sync: Runs sync tools; by default up to 256 at a time, on threads of toolbus.
        on_chunk: Receives the chunks of a streaming tool; without it there is no stream.
        on_progress: Receives the plain value of each progress, on the thread that emits it.
        builders: Patterns of what the caller and the principal may ask to be built, a tuple for
            each of them: see the property. None by default, so that nothing may be built.
        answer: Answers what the tool asks by `ask`: an async function that gets the
            `ToolQuestion`, and returns the value. Without it nobody can be asked.
        run: The run behind the context, from a runner; made of the others by default.
    """

    __slots__ = ("_run",)

    def __init__(  # noqa: PLR0913 - each is one fact of a call, and all but two are by keyword
        self,
        room: CallRoom | None = None,
        caller: Participant = LOCAL,
        *,
        on_behalf_of: Participant | None = None,
        caller_context: Mapping[str, Any] | None = None,
        deadline_at: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        run_sync: RunSync = LOCAL_THREADS.run,
        on_chunk: OnChunk | None = None,
        on_progress: Callable[[Any], None] | None = None,
        builders: tuple[tuple[str, ...], ...] = (),
        answer: Answerer | None = None,
        run: ToolRun | None = None,
    ) -> None:
        self._run = run or LocalRun(
            room,
            caller,
            on_behalf_of,
            caller_context,
            deadline_at,
            clock,
            run_sync,
            on_chunk,
            on_progress,
            builders,
            without_runner=True,
            answerer=answer,
        )

    @property
    def room(self) -> CallRoom:
        """The room, bound to this call. Raises Unavailable if a local call has none."""
        room = self._run.room
        if room is None:
            text = "this call has no room: pass one with ToolContext(room=...)"
            raise Unavailable(text, executed="no", retryable=False)
        return room

    @property
    def caller(self) -> Participant:
        """Who made the call."""
        return self._run.caller

    @property
    def on_behalf_of(self) -> Participant | None:
        """The principal for whom the caller acts, or None."""
        return self._run.on_behalf_of

    @property
    def caller_context(self) -> Mapping[str, Any] | None:
        """The caller's own data, or None. It is not checked."""
        return self._run.caller_context

    @property
    def state(self) -> dict[str, Any] | None:
        """The toolkit's own dict in the state of the agent that calls, or None.

        Set for a tool that runs in the process of an agent, for the calls of its turns; what a tool
        puts there has to be JSON, since the state is saved as that. None for a hosted tool: another
        participant's state never reaches it. It outlives the turn if the turn has `state=`.
        """
        return self._run.state

    @property
    def workdirs(self) -> tuple[str, ...]:
        """The working directories of the permissions that judge this call; usually none.

        Those of the turn for a tool in its process, those of the policy for a hosted one.
        """
        return self._run.workdirs

    @property
    def call_id(self) -> str:
        """The id of the call, equal for `Tool.assess` and for each attempt to run it.

        Empty for a call that a program makes without a runner, and where a participant only asks
        what a call would do: the call that may follow has another context.
        """
        return self._run.call_id

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns of rules that `Tool.assess` is asked about; for tools that forward."""
        return self._run.patterns

    @property
    def deadline(self) -> float | None:
        """Seconds left, never below 0; None where the call has no deadline."""
        deadline_at = self._run.deadline_at
        return None if deadline_at is None else max(0.0, deadline_at - self._run.clock())

    @property
    def cancelled(self) -> bool:
        """Whether the call was cancelled. A sync tool on a thread checks it at intervals."""
        return self._run.cancelled

    @property
    def wants_progress(self) -> bool:
        """Whether the caller asked for progress; if not, `emit` sends none."""
        return self._run.wants_progress

    def emit(self, value: Any) -> None:
        """Send the progress of the call to the caller, from any thread and without waiting.

        Only the latest value counts: one that the connection cannot accept at once is dropped, and
        so are all if the caller did not ask for progress. An encoded value has at most 16 KiB; a
        larger one is dropped too. Raises `InvalidResult` for a value that cannot be sent.
        """
        self._run.emit(value)

    @property
    def is_hosted(self) -> bool:
        """Whether the call came over a room; False for one within this process."""
        return self._run.is_hosted

    @property
    def forwarded_for(self) -> tuple[Participant, ...]:
        """Those that `caller` forwarded the call for, the nearest first; usually empty.

        The last of them chose to make a call. What it was, and which arguments it had, the others
        and `caller` have chosen: a tool that decides by names has to accept each of them.
        """
        return self._run.forwarded_for

    @property
    def builders(self) -> tuple[tuple[str, ...], ...]:
        """What those behind the call may ask this host to build: patterns of toolkits' names.

        One list each for the caller, for the principal, and for those that the call was forwarded
        for, equal ones once, as the server knew them when it sent the call. A builder has to be
        covered by every list: see `may_build`. `()` if one of them has no grant `agents.builders`,
        or if the server sends none: then nothing may be built.
        """
        return self._run.builders

    def may_build(self, name: str) -> bool:
        """Whether those behind the call may ask this host to build a toolkit of this name."""
        grants = self._run.builders
        # No list at all covers nothing; `all` alone would say the opposite.
        return (
            bool(grants)
            and is_toolkit_name(name)
            and all(ToolPatterns(grant).covers_toolkit(name) for grant in grants)
        )

    @property
    def can_ask(self) -> bool:
        """Whether somebody can be asked by `ask`, as far as is known before.

        A server of an older release may refuse to.
        """
        return self._run.can_ask

    async def ask(
        self,
        question: str,
        *,
        schema: Mapping[str, Any] | None = None,
        options: Sequence[str] = (),
        timeout_s: float | None = DEFAULT_APPROVAL_S,
        to: Sequence[str] = (),
    ) -> Any:
        """Ask a person in the room, and return the value of the answer.

        Whoever the call is made for is asked, if its token has the grant `answer` for this tool, or
        `to`, else the tool's `approvers`. Meanwhile the time of the call stands still, and that of
        all calls around it, and an async function takes none of its tool's `max_concurrency`. Calls
        of it side by side ask one after another.

        Args:
            question: What is asked. The answerer sees it, and nothing of the call's arguments.
            schema: A JSON Schema that the answer matches; without one it is any value, text mostly.
            options: The answers to choose from.
            timeout_s: Seconds to wait; 0 never waits, None has no limit of its own. That of the
                caller counts if it is shorter.
            to: Who may answer, in place of the tool's `approvers`.

        Raises:
            ApprovalDenied: The person refuses to answer. Uncaught it is `tool_failed`, executed
                "yes", as the others are.
            ApprovalExpired: Nobody has answered in time.
            Unavailable: Nobody can be asked: the server is older, or the call is not hosted and has
                no `answer=`.
            InvalidResult: A client that does not check its answers gave three that do not fit.
            TooLarge: The question has more than 256 KiB.
            TypeError: An argument has another type.
            ValueError: The schema does not compile, or a time or an entry of `to` is none.
        """
        from toolbus.tools.questions import ToolQuestion

        asked = ToolQuestion.of(question, schema, options, timeout_s, to)
        return (await self._run.ask_question(asked)).value

    def ask_sync(
        self,
        question: str,
        *,
        schema: Mapping[str, Any] | None = None,
        options: Sequence[str] = (),
        timeout_s: float | None = DEFAULT_APPROVAL_S,
        to: Sequence[str] = (),
    ) -> Any:
        """Ask as `ask` does, from a sync tool; its thread waits, and keeps its place meanwhile.

        Raises as `ask`, and `Cancelled` if the call was cancelled.
        """
        asked = partial(
            self.ask, question, schema=schema, options=options, timeout_s=timeout_s, to=to
        )
        return self._run.call_nested(asked)

    @overload
    def call_sync(self, tool: str, arguments: Mapping[str, Any] | None = None, /) -> Any: ...
    @overload
    def call_sync(self, tool: str, /, **arguments: Any) -> Any: ...
    def call_sync(self, tool: str, arguments: Any = None, /, **named: Any) -> Any:
        """Call a tool from a sync tool, and wait for the plain value; as `await room.call(...)`.

        It waits on the thread of the tool, or on one that the tool started, while the call runs on
        the host's event loop. It is nested in this call: it has the same principal, ends within the
        same deadline, and is cancelled with it.

            counts = context.call_sync("words.count", text=text)

        Raises:
            RoomException: The call failed; `executed` says whether the tool ran. `Cancelled` if
                this call was cancelled meanwhile.
            RuntimeError: This thread runs an event loop: await `context.room.call(...)` there.
            TypeError: The call has another form; the message shows the right one.
        """
        return self._run.call_nested(partial(self.room.call, tool, arguments, **named))

    async def forward(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        participant: str | None = None,
        attachment: Any = None,
    ) -> Chunk:
        """Call a tool for the caller of this call, as that caller could itself; return its result.

        For tools that call what their caller names. The server refuses the call where the caller's
        own would be refused, in the same words: a toolkit that the caller may not see does not
        exist, and its grants, those of the participant that it acts for, and this host's must cover
        the tool. This host needs none for its own toolkits.

        Deadline, the caller's own data, progress and the chunks of a stream are those of this call:
        a streaming tool can be forwarded if this call was made with `stream`. The error that ends
        the forwarded call, left to pass, ends this one, with its code, words and `executed`; but
        `executed` is "yes" if the function of this tool had begun (see `Tool.marks_entry`).

        A call that is not hosted, as in a turn, has no other caller than this process: the tool is
        called as through `room`.

        Args:
            tool: The tool, written `toolkit.tool`. The bare name of a toolkit is the caller's own
                private one, else the public one.
            arguments: Values by parameter.
            participant: The name of an owner: then it is a toolkit of that owner.
            attachment: A file to upload, as `Room.invoke` takes it.

        Raises:
            RoomException: The call failed. `Unavailable`, and nothing ran, at a server whose
                protocol has a version below 4.
            OSError: The attachment cannot be read.
        """
        run, room = self._run, self.room
        own = run.caller_context
        # A forwarding function that was entered acts itself.
        if run.recording is not None and not run.entered:
            run.recording.reach(tool, arguments, owner=participant or "")
        # One attempt: the error reaches a caller that makes further ones, with its own limits.
        options: dict[str, Any] = {
            "participant": participant,
            "attachment": attachment,
            "caller_context": own and dict(own),
            "retry": False,
            "wait_for_host_s": 0,
            "on_progress": run.emit if run.wants_progress else None,
        }
        try:
            if run.is_hosted:
                room = room.forwarding()
            # A local run receives the chunks of a tool that is known to stream; this one is not.
            if not (run.streams and run.is_hosted):
                chunk: Chunk = await room.invoke(tool, arguments, timeout_s=_ENDLESS_S, **options)
                run.entered = True
                return chunk
            async with room.stream(tool, arguments, stall_timeout_s=None, **options) as chunks:
                async for chunk in chunks:
                    run.entered = True
                    await run.put(chunk)
        except RoomException as error:
            raise _recorded(run, error) from None
        run.entered = True
        return EmptyChunk()

    async def forward_assess(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        participant: str | None = None,
    ) -> Assessment:
        """Ask what a call is that `forward` would make, for `Tool.assess` of a tool that forwards.

        The answer is that of the reached tool, asked for the caller of this call and about the
        patterns of this question, with the tool in `reaches`: rules about it count for the tool
        that forwards. If it cannot be asked now, the answer is an immune ask.

        A tool that forwards to another one that forwards denies, because rules about the tool
        between them could not be kept; one that forwards to itself does not.

        Args:
            tool: The tool, written `toolkit.tool`.
            arguments: Values by parameter.
            participant: The name of an owner, as in `forward`.

        Raises `RoomException` for a call that would be refused, in the same words.
        """
        run, room = self._run, self.room
        try:
            if run.is_hosted:
                room = room.forwarding()
            assessment = await room.assess(
                tool,
                arguments,
                patterns=run.patterns,
                participant=participant,
                timeout_s=_seconds_to_ask(run),
            )
        except RoomException as error:
            if error.code in _REFUSALS:
                raise run.refuse(error) from None
            # Rules about the reached tool have to hold although it cannot be asked.
            message = f"{one_line(tool, 140)} cannot be asked about this call: {error.message}"
            return Assessment("ask", immune=True, message=message, source="manifest", reaches=tool)
        if not assessment.reaches:
            return replace(assessment, reaches=tool)
        if tool == run.method:  # a forwarding tool that calls itself: the last of them decides
            return assessment
        # There is a place for one reached name. Of two, rules about the other would be passed by.
        name = one_line(tool, 140)
        message = f"{name} forwards too, to {one_line(assessment.reaches, 140)}: call {name} itself"
        return Assessment("deny", message=message, reaches=assessment.reaches)

    def enter(self) -> None:
        """Record that the tool's function has begun: the errors of the call then say that it ran.

        For a `Tool` with `marks_entry`, whose function runs elsewhere, such as at another server. A
        call of it that fails before, or is refused with `refuse`, may not have run.
        """
        self._run.entered = True

    def refuse(self, error: _Error) -> _Error:
        """Record that the call is refused before its tool is entered; return the error to raise.

        For overrides of `Toolkit.execute`, and for a `Tool` with `marks_entry` before it calls
        `enter`: the error states that nothing ran.
        """
        return self._run.refuse(error)


def run_of(context: ToolContext) -> ToolRun:
    """Return the run behind a context, for runners."""
    return context._run


def own_call(context: ToolContext) -> ToolContext:
    """Return the context of one call, with a run of its own, made of one without a runner.

    A test may use one context for many calls, and for several at a time.
    """
    own = copy(context)
    own._run = run = copy(context._run)
    run.without_runner = False
    run.takes_input = True
    # What tools that were run with the context directly, by `Tool.execute`, have left there.
    for name in ("entered", "_on_threads", "_nested", "_recorded"):
        vars(run).pop(name, None)
    return own


def _seconds_to_ask(run: ToolRun) -> float:
    left = _ASSESS_S if run.deadline_at is None else run.deadline_at - run.clock()
    return max(0.01, min(_ASSESS_S, 0.8 * left))


def _recorded(run: ToolRun, error: RoomException) -> RoomException:
    """Record the error of a forwarded call as that of the run, and return it to be raised."""
    if error.executed == "yes":
        run.entered = True
    elif error.executed == "no" and run.entered:
        error.executed, error.retryable = run.executed, False  # the forwarding function itself ran
    if error.executed == "maybe":
        # A caller may repeat it only if the tool that it called itself is idempotent.
        error.retryable = False
        error.details = {key: fact for key, fact in error.details.items() if key != "digest"}
    return run.record(error)
