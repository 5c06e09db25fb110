"""What is recorded of a call, and which records are chosen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext

from toolbus.errors import NotFound, PermissionDenied, RoomException
from toolbus.hosting.in_process import InProcessCall, InProcessToolkit
from toolbus.records.call_record import CallRecord
from toolbus.records.recording import MAX_ARGUMENT_CHARS
from toolbus.records.records import Records
from toolbus.tools.context import ToolContext
from toolbus.tools.function_tool import FunctionTool
from toolbus.tools.middleware import CallNext, ToolCall
from toolbus.tools.tool_run import Participant
from toolbus.tools.toolkit import Toolkit

ALICE = Participant("p1", "alice", issuer="acme", alias="work")
BOB = Participant("p2", "bob", issuer="main")


async def work(way: str) -> str:
    """Return, fail, or be cancelled."""
    if way == "fail":
        raise ValueError(way)
    if way == "nested":
        raise NotFound("another tool")
    if way == "cancel":
        raise asyncio.CancelledError
    return way


async def guard(call: ToolCall, next: CallNext) -> AsyncIterator[Any]:
    if call.arguments["way"] == "deny":
        raise PermissionDenied("not you")
    if call.arguments["way"] == "cached":
        yield "from the cache"
        return
    async for chunk in next(call):
        yield chunk


class Locked(Toolkit):
    """Refuses one call, and acts in place of the tool for another."""

    async def execute(self, context: ToolContext, name: str, arguments: Any, *more: Any) -> Any:
        if arguments.get("way") == "refuse":
            raise context.refuse(PermissionDenied("closed"))
        return await super().execute(context, name, arguments, *more)


def facts(record: CallRecord) -> tuple[str, str, str, str]:
    return record.outcome, record.executed, record.decision, record.decided_by


@pytest.mark.parametrize("kind", [Toolkit, Locked])
@pytest.mark.parametrize(
    ("tool", "way", "found"),
    [
        ("work", "ok", ("ok", "yes", "allowed", "")),
        ("work", "fail", ("tool_failed", "yes", "allowed", "")),
        ("work", "nested", ("tool_failed", "yes", "allowed", "")),
        ("work", 5, ("invalid_arguments", "no", "denied", "schema")),
        ("fly", "ok", ("not_found", "no", "denied", "name")),
        ("work", "deny", ("permission_denied", "no", "denied", "grant")),
        ("work", "cached", ("ok", "no", "allowed", "")),
        ("work", "cancel", ("tool_failed", "yes", "allowed", "")),
    ],
)
async def test_end_of_a_call_is_recorded_once_with_whether_the_function_ran(
    kind: type[Toolkit], tool: str, way: Any, found: tuple[str, ...]
) -> None:
    records = Records.memory()
    kit = kind("kit", [FunctionTool(work)], middlewares=[guard], records=records)
    errors = (RoomException, ValueError, asyncio.CancelledError)
    with suppress(*errors):
        await kit.execute(ToolContext(caller=ALICE, on_behalf_of=BOB), tool, {"way": way})
    (record,) = records.calls()
    if kind is Locked and found[:2] == ("ok", "no"):
        found = ("ok", "maybe", "allowed", "")  # it may have acted itself
    assert facts(record) == found
    assert (record.tool, record.arguments) == (f"kit.{tool}", None)
    assert (record.caller, record.issuer) == ("work/alice", "acme")
    assert (record.principal, record.principal_issuer) == ("bob", "main")
    assert 0 <= record.duration_s < 60


@pytest.mark.parametrize(
    ("way", "found"),
    [
        ("ok", ("ok", "yes", "allowed", "")),
        ("refuse", ("permission_denied", "no", "denied", "grant")),
        ("hold", ("deadline_exceeded", "yes", "allowed", "")),
    ],
)
async def test_call_of_a_turns_toolkit_is_recorded_with_its_true_end(
    way: str, found: tuple[str, ...]
) -> None:
    async def wait(way: str) -> str:
        if way == "hold":
            await asyncio.Event().wait()
        return way

    records = Records.memory()
    local = InProcessToolkit(Locked("kit", [FunctionTool(wait)], records=records))
    call = InProcessCall(tool="wait", arguments={"way": way}, caller=ALICE, timeout_s=0.05)
    try:
        await local.run(call, lambda _: None)
    except RoomException:
        assert way != "ok"
    (record,) = records.calls()
    assert facts(record) == found


@pytest.mark.parametrize(
    ("error", "executed", "found"),
    [
        (None, None, ("ok", "yes", "allowed", "")),
        (None, "no", ("ok", "no", "allowed", "")),
        (KeyError("x"), None, ("tool_failed", "maybe", "allowed", "")),
        (asyncio.CancelledError(), "no", ("cancelled", "no", "allowed", "")),
        (PermissionDenied("x"), "yes", ("permission_denied", "no", "denied", "rule 3")),
    ],
)
def test_recording_around_any_call_takes_its_end_and_the_first_decision_counts(
    error: BaseException | None, executed: Any, found: tuple[str, ...]
) -> None:
    records = Records.memory()
    recording = records.recording("far.tool", caller=ALICE, call_id="c" * 300)
    recording.executed = None if executed is None else lambda: executed
    recording.owner, recording.digest = "carol", "abc"
    if found[3]:
        recording.decide("denied", found[3])
    span = NonRecordingSpan(SpanContext(0xAB, 0xCD, False))
    expected = nullcontext() if error is None else pytest.raises(type(error))
    with trace.use_span(span, record_exception=False), expected, recording:
        if error is not None:
            raise error
    recording.end(PermissionDenied("too late"))
    (record,) = records.calls()
    assert facts(record) == found
    assert (record.owner, record.digest, record.call_id) == ("carol", "abc", "c" * 256)
    assert record.trace_id == f"{0xAB:032x}"


async def test_arguments_are_recorded_where_asked_for_and_cut() -> None:
    records = Records.memory(arguments=True)
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    for arguments in (
        {"b": "x", "n": 1},
        {"big": "x" * 10**7},
        {"many": list(range(10**6))},
        {"deep": deep, "odd": object(), "bad": "\ud800\x1b"},
        {str(number): "y" * 400 for number in range(100)},
        {"huge": 10**5_000, "n": -(2**63)},
        cast(Any, {10**5_000: "its name cannot be written"}),
    ):
        with records.recording("kit.work", arguments=arguments):
            pass
    recorded = [record.arguments or "" for record in records.calls()]
    assert recorded[:2] == ["<not readable>", '{"huge": "<int>", "n": -9223372036854775808}']
    assert recorded[4].endswith(', "…"]}')
    assert recorded[-1] == '{"b": "x", "n": 1}'
    assert all(len(text) <= MAX_ARGUMENT_CHARS and text.isprintable() for text in recorded)


def test_calls_are_chosen_by_tool_caller_outcome_and_time_newest_first() -> None:
    records = Records.memory(3)
    assert records.calls() == []
    for at, tool, caller, outcome in (
        (1.0, "gone.by", "eve", "ok"),
        (2.0, "kit.a", "work/alice", "ok"),
        (4.0, "kit.b", "bob", "no_host"),
        (3.0, "kits.a", "bob", "ok"),
    ):
        records.record(CallRecord(tool, at, 0.1, outcome, "yes", caller=caller))

    def found(**choice: Any) -> list[float]:
        return [record.started_at for record in records.calls(**choice)]

    assert found() == [4, 3, 2]
    assert found(limit=1) == [4]
    assert found(tool="kit") == [4, 2]
    assert found(tool="*.a") == [3, 2]
    assert found(tool="kit.b", who="bob") == [4]
    assert found(who="alice") == found(who="work/alice") == [2]
    assert found(who="") == []
    assert found(outcome="ok", since=2.5) == [3]
    assert found(since=datetime.fromtimestamp(4, UTC)) == [4]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Records.memory(0), "size must be a number of calls, 1 or more"),
        (lambda: Records.sqlite("x.db", days=0), "days must be a number of days above 0"),
        (lambda: Records.sqlite(":memory:"), r"Records.memory\(\) keeps calls in memory"),
        (lambda: Records(cast("Any", "x.db")), r"made by .* or Records.sqlite\(PATH\)"),
        (lambda: Records.memory().calls(tool="a b"), "is not a tool pattern"),
        (lambda: Records.memory().calls(outcome="fine"), "'fine' is no outcome: write ok"),
        (lambda: Records.memory().calls(who=5), "who must be text, not int"),  # type: ignore[arg-type]
        (lambda: Records.memory().calls(since="1h"), "since must be a datetime"),  # type: ignore[arg-type]
        (lambda: Records.memory().calls(since=float("nan")), "since must be a time"),
        (lambda: Records.memory().calls(since=10**400), "since must be a time"),
        (lambda: Records.memory().calls(limit=0), "limit must be a number of calls"),
        (lambda: Toolkit("kit", records="x.db"), r"toolkit 'kit': records must be Records\.memory"),  # type: ignore[arg-type]
        (lambda: Records.memory(arguments=1), "arguments must be True or False"),  # type: ignore[arg-type]
    ],
)
def test_invalid_value_is_refused_with_what_to_write(make: Any, text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        make()


def test_store_that_raises_does_not_reach_the_call(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def add(self, record: CallRecord) -> None:
            raise RuntimeError("broken store")

    records = Records(Broken())  # type: ignore[arg-type]
    for _ in range(3):
        with records.recording("kit.work"):
            pass
    assert caplog.text.count("a call could not be recorded") == 1
