"""One call of a tool as a runner runs it: what holds for calls from elsewhere and from here alike.

Two runners adapt it: `Runner` runs what a server dispatches (`HostedCall`), `InProcessToolkit` what
a turn of an agent calls in its own process (`InProcessCall`).

| step | from elsewhere | in this process | where |
|---|---|---|---|
| arguments | unpacked from the frame | a dict | adapter |
| record | begun as the frame arrives | around the call | adapter, `ToolRun.begin_recording` |
| slot of the tool | until its end, and that of its threads | the same | `execute_limited` |
| the tool's own time | begins when it has a slot | the same | `execute_limited`, `time_out` |
| the deadline | is the server's: a cancel frame | a timer around all of the call | adapter |
| checks, middlewares, function | | | `Toolkit.execute`, by `execute` |
| sync function | on a thread, which keeps the slot | the same | `run_sync` |
| chunks and progress | frames, by credit | functions of the caller | adapter |
| result | settled, packed into frames | settled, packed only to check it | `execute`, adapter |
| error | by `error_for` | the same, but the error of its own input | `error_for` |

The first columns differ where the task of a call differs. A host owns the task: it lets a function
on a thread end before it answers, so that the answer says what happened. In a process the task is
the caller's own, which a thread must not hold up.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.chunk_types import Chunk, result_chunk
from toolbus.concurrency.interrupts import is_ctrl_c
from toolbus.concurrency.pausable_clock import PausableTimer
from toolbus.concurrency.tasks import retrieve_error
from toolbus.diagnostics.user_code_errors import begin_at_author
from toolbus.errors import DeadlineExceeded, Executed, RoomException
from toolbus.tools.context import ToolContext
from toolbus.tools.input_stream import ChunkSource, InputStream
from toolbus.tools.tool import Tool
from toolbus.tools.tool_run import ToolRun
from toolbus.tools.toolkit import Toolkit, failure_of

if TYPE_CHECKING:  # few tools ask a person
    from toolbus.tools.approvals import ApprovalDecision, ApprovalDemand
    from toolbus.tools.questions import ToolQuestion

__all__ = [
    "NO_LIMITS",
    "CallThreads",
    "Execution",
    "Identity",
    "SlotUser",
    "ToolLimits",
    "ToolSlots",
    "limits_of",
]

Identity: TypeAlias = tuple[str, str]
"""Issuer and name of a caller."""
SYNC_CALLS = 8
"""How many calls of a sync tool run at a time by default.

A sync function mostly waits, for a disk or a server, so one at a time would let its callers queue
for nothing; without a limit one tool could take every thread of its host.
"""


T = TypeVar("T")
_logger = bounded_logger(__name__)


class SlotUser(Protocol):
    """A call that holds or wants a slot."""

    @property
    def identity(self) -> Identity:
        """Its caller; read only where calls wait."""


class ToolSlots:
    """Slots for `count` calls at a time.

    A caller that is alone may hold all of them. Of callers that hold equally few, the one that was
    served least recently is next, and of its calls the first.
    """

    __slots__ = ("_users", "_waiting", "count")

    def __init__(self, count: int) -> None:
        self.count: int = count
        self._users: set[SlotUser] = set()
        self._waiting: dict[Identity, dict[SlotUser, asyncio.Future[None]]] = {}

    async def acquire(self, user: SlotUser) -> None:
        """Wait for a slot; a cancelled call leaves the queue. At once if there is a free one."""
        if len(self._users) < self.count:
            self._users.add(user)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user.identity, {})[user] = turn
        try:
            await turn
        except asyncio.CancelledError:
            if user in self._users:  # it was given a slot, and cancelled before it continued
                self.release(user)
            else:
                queue = self._waiting.get(user.identity, {})
                queue.pop(user, None)
                if not queue:
                    self._waiting.pop(user.identity, None)
            raise

    def release(self, user: SlotUser) -> None:
        """Give the slot of a call to the next one that waits, if there is any."""
        self._users.remove(user)
        if not self._waiting:
            return
        if queue := self._waiting.pop(user.identity, None):
            self._waiting[user.identity] = queue  # behind the others
        while self._waiting:
            caller = self._next_caller()
            queue = self._waiting.pop(caller)
            next_user = next(iter(queue))
            turn = queue.pop(next_user)
            if queue:
                self._waiting[caller] = queue
            if not turn.done():  # else it is cancelled, and its task has not run since
                self._users.add(next_user)
                turn.set_result(None)
                return

    def _next_caller(self) -> Identity:
        """Return the waiting caller that holds the fewest slots, the first of equals."""
        if len(self._waiting) == 1:
            return next(iter(self._waiting))
        held = Counter(user.identity for user in self._users)
        return min(self._waiting, key=held.__getitem__)


class ToolLimits(NamedTuple):
    """Limits of a tool: concurrent calls and seconds per call; None means unlimited."""

    slots: ToolSlots | None
    timeout_s: float | None


NO_LIMITS = ToolLimits(None, None)
"""The limits of a tool that sets none."""


def limits_of(tool: Tool) -> ToolLimits:
    """Return the tool's own limits; a sync tool has one by default."""
    limit = tool.max_concurrency
    if limit is None and not tool.is_async:
        # The tool's own option, not the manifest's value, which is that of `read_only` by default:
        # only an author who says so has a function that must run alone.
        limit = 1 if tool.concurrency_safe is False else SYNC_CALLS
    return ToolLimits(None if limit is None else ToolSlots(limit), tool.timeout_s)


