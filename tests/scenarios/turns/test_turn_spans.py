"""The spans of a turn and its calls, as the agent's process records them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from functools import partial
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler

from toolbus import (
    CallNext,
    FunctionTool,
    Permissions,
    Records,
    RequiredToolkit,
    RoomClient,
    Rule,
    ToolCall,
    ToolContext,
    ToolFailed,
    Toolkit,
    ToolUse,
    Turn,
    tool,
)
from toolbus.telemetry.tracing import Tracing
from toolbus_server.testing import running_server


@tool
async def seen() -> list[str]:
    """Return the ids and flags of the current span, and the baggage."""
    current = trace.get_current_span().get_span_context()
    flags = str(int(current.trace_flags))
    return [f"{current.trace_id:032x}", f"{current.span_id:016x}", flags, str(baggage.get_all())]


@tool
async def fail() -> None:
    raise ToolFailed("its own words")


@tool
async def hang(context: ToolContext) -> None:
    context.emit("began")
    await asyncio.Event().wait()


@asynccontextmanager
async def traced_turn(
    sampler: Sampler = ALWAYS_ON, own: Sequence[Toolkit] = (), **options: Any
) -> AsyncIterator[tuple[Turn, TracerProvider, InMemorySpanExporter]]:
    """Enter a turn whose agent records; the host in this process does not."""
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    kit: list[Any] = [seen, fail, hang]
    async with asyncio.timeout(100), running_server() as server, server.room("host") as host:
        token = server.token("agent")
        tracing = Tracing(provider)
        async with (
            host.host(Toolkit("far", kit)),
            RoomClient(server.url, room="lab", token=token, tracing=tracing) as agent,
            Turn(
                agent,
                always=[Toolkit("near", kit), *own],
                required=[RequiredToolkit("far")],
                **options,
            ) as turn,
        ):
            yield turn, provider, exporter


def drawn(exporter: InMemorySpanExporter) -> list[str]:
    """Return each span below its parent, siblings by start."""
    spans = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)
    known = {span.context.span_id for span in spans if span.context}

    def below(parent: int | None, depth: int) -> list[str]:
        found: list[str] = []
        for span in spans:
            above = span.parent.span_id if span.parent else None
            if (above if above in known else None) == parent and span.context:
                found.append("  " * depth + span.name)
                found += below(span.context.span_id, depth + 1)
        return found

    return below(None, 0)


def ends(exporter: InMemorySpanExporter) -> dict[str, tuple[Any, ...]]:
    """Return how the calls ended, by their ids: status, error, executed."""

    def end(span: ReadableSpan) -> tuple[Any, ...]:
        found = span.attributes or {}
        name = span.status.status_code.name
        return name, found.get("error.type"), found.get("toolbus.executed")

    spans = [each for each in exporter.get_finished_spans() if each.name.startswith("execute")]
    return {str((each.attributes or {})["gen_ai.tool.call.id"]): end(each) for each in spans}


async def test_calls_are_below_the_turn_and_below_spans_of_the_program() -> None:
    async with traced_turn() as (turn, provider, exporter):
        with provider.get_tracer("agent").start_as_current_span("chat"):
            await turn.call("near.seen")
            await turn.call("far.seen")
        elsewhere = asyncio.get_running_loop().create_task(
            turn.call("near.seen"), context=Context()
        )
        await elsewhere
        await turn.run([ToolUse("1", "far.fail")])
    assert drawn(exporter) == [
        "invoke_agent agent",
        "  chat",
        "    execute_tool seen",
        "    execute_tool seen",
        "      far.seen",
        "  execute_tool seen",
        "  execute_tool fail",
        "    far.fail",
    ]


async def test_span_of_a_call_names_the_mcp_server_of_the_tool() -> None:
    kit = Toolkit("own", [seen], annotations={"mcp": "files"})
    async with traced_turn(own=[kit]) as (turn, _, exporter):
        await turn.call("own.seen")
        await turn.call("near.seen")
    spans = [span for span in exporter.get_finished_spans() if span.name == "execute_tool seen"]
    servers = [(span.attributes or {}).get("toolbus.mcp_server") for span in spans]
    assert servers == ["files", None]


def _set(event: asyncio.Event, *_: Any) -> None:
    event.set()


async def test_span_of_a_call_has_its_outcome() -> None:
    async with traced_turn() as (turn, _, exporter):
        await turn.run([ToolUse(f"{kit}.fail", f"{kit}.fail") for kit in ("near", "far")])
        for kit in ("near", "far"):
            began = asyncio.Event()
            progress = partial(_set, began)
            uses = [ToolUse(f"{kit}.hang", f"{kit}.hang")]
            running = asyncio.create_task(turn.run(uses, on_progress=progress))
            await began.wait()
            await turn.interrupt()
            await running
        await turn.run([ToolUse("late", "near.hang")], timeout_s=1)
    found = ends(exporter)
    assert found["near.fail"] == found["far.fail"] == ("ERROR", "tool_failed", "yes")
    assert {found[f"{kit}.hang"][:2] for kit in ("near", "far")} == {("UNSET", "cancelled")}
    assert found["late"] == ("ERROR", "deadline_exceeded", "yes")


@pytest.mark.parametrize("at", ["turn", "toolkit", "tool"])
async def test_call_that_a_middleware_answered_did_not_run_its_tool(at: str) -> None:
    async def answer(call: ToolCall, next: CallNext) -> AsyncIterator[str]:
        yield "from memory"

    around = {each: [answer] if each == at else [] for each in ("turn", "toolkit", "tool")}
    looked_up = FunctionTool(fail, name="look_up", middlewares=around["tool"])
    own, records = Records.memory(), Records.memory()
    kit = Toolkit("own", [looked_up], middlewares=around["toolkit"], records=own)
    options: dict[str, Any] = {"middlewares": around["turn"], "records": records}
    async with traced_turn(own=[kit], **options) as (turn, _, exporter):
        (result,) = await turn.run([ToolUse("1", "own.look_up")])
        assert (result.state, result.value, result.executed) == ("ok", "from memory", "no")
    assert [each.executed for each in (*records.calls(), *own.calls())] == (
        ["no"] if at == "turn" else ["no", "no"]
    )
    assert ends(exporter) == {"1": ("UNSET", None, "no")}


async def test_id_of_a_use_is_recorded_so_that_it_can_be_sent() -> None:
    async with traced_turn() as (turn, _, exporter):
        await turn.run([ToolUse("\ud800", "near.seen"), ToolUse("x" * 10_000, "near.seen")])
    assert list(ends(exporter)) == ["?", "x" * 256]


async def test_turn_whose_body_raises_is_an_error_without_its_words() -> None:
    with pytest.raises(KeyError):
        async with traced_turn() as (_, _, exporter):
            raise KeyError("secret")
    (span,) = exporter.get_finished_spans()
    assert (span.status.status_code.name, span.status.description) == ("ERROR", None)
    assert (span.attributes or {})["error.type"] == "_OTHER"
    assert "secret" not in span.to_json()


async def test_turn_that_is_not_sampled_records_no_call_and_begins_no_other_trace() -> None:
    rarely = ParentBased(ALWAYS_OFF)
    async with traced_turn(rarely) as (turn, _, exporter):
        near, far = await turn.call("near.seen"), await turn.call("far.seen")
        assert near[0] == far[0] != "0" * 32
        assert (near[2], far[2]) == ("0", "0")
    assert exporter.get_finished_spans() == ()


async def test_context_of_the_program_is_the_same_after_the_turn_and_reaches_tools() -> None:
    token = otel_context.attach(baggage.set_baggage("tenant", "x"))
    try:
        before = otel_context.get_current()
        async with traced_turn() as (turn, _, _):
            assert "tenant" in (await turn.call("near.seen"))[3]
        assert otel_context.get_current() is before
    finally:
        otel_context.detach(token)


async def test_span_of_a_call_says_what_was_decided() -> None:
    rule = Rule(behavior="deny", tool="near.fail", origin="rules.toml:4")
    permissions = Permissions("bypass", [rule])
    async with traced_turn(permissions=permissions) as (turn, _, exporter):
        await turn.run([ToolUse("1", "near.fail"), ToolUse("2", "far.seen")])
    spans = exporter.get_finished_spans()
    found = {
        (each.attributes or {}).get("gen_ai.tool.call.id"): {
            name.removeprefix("toolbus.permit."): value
            for name, value in (each.attributes or {}).items()
            if name.startswith("toolbus.permit.")
        }
        for each in spans
    }
    assert found["1"] == {"behavior": "deny", "rule": "rule deny near.fail (rules.toml:4)"}
    assert found["2"] == {"behavior": "allow", "rule": "mode bypass"}
    assert ends(exporter)["1"] == ("ERROR", "permission_denied", "no")
