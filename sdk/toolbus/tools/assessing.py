"""Asks a tool about one input, and takes nothing of the answer on trust but its meaning.

A tool's `assess` is code of its author, and its arguments are those of a model. So it has 5 s,
however it treats a cancellation; what it raises, and what is no assessment, is an ask that no allow
rule replaces; and each field of its answer is bounded.

One that blocks runs on a thread, which cannot be stopped and is left behind after its time. The
threads are shared fairly between callers: else one caller could take all of them, and everybody's
calls would be refused by their policies.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar, cast, get_args

from toolbus.bounded_logging import bounded_logger
from toolbus.concurrency.interrupts import is_ctrl_c
from toolbus.concurrency.tasks import retrieve_error
from toolbus.concurrency.worker_threads import WorkerThreads
from toolbus.errors import RoomException
from toolbus.permissions.assessment import AssessedBehavior, Assessment, assessment_of_flags
from toolbus.permissions.plain import (
    MAX_ASSESS_S,
    MAX_MESSAGE_CHARS,
    MAX_PARTS,
    MAX_PREVIEW_BYTES,
    MAX_REACHES_CHARS,
    MAX_SUGGESTIONS,
)
from toolbus.permissions.rule import Rule
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.tool import Tool
from toolbus.tools.tool_run import ToolRun
from toolbus.untrusted_text import printable, shortened

__all__ = ["assessed", "of_patterns", "on_assess_thread"]

_logger = bounded_logger(__name__)

_SHARE_OF_DEADLINE = 0.8
"""How much of the time that a question has is the tool's; in the rest the answer travels. Without
it, what the caller of a tool that hangs gets is no assessment but a deadline that passed."""
_BEHAVIORS = get_args(AssessedBehavior)
_abandoned: set[asyncio.Task[Any]] = set()


T = TypeVar("T")
_THREADS = WorkerThreads("assess", 64, may_take_long=True)
_MAX_OF_ONE_CALLER = 16
"""Of the threads, at a time, also of those that were left behind: a quarter."""
_shares: dict[tuple[asyncio.AbstractEventLoop, str, str], _Share] = {}


async def assessed(
    tool: Tool, name: str, context: ToolContext, arguments: dict[str, Any], patterns: Sequence[str]
) -> Assessment:
    """Return what a tool says about checked arguments.

    Raises a `RoomException` that `assess` refused the call with, by `context.refuse`.
    """
    run = run_of(context)
    run.patterns = tuple(patterns)
    ends_at = time.monotonic() + _seconds_of(run)
    flags = assessment_of_flags(tool.manifest())
    if tool.orchestration and not run.is_hosted:
        flags = replace(flags, read_only=True)
    if not (patterns or _has_own(tool)):
        return flags
    try:
        reaches = _reached(tool, arguments)
        answer = flags
        if _has_own(tool):
            answer = await _before(ends_at, partial(tool.assess, context, arguments))
        found = _bounded(answer, name, reaches, patterns)
        if patterns and tool.has_patterns:
            ask = partial(_matching, tool, patterns, arguments)
            certain = await _before(ends_at, partial(on_assess_thread, run, ask))
            # Each once: the answer has no more of them than the question.
            matches = tuple(dict.fromkeys((*found.matches, *certain)))
            # What `match_rule` finds is certain.
            uncertain = tuple(match for match in found.uncertain if match not in certain)
            found = replace(found, matches=matches, uncertain=uncertain)
    except RoomException as error:
        if run.is_recorded(error):
            raise
        return _unknown(tool, error, arguments)
    except (Exception, SystemExit) as error:
        return _unknown(tool, error, arguments)
    if found.uncertain and not found.parts:
        # A client that does not know `uncertain` takes `matches` as matching, to allow too.
        certain = tuple(match for match in found.matches if match not in found.uncertain)
        found = replace(found, parts=(certain,))
    if tool.orchestration and not run.is_hosted:
        found = replace(found, read_only=True)
    return found


def _has_own(tool: Tool) -> bool:
    """Whether a tool has an assessment of its own, or reaches another one."""
    return tool.has_assess or type(tool).reached is not Tool.reached


def _seconds_of(run: ToolRun) -> float:
    """Return how long the tool of a run has for all that it is asked."""
    if run.deadline_at is None:
        return MAX_ASSESS_S
    return min(MAX_ASSESS_S, _SHARE_OF_DEADLINE * max(0.0, run.deadline_at - run.clock()))


def _reached(tool: Tool, arguments: dict[str, Any]) -> str:
    reaches = tool.reached(arguments)
    if not isinstance(reaches, str):
        raise _NoAssessment(f"reached returned {type(reaches).__name__}")
    return reaches[:MAX_REACHES_CHARS]


def _matching(tool: Tool, patterns: Sequence[str], arguments: dict[str, Any]) -> tuple[str, ...]:
    found = []
    for pattern in patterns:
        is_match = tool.match_rule(pattern, arguments)
        # A forgotten `return` must not let a denial pass, nor any other object an allow rule match.
        if not isinstance(is_match, bool):
            raise _NoAssessment(f"match_rule returned {type(is_match).__name__}, not a bool")
        if is_match:
            found.append(pattern)
    return tuple(found)


async def _before(ends_at: float, start: Callable[[], Awaitable[Any]]) -> Any:
    """Wait for the answer of a tool's own code; leave it behind if it does not end in time.

    A task of its own, because code that swallows a cancellation could hold up `asyncio.timeout`.
    """

    async def run() -> Any:
        try:
            return await start()
        except (SystemExit, KeyboardInterrupt) as error:  # such as argparse's
            if is_ctrl_c(error):
                raise
            # As the end of a task it would end the program.
            raise RuntimeError(f"it raised {type(error).__name__}") from error

    seconds = max(0.0, ends_at - time.monotonic())
    task = asyncio.ensure_future(run())
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
    except asyncio.CancelledError:
        _abandon(task)
        raise
    if not done:
        _abandon(task)
        raise TimeoutError(f"it took longer than {seconds:.2g} s")
    if task.cancelled():
        raise RuntimeError("it raised CancelledError")
    return task.result()


def _abandon(task: asyncio.Task[Any]) -> None:
    _abandoned.add(task)  # the loop itself keeps only a weak reference
    task.add_done_callback(_abandoned.discard)
    task.add_done_callback(retrieve_error)
    task.cancel()


def _unknown(tool: Tool, error: Exception | SystemExit, arguments: dict[str, Any]) -> Assessment:
    """Return the assessment of a tool that could not be asked."""
    if not tool.has_logged_assess:  # it may fail for every call
        tool.has_logged_assess = True
        _logger.warning(
            "tool %s cannot assess an input; later failures of this tool are not logged",
            tool.name,
            exc_info=error,
        )
    # Its text may contain what the caller must not read, as that of a tool's own exception.
    why = str(error) if isinstance(error, TimeoutError | _NoAssessment) else type(error).__name__
    try:
        reaches = _reached(tool, arguments)
    except (Exception, SystemExit):
        # Rules about the tool that it would reach cannot be applied, and a mode skips an ask.
        message = f"the tool cannot say which tool this call would reach: {why}"
        return Assessment("deny", message=printable(message, MAX_MESSAGE_CHARS), source="manifest")
    message = f"the tool cannot say what this call would do: {why}"
    return Assessment(
        "ask",
        immune=True,
        message=printable(message, MAX_MESSAGE_CHARS),
        source="manifest",
        reaches=reaches,
    )


class _NoAssessment(TypeError):
    """What `assess` returned is none."""


def _bounded(answer: Any, name: str, reaches: str, patterns: Sequence[str]) -> Assessment:
    """Return the answer of `assess` within the limits. Raises `_NoAssessment` for nonsense."""
    if isinstance(answer, str) and answer in _BEHAVIORS:
        answer = Assessment(cast(AssessedBehavior, answer))
    if not isinstance(answer, Assessment) or answer.behavior not in _BEHAVIORS:
        raise _NoAssessment(f"assess returned {type(answer).__name__}")
    flags = (answer.read_only, answer.within_workdir, answer.immune)
    refusal, asks = answer.refusal, answer.asks
    texts = (answer.message, answer.preview, answer.hint, answer.reaches, refusal, asks)
    if not all(isinstance(flag, bool) for flag in flags):
        raise _NoAssessment("assess returned an Assessment whose flags are not booleans")
    if not all(isinstance(text, str) for text in texts):
        raise _NoAssessment("assess returned an Assessment whose texts are not text")
    lists = (answer.suggestions, answer.matches, answer.uncertain)
    if not all(isinstance(listed, (tuple, list)) for listed in lists):
        raise _NoAssessment(
            "assess returned an Assessment whose suggestions, matches or uncertain are no list"
        )
    if not isinstance(answer.parts, (tuple, list)) or not all(
        isinstance(part, (tuple, list)) for part in answer.parts
    ):
        raise _NoAssessment("assess returned an Assessment whose parts are no lists")
    if answer.source not in ("tool", "manifest"):
        raise _NoAssessment("assess returned an Assessment with another source")
    # What it reaches may forward too, and then said itself whom: that is the last of them.
    reaches = answer.reaches[:MAX_REACHES_CHARS] or reaches
    # What matches a part matches the input, so that no denial misses it.
    matches = dict.fromkeys(chain(answer.matches, answer.uncertain, *answer.parts))
    bounded = Assessment(
        answer.behavior,
        read_only=answer.read_only,
        within_workdir=answer.within_workdir,
        immune=answer.immune,
        message=shortened(printable(answer.message), MAX_MESSAGE_CHARS),
        preview=_shortened_preview(answer.preview),
        suggestions=_usable(answer.suggestions, name, reaches),
        matches=tuple(matches),
        parts=tuple(
            tuple(match for match in part if match not in answer.uncertain) for part in answer.parts
        ),
        uncertain=tuple(answer.uncertain),
        hint=shortened(printable(answer.hint), MAX_MESSAGE_CHARS),
        source=answer.source,
        reaches=reaches,
        refusal=printable(refusal[: 2 * MAX_MESSAGE_CHARS], MAX_MESSAGE_CHARS),
        asks=printable(asks[: 2 * MAX_MESSAGE_CHARS], MAX_MESSAGE_CHARS),
    )
    return of_patterns(bounded, patterns)


def of_patterns(assessment: Assessment, patterns: Sequence[str]) -> Assessment:
    """Return an assessment with no other patterns than these, and with each of its parts.

    Parts with the same patterns need the same rules, and are one. Of more than are allowed none
    is left out, which would allow more: then no pattern allows the call.
    """
    asked = frozenset(patterns)
    matches = tuple(match for match in assessment.matches if match in asked)
    parts = tuple(
        dict.fromkeys(
            tuple(match for match in dict.fromkeys(part) if match in asked)
            for part in assessment.parts
        )
    )
    return replace(
        assessment,
        matches=matches,
        parts=((),) if len(parts) > MAX_PARTS else parts,
        uncertain=tuple(match for match in dict.fromkeys(assessment.uncertain) if match in asked),
    )


def _shortened_preview(text: str) -> str:
    escaped = shown = printable(text)
    most = MAX_PREVIEW_BYTES
    while len(shown.encode()) > MAX_PREVIEW_BYTES:
        shown = shortened(escaped, most)
        # Its characters have up to four bytes each.
        most = most * MAX_PREVIEW_BYTES // (len(shown.encode()) + 1)
    return shown


def _usable(suggestions: Sequence[Any], name: str, reaches: str) -> tuple[Rule, ...]:
    """Return the suggestions that allow no more than this tool, or the one that it reaches.

    A rule of the tool's author may leave `tool` out, since a tool does not know its toolkit.
    """
    target = reaches or name
    found = []
    for rule in suggestions:
        if isinstance(rule, Rule) and rule.behavior == "allow":
            if rule.tool == "*":
                rule = replace(rule, tool=target)
            if rule.tool in (name, target):
                found.append(rule)
    return tuple(found[:MAX_SUGGESTIONS])


class _Share:
    """The threads that one caller uses in one event loop."""

    def __init__(self) -> None:
        self.running: set[object] = set()
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> object:
        """Wait for a thread; return what `release` takes."""
        while len(self.running) >= _MAX_OF_ONE_CALLER:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it was its turn already
                    self._wake_next()
                raise
        place = object()
        self.running.add(place)
        return place

    def release(self, place: object) -> None:
        """Give a thread back; more than once is as once."""
        self.running.discard(place)
        self._wake_next()

    def _wake_next(self) -> None:
        while self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


async def on_assess_thread(run: ToolRun, function: Callable[[], T]) -> T:
    """Run a function of a tool on a thread, as one of those of the caller of a run.

    Raises what the function raises.
    """
    loop = asyncio.get_running_loop()
    key = (loop, run.caller.issuer, run.caller.name)
    share = _shares.get(key)
    if share is None:
        share = _shares[key] = _Share()
    place = await share.acquire()

    def end() -> None:
        share.release(place)
        if not share.running and not share.waiting and _shares.get(key) is share:
            del _shares[key]

    has_begun = False

    def work() -> T:
        nonlocal has_begun
        has_begun = True
        try:
            return function()
        finally:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(end)

    try:
        return await _THREADS.run(work)
    except asyncio.CancelledError:
        if not has_begun:  # it never will, or ends in no time: the place is given back once
            end()
        raise
