"""Asks an agent and shows what happens, from the main thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, closing, contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias, TypeVar

from toolbus.chunks.chunk_types import FileChunk
from toolbus.cli.chat.agents import ChatAgent, ChatEvent, Notice, TraceId
from toolbus.cli.chat.files import save_file
from toolbus.cli.chat.held_calls import HeldCalls
from toolbus.cli.chat.interrupts import Interrupted, Interrupts
from toolbus.cli.chat.live_answer import Live, Pause, once
from toolbus.cli.chat.screens import Screen
from toolbus.cli.chat.transcript import ReceivedFile, Transcript
from toolbus.concurrency.loop_thread import LoopThread
from toolbus.diagnostics.exit_codes import UsageError, failure_lines
from toolbus.errors import RoomException
from toolbus.log_output import chosen_output
from toolbus.tools.questions import ToolQuestion
from toolbus.turns.approvals import ApprovalDecision, ApprovalRequest
from toolbus.turns.terminal_approvals import approve_in_terminal
from toolbus.turns.terminal_questions import answer_in_terminal
from toolbus.untrusted_text import one_line

__all__ = ["Session", "on_background_loop"]

T = TypeVar("T")
_LEAVE_S = 5.0
"""What the end of the chat waits for the room and for tools of this process."""
_OWN_TYPES = ("file", "error")
"""Events that this program alone makes: where a file is saved, and why there is no answer. An agent
that sends one would say so of files that are not there."""
_Shown: TypeAlias = ChatEvent | ReceivedFile


class Session:
    """A chat with one agent.

    Args:
        screen: Where it is shown.
        folder: Where files of results are written; None keeps small ones in memory.
    """

    def __init__(self, screen: Screen, folder: Path | None) -> None:
        self.screen = screen
        self.folder = folder
        self.interrupts: Interrupts = Interrupts()
        self.transcript: Transcript = Transcript()
        self._live: Live[Any] | None = None
        self._log = _Log()
        self.loop: asyncio.AbstractEventLoop
        """The loop that the agent is asked on; set before the first question."""
        self.agent: ChatAgent
        """Who is asked; set before the first question."""

    def ask(self, text: str) -> None:
        """Ask a question and show what happens, until it is answered.

        Raises:
            Interrupted: A signal has ended it.
            Terminated: So has SIGTERM.
            RoomException: It failed. What came before is shown.
        """
        began_at = last_at = monotonic()
        self.transcript.begin(began_at)
        left_bytes = self.transcript.left_bytes()
        try:
            asking = self._follow(partial(self._events, text, left_bytes))
            with closing(asking):
                for event in asking:
                    if event is None:
                        self.screen.wait(monotonic() - last_at)
                        continue
                    if not isinstance(event, dict) or event.get("type") != "waiting":
                        last_at = monotonic()
                    self._show(event)
        except RoomException as error:
            self.transcript.fail(f"{error.code}, executed: {error.executed}", monotonic())
            raise
        finally:
            self.screen.pause()

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run something on the loop and return its result; raises what `ask` raises."""
        began_at = monotonic()
        found: list[T] = []
        try:
            with closing(self._follow(once(work))) as events:
                for results in events:
                    found += results or ()
                    self.screen.wait(monotonic() - began_at)
        finally:
            self.screen.pause()
        return found[0]

    def fail(self, error: RoomException) -> None:
        """Show an error with what to do next, or as an event."""
        is_local = isinstance(error, UsageError)  # of a command of the chat: no call has failed
        lines = failure_lines(error, self.agent.target, local=is_local)
        facts = {
            "type": "error",
            "code": error.code,
            "message": error.message,
            "executed": error.executed,
            "retryable": error.retryable,
            "trace": self.transcript.trace or None,
        }
        self.screen.fail(lines, facts)

    @contextmanager
    def logging(self) -> Iterator[None]:
        """Show warnings of the log as notices, where nothing else was chosen for it.

        They come from the thread of the loop, in the middle of a line of text or of the prompt.
        """
        if chosen_output() is not None:
            yield
            return
        logging.root.addHandler(self._log)
        try:
            yield
        finally:
            logging.root.removeHandler(self._log)
            self.show_log()

    def show_log(self) -> None:
        """Show what was logged since the last time."""
        while self._log.lines:
            self.screen.notice(self._log.lines.popleft())

    async def ask_person(self, request: ApprovalRequest) -> ApprovalDecision:
        """Ask in the terminal, for an agent of this process. Runs on the loop."""
        return await self._while_quiet(partial(approve_in_terminal, request))

    async def answer_question(self, question: ToolQuestion) -> Any:
        """Let the user answer in the terminal what a tool of this process asks."""
        return await self._while_quiet(partial(answer_in_terminal, question))

    async def _while_quiet(self, asking: Callable[[], Awaitable[T]]) -> T:
        live = self._live
        if live is None:
            return await asking()
        return await live.ask(asking)

    def _follow(
        self, source: Callable[[], AsyncGenerator[T, None]]
    ) -> Generator[T | None, None, None]:
        live = self._live = Live(self.loop, source)
        try:
            with closing(live.read(self.interrupts)) as events:
                for event in events:
                    self.show_log()
                    if isinstance(event, Pause):
                        self.screen.pause()
                        live.wait_for(event)
                    else:
                        yield event
        finally:
            self._live = None

    def _show(self, event: _Shown) -> None:
        if isinstance(event, Notice):
            self.screen.notice(str(event))
        elif isinstance(event, TraceId):
            self.transcript.trace = str(event)
        elif isinstance(event, ReceivedFile):
            self.transcript.add_file(event)
            self.screen.show(event.event(), None)
        elif isinstance(event, dict):
            self.screen.show(event, self.transcript.add(event, monotonic()))

    async def _events(self, text: str, left_bytes: int) -> AsyncGenerator[_Shown, None]:
        """Yield what happens; files are read here, because the next event skips their rest."""
        async with (
            aclosing(self.agent.ask(text)) as events,
            HeldCalls(self.agent, self._while_quiet) as held,
        ):
            async for event in events:
                if not isinstance(event, FileChunk):
                    if not isinstance(event, dict) or event.get("type") not in _OWN_TYPES:
                        yield event
                    if isinstance(event, dict):
                        held.follow(event)  # once it is shown
                    continue
                try:
                    received = await self._received(event, left_bytes)
                except (UsageError, OSError) as error:  # the answer goes on without it
                    yield Notice(f"(a file is lost: {one_line(str(error))})")
                    continue
                left_bytes -= len(received.data or b"")
                yield received

    async def _received(self, file: FileChunk, left_bytes: int) -> ReceivedFile:
        if self.folder is not None:
            path = await save_file(file, self.folder)
            return ReceivedFile(file.name, path.stat().st_size, path=str(path))
        size = 0
        data = bytearray()
        async with aclosing(file.pieces()) as pieces:
            # To its end: a file that is not would end the call that it belongs to.
            async for piece in pieces:
                size += len(piece)
                if size <= left_bytes:
                    data += piece
        return ReceivedFile(file.name, size, bytes(data) if size <= left_bytes else None)


