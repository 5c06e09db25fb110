"""Names what blocks an event loop that runs tools: the tool, and the line where it stands.

An async tool that blocks the loop stops everything else in it, also the answers to the server's
pings: after some seconds the server considers the host lost, and callers get `host_lost`. A thread
watches the loop, since a blocked loop can report nothing itself. Calls are not touched: what blocks
is found on the stack of the loop's thread, when it blocks.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType
from typing import Any, TypeVar

from toolbus.bounded_logging import bounded_logger
from toolbus.concurrency.thread_signals import stop_signals_blocked
from toolbus.hosting.hosted_call import HostedCall, describe_calls
from toolbus.transport.websocket import PING_TIMEOUT_S

__all__ = ["runs_call", "watched_loop"]

_F = TypeVar("_F", bound=Callable[..., Any])

_logger = bounded_logger(__name__)

BLOCKED_S = 1.0
"""How long a loop may be blocked: ordinary work of a busy loop takes less, even on a slow machine,
and a block of this length is felt by everyone who calls its tools."""
LONG_S = PING_TIMEOUT_S
"""When it is logged again, as an error: the server may have given the host up."""
_TICK_S = BLOCKED_S / 4
_OWN_CODE = str(Path(__file__).parents[1])

_LOOP_FRAMES = {("events", "_run"), ("base_events", "run_forever"), ("runners", "run")}

_WAITING = (
    asyncio.Future,
    asyncio.TaskGroup,
    CoroutineType,
    AsyncGeneratorType,
    list,
    tuple,
    set,
    dict,
)
"""What lies between a task and those that it waits for; of an event loop, all tasks are reached."""
_WAITING_NAMES = frozenset({"async_generator_asend", "anext_awaitable", "coroutine_wrapper"})
_MAX_SEARCHED = 2_000
"""No other thread runs during the search: a task may hold any number of others, as `gather`
does."""

_call_codes: set[CodeType] = set()
_watchdogs: dict[asyncio.AbstractEventLoop, _Watchdog] = {}


def runs_call(function: _F) -> _F:
    """Mark an async function that runs a call: its argument `call` has the name as `method`."""
    _call_codes.add(function.__code__)
    return function


@contextmanager
def watched_loop(calls: Collection[HostedCall] = ()) -> Iterator[None]:
    """Watch the running event loop while the block runs; blocks in one loop share a thread.

    If the loop is blocked for a second, one warning names the tool and the line; another one, an
    error, follows if the block lasts until the server gives the host up.

    Args:
        calls: A live view of calls that run in the loop, for blocks that belong to none of them.
    """
    loop = asyncio.get_running_loop()
    watchdog = _watchdogs.get(loop)
    if watchdog is None:
        watchdog = _watchdogs[loop] = _Watchdog(loop)
        watchdog.start()
    user = object()
    watchdog.users[user] = calls
    try:
        yield
    finally:
        del watchdog.users[user]  # the next beat ends it, unless there is another user by then


class _Watchdog:
    """Watches one event loop by its beats, which a timer of the loop makes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.users: dict[object, Collection[HostedCall]] = {}
        """The calls of each block that watches the loop."""
        self._loop = loop
        self._thread_id = threading.get_ident()
        self._beat_at = time.monotonic()
        self._has_ended = threading.Event()

    def start(self) -> None:
        """Start the beats and the thread; without the thread nothing is watched."""
        self._loop.call_later(_TICK_S, self._beat)
        with suppress(RuntimeError):  # the system allows no further thread
            threading.Thread(target=self._watch, name="toolbus-watchdog", daemon=True).start()

    def _beat(self) -> None:
        self._thread_id = threading.get_ident()  # a loop that was stopped may run on another one
        self._beat_at = time.monotonic()
        if self.users:
            self._loop.call_later(_TICK_S, self._beat)
        else:
            self._end()

    def _end(self) -> None:
        self._has_ended.set()
        _watchdogs.pop(self._loop, None)

    @stop_signals_blocked()
    def _watch(self) -> None:
        """Add up the time since the last beat, and log it; on the thread."""
        beat_at = self._beat_at
        blocked_s = 0.0
        logged = 0
        clock = _RunningTime()
        while not self._has_ended.wait(_TICK_S):
            passed_s = clock.next()
            if self._loop.is_closed():
                self._end()
                return
            if beat_at != self._beat_at or not self._loop.is_running():
                beat_at = self._beat_at
                blocked_s = 0.0
                logged = 0
            if self._loop.is_running():
                # The loop may be blocked since the last beat, even if this is the first tick after.
                blocked_s += min(passed_s, time.monotonic() - beat_at)
            if blocked_s >= (BLOCKED_S, LONG_S, float("inf"))[logged]:
                logged += 1
                self._log(blocked_s, is_long=logged > 1)

    def _log(self, blocked_s: float, *, is_long: bool) -> None:
        tool, place = _find_block(sys._current_frames().get(self._thread_id))
        if is_long:
            advice = "the server may have given up this host, which answers no pings"
            write = _logger.error
        else:
            advice = "what blocks must be a plain `def` tool, or use asyncio.to_thread"
            write = _logger.warning
        write(
            "%s has blocked the event loop for %.3g s, at %s; %s",
            f"tool {tool}" if tool else self._outside_calls(),
            blocked_s,
            place,
            advice,
        )

    def _outside_calls(self) -> str:
        """Return what blocks if that is no call itself: a task of a call, or any other task."""
        task = asyncio.current_task(self._loop)
        name = "a callback" if task is None else f"the task {task.get_name()!r}"
        calls = {call for view in tuple(self.users.values()) for call in tuple(view)}
        waiting = {call.method for call in calls if task and call.task and _awaits(call.task, task)}
        if len(waiting) == 1:
            return f"{name} of tool {waiting.pop()}"
        return f"{name}, beside {describe_calls(calls)}," if calls else name


