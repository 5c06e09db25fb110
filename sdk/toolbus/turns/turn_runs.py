"""Runs the calls of one turn: what a program or a model asks for becomes a call, and its result.

`PreparedCalls` checks everything before anything of a call runs; what is wrong is the error of the
use. Then each call is a task of the turn, and all of them end with it. There is one `ToolResult`
for each use, whatever happens to the call. Every call begins in `_begin`; the end of one around
which something stands is known in `_observed`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import (
    AsyncGenerator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import count, groupby
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.chunk_types import Chunk, chunks_of
from toolbus.chunks.json_values import cut, packed_json, shown
from toolbus.client.call_options import CallOptions, call_seconds
from toolbus.client.input_sender import invalid_option
from toolbus.client.local_errors import recorded_end
from toolbus.concurrency.tasks import retrieve_error
from toolbus.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArguments,
    NotFound,
    RoomException,
    ToolFailed,
    Unavailable,
)
from toolbus.hosting.in_process import Given
from toolbus.room.call_form import argument_object
from toolbus.schemas.from_model import tool_arguments
from toolbus.telemetry.turn_spans import TurnSpan
from toolbus.tools.chain import unreadable_input
from toolbus.tools.middleware import Middleware
from toolbus.tools.tool_info import ToolInfo
from toolbus.tools.tool_run import Parked, ToolRun
from toolbus.turns.agent_state import AgentState
from toolbus.turns.parking import ParkedStep, ParkedUse
from toolbus.turns.tool_groups import BASIC
from toolbus.turns.tool_use import ResultState, ToolResult, ToolUse, arguments_of, state_of
from toolbus.turns.turn_calls import (
    CollectedChunks,
    Judge,
    PassedOnChunks,
    TurnCall,
    TurnEntry,
    TurnFacts,
    run_call,
)
from toolbus.turns.turn_tools import TurnTools
from toolbus.wire import unpack_body

if TYPE_CHECKING:  # most programs record nothing
    from toolbus.records.recording import Recording
    from toolbus.records.records import Records

__all__ = ["PreparedCalls", "PreparedUse", "TurnRuns"]

_logger = bounded_logger(__name__)
_END_S = 5.0


@dataclass(slots=True, eq=False)
class PreparedUse:
    """A use and its call, or the error for which there is none."""

    use: ToolUse
    call: TurnCall | None = None
    error: RoomException | None = None

    @property
    def is_safe(self) -> bool:
        """Whether it may run beside others."""
        return self.call is None or self.call.entry.info.concurrency_safe


class TurnRuns:
    """The calls of one turn."""

    def __init__(
        self,
        facts: TurnFacts,
        middlewares: Sequence[Middleware],
        span: TurnSpan | None,
        records: Records | None,
        serves: ToolRun | None,
        state: AgentState,
    ) -> None:
        self.facts: TurnFacts = facts
        """Who calls."""
        self.state: AgentState = state
        """Has the step of which uses are parked."""
        self._being_settled: list[ParkedUse] = []
        self._middlewares = middlewares
        self.span: TurnSpan | None = span
        """Records the turn in its trace; None if nothing does."""
        self._records = records
        self.serves: ToolRun | None = serves
        """The call that the turn serves, if there is one."""
        around = (span, records, serves)
        self._is_bare = not middlewares and all(part is None for part in around)
        self._running: set[TurnCall] = set()
        self._waiting: set[TurnCall] = set()
        """Calls of `run` that have not begun."""
        self.results: list[ToolResult] = []
        """The results of all uses so far."""
        self.has_ended: bool = False
        """Whether no further call begins."""
        self.end_text: str = "the turn has ended"
        """Why that is so."""

    # One call

    def _start(self, call: TurnCall) -> asyncio.Task[Chunk]:
        """Start the task of a use; its end is also the end of `call.ended`."""
        call.task = task = asyncio.create_task(self._begin(call))
        call.ended = task.get_loop().create_future()
        self._running.add(call)

        def on_end(task: asyncio.Task[Chunk]) -> None:
            self._running.discard(call)
            retrieve_error(task)
            call.end()

        task.add_done_callback(on_end)
        return task

    async def _begin(self, call: TurnCall) -> Chunk:
        """Run a call, the dispatch alone if nothing stands around it, and set `call.ended`."""
        try:
            if self._is_bare and call.entry.group == BASIC and call.options.attachment is None:
                return await call.attempt(call.arguments, call.collected.put)
            with self._observed(call):
                return await self._run(call)
        finally:
            if (ended := call.ended) is not None and not ended.done():
                ended.set_result(None)

    @contextmanager
    def _observed(self, call: TurnCall) -> Iterator[None]:
        """Record a call and put it into the trace of the turn, where there is any of them."""
        info, recording, span = call.entry.info, None, None
        if self._records is not None:
            recording = call.recording = self._recording(self._records, info.name, call.id)
            recording.keep_arguments(call.arguments)
            recording.owner, recording.digest = info.owner, info.digest
            recording.executed = lambda: call.executed
        if self.span is not None:
            span = call.span = self.span.begin_call(
                info.toolkit, info.tool, call.id, mcp_server=info.annotations.get("mcp")
            )
        with recording or nullcontext():
            try:
                yield
            except BaseException as error:
                if span is not None:
                    executed = error.executed if isinstance(error, RoomException) else call.executed
                    # A parked call has not failed; the one that brings its result has a span too.
                    span.end(None if isinstance(error, Parked) else recorded_end(error), executed)
                if recording is not None and isinstance(error, Exception):
                    recording.end(_as_room_exception(error, call))
                raise
            if span is not None:
                span.end(None, call.executed)

    def _recording(self, records: Records, tool: str, call_id: str) -> Recording:
        facts = self.facts
        return records.recording(tool, caller=facts.agent, principal=facts.sender, call_id=call_id)

    def refused(self, tool: str, call_id: str, error: RoomException) -> None:
        """Record a call that cannot begin, such as one of a tool that is not in the turn."""
        if self._records is not None:
            self._recording(self._records, tool, call_id).end(error)

    async def _run(self, call: TurnCall) -> Chunk:
        """Run a call; one in a turn that serves another call has to end with that one."""
        serves = call.within = self.serves
        if serves is None or serves.deadline_at is None:
            return await run_call(call, self._middlewares, self.facts)
        clock = serves.pausable_clock()
        left_s = serves.deadline_at - clock.time()
        if left_s <= 0:
            raise DeadlineExceeded("no time was left for the call", executed="no")
        if call.options.timeout_s > left_s:
            call.options = replace(call.options, timeout_s=left_s)
        # While a person is asked by this turn, the time of this call stands still, and that of the
        # other goes on. Both stand still while a call elsewhere waits.
        try:
            async with clock.timeout_at(serves.deadline_at) as limit:
                return await run_call(call, self._middlewares, self.facts)
        except TimeoutError:
            if not limit.expired():
                raise
            text = f"{call.entry.info.name} did not end before the call that the turn serves"
            raise DeadlineExceeded(text, executed=call.executed) from None

    async def chunk(self, call: TurnCall) -> Chunk:
        """Run a call and return its result; the chunks of a stream are in `call.collected`.

        Raises what `run_call` raises, and `Cancelled` if the call was interrupted or the turn has
        ended.
        """
        loop = asyncio.get_running_loop()
        call.ended = loop.create_future()
        call.task = task = loop.create_task(self._begin(call))
        self._running.add(call)
        try:
            await call.ended
        except asyncio.CancelledError:
            await self._stop([call])
            raise
        finally:
            self._running.discard(call)
        if not task.done() or task.cancelled():
            raise self._cancellation(call)
        return task.result()

    # Uses

    async def run(
        self,
        uses: Sequence[PreparedUse],
        on_result: Callable[[ToolResult], None] | None = None,
    ) -> list[ToolResult]:
        """Run uses, side by side where that is safe, and return a result for each, in order.

        If this task is cancelled the calls are interrupted, and their results are kept too.

        Args:
            uses: What to run.
            on_result: Gets the result of each use as soon as there is one.
        """
        calls = [use.call for use in uses if use.call is not None]
        self._waiting.update(calls)
        results: list[ToolResult] = []
        try:
            # Consecutive safe ones run together, each other one alone.
            for _, batch in groupby(uses, lambda use: use.is_safe or use):
                await self._run_batch(batch, on_result)
        except asyncio.CancelledError:
            await self._stop(calls)
            for call in calls:  # nobody waits for the step: none of its uses is parked
                call.interrupted = True
            raise
        finally:
            self._waiting.difference_update(calls)
            results += [self._result_of(use) for use in uses]
            self.results += results
        self._park(uses, results)
        return results

    def _park(self, uses: Sequence[PreparedUse], results: Sequence[ToolResult]) -> None:
        """Let the state have a step, if one of its uses is parked."""
        if all(result.state != "parked" for result in results):
            return
        if self.state.parked is None:
            self.state.parked = ParkedStep([])
        for use, result in zip(uses, results, strict=True):
            parked = _parked_use(use) if result.state == "parked" else None
            self.state.parked.uses.append(parked or result)

    # Parked uses

    @property
    def open(self) -> tuple[ParkedUse, ...]:
        """The uses that are parked."""
        return () if self.state.parked is None else self.state.parked.open

    @property
    def _settleable(self) -> list[ParkedUse]:
        """Those that are not being settled; equal ones are told apart."""
        being_settled = [*map(id, self._being_settled)]
        return [use for use in self.open if id(use) not in being_settled]

    def parked_use(self, use_id: str) -> ParkedUse:
        """Return the use of an id that is parked. Raises `NotFound`."""
        for use in self._settleable:
            if use.id == use_id:
                return use
        step = self.state.parked
        if step is not None and use_id in {use.id for use in step.uses}:
            raise NotFound(f"the use {shown(use_id)} is settled already")
        names = ", ".join(use.id for use in self.open)
        raise NotFound(f"no use {shown(use_id)} is parked; parked are: {cut(names) or 'none'}")

    async def settle(self, parked: ParkedUse, call: TurnCall) -> ToolResult:
        """Run the call of a parked use once more, with what it is given, and keep its result.

        Raises what keeps the tool from getting it, such as a middleware; then it stays parked.
        """
        assert call.use is not None, "as it was prepared"
        assert call.given is not None, "as it was prepared"
        if not any(use is parked for use in self._settleable):
            raise NotFound(f"the use {shown(parked.id)} is settled already")
        self._being_settled.append(parked)
        try:
            (result,) = await self.run([PreparedUse(call.use, call)])
        finally:
            self._being_settled.remove(parked)
        if result.error is not None and (self.has_ended or not call.given.is_taken):
            raise result.error
        if self.state.parked is not None:
            self.state.parked.settle(parked, result)
        return result

    def take_results(self) -> list[ToolResult]:
        """Return the results of the parked step, and forget it. Raises `Unavailable`."""
        step = self.state.parked
        if step is None:
            return []
        if step.open:
            names = cut(", ".join(use.id for use in step.open))
            text = f"uses of the step are parked: settle them first ({names})"
            raise Unavailable(text, executed="no", retryable=False)
        self.state.parked = None
        return step.results

    async def _run_batch(
        self, batch: Iterable[PreparedUse], on_result: Callable[[ToolResult], None] | None
    ) -> None:
        ends: dict[asyncio.Future[None], PreparedUse] = {}
        for use in batch:
            if use.call is not None and self._may_begin(use.call):
                self._start(use.call)
                assert use.call.ended is not None, "as it was started"
                ends[use.call.ended] = use
            elif on_result is not None:
                on_result(self._result_of(use))
        left = set(ends)
        while left:
            when = asyncio.ALL_COMPLETED if on_result is None else asyncio.FIRST_COMPLETED
            done, left = await asyncio.wait(left, return_when=when)
            if on_result is not None:
                for ended in done:
                    on_result(self._result_of(ends[ended]))

    def _may_begin(self, call: TurnCall) -> bool:
        """Take a call that waits; return whether it may begin."""
        self._waiting.discard(call)
        call.interrupted = call.interrupted or self.has_ended
        return not call.interrupted

    def stream(self, use: PreparedUse) -> AsyncGenerator[Chunk | ToolResult, None]:
        """Return the chunks of a use as they come, then its result.

        The call begins when the first is read, unless it was interrupted before. A reader that
        leaves interrupts it.
        """
        if use.call is not None:
            self._waiting.add(use.call)
        return self._chunks_of(use)

    async def _chunks_of(self, use: PreparedUse) -> AsyncGenerator[Chunk | ToolResult, None]:
        call = use.call
        try:
            if call is not None and self._may_begin(call):
                passed_on = call.collected
                assert isinstance(passed_on, PassedOnChunks), "as it was prepared"
                task = self._start(call)
                assert call.ended is not None, "as it was started"
                call.ended.add_done_callback(lambda _: passed_on.end())
                while (chunk := await passed_on.next()) is not None:
                    yield chunk
                has_result = task.done() and not task.cancelled() and task.exception() is None
                if has_result and not call.entry.info.streaming:
                    for chunk in chunks_of(task.result()):
                        yield chunk
        finally:
            if call is not None:
                await self._stop([call])
            result = self._result_of(use)
            self.results.append(result)
        self._park([use], [result])
        yield result

    def _result_of(self, use: PreparedUse) -> ToolResult:
        """Return the result of a use whose call has ended, has not begun, or was given up."""
        call, error = use.call, use.error
        if call is None:
            assert error is not None
            return ToolResult(
                use.use.id, use.use.name, state_of(error), error=error, executed=error.executed
            )
        info, collected, task = call.entry.info, call.collected, call.task
        chunks = tuple(collected.chunks)
        state: ResultState = "ok"
        if task is None or not task.done() or task.cancelled():
            error = self._cancellation(call)
            state = "interrupted" if isinstance(error, Cancelled) else state_of(error)
        elif isinstance(raised := task.exception(), Parked):
            state = "parked"
            if call.interrupted:
                error = self._cancellation(call)
                state = "interrupted"
        elif raised is not None:
            error = _as_room_exception(raised, call)
            state = state_of(error)
        elif not info.streaming:
            chunks = chunks_of(task.result())
        return ToolResult(
            call.id,
            info.name,
            state,
            chunks,
            error,
            (error or call).executed,
            call.sent,
            info.streaming,
            collected.omitted,
        )

    def _cancellation(self, call: TurnCall) -> RoomException:
        """Return the error of a call without an end of its own: interrupted, or by its tool."""
        if not (call.interrupted or self.has_ended):
            text, details = "the tool's task was cancelled", {"cause": "CancelledError"}
            is_of_middleware = self._middlewares and not call.attempts  # it may have acted instead
            executed = "maybe" if is_of_middleware else call.executed
            return ToolFailed(text, executed=executed, details=details)
        text = self.end_text if self.has_ended else "the call was interrupted"
        return Cancelled(text, executed=call.executed)

    # Ending

    async def interrupt(self, use_id: str | None = None) -> None:
        """End the calls of a use, or all; wait until they have ended, for a few seconds at most.

        Raises `NotFound` if there is no use of this id in the turn.
        """
        known = self._running | self._waiting
        chosen = [call for call in known if use_id in (None, call.id)]
        parked = [use for use in self._settleable if use_id in (None, use.id)]
        if (
            not (chosen or parked)
            and use_id is not None
            and use_id not in {result.id for result in self.results}
        ):
            raise NotFound(f"the turn has no use {use_id!r}")
        for use in parked:
            error = Cancelled("the call was interrupted", executed="no")
            result = ToolResult(use.id, use.tool, "interrupted", error=error, executed="no")
            if self.state.parked is not None:
                self.state.parked.settle(use, result)
            self.results.append(result)
        await self._stop(chosen)

    async def _stop(self, calls: Iterable[TurnCall]) -> None:
        """Cancel calls and wait for their ends; give up those that do not end."""
        tasks: dict[asyncio.Task[Chunk], TurnCall] = {}
        for call in calls:
            if call.task is None:
                call.interrupted = True
            elif not call.task.done():
                call.interrupt()
                tasks[call.task] = call
        if not tasks:
            return
        _, left = await asyncio.wait(tasks, timeout=_END_S)
        if left:
            _logger.warning("%d calls of a turn did not end when cancelled", len(left))
        for task, call in tasks.items():
            if task in left:
                task.add_done_callback(retrieve_error)
            call.end()

    async def end(self) -> None:
        """End all calls: the turn ends."""
        self.has_ended = True
        await self._stop(list(self._running | self._waiting))

    def end_at_once(self, text: str) -> None:
        """End all calls without waiting for their ends, since what they are made for has ended."""
        if self.has_ended:
            return
        self.has_ended = True
        self.end_text = text
        for call in self._running:
            if call.task is not None and not call.task.done():
                call.interrupt()


def _parked_use(use: PreparedUse) -> ParkedUse | None:
    """Return what is kept of a use whose call ended as parked."""
    call = use.call
    if call is None or call.task is None or not isinstance(error := call.task.exception(), Parked):
        return None
    arguments = dict(error.arguments)
    return ParkedUse(call.id, call.entry.info.name, arguments, arguments != call.arguments)


def _as_room_exception(error: BaseException, call: TurnCall) -> RoomException:
    """Return an error of a call for its result; that of the caller's own input by its class."""
    if isinstance(error, RoomException):
        return error
    path = "/attachment" if call.options.attachment is not None else "/input"
    return unreadable_input(path, error, call.executed)


