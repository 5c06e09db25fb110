"""The context: what a tool learns of its call, and the marks that tell how far the call came."""

from __future__ import annotations

import asyncio
import threading

import pytest

from toolbus.context import Participant, ToolContext
from toolbus.errors import InvalidArguments, InvalidResult
from toolbus.hosted_call import HostedCall
from toolbus.hosted_toolkit import HostedToolkit
from toolbus.runner import Runner
from toolbus.telemetry import Tracing
from toolbus.toolkit import Toolkit
from toolbus.wire import Dispatch, pack_body


def test_context_for_local_use_needs_no_arguments() -> None:
    context = ToolContext()
    assert context.caller.name == "local"
    assert (context.room, context.on_behalf_of, context.caller_context) == (None, None, None)
    assert context.deadline is None
    assert context.cancelled is False


def test_context_tells_the_facts_of_its_call() -> None:
    room, alice, bob = object(), Participant("1", "alice"), Participant("2", "bob", "admin", "acme")
    context = ToolContext(room, alice, on_behalf_of=bob, caller_context={"locale": "nb"})
    assert context.room is room
    assert (context.caller, context.on_behalf_of) == (alice, bob)
    assert context.caller_context == {"locale": "nb"}
    with pytest.raises(AttributeError):
        context.caller = bob  # type: ignore[misc]  # the point of the test


def test_deadline_is_the_time_left_and_never_negative() -> None:
    now = 100.0
    context = ToolContext(deadline_at=102.5, clock=lambda: now)
    assert context.deadline == 2.5
    now = 200.0
    assert context.deadline == 0.0


async def test_cancel_is_seen_by_a_thread() -> None:
    context = ToolContext()
    started = threading.Event()

    def wait_for_cancel() -> bool:
        started.set()
        while not context.cancelled:
            pass
        return True

    async with asyncio.timeout(5):
        waiting = asyncio.ensure_future(context.run_sync(wait_for_cancel))
        await asyncio.to_thread(started.wait, 5)
        context.cancel()
        assert await waiting is True


async def test_sync_functions_run_where_the_caller_chose() -> None:
    ran = []

    async def here(function: object) -> object:
        ran.append(function)
        return function() if callable(function) else None

    assert await ToolContext(run_sync=here).run_sync(lambda: 7) == 7
    assert len(ran) == 1


def test_refusal_stands_only_while_the_function_was_not_entered() -> None:
    context = ToolContext()
    refusal = context.refuse(InvalidArguments("no"))
    assert context.stands(refusal)
    assert not context.stands(InvalidArguments("no"))
    context.entered = True
    assert not context.stands(refusal)


def test_failure_stands_only_once_the_function_was_entered() -> None:
    context = ToolContext()
    failure = context.fail(InvalidResult("bad"))
    assert not context.stands(failure)
    context.entered = True
    assert context.stands(failure)


def test_executed_is_yes_once_the_function_was_entered() -> None:
    before, after = ToolContext(), ToolContext()
    after.entered = True
    assert (before.executed, after.executed) == ("maybe", "yes")


async def test_a_hosted_call_has_every_fact_that_a_context_has() -> None:
    runner = Runner(room_of=lambda *_: None, room_name="lab", tracing=Tracing())
    arguments = pack_body({})
    dispatch = Dispatch(1, "1" * 32, "t", "run", 1_000, arguments, {})
    run = HostedCall(runner, dispatch, HostedToolkit(Toolkit("t"), public=True))
    missing = {fact for fact in vars(ToolContext()) if not hasattr(run, fact)}
    # Read from the dispatch, or run by the runner, where the context keeps a value.
    of_the_dispatch = {"_caller", "_on_behalf_of", "_clock", "_deadline_at"}
    assert missing == of_the_dispatch | {"_on_chunk", "_on_progress", "_run_sync"}
    assert run.deadline is not None
    assert 0 < run.deadline <= 1