class _RunningTime:
    """The time in which this process ran, tick by tick: not the time while it was suspended.

    A tick that comes late has one of two reasons. Either the process was stopped, as a machine that
    sleeps, and used no processor: then no tool blocks. Or something held the interpreter's lock,
    such as a regular expression, and used a processor all the time.
    """

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._used_s = time.process_time()

    def next(self) -> float:
        """Return the seconds since the last tick."""
        at = time.monotonic()
        used_s = time.process_time()
        passed_s = at - self._at
        if passed_s > 2 * _TICK_S:
            passed_s = min(passed_s, max(2 * _TICK_S, used_s - self._used_s))
        self._at = at
        self._used_s = used_s
        return passed_s


def _find_block(frame: FrameType | None) -> tuple[str, str]:
    """Return the tool that blocks, empty if it is none, and the place.

    Reads the stack of the loop's thread, from its innermost frame out to the loop's own. The place
    is the innermost line that is neither of toolbus nor of a library, and the innermost of all
    where that is another one.
    """
    if frame is None:
        return "", "an unknown place"
    tool = ""
    innermost = own = _line(frame)
    is_own = False
    while frame is not None and not _is_of_loop(frame.f_code):
        if frame.f_code in _call_codes:
            tool = frame.f_locals["call"].method
            break
        file = frame.f_code.co_filename
        if not is_own and not file.startswith((_OWN_CODE, *_library_folders())):
            is_own = True
            own = _line(frame)
        frame = frame.f_back
    return tool, own if own == innermost else f"{own}, which called {innermost}"


def _awaits(task: asyncio.Task[Any], searched: asyncio.Task[Any]) -> bool:
    """Whether a suspended task waits for another one, as by `gather` or in a `TaskGroup`.

    Looks at what the coroutines of the task hold, since asyncio does not say who waits for a task.
    """
    seen = {id(task)}
    pending: deque[object] = deque([task])
    while pending and len(seen) < _MAX_SEARCHED:
        for found in gc.get_referents(pending.popleft()):
            if found is searched:
                return True
            is_part = isinstance(found, _WAITING) or type(found).__name__ in _WAITING_NAMES
            if is_part and id(found) not in seen:
                seen.add(id(found))
                pending.append(found)
    return False


def _is_of_loop(code: CodeType) -> bool:
    """Whether a frame is one of the event loop itself: what is further out started the program."""
    file = Path(code.co_filename)
    return file.parent.name == "asyncio" and (file.stem, code.co_name) in _LOOP_FRAMES


@cache
def _library_folders() -> tuple[str, ...]:
    import sysconfig  # it takes milliseconds, and most programs never block

    return tuple({sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")})


def _line(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