class _Log(logging.Handler):
    """Keeps the last warnings of the log, for the main thread."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: deque[str] = deque(maxlen=20)  # between two lines

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self.lines.append(f"(warning: {one_line(record.getMessage(), 1_000)})")


_Enter: TypeAlias = Callable[[], AbstractAsyncContextManager[ChatAgent]]


@contextmanager
def on_background_loop(session: Session, enter: _Enter) -> Iterator[None]:
    """Give a session its loop and its agent during the block.

    `enter` joins the room and makes the agent, as a context manager on the loop.

    Raises what entering raises.
    """
    thread = LoopThread("chat", _nothing)
    ready: concurrent.futures.Future[ChatAgent] = concurrent.futures.Future()
    stop = asyncio.Event()

    async def live() -> None:
        async with enter() as agent:
            ready.set_result(agent)
            await stop.wait()

    session.loop = thread.loop
    living: concurrent.futures.Future[None] | None = None
    try:
        with session.interrupts.handled():
            # Here no signal raises, so that what is started is always ended below.
            living = asyncio.run_coroutine_threadsafe(live(), thread.loop)
            living.add_done_callback(lambda _: ready.cancel())
            try:
                with session.interrupts.at_prompt():  # a signal ends the waiting
                    session.agent = ready.result()
            except BaseException as error:  # it has not entered, or a signal came before that
                if living.done() and not living.cancelled():
                    living.result()
                living.cancel()
                if isinstance(error, KeyboardInterrupt):  # nothing was asked yet
                    raise Interrupted("cancelled with Ctrl-C", executed="no") from None
                raise
            yield
    finally:
        thread.loop.call_soon_threadsafe(stop.set)
        if living is not None:
            concurrent.futures.wait([living], _LEAVE_S)
        thread.stop(_LEAVE_S)
    if living.done() and not living.cancelled():
        living.result()  # raises what leaving has raised


async def _nothing() -> None:
    """Do nothing: the chat ends what it began."""