class CallThreads(Protocol):
    """What a call needs of its runner."""

    def begin_thread(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Start a sync function on a thread."""


class Execution(ToolRun):
    """A call of a tool within its limits; each runner has a subclass."""

    _runner: CallThreads
    toolkit: Toolkit
    """The toolkit that runs it; set before it starts."""
    tool: str
    """The name of the tool within the toolkit."""
    wants_error_text: Callable[[], bool]
    """Whether the room's server asks for the texts of exceptions."""

    # Class attributes: few calls change them.
    unentered: Executed = "no"
    source: ChunkSource | None = None
    """The input of the call, if it has one."""
    timed_out: bool = False
    """The tool's own `timeout_s` has passed."""
    given_up: bool = False
    """Nobody waits for the answer any more: none is sent."""
    slots: ToolSlots | None = None
    """Where the call holds a slot, until its threads have ended too."""
    threads: int = 0
    """Number of the call's functions that are on threads now; they cannot be stopped."""
    awaited: int = 0
    """Number of functions on threads that the tool waits for."""
    timer: PausableTimer | None = None
    """Ends the function when the tool's own time limit has passed."""
    _questions: asyncio.Lock | None = None

    @property
    @abstractmethod
    def identity(self) -> Identity:
        """Issuer and name of the participant for whom the call counts; slots are shared by it."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the function as far as possible."""

    @property
    def method(self) -> str:
        """The tool's full name: `toolkit.tool`."""
        return f"{self.toolkit.name}.{self.tool}"

    @property
    def sends_error_text(self) -> bool:  # type: ignore[override]
        """Whether the caller gets the text of an exception."""
        by_default = self.wants_error_text()
        return self.toolkit.sends_error_text(self.tool, by_default=by_default)

    @property
    def is_on_thread(self) -> bool:
        """Whether a function of the call is on a thread, or waits for one."""
        return bool(self.threads)

    def execute(self, arguments: dict[str, Any]) -> Coroutine[Any, Any, Chunk]:
        """Run the tool, with the call's input if it has one."""
        toolkit, context = self.toolkit, ToolContext(run=self)
        if self.source is None:  # an override of `execute` may not take an attachment
            running = toolkit.execute(context, self.tool, arguments)
        else:
            stream = InputStream.of_source(self.source)
            running = toolkit.execute(context, self.tool, arguments, stream)
        return running if toolkit.unentered == "no" else self._settled(running)

    async def _settled(self, running: Coroutine[Any, Any, Chunk]) -> Chunk:
        """Return the result of an override of `Toolkit.execute`, which may be any value."""
        self.unentered = "maybe"
        result = await running
        return self.made(result_chunk, result) if isinstance(result, Chunk) else result

    async def execute_limited(self, limits: ToolLimits, arguments: dict[str, Any]) -> Chunk:
        """Run the tool within its limits, after waiting for a free slot."""
        if limits.slots is not None:
            await limits.slots.acquire(self)
            self.slots = limits.slots
        if limits.timeout_s is None:
            return await self.execute(arguments)
        self.timer = PausableTimer(limits.timeout_s, self.time_out)
        try:
            chunk = await self.execute(arguments)
        finally:
            self.timer.cancel()
        if self.timed_out:  # the tool went on although it was cancelled
            raise asyncio.CancelledError
        return chunk

    def pause(self) -> None:
        """Let the time of the call stand still, and that of its function."""
        super().pause()
        if self.timer is not None:
            self.timer.pause()

    def resume(self) -> None:
        """Undo one `pause`."""
        super().resume()
        if self.timer is not None:
            self.timer.resume()

    async def ask_person(self, demand: ApprovalDemand) -> ApprovalDecision:
        """Ask who may approve the call; it takes no slot meanwhile, and its time stands still.

        Raises:
            PermissionDenied: Nobody can be asked.
            ApprovalExpired: Nobody has decided in time.
            RoomException: The question could not be asked; executed "no".
        """
        return await self._while_away(self.demand_approval(demand))

    async def ask_question(self, question: ToolQuestion) -> Chunk:
        """Ask who may answer for an answer; it takes no slot meanwhile, and its time stands still.

        The questions of one call are asked one after another.
        """
        if not question.approvers:
            tools = self.toolkit.tools
            named = next((tool.approvers for tool in tools if tool.name == self.tool), ())
            question = replace(question, approvers=tuple(named) or self.toolkit.approvers)
        if self._questions is None:
            self._questions = asyncio.Lock()
        async with self._questions:
            return await self._while_away(self.put_question(question))

    async def _while_away(self, asking: Awaitable[T]) -> T:
        """Give the slot back while a person is waited for; then queue for one as new calls do.

        A call whose function is on a thread keeps its slot, as it keeps the thread.
        """
        slots, timer = self.slots, self.timer
        self.free_slot()
        self.pause()
        try:
            decision = await asking
        finally:
            self.resume()
        if timer is not None:
            timer.pause()
        try:
            await self.return_to_work()
            if slots is not None and self.slots is None:
                await slots.acquire(self)
                self.slots = slots
        finally:
            if timer is not None:
                timer.resume()
        return decision

    @abstractmethod
    async def demand_approval(self, demand: ApprovalDemand) -> ApprovalDecision:
        """Ask a person as the runner does; raises as `ask_person`."""

    @abstractmethod
    async def put_question(self, question: ToolQuestion) -> Chunk:
        """Ask for an answer as the runner does; raises as `ask_question`."""

    async def return_to_work(self) -> None:
        """Wait until the runner has a place for a call that has waited for a person."""

    def time_out(self) -> None:
        """Stop the function because its tool's own time limit has passed."""
        self.timed_out = True
        self.stop()

    def timeout_error(self) -> DeadlineExceeded:
        """Make the error for a tool that exceeded its own time limit."""
        limit_s = self.toolkit.get_tool(self.tool).timeout_s
        message = f"the tool's own time limit of {limit_s} s passed"
        return DeadlineExceeded(message, executed=self.executed)

    def error_for(self, error: BaseException) -> BaseException:
        """Return the error that the caller gets for what ended the call, or that error itself.

        A tool's SystemExit or KeyboardInterrupt does not end the program; Ctrl-C does. What a tool
        raised is logged here.
        """
        if is_ctrl_c(error) or not (self.loop and self.loop.is_running()):
            return error  # no answer: the loop has ended, or was stopped during the call
        was_cancelled = isinstance(error, asyncio.CancelledError)
        task = asyncio.current_task()
        # Beyond the cancellation by `time_out`: one by others, after which nothing is answered.
        is_stopped = self.given_up or (task is not None and task.cancelling() > self.timed_out)
        if was_cancelled and is_stopped:
            self.cancel()
            return error
        if self.timed_out:
            return self.timeout_error()
        if was_cancelled:
            error = RuntimeError("the tool raised CancelledError")
        failure = failure_of(error, self)
        if failure is not error:
            begin_at_author(error)
            if not isinstance(error, RoomException):
                _logger.error("tool %s raised", self.method, exc_info=error)
        return failure

    async def run_sync(self, function: Callable[[], T]) -> T:
        """Run a function on one of the runner's threads; the slot is kept until it ends."""
        if self.given_up:
            raise asyncio.CancelledError
        future: asyncio.Future[T] = self._runner.begin_thread(function)
        self.threads += 1
        self.awaited += 1
        future.add_done_callback(self._on_thread_end)
        try:
            # The tool may stop waiting; the thread continues and keeps its slot.
            result = await asyncio.shield(future)
        finally:
            self.awaited -= 1
        if self.given_up or self.timed_out:
            # The thread could not be stopped, but the task that waits for it can be.
            raise asyncio.CancelledError
        return result

    def _on_thread_end(self, future: asyncio.Future[Any]) -> None:
        retrieve_error(future)
        self.threads -= 1
        if self.ended:
            self.finish()

    def finish(self) -> None:
        """Release what the call holds that has ended, once its threads have ended too."""
        self.free_slot()

    def free_slot(self) -> None:
        """Release the tool's slot, unless a function of this call is still on a thread."""
        if self.slots is not None and not self.threads:
            self.slots.release(self)
            self.slots = None
