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
from toolbus.agents.answer_progress import add_reply, begun_answer, keep_progress, limit_of
from toolbus.agents.model_requests import RESTART, ModelMiddleware, RequestToModel, model_events
from toolbus.chunks.chunk_types import FileChunk
from toolbus.client.held_calls import HeldCall
from toolbus.models.adapter import Model, Plain
from toolbus.turns.tool_use import ToolResult, ToolUse
from toolbus.turns.turn import Turn

__all__ = ["agent_loop"]


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
    answer, reason = begun_answer(turn, adapter, conversation)
    while not reason and not (reason := limit_of(answer, max_steps, max_tokens)):
        answer.steps += 1
        request = adapter.request(turn, conversation, instructions)
        call = RequestToModel(model, request, turn, answer.steps, needs_answer=not answer.text)
        events: list[Mapping[str, Any]] = []
        shown = [answer.paused]
        async with aclosing(model_events(call, middlewares)) as replied:
            async for event in replied:
                if event is RESTART:
                    events.clear()
                    del shown[1:]
                    yield {"type": "restart"}
                    continue
                events.append(event)
                for piece in text_events(adapter.text_of(event)):
                    shown.append(piece["text"])
                    yield piece
        reply = adapter.collect(events)
        await asyncio.sleep(0)  # a reply may have thousands of calls: others run between the steps
        words = answer.paused + adapter.text(reply)
        for piece in text_events(text_after("".join(shown), words)):
            yield piece
        reason = add_reply(answer, call, reply, words, counts=max_tokens is not None)
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
            keep_progress(answer, turn, call, reply, len(conversation) - start)
        reason = "parked" if turn.parked else reason
    for use in turn.parked:
        yield parked_event(use)
    yield end_event(reason, answer.text, answer.steps, answer.tokens)


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
