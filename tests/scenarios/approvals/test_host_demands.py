"""What a host asks a person, and what it makes of the answer: the judged step of a call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from support.rooms.approvals import Person, person_in
from toolbus import (
    Assessment,
    CallNext,
    Chunk,
    FileChunk,
    HoldInfo,
    Permissions,
    Records,
    RemoteToolkit,
    RoomClient,
    RoomException,
    Rule,
    ToolCall,
    tool,
)
from toolbus.errors import (
    ApprovalDenied,
    ApprovalExpired,
    InvalidArguments,
    PermissionDenied,
    TooLarge,
)
from toolbus.middlewares import Metrics, Retry, TimeLimit
from toolbus.wire import pack_body
from toolbus_server.testing import TestServer

ASKS = Permissions("bypass", [Rule(behavior="ask", tool="files.write")])
NO_RULE = "No rule allows this call, and the mode default asks about it."
ARGUMENTS = {"path": "a", "text": "b"}


@asynccontextmanager
async def hosted(
    server: TestServer, write: Callable[..., Any], **options: Any
) -> AsyncIterator[tuple[RoomClient, Person, RemoteToolkit]]:
    """Host a toolkit `files` with one tool; give its caller, who approves the calls."""
    toolkit = RemoteToolkit("files", [write], **options)
    async with (
        server.room("host") as host,
        server.room("ann") as ann,
        host.host(toolkit),
        person_in(ann) as person,
    ):
        yield ann, person, toolkit


def calling(ann: RoomClient, arguments: Any = ARGUMENTS, **options: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(ann.invoke("files.write", arguments, returns=str, **options))


async def error_of(call: asyncio.Task[Any], kind: type[RoomException]) -> RoomException:
    with pytest.raises(kind) as caught:
        await call
    return caught.value


class Written:
    """Makes tools that keep what they wrote."""

    def __init__(self) -> None:
        self.wrote: list[tuple[str, str]] = []

    def tool(self, **options: Any) -> Callable[..., Any]:
        @tool(**options)
        async def write(path: str, text: str) -> str:
            self.wrote.append((path, text))
            return path

        return write


# What asks


@pytest.mark.parametrize(
    ("flag", "policies", "reason"),
    [
        (True, [], "files.write asks that a person approves each call."),
        (False, [ASKS], "The rule ask files.write asks about this call."),
        (False, [Permissions("default")], NO_RULE),
        (True, [Permissions("bypass")], "files.write asks that a person approves each call."),
        (True, [Permissions("default"), ASKS], "The rule ask files.write asks about this call."),
    ],
)
async def test_flag_and_policies_that_ask_are_one_question(
    server: TestServer, flag: bool, policies: list[Permissions], reason: str
) -> None:
    written, records = Written(), Records.memory()
    async with hosted(server, written.tool(approval=flag), records=records) as stage:
        ann, person, toolkit = stage
        if policies:
            toolkit.policy = policies[0]
            toolkit.operator_policy = policies[-1]
        call = calling(ann)
        hold = await person.asked()
        assert hold.body is not None
        assert (hold.body.reason, hold.body.arguments) == (reason, ARGUMENTS)
        await ann.approve(hold)
        assert await call == "a"
        assert len(await ann.holds(settled=True)) == 1
    (record,) = records.calls()
    assert (record.decision, record.decided_by) == ("allowed", "person")


async def test_call_that_no_policy_asks_about_is_held_by_nobody(server: TestServer) -> None:
    written = Written()
    allows = Permissions("bypass", [Rule(behavior="ask", tool="files.read")])
    async with hosted(server, written.tool(), policy=allows) as (ann, _, _):
        assert await calling(ann) == "a"
        assert await ann.holds(settled=True) == []


@pytest.mark.parametrize(
    ("of_tool", "of_toolkit", "approvers"),
    [
        ([], [], ()),
        ([], ["role:user"], ("role:user",)),
        (["name:ann"], ["others"], ("name:ann",)),
    ],
)
async def test_tool_names_who_approves_else_its_toolkit(
    server: TestServer, of_tool: list[str], of_toolkit: list[str], approvers: tuple[str, ...]
) -> None:
    write = Written().tool(approval=True, approvers=of_tool)
    async with hosted(server, write, approvers=of_toolkit) as (ann, person, toolkit):
        for expected in (approvers, tuple(of_tool) or ("name:ann",)):
            call = calling(ann)
            hold = await person.asked()
            assert hold.body is not None
            assert hold.body.approvers == expected
            await ann.deny(hold)
            await error_of(call, ApprovalDenied)
            await person.settled()
            toolkit.approvers = ("name:ann",)


# What is shown


async def test_words_of_the_tool_and_that_there_is_an_input_are_shown(server: TestServer) -> None:
    assessment = Assessment("pass", message="it is large", preview="+b")

    @tool(approval=True, assess=lambda: assessment)
    async def write(attachment: FileChunk) -> str:
        return "wrote"

    async with hosted(server, write) as (ann, person, _):
        call = calling(ann, None, attachment=b"b" * 100_000, purpose="to try it")
        hold = await person.asked()
        assert hold.body is not None
        assert hold.body.has_input
        assert (hold.body.message, hold.body.preview) == ("it is large", "+b")
        assert hold.purpose == "to try it"
        await ann.approve(hold)
        assert await call == "wrote"


async def test_what_is_too_much_to_be_shown_is_refused(server: TestServer) -> None:
    written = Written()
    async with hosted(server, written.tool(approval=True)) as (ann, _, _):
        error = await error_of(calling(ann, {"path": "a", "text": "b" * 262_144}), TooLarge)
        assert error.executed == "no"
        assert await ann.holds(settled=True) == []
    assert written.wrote == []


@pytest.mark.parametrize(
    ("of_tool", "of_call", "most_s"),
    [
        ({}, {}, 300.0),
        ({"approval_timeout_s": None}, {}, 300.0),
        ({"approval_timeout_s": None}, {"approval_timeout_s": None}, None),
        ({"approval_timeout_s": 1e300}, {"approval_timeout_s": 1e300}, None),
        ({"approval_timeout_s": 20}, {"approval_timeout_s": None}, 20.0),
        ({}, {"approval_timeout_s": 20}, 20.0),
        ({"approval_timeout_s": 0}, {"approval_timeout_s": None}, 0.0),
        ({}, {"approval_timeout_s": 0}, 0.0),
    ],
)
async def test_call_waits_no_longer_than_host_and_caller_allow(
    server: TestServer, of_tool: Any, of_call: Any, most_s: float | None
) -> None:
    """HOLD-5."""
    async with hosted(server, Written().tool(approval=True, **of_tool)) as (ann, person, _):
        call = calling(ann, **of_call)
        if most_s == 0:
            assert (await error_of(call, ApprovalExpired)).executed == "no"
            assert await ann.holds(settled=True) == []
            return
        hold = await person.asked()
        if most_s is None:
            assert hold.left_s is None
        else:
            assert hold.left_s is not None
            assert most_s - 15 < hold.left_s <= most_s
        call.cancel()


# What is made of the answer


@pytest.mark.parametrize(
    ("deny", "by"), [(True, ("denied", "person")), (False, ("denied", "approval"))]
)
async def test_denied_and_expired_calls_do_not_run_whatever_a_middleware_tries(
    server: TestServer, deny: bool, by: tuple[str, str]
) -> None:
    written, records = Written(), Records.memory()
    retries = [attempts("b", "b", "b"), Retry(3)]
    write = written.tool(approval=True, approval_timeout_s=60 if deny else 0.1)
    async with hosted(server, write, middlewares=retries, records=records) as stage:
        ann, person, _ = stage
        call = calling(ann)
        hold = await person.asked()
        if deny:
            await ann.deny(hold, "no\u202e")
        error = await error_of(call, ApprovalDenied if deny else ApprovalExpired)
        assert error.executed == "no"
        assert ("\u202e" in error.message, "says" in error.message) == (False, deny)
        assert len(await ann.holds(settled=True)) == 1
    assert written.wrote == []
    (record,) = records.calls()
    assert (record.decision, record.decided_by, record.executed) == (*by, "no")


async def answer(ann: RoomClient, hold: HoldInfo, kind: str) -> None:
    if kind == "denied":
        await ann.deny(hold, "too much")
    elif kind != "expired":
        changed = {"path": "a", "text": "c"} if kind == "changed" else None
        await ann.approve(hold, changed, True if kind == "always" else None)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("approved", ("approved", "ann", "", "")),
        ("changed", ("changed", "ann", "", "")),
        ("always", ("approved", "ann", "", "exactly these arguments")),
        ("denied", ("denied", "ann", "too much", "")),
        ("expired", ("expired", "", "", "")),
        ("cancelled", ("", "", "", "")),
    ],
)
async def test_record_of_the_host_says_who_decided_what_and_when(
    server: TestServer, kind: str, expected: tuple[str, ...]
) -> None:
    records = Records.memory()
    write = Written().tool(approval=True, approval_timeout_s=0.1 if kind == "expired" else 60)
    async with hosted(server, write, records=records) as (ann, person, _):
        call = calling(ann)
        hold = await person.asked()
        if kind == "cancelled":
            call.cancel()
        else:
            await answer(ann, hold, kind)
        await asyncio.wait([call])
    (record,) = records.calls()
    found = (record.settled, record.settled_by, record.settled_reason, record.granted)
    assert found == expected
    assert 0 < record.waited_s <= record.duration_s
    if record.settled:
        assert record.settled_at is not None
        assert record.waited_s <= record.settled_at - record.started_at + 0.01
    else:
        assert record.settled_at is None


async def test_call_that_a_rule_denies_since_it_was_asked_about_does_not_run(
    server: TestServer,
) -> None:
    written = Written()
    async with hosted(server, written.tool(), policy=ASKS) as (ann, person, toolkit):
        call = calling(ann)
        hold = await person.asked()
        toolkit.policy = Permissions("bypass", [Rule(behavior="deny", tool="files.write")])
        await ann.approve(hold)
        assert (await error_of(call, PermissionDenied)).executed == "no"
    assert written.wrote == []


@pytest.mark.parametrize("changes", [0, 1, 2])
async def test_person_is_asked_once_more_about_a_preview_that_has_changed(
    server: TestServer, changes: int
) -> None:
    wrote: list[str] = []
    content = ["old"]

    @tool(approval=True, assess=lambda: Assessment("pass", preview=f"-{content[-1]}"))
    async def write(path: str, text: str) -> str:
        wrote.append(text)
        return path

    async with hosted(server, write) as (ann, person, _):
        call = calling(ann)
        for change in range(min(changes + 1, 2)):
            hold = await person.asked()
            assert hold.body is not None
            assert hold.body.preview == f"-{content[-1]}"
            assert ("has changed since a person approved it" in hold.body.reason) is (change > 0)
            if change < changes:
                content.append(f"new {change}")
            await ann.approve(hold)
            await person.settled()
        if changes < 2:
            assert await call == "a"
        else:
            error = await error_of(call, ApprovalDenied)
            assert "has changed again since a person approved it" in error.message
            assert error.executed == "no"
    assert wrote == (["b"] if changes < 2 else [])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"path": "a", "text": "c"}, ""),
        ({"path": 5}, "invalid_arguments"),
        ({"path": "rm", "text": "c"}, "permission_denied"),
    ],
)
async def test_changed_arguments_are_validated_and_judged(
    server: TestServer, arguments: dict[str, Any], code: str
) -> None:
    """HOLD-3."""
    written = Written()
    write = written.tool(approval=True, match_rule=lambda pattern, path: path == pattern)
    no_rm = Permissions("bypass", [Rule(behavior="deny", tool="files.write", match="rm")])
    records = Records.memory(arguments=True)
    async with hosted(server, write, policy=no_rm, records=records) as (ann, person, _):
        call = calling(ann)
        hold = await person.asked()
        if code == "invalid_arguments":
            with pytest.raises(InvalidArguments):  # the call goes on waiting
                await ann.approve(hold, arguments)
            await ann._settle(hold, "approve", {"arguments": pack_body(arguments)})
        else:
            await ann.approve(hold, arguments)
        if not code:
            assert await call == "a"
            assert written.wrote == [("a", "c")]
            assert json.loads(records.calls()[0].arguments or "") == arguments
            return
        error = await error_of(call, RoomException)
        assert (error.code, error.executed) == (code, "no")
        assert ("a person has changed the arguments: " in error.message) is (
            code == "invalid_arguments"
        )
    assert written.wrote == []


async def test_person_sees_what_changed_arguments_would_do(server: TestServer) -> None:
    """And changes them once: who changes them for ever has not decided."""
    wrote: list[str] = []

    @tool(approval=True, assess=lambda text: Assessment("pass", preview=f"+{text}"))
    async def write(path: str, text: str) -> str:
        wrote.append(text)
        return path

    async with hosted(server, write) as (ann, person, _):
        for last in (None, {"path": "a", "text": "d"}):
            call = calling(ann)
            await ann.approve(await person.asked(), {"path": "a", "text": "c"})
            await person.settled()
            hold = await person.asked()
            assert hold.body is not None
            assert hold.body.preview == "+c"
            assert "a person has changed the arguments" in hold.body.reason
            await ann.approve(hold, last)
            await person.settled()
            if last is None:
                assert await call == "a"
            else:
                error = await error_of(call, PermissionDenied)
                assert "a second time" in error.message
    assert wrote == ["c"]


# Middlewares


def attempts(*texts: str) -> Any:
    """Make a middleware that makes an attempt with each text; all but the last one fail."""

    async def attempts(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        for number, text in enumerate(texts, 1):
            attempt = replace(call, arguments={**call.arguments, "text": text})
            try:
                async for chunk in next(attempt):
                    yield chunk
                return
            except (RuntimeError, ApprovalDenied, ApprovalExpired):
                if number == len(texts):
                    raise

    return attempts


def failing(wrote: list[str], times: int) -> Callable[..., Any]:
    @tool(approval=True)
    async def write(path: str, text: str) -> str:
        wrote.append(text)
        if len(wrote) <= times:
            raise RuntimeError("try again")
        return path

    return write


async def test_duration_that_metrics_measure_contains_the_wait(server: TestServer) -> None:
    """Also inside of a middleware whose own time stands still."""
    reader, records = InMemoryMetricReader(), Records.memory()
    measured = Metrics(MeterProvider([reader]))
    options: dict[str, Any] = {"middlewares": [TimeLimit(60), measured], "records": records}
    async with hosted(server, Written().tool(approval=True), **options) as (ann, person, _):
        call = calling(ann)
        await ann.approve(await person.asked())
        await call
    found = reader.get_metrics_data()
    assert found is not None
    sums = {
        metric.name: point.sum
        for resource in found.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if isinstance(point, HistogramDataPoint)
    }
    assert sums["gen_ai.execute_tool.duration"] >= records.calls()[0].waited_s


async def test_approval_covers_further_attempts_with_the_same_arguments(
    server: TestServer,
) -> None:
    wrote: list[str] = []
    middlewares = [attempts("c", "c", "c")]
    async with hosted(server, failing(wrote, 2), middlewares=middlewares) as (ann, person, _):
        call = calling(ann)
        hold = await person.asked()
        assert hold.body is not None
        assert hold.body.arguments["text"] == "c"  # what would run
        await ann.approve(hold)
        assert await call == "a"
        assert len(await ann.holds(settled=True)) == 1
    assert wrote == ["c", "c", "c"]


async def test_attempt_with_other_arguments_is_asked_about_and_says_that_the_first_ran(
    server: TestServer,
) -> None:
    """HOLD-14."""
    wrote: list[str] = []
    middlewares = [attempts("b", "c")]
    async with hosted(server, failing(wrote, 1), middlewares=middlewares) as (ann, person, _):
        call = calling(ann)
        await ann.approve(await person.asked())
        await person.settled()
        hold = await person.asked()
        assert hold.body is not None
        assert hold.body.arguments["text"] == "c"
        await ann.deny(hold)
        assert (await error_of(call, ApprovalDenied)).executed == "yes"
    assert wrote == ["b"]
