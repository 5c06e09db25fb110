"""What an agent says while it answers: plain dicts, so that they travel as JSON.

    dropped      reason: why the model does not see some or all of what was said before
    text         text: a piece of what the model says
    restart      the reply broke off, and the model is asked again: its text so far does not count
    tool_call    id, tool, arguments: the model asks for a call; arguments that are not an object,
                 or long, are their text, cut
    progress     id, tool, value: the latest progress of a call
    held         id, tool, hold, kind, waits_for, left_s, may_settle, nobody: a call waits for a
                 person, to "approve" it or to "answer" it by `kind`. `hold` is the id of the
                 approval, null for a question of the agent itself, of which only its asker is told;
                 `waits_for` the tool that waits, which the called one may call in turn, null if the
                 agent may not know it; `left_s` the seconds until it expires, null if it does not;
                 `may_settle` whether the agent itself may settle it, and `nobody` whether nobody in
                 the room may
    resumed      id, tool, hold, outcome, changed: it goes on; "approved", "answered", "denied",
                 "expired", "cancelled" or "lost"; `changed` says whether who approved it has
                 changed its arguments
    tool_result  id, tool, state, executed, text: the result as the model reads it, cut; error with
                 code and message unless state is "ok"; files with name, mime_type, size of each, of
                 the first 50
    parked       id, tool, arguments: the call waits for its result from outside, and so does the
                 answer, which ends here; with the arguments that were let through
    waiting      seconds since the last event: nothing is lost, it takes longer
    end          reason, text of the last reply, steps, tokens with input and output, trace: the id
                 of the trace, null if none is recorded; from the toolkit of an agent also omitted:
                 the number of characters that a very long text lacks there

After a `tool_result` with `files` these follow, each as a `FileChunk`. `end` is always the last;
its `reason` is "done", "max_steps", "max_tokens" or "parked". A question that fails has no `end`,
but an error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any, TypeAlias

from toolbus.chunks.carried_values import Carrying, repaired
from toolbus.chunks.chunk_types import FileChunk
from toolbus.chunks.json_values import shown
from toolbus.client.held_calls import HeldCall
from toolbus.concurrency.tasks import retrieve_error
from toolbus.errors import InvalidArguments, InvalidResult
from toolbus.turns.parking import ParkedUse
from toolbus.turns.tool_use import ToolResult, ToolUse, arguments_of
from toolbus.untrusted_text import SHOWN_CHARS

__all__ = [
    "EVENT_TYPES",
    "MAX_END_CHARS",
    "WAITING_S",
    "AgentEvent",
    "end_event",
    "fitted_to_chunk",
    "held_event",
    "parked_event",
    "progress_event",
    "result_events",
    "text_after",
    "text_events",
    "use_event",
    "with_waiting",
]

AgentEvent: TypeAlias = dict[str, Any]
"""One event, as the table above says."""
EVENT_TYPES = frozenset(
    {"dropped", "text", "restart", "tool_call", "progress", "held", "resumed", "tool_result"}
    | {"parked", "waiting", "end"}
)
"""The types of events."""

MAX_TEXT_CHARS = 16_384
"""Of each text in an event but the last: it is to be looked at, while the model has all of it."""
MAX_END_CHARS = 60_000
"""Of the text of the last event: with 4 bytes for each it fits a chunk, which has 256 KiB."""
_MAX_FILES = 50
"""Of a result, in its event: all of them follow it, and tell their names too."""
WAITING_S = 10.0
"""Seconds without an event, after which there is one of the type `waiting`. By default a stream
ends as stalled after 30 s: so one of these may be late."""
_END = object()


def text_events(text: str) -> Iterator[AgentEvent]:
    """Return the events of a text, usually one."""
    for start in range(0, len(text), MAX_TEXT_CHARS):
        yield {"type": "text", "text": repaired(text[start : start + MAX_TEXT_CHARS])}


def text_after(shown: str, text: str) -> str:
    """Return what the text of a reply has beyond that of its events: some servers send it late."""
    return text[len(shown) :] if text.startswith(shown) else ""


def use_event(use: ToolUse, tool: str) -> AgentEvent:
    """Return the event of a use of `tool`, `toolkit.tool`; by the name of the use without one."""
    return {"type": "tool_call", **_named(use.id, tool), "arguments": _arguments(use)}


def parked_event(use: ParkedUse) -> AgentEvent:
    """Return the event of a use that is parked."""
    asked = ToolUse(use.id, use.tool, use.arguments)
    return {"type": "parked", **_named(use.id, use.tool), "arguments": _arguments(asked)}


def progress_event(use: ToolUse, tool: str, value: Any) -> AgentEvent:
    """Return the event of a progress."""
    return {"type": "progress", **_named(use.id, tool), "value": value}


def held_event(held: HeldCall, use: ToolUse | None = None, tool: str = "") -> AgentEvent:
    """Return the event of a call that waits for a person, or goes on; without a use, of no use."""
    event: AgentEvent = {
        "type": "held" if held.is_open else "resumed",
        "id": None,
        "tool": None,
        "hold": held.id or None,
    }
    if use is not None:
        event |= _named(use.id, tool)
    if not held.is_open:
        return event | {"outcome": held.outcome, "changed": held.changed}
    return event | {
        "kind": held.kind or "approve",
        "waits_for": held.tool or None,
        "left_s": held.left_s,
        "may_settle": held.may_settle,
        "nobody": held.nobody,
    }


def result_events(result: ToolResult) -> Iterator[AgentEvent | FileChunk]:
    """Yield the event of a result, without the bytes of its files, and then the files.

    There is none for a parked use, which has no result yet: see `parked_event`.
    """
    if result.state == "parked":
        return
    text = result.for_model(lambda file: True)
    event: AgentEvent = {
        "type": "tool_result",
        **_named(result.id, result.tool),
        "state": result.state,
        "executed": result.executed,
        "text": _cut(text),
    }
    if result.error is not None:
        event["error"] = {"code": result.error.code, "message": _cut(result.error.message)}
    files = [chunk for chunk in result.chunks if isinstance(chunk, FileChunk)]
    if files:
        event["files"] = [_file_facts(file) for file in files[:_MAX_FILES]]
    yield event
    yield from files


def end_event(reason: str, text: str, steps: int, tokens: Mapping[str, int]) -> AgentEvent:
    """Return the last event; the agent adds the trace."""
    return {
        "type": "end",
        "reason": reason,
        "text": repaired(text),
        "steps": steps,
        "tokens": dict(tokens),
        "trace": None,
    }


def fitted_to_chunk(event: AgentEvent | FileChunk) -> AgentEvent | FileChunk:
    """Return an event of which each text fits a chunk."""
    if isinstance(event, FileChunk) or len(event.get("text", "")) <= MAX_END_CHARS:
        return event
    text = event["text"]
    return {**event, "text": text[:MAX_END_CHARS], "omitted": len(text) - MAX_END_CHARS}


def _named(use_id: str, tool: str) -> AgentEvent:
    return {"id": repaired(use_id[:SHOWN_CHARS]), "tool": repaired(tool[:SHOWN_CHARS])}


def _arguments(use: ToolUse) -> Any:
    try:
        arguments = Carrying().plain(arguments_of(use), 2)  # below the object of the event
    except (InvalidArguments, InvalidResult):  # such a call fails, and its result says why
        if isinstance(use.arguments, str):
            return _cut(use.arguments)
        return _cut(shown(use.arguments))
    text = json.dumps(arguments, ensure_ascii=False)
    return arguments if len(text) <= MAX_TEXT_CHARS else _cut(text)


def _cut(text: str) -> str:
    return repaired(text[:MAX_TEXT_CHARS])


def _file_facts(file: FileChunk) -> AgentEvent:
    """Return name, type and size of a file; no size for one that is not in memory."""
    size = len(file.data) if file.is_whole else None
    name, mime_type = (repaired(text[:SHOWN_CHARS]) for text in (file.name, file.mime_type))
    return {"name": name, "mime_type": mime_type, "size": size}


async def with_waiting(
    events: AsyncGenerator[Any, None], every_s: float | None = None
) -> AsyncGenerator[Any, None]:
    """Yield events as they come, and `waiting` each time that none came for a while.

    All of `events` runs in one task, so that time-outs and spans in it may last over several
    events. It is at most two events ahead of the reader. Leaving this loop ends it.
    """
    seconds = WAITING_S if every_s is None else every_s
    passed: asyncio.Queue[Any] = asyncio.Queue()
    # Not the limit of the queue: the end is put also where the reader is behind.
    free = asyncio.Semaphore(1)

    async def read() -> None:
        try:
            async with aclosing(events):
                async for event in events:
                    passed.put_nowait(event)
                    await free.acquire()
        except SystemExit as error:  # a task that raises it ends the event loop
            raise RuntimeError(f"SystemExit: {error.code}") from error

    reading = asyncio.create_task(read())
    reading.add_done_callback(lambda _: passed.put_nowait(_END))
    clock = asyncio.get_running_loop().time
    since = clock()
    try:
        while True:
            try:
                async with asyncio.timeout(seconds):
                    event = await passed.get()
            except TimeoutError:
                yield {"type": "waiting", "seconds": round(clock() - since, 1)}
                continue
            if event is _END:
                break
            free.release()
            yield event
            since = clock()
        await reading
    finally:
        reading.cancel()
        await asyncio.wait([reading])
        retrieve_error(reading)
