"""A toolkit as a service: `weather.run()` in one process, callers in all others."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self, TextIO

from toolbus.bounded_logging import bounded_logger
from toolbus.concurrency import event_loop
from toolbus.concurrency.tasks import wait_for_first
from toolbus.diagnostics.exit_codes import UsageError, exit_code, failure_lines, with_step
from toolbus.diagnostics.join_errors import explain_refusal, read_token, resolve_settings
from toolbus.diagnostics.user_code_errors import load_error_text
from toolbus.errors import Cancelled, RoomException, ToolFailed
from toolbus.hosting.hosted_toolkit import InvalidOffer, check_shared_with
from toolbus.room.lock_file import InvalidLockFile
from toolbus.room.room import connection_of
from toolbus.room.room_client import RoomClient, settings_of
from toolbus.room.waiting_start import keep_trying
from toolbus.service.graceful_shutdown import GracefulShutdown
from toolbus.telemetry import configure
from toolbus.tools.error_text import SentErrors
from toolbus.tools.middleware import Middleware
from toolbus.tools.tool import Tool
from toolbus.tools.toolkit import Toolkit
from toolbus.transport.websocket import PING_TIMEOUT_S

if TYPE_CHECKING:  # most programs record nothing
    from toolbus.permissions.permissions import Permissions
    from toolbus.records.records import Records

__all__ = ["RemoteToolkit", "flushing", "serve_toolkits", "stack_dump"]

_STORE_S = 2.0

_logger = bounded_logger(__name__)


class RemoteToolkit(Toolkit):
    """A toolkit that hosts itself in a room.

    Args:
        name: A lower-case letter, then up to 63 of `a-z 0-9 _ -`.
        tools: Functions, decorated or not, bound methods, and instances of `Tool`.
        rules: How a model should use the tools together.
        title: A title for humans; the name by default.
        description: What the toolkit is for.
        thumbnail_url: A picture.
        annotations: JSON values for programs.
        version: The author's version of the definition. A changed definition takes over from the
            running one if its version is higher, as PEP 440 orders them; else it is in reserve.
        public: Whether the whole room sees it.
        shared_with: Who else sees a private one: `name:x`, `role:x`, or `*`.
        records: Where each call is recorded, refused ones too.
        errors: What callers get of the exceptions of its tools, as for `Toolkit`.
        policy: What refuses calls, or asks a person about them, as for `Toolkit`.
        approvers: Who may approve calls of its tools, as for `Toolkit`.
        supersede: True takes over from other definitions whatever their versions; False refuses to
            be hosted beside one, with `DefinitionConflict`.

    Raises `TypeError` or `ValueError` as `Toolkit` does, and `ValueError` for a public one that is
    shared and for an invalid entry of `shared_with`.
    """

    def __init__(  # noqa: PLR0913 - the promised signature
        self,
        name: str,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        rules: Sequence[str] = (),
        title: str | None = None,
        description: str = "",
        thumbnail_url: str = "",
        annotations: Mapping[str, Any] | None = None,
        version: str = "",
        middlewares: Iterable[Middleware] = (),
        public: bool = True,
        shared_with: Sequence[str] = (),
        supersede: bool | None = None,
        records: Records | None = None,
        errors: SentErrors | None = None,
        policy: Permissions | None = None,
        approvers: Iterable[str] = (),
    ) -> None:
        super().__init__(
            name,
            tools,
            rules=rules,
            title=title,
            description=description,
            thumbnail_url=thumbnail_url,
            annotations=annotations,
            version=version,
            middlewares=middlewares,
            records=records,
            errors=errors,
            policy=policy,
            approvers=approvers,
        )
        if public and shared_with:
            raise ValueError(f"toolkit {name!r} is public: shared_with is for private ones")
        if isinstance(shared_with, str):
            raise TypeError(
                f"toolkit {name!r}: shared_with must be a list of strings, not one string"
            )
        check_shared_with(name, shared_with)
        self.public = public
        self.shared_with: tuple[str, ...] = tuple(shared_with)
        self.supersede = supersede
        self._hosting: AsyncExitStack | None = None

    def _redefined(self, tools: dict[str, Tool]) -> Self:
        other = super()._redefined(tools)
        other._hosting = None
        return other

    async def start(self, room: RoomClient) -> None:
        """Host the toolkit in a room until `stop`.

        Raises:
            RuntimeError: It is hosted already.
            RoomException: The server refuses the registration.
        """
        if self._hosting is not None:
            raise RuntimeError(f"toolkit {self.name} is already started")
        self._hosting = stack = AsyncExitStack()
        try:
            await stack.enter_async_context(room.host(self))
        except BaseException:
            self._hosting = None
            raise

    async def stop(self) -> None:
        """Unregister, let running calls finish, and stop the tools. Idempotent."""
        stack, self._hosting = self._hosting, None
        if stack is not None:
            await stack.aclose()

    def run(self, *, wait: bool | None = None) -> None:
        """Connect by the `TOOLBUS_*` settings, host the toolkit, return after SIGTERM or Ctrl-C.

        A server that cannot be reached, or accepts nothing now, is waited for; the log names its
        address, and the reason again each minute.

        On such a signal it takes no more calls and lets running ones finish, for at most
        `TOOLBUS_DRAIN` seconds (default 10); the log has their number. If one of them does not end
        even then, the process exits here without it. A second signal ends the process at once,
        with exit code 5. A first signal before anything is hosted raises `SystemExit` with that
        code.

        If hosting fails, at the start or later, it writes the reason and the next step to stderr,
        and ends the program with the exit code of `toolbus host`; `start` raises instead.

        Args:
            wait: Whether to wait for the server; by default `TOOLBUS_WAIT`, else True.

        Raises:
            SystemExit: A setting is missing or malformed, no server can be reached and `wait` is
                false, or the server refuses the connection or the registration.
            RuntimeError: An event loop runs in this thread.
        """
        if event_loop.running_loop() is not None:
            raise RuntimeError(
                "run() starts an event loop of its own, and one runs in this thread: in an async"
                " program write `async with RoomClient() as room, room.host(toolkit):`"
            )
        with GracefulShutdown(flushing(configure(self.name), [self])) as end:
            try:
                event_loop.run(_serve_alone(self, end, wait))
            except KeyboardInterrupt:
                _fail(Cancelled("cancelled with Ctrl-C", executed="no"))
            except RoomException as error:
                _fail(error)


def flushing(
    send_spans: Callable[[], None] | None, toolkits: Sequence[Toolkit]
) -> Callable[[], None]:
    """Return what a process does at its end: it stores the records of toolkits, and sends spans."""
    stores = {toolkit.records for toolkit in toolkits if toolkit.records is not None}

    def flush() -> None:
        for records in stores:
            records.flush(_STORE_S)
        if send_spans is not None:
            send_spans()

    return flush


def _fail(error: RoomException) -> NoReturn:
    """End the program with a message and an exit code; a requested stop shows no lost call."""
    lines = failure_lines(error, local=isinstance(error, Cancelled))
    sys.stderr.write("\n".join(lines) + "\n")
    raise SystemExit(exit_code(error)) from None


async def serve_toolkits(
    toolkits: Sequence[Toolkit],
    room: RoomClient | None = None,
    drain_s: float | None = None,
    *,
    wait: bool | None = None,
    end: GracefulShutdown | None = None,
) -> None:
    """Host toolkits until SIGTERM or Ctrl-C, or until the room is closed for good.

    After a signal there are no new calls, and running ones may finish (`RoomClient.drain`). If one
    does not end even then, the process exits without it. A second signal ends the process at once;
    its calls are lost.

    Args:
        toolkits: The toolkits, each under its own name.
        room: A room that is not entered yet; by default the one of the `TOOLBUS_*` settings.
        drain_s: Seconds that running calls may take; by default `TOOLBUS_DRAIN`, else 10.
        wait: Whether to keep trying while the server cannot be reached or accepts nothing; by
            default `TOOLBUS_WAIT`, else True.
        end: Ends the process; by default one that exists only while this runs.

    Raises:
        TypeError: `wait` is neither a bool nor None.
        Cancelled: There was a signal before anything was hosted.
        ToolFailed: The `start` of a tool raised an exception, which is the cause of this one.
        RoomException: The server refuses the connection or a registration, or closed the room; or
            it cannot be reached and `wait` is false.
    """
    if not isinstance(wait, bool | None):
        raise TypeError(f"wait must be True, False or None, not {type(wait).__name__}")
    room = room or RoomClient()
    if end is None:
        with GracefulShutdown() as own:
            await serve_toolkits(toolkits, room, drain_s, wait=wait, end=own)
        return
    end.install_handlers()
    # To the end of this process: its last records may hold a secret too.
    handlers = [*logging.root.handlers, *filter(None, [logging.lastResort])]
    for log_filter in (found for toolkit in toolkits for found in toolkit.log_filters):
        for handler in handlers:
            handler.addFilter(log_filter)

    def joined() -> None:
        connection = connection_of(room)
        calls = connection.runner.running_calls
        end.watch_calls(calls, connection.drain_s if drain_s is None else drain_s)

    async with AsyncExitStack() as stack:
        with end.cancel_on_signal():
            hosting = await _start(toolkits, room, joined, wait)
            await stack.enter_async_context(hosting)
            end.hosting_started()
            await wait_for_first(end.wait_for_signal(), room.closed())
            end.log_pending_calls()
            await room.drain(drain_s)
    await end.exit_if_calls_remain()


@asynccontextmanager
async def _hosted(room: RoomClient, toolkit: Toolkit) -> AsyncIterator[None]:
    """Host a toolkit; ToolFailed if a tool cannot start."""
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(room.host(toolkit))
        except (RoomException, InvalidOffer):
            raise
        except Exception as error:  # a tool's `start` may raise anything
            _logger.debug("toolkit %s cannot start", toolkit.name, exc_info=True)
            notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
            text = f"toolkit {toolkit.name} cannot start: {load_error_text(error)}{notes}"
            step = "remove the cause of this exception, and start the host again"
            raise with_step(ToolFailed(text, executed="no"), step) from error
        yield


async def _start(
    toolkits: Sequence[Toolkit],
    room: RoomClient,
    joined: Callable[[], None],
    wait: bool | None,
) -> AsyncExitStack:
    """Join, call `joined`, and host; return the stack that ends all."""

    async def start() -> AsyncExitStack:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(room)
            stack.enter_context(stack_dump())
            joined()
            for toolkit in toolkits:
                await stack.enter_async_context(_hosted(room, toolkit))
            return stack.pop_all()

    return await keep_trying(start, partial(settings_of, room), wait)


async def _serve_alone(toolkit: RemoteToolkit, end: GracefulShutdown, wait: bool | None) -> None:
    """Check settings and token before connecting, so that their errors have clear messages."""
    settings = resolve_settings()
    try:
        async with explain_refusal(settings):
            await read_token(settings)
            await serve_toolkits([toolkit], wait=wait, end=end)
    except (InvalidOffer, InvalidLockFile) as error:
        raise UsageError(str(error)) from error


@contextmanager
def stack_dump(*, limit_s: float = PING_TIMEOUT_S, stacks: TextIO | None = None) -> Iterator[None]:
    """Print the stacks of all threads once the loop was blocked for a time, while the block runs.

    The log names what blocks the loop after a second (`toolbus.hosting.loop_watchdog`). That needs
    the interpreter, and code that holds its lock for ever, such as a regular expression, lets
    nothing be logged. By default the time is that after which the connection is lost. There is one
    per process at a time.

    Args:
        limit_s: Seconds that the loop may be blocked.
        stacks: Where stacks are printed, a file of the operating system; stderr by default.
    """
    stacks = stacks or sys.__stderr__
    if stacks is None:  # there is no stderr, for instance in a Windows service
        yield
        return
    loop = asyncio.get_running_loop()

    timer: asyncio.TimerHandle | None = None

    def postpone() -> None:
        nonlocal timer
        faulthandler.dump_traceback_later(limit_s, file=stacks)
        timer = loop.call_later(limit_s / 4, postpone)

    postpone()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
        faulthandler.cancel_dump_traceback_later()