class PreparedCalls:
    """Prepares the calls of one turn."""

    def __init__(
        self, tools: TurnTools, runs: TurnRuns, judge: Judge | None, defaults: CallOptions
    ) -> None:
        self._tools = tools
        self._runs = runs
        self._judge = judge
        self._defaults = defaults
        self._prefix = secrets.token_hex(12)
        self._numbers = count(1)

    def of_program(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None,
        given: Mapping[str, Any],
        collected: CollectedChunks,
    ) -> TurnCall:
        """Prepare the call of a program.

        Raises `RoomException` for a call that cannot begin.
        """
        call_id = f"{self._prefix}{next(self._numbers):08x}"
        try:
            entry = self._tools.of_program(tool)
            values = argument_object(arguments)
            entry, values, via = self._named(entry, values)
            options = _call_options(given, self._defaults)
        except RoomException as error:
            self._runs.refused(tool, call_id, error)
            raise
        return TurnCall(call_id, entry, values, options, collected, judge=self._judge, via=via)

    def of_use(
        self, use: ToolUse, given: Mapping[str, Any], collected: CollectedChunks
    ) -> PreparedUse:
        """Prepare the call of a use. What cannot begin has its error."""
        try:
            if use.invalid:
                arguments_of(use)  # raises, also where there is no such tool
            entry = self._tools.of_model(use.name)
            schema = entry.info.input_schema
            if use.arguments is None and schema.get("properties"):
                # A server may have lost them: the tool would run with its defaults.
                words = "the call came without arguments; {} means that there are none"
                raise InvalidArguments(words, details={"path": "", "message": words})
            values = tool_arguments(schema, arguments_of(use))
            entry, values, via = self._named(entry, values)
            sent = {**given, "attachment": use.attachment, "input": use.input}
            options = _call_options(sent, self._defaults)
        except RoomException as error:
            self._runs.refused(use.name, use.id, error)
            return PreparedUse(use, error=error)
        call = TurnCall(
            use.id, entry, values, options, collected, use=use, judge=self._judge, via=via
        )
        return PreparedUse(use, call)

    def of_parked(self, parked: ParkedUse, result: Chunk | RoomException) -> TurnCall:
        """Prepare the call of a parked use, with what it is given.

        Raises `NotFound` if the turn has no such tool without code, and `InvalidResult` for what
        breaks its output schema.
        """
        entry = self._tools.of_program(parked.tool)
        if not entry.dispatch.is_external:
            raise NotFound(f"{parked.tool} has code in this turn: its uses are not settled")
        if not isinstance(result, RoomException):
            entry.check_result(result)
        arguments = dict(parked.arguments)
        return TurnCall(
            parked.id,
            entry,
            arguments,
            _call_options({}, self._defaults),
            CollectedChunks(parked.tool),
            sent=arguments if parked.has_changed else None,
            use=ToolUse(parked.id, parked.tool, arguments),
            given=Given(result),
        )

    def called(self, use: ToolUse) -> tuple[str, Any]:
        """Return the tool that a use calls and the arguments for it; see `Turn.called`."""
        name = use.name
        arguments = use.arguments
        entry = self._tools.find_by_model(name)
        if entry is None:
            return name, arguments
        if entry.naming is not None:
            with suppress(RoomException):  # it is the result of the use
                entry, arguments, _ = self._named(entry, arguments_of(use))
        return entry.info.name, arguments

    def _named(
        self, entry: TurnEntry, arguments: dict[str, Any]
    ) -> tuple[TurnEntry, dict[str, Any], ToolInfo | None]:
        """Return the tool that a call is of, the arguments for it, and which tool named it, if any.

        A tool of the turn itself comes before one of the room: names mean one thing in a turn.
        """
        if entry.naming is None:
            return entry, arguments, None
        self._tools.check_active(entry)
        name, inner = entry.naming.read(arguments)
        found = self._tools.find(name) or entry.naming.entry(name, entry.group)
        if found.naming is not None:
            raise InvalidArguments(f"{entry.info.name} does not call {name}: name another tool")
        if not isinstance(inner, str):  # of a program
            inner = argument_object(inner)
        values = tool_arguments(found.info.input_schema, arguments_of(ToolUse("", name, inner)))
        return found, values, entry.info


def _call_options(given: Mapping[str, Any], defaults: CallOptions) -> CallOptions:
    """Check the options of a call and what it sends.

    Raises `InvalidArguments`, and `DeadlineExceeded` if there is no time for it.
    """
    context = given.get("caller_context")
    if context is not None:
        if not isinstance(context, Mapping):
            text = f"caller_context must be one object, not {shown(context)}"
            raise invalid_option("caller_context", text)
        # A copy, as JSON, is what the tool gets.
        context = unpack_body(packed_json("caller_context", dict(context)))
    options = CallOptions(
        timeout_s=call_seconds(given.get("timeout_s"), defaults.timeout_s),
        caller_context=context,
        attachment=given.get("attachment"),
        input=given.get("input"),
        on_progress=given.get("on_progress"),
        on_held=given.get("on_held"),
        purpose=defaults.purpose,
        approval_timeout_s=defaults.approval_timeout_s,
    )
    if options.timeout_s <= 0:
        raise DeadlineExceeded("no time was left for the call", executed="no")
    return options
