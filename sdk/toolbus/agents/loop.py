"""The loop of an agent: the model is asked, its calls run, their results go back, until it answers.

It uses nothing that is private to another module, so that a program with other needs can begin with
a copy of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from toolbus.agents.agent_events import (
    AgentEvent,
    end_event,
    held_event,
    parked_event,
    progress_event,
    result_events,
    text_after,
    text_events,
    use_event,
)
from toolbus.agents.model_requests import RESTART, ModelMiddleware, RequestToModel, model_events
from toolbus.chunks.chunk_types import FileChunk
from toolbus.client.held_calls import HeldCall
from toolbus.errors import Unavailable
from toolbus.models.adapter import Adapter, Model, Plain
from toolbus.turns.parking import AnswerProgress
from toolbus.turns.tool_use import ToolResult, ToolUse
from toolbus.turns.turn import Turn

__all__ = ["agent_loop", "complete_step", "progress_of"]


async def agent_loop(  # noqa: PLR0913 - a copy may leave out what it does not need
    turn: Turn,
    model: Model,
    conversation: list[Plain],
    *,
    instructions: str = "",
    max_steps: int = 20,
    max_tokens: int | None = None,
    middlewares: Sequence[ModelMiddleware] = (),
) -> AsyncGenerator[AgentEvent | FileChunk, None]:
    """Let a model answer the end of a conversation with the tools of a turn; yield what happens.

    Each step adds the reply, and the results of all its uses, to the conversation, also where it
    ends early: a tool that ran is never forgotten. Leave the loop over it with
    `contextlib.aclosing`; that ends the request or the calls that run.

    Where uses are parked it ends with the reason "parked". With a turn whose state has this step,
    and whose uses are settled, it goes on; where some are parked still it ends at once.

    Args:
        turn: Its tools; it is entered.
        model: The model.
        conversation: The messages so far, in the words of the model's adapter, ending with one of
            the user. It is added to.
        instructions: What the model is told before everything else.
        max_steps: How many replies the model gives at most.
        max_tokens: After how many tokens of requests and replies the model is not asked again.
            Where the provider counts none, they are estimated as bytes / 4.
        middlewares: What stands around each request to the model, the first outermost.

    Raises `ModelError` if the model gives no reply.
    """
    adapter = model.adapter
    answer = AnswerProgress()
    if turn.state.parked is not None:  # of an earlier run, perhaps in another process
        answer = progress_of(turn)
        if not turn.parked:
            complete_step(turn, adapter, conversation)
    reason = "parked" if turn.parked else ""
    while not reason and not (reason := _limit_of(answer, max_steps, max_tokens)):
        answer.steps += 1
        request = adapter.request(turn, conversation, instructions)
        call = RequestToModel(model, request, turn, answer.steps, needs_answer=not answer.text)
        events: list[Mapping[str, Any]] = []
        shown = [answer.paused]
        async with aclosing(_ask(call, middlewares, events, shown)) as shown_events:
            async for shown_event in shown_events:
                yield shown_event
        reply = adapter.collect(events)
        await asyncio.sleep(0)  # a reply may have thousands of calls: others run between the steps
        words = answer.paused + adapter.text(reply)
        for piece in text_events(text_after("".join(shown), words)):
            yield piece
        reason = _add_reply(answer, call, reply, words, counts=max_tokens is not None)
        uses = adapter.uses(reply)
        start = len(conversation)
        known = len(turn.results)
        # Before the calls, so that they are in a conversation that is saved meanwhile, and a reply
        # that the adapter refuses makes none. A use without a result counts as interrupted.
        conversation += call.messages(reply, ())
        try:
            async with aclosing(_run(turn, uses)) as tool_events:
                async for tool_event in tool_events:
                    yield tool_event
        finally:
            conversation[start:] = call.messages(reply, turn.results[known:])
            _keep(answer, turn, call, reply, len(conversation) - start)
        reason = "parked" if turn.parked else reason
    for use in turn.parked:
        yield parked_event(use)
    tokens = {"input": answer.input_tokens, "output": answer.output_tokens}
    yield end_event(reason, answer.text, answer.steps, tokens)


def _add_reply(
    answer: AnswerProgress, call: RequestToModel, reply: Plain, words: str, *, counts: bool
) -> str:
    """Add a reply to what the answer has so far; return "done" for the last one."""
    adapter = call.model.adapter
    answer.text = words if words.strip() else answer.text  # may be empty, after one with calls
    answer.input_tokens += call.usage.reported.input
    answer.output_tokens += call.usage.reported.output
    is_paused = adapter.ending(reply).is_paused
    answer.paused = words if is_paused else ""
    if not is_paused and not adapter.uses(reply):
        return "done"
    if counts:
        answer.counted_tokens += sum(call.usage.counted)
    return ""


def _limit_of(answer: AnswerProgress, max_steps: int, max_tokens: int | None) -> str:
    if max_tokens is not None and answer.counted_tokens >= max_tokens:
        return "max_tokens"
    return "max_steps" if answer.steps >= max_steps else ""


def progress_of(turn: Turn) -> AnswerProgress:
    """Return how far the loop had come that has parked a step.

    Raises `Unavailable` if a program has parked it, which has the reply itself.
    """
    step = turn.state.parked
    if step is None or step.progress is None:
        text = "no loop has parked this step: give Turn.take_results to the model yourself"
        raise Unavailable(text, executed="no", retryable=False)
    return step.progress


def complete_step(turn: Turn, adapter: Adapter, conversation: list[Plain]) -> None:
    """Put the results of a parked step into the conversation, in place of what stood for them.

    Raises as `progress_of`, and `Unavailable` while a use of it is parked.
    """
    answer = progress_of(turn)
    made = adapter.messages(answer.reply, turn.take_results())
    at = max(0, len(conversation) - answer.messages)
    conversation[at:] = adapter.portable(made) if answer.is_portable else made


def _keep(
    answer: AnswerProgress, turn: Turn, call: RequestToModel, reply: Plain, messages: int
) -> None:
    """Keep with a parked step what it takes to go on, perhaps in another process."""
    if turn.state.parked is None:
        return
    answer.reply = reply
    answer.messages = messages
    answer.is_portable = call.is_of_another_model
    turn.state.parked.progress = answer


async def _ask(
    call: RequestToModel,
    middlewares: Sequence[ModelMiddleware],
    events: list[Mapping[str, Any]],
    shown: list[str],
) -> AsyncGenerator[AgentEvent, None]:
    """Ask the model, and yield what it says; add the events of the reply, and the texts."""
    async with aclosing(model_events(call, middlewares)) as replied:
        async for event in replied:
            if event is RESTART:
                events.clear()
                del shown[1:]
                yield {"type": "restart"}
                continue
            events.append(event)
            for piece in text_events(call.model.adapter.text_of(event)):
                shown.append(piece["text"])
                yield piece


async def _run(turn: Turn, uses: Sequence[ToolUse]) -> AsyncGenerator[AgentEvent | FileChunk, None]:
    """Run what the model asks for; yield each result as soon as there is one."""
    if not uses:
        return
    tools: dict[str, str] = {}
    for use in uses:
        tools[use.id], arguments = turn.called(use)
        yield use_event(replace(use, arguments=arguments), tools[use.id])
    # Of each use at most one progress, its waits for persons, and its result, which the turn keeps.
    waiting: asyncio.Queue[ToolUse | ToolResult | AgentEvent | None] = asyncio.Queue()
    latest: dict[str, Any] = {}

    def progress(use: ToolUse, value: Any) -> None:
        if use.id not in latest:
            waiting.put_nowait(use)
        latest[use.id] = value

    def held(use: ToolUse, call: HeldCall) -> None:
        waiting.put_nowait(held_event(call, use, tools[use.id]))

    running = asyncio.create_task(
        turn.run(uses, on_progress=progress, on_held=held, on_result=waiting.put_nowait)
    )
    running.add_done_callback(lambda _: waiting.put_nowait(None))
    try:
        while (item := await waiting.get()) is not None:
            if isinstance(item, ToolUse):
                yield progress_event(item, tools[item.id], latest.pop(item.id))
            elif isinstance(item, ToolResult):
                for event in result_events(item):
                    yield event
            else:
                yield item
        await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
