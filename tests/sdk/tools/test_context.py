"""The context of a tool: the data of its call, and the state from which `executed` is derived."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from toolbus.errors import InvalidArguments, InvalidResult, Unavailable
from toolbus.tools.context import ToolContext, run_of
from toolbus.tools.tool_run import Participant


def test_context_for_local_use_needs_no_arguments() -> None:
    context = ToolContext()
    assert context.caller.name == "local"
    assert (context.on_behalf_of, context.caller_context) == (None, None)
    with pytest.raises(Unavailable, match="this call has no room"):
        _ = context.room
    assert context.deadline is None
    assert context.cancelled is False


def test_context_has_the_facts_of_its_call() -> None:
    room: Any = object()
    alice, bob = Participant("1", "alice"), Participant("2", "bob", "admin", "acme")
    context = ToolContext(room, alice, on_behalf_of=bob, caller_context={"locale": "nb"})
    assert context.room is room
    assert (context.caller, context.on_behalf_of) == (alice, bob)
    assert context.caller_context == {"locale": "nb"}
    with pytest.raises(AttributeError):
        context.caller = bob  # type: ignore[misc]  # the point of the test


def test_every_grant_has_to_cover_what_may_be_built() -> None:
    """BUILD-3: without any grant nothing may be."""
    one, all_names = ("sql", "word*"), ("*",)
    rows: list[tuple[tuple[tuple[str, ...], ...], list[str]]] = [
        ((), []),
        ((one,), ["sql", "words"]),
        ((all_names, one), ["sql", "words"]),
        ((one, ("words",)), ["words"]),
        ((all_names, ()), []),
        ((all_names, all_names), ["sql", "words", "mail"]),
    ]
    for builders, may in rows:
        context = ToolContext(builders=builders)
        assert context.builders == builders
        names = ["sql", "words", "mail", "", "SQL", "sql.x", "*", "word*"]
        assert [name for name in names if context.may_build(name)] == may


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

    async with asyncio.timeout(60):
        waiting = asyncio.ensure_future(run_of(context).run_sync(wait_for_cancel))
        await asyncio.to_thread(started.wait, 5)
        run_of(context).cancel()
        assert await waiting is True


async def test_sync_functions_run_where_the_caller_chose() -> None:
    ran = []

    async def here(function: object) -> object:
        ran.append(function)
        return function() if callable(function) else None

    assert await run_of(ToolContext(run_sync=here)).run_sync(lambda: 7) == 7
    assert len(ran) == 1


def test_refusal_is_recorded_only_while_the_function_was_not_entered() -> None:
    context = ToolContext()
    refusal = context.refuse(InvalidArguments("no"))
    assert run_of(context).is_recorded(refusal)
    assert not run_of(context).is_recorded(InvalidArguments("no"))
    run_of(context).entered = True
    assert not run_of(context).is_recorded(refusal)


def test_failure_is_recorded_once_the_function_was_entered_and_a_refusal_is_not() -> None:
    context = ToolContext()
    run_of(context).entered = True
    failure = run_of(context).record(InvalidResult("bad"))
    assert run_of(context).is_recorded(failure)
    refusal = context.refuse(InvalidArguments("no"))
    assert not run_of(context).is_recorded(refusal)
    assert run_of(context).is_recorded(failure)


def test_context_has_only_what_the_author_of_a_tool_uses() -> None:
    facts = {"caller", "caller_context", "cancelled", "deadline", "on_behalf_of", "room", "state"}
    facts |= {"builders", "call_id", "forwarded_for", "is_hosted", "patterns", "workdirs"}
    others = {
        "ask",
        "ask_sync",
        "call_sync",
        "can_ask",
        "emit",
        "enter",
        "forward",
        "forward_assess",
        "refuse",
    }
    others |= {"may_build", "wants_progress"}
    assert {name for name in dir(ToolContext) if name[0] != "_"} == facts | others


def test_progress_is_wanted_where_it_is_received() -> None:
    assert not ToolContext().wants_progress
    assert ToolContext(on_progress=print).wants_progress


def test_state_is_the_dict_of_the_run() -> None:
    context, state = ToolContext(), {"open": ["a.txt"]}
    assert context.state is None
    run_of(context).state = state
    assert context.state is state


def test_executed_is_yes_once_the_function_was_entered() -> None:
    before, after = ToolContext(), ToolContext()
    after.enter()
    assert (run_of(before).executed, run_of(after).executed) == ("maybe", "yes")
