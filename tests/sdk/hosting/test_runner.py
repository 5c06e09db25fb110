"""How a host runs calls: limits, timeouts, cancellation and replies."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from datetime import date
from functools import partial
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from support.parts.isolated_host import HostStage, ScriptedPeer, echo, hold, hold_thread
from support.patience import PATIENCE_S
from toolbus import Permissions, Rule, Tool, ToolContext, ToolFailed, Toolkit, tool
from toolbus.chunks.chunk_types import Chunk, JsonChunk, TextChunk
from toolbus.errors import NotFound
from toolbus.hosting.hosted_toolkit import HostedToolkit
from toolbus.telemetry.tracing import Tracing
from toolbus.tools.context import run_of
from toolbus.tools.input_stream import InputStream
from toolbus.wire import (
    MAX_FRAME_BYTES,
    pack_body,
)

# Results and errors


@pytest.mark.parametrize(
    ("packed", "path"),
    [
        (pack_body({"text": 1}), "/text"),
        (pack_body({}), "/text"),
        (pack_body({"text": "a", "more": 1}), "/more"),
        (pack_body({"text": float("nan")}), "/text"),
        (pack_body({"text": b"bytes"}), "/text"),
        (pack_body([]), ""),
        (b"\xc1", ""),
        (b"\x81\xa4text" + b"\x91" * 40 + b"\xc0", "/text" + "/0" * 31),
    ],
)
async def test_invalid_arguments_name_their_path_and_run_nothing(
    host_stage: HostStage, packed: bytes, path: str
) -> None:
    server = host_stage.server(echo)
    server.dispatch(1, "echo", packed=packed)
    error = await server.error()
    assert (error.code, error.executed) == ("invalid_arguments", "no")
    assert error.details["path"] == path


def hosted_by(server: ScriptedPeer) -> HostedToolkit:
    """Return the toolkit that a host serves."""
    hosted = server.runner.definitions.get(("t", True))
    assert hosted is not None
    return hosted


async def test_unknown_tool_and_withdrawn_toolkit_are_refused(host_stage: HostStage) -> None:
    server = host_stage.server(echo)
    server.dispatch(1, "fly")
    error = await server.error()
    assert (error.code, error.executed) == ("not_found", "no")

    server.runner.definitions.remove(hosted_by(server))
    server.dispatch(2, "echo", text="x")
    error = await server.error()
    assert (error.code, error.executed, error.retryable) == ("no_host", "no", True)


@pytest.mark.parametrize("message", [pack_body({"a": float("inf")}), b"\xc1"])
async def test_invalid_caller_context_is_invalid_arguments(
    host_stage: HostStage, message: bytes
) -> None:
    server = host_stage.server(echo)
    server.dispatch(1, "echo", text="x", header={"caller_context": message})
    error = await server.error()
    assert (error.code, error.executed) == ("invalid_arguments", "no")
    assert error.details["path"] == "/caller_context"


class Stamping(Toolkit):
    """Adds to results a value that is not JSON, after the check of results."""

    async def execute(
        self,
        context: ToolContext,
        name: str,
        arguments: dict[str, Any],
        attachment: InputStream[Any] | None = None,
    ) -> Chunk:
        chunk = await super().execute(context, name, arguments, attachment)
        assert isinstance(chunk, JsonChunk)
        chunk.json["at"] = date(2026, 1, 1)
        return chunk


class Stamped(Tool):
    """Its `make_result` adds a value that the test sets."""

    def __init__(self) -> None:
        super().__init__("stamped", {"type": "object"})

    async def execute(self, context: ToolContext, /) -> dict[str, Any]:
        return {}

    def make_result(self, value: Any) -> Chunk:
        return JsonChunk({"at": date(2026, 1, 1)})


@tool
async def plain() -> dict[str, Any]:
    return {"a": 1}


async def test_value_that_an_override_adds_to_a_result_is_converted_or_refused(
    host_stage: HostStage,
) -> None:
    server = host_stage.server(plain, kit=Stamping)
    server.dispatch(1, "plain")
    assert await server.answer() == {"a": 1, "at": "2026-01-01"}
    server = host_stage.server(Stamped())
    server.dispatch(1, "stamped")
    error = await server.error()
    assert (error.code, error.executed) == ("invalid_result", "yes")


class Lending(Toolkit):
    """Runs a tool other than the one that it lists."""

    def get_tool(self, name: str) -> Tool:
        return Stamped()


async def test_result_of_a_substituted_tool_is_checked(
    host_stage: HostStage,
) -> None:
    server = host_stage.server(plain, kit=Lending)
    server.dispatch(1, "plain")
    error = await server.error()
    assert (error.code, error.executed) == ("invalid_result", "yes")


class Nasty(BaseException):
    pass


RAISED: dict[str, Callable[[], BaseException]] = {
    "KeyError": lambda: KeyError("secret"),
    "NotFound": lambda: NotFound("of a call within"),
    "SystemExit": lambda: SystemExit(3),
    "Nasty": lambda: Nasty("secret"),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("secret", [Nasty()]),
    "StopAsyncIteration": lambda: StopAsyncIteration("secret"),
}


@pytest.mark.parametrize("cause", RAISED)
@pytest.mark.parametrize("sync", [False, True])
async def test_exception_of_a_tool_is_tool_failed_without_its_text(
    host_stage: HostStage, cause: str, sync: bool
) -> None:
    @tool(name="fail")
    async def fail() -> str:
        raise RAISED[cause]()

    @tool(name="fail")
    def fail_in_thread() -> str:
        raise RAISED[cause]()

    server = host_stage.server(fail_in_thread if sync else fail)
    server.dispatch(1, "fail")
    error = await server.error()
    assert (error.code, error.executed, error.retryable) == ("tool_failed", "yes", False)
    assert error.details["cause"] == cause
    assert "secret" not in str(error)


@pytest.mark.parametrize(
    ("output", "options", "message", "pause_s"),
    # Not error objects: raised ones keep their calls alive, and a parameter lives to the end.
    [
        ("\ud800", {}, "?", None),
        (12, {}, "12", None),
        ("x", {"retryable": 1}, "x", None),
        ("x", {"retry_after_s": float("inf")}, "x", 86_400),
        ("x", {"retry_after_s": float("nan")}, "x", None),
        ("x", {"retry_after_s": -1}, "x", None),
        ("x", {"details": {"a": object()}}, "x", None),
        ("y" * 10_000, {}, "y" * 4_096, None),
    ],
    ids=range(8),
)
async def test_unusual_error_of_a_tool_is_sent(
    host_stage: HostStage, output: Any, options: dict[str, Any], message: str, pause_s: float | None
) -> None:
    @tool
    async def fail() -> str:
        raise ToolFailed(output, **options)

    server = host_stage.server(fail)
    server.dispatch(1, "fail")
    error = await server.error()
    assert (error.code, error.executed, str(error)) == ("tool_failed", "yes", message)
    assert error.retry_after_s == pause_s
    assert type(error.retryable) is bool


async def test_tool_that_cancels_itself_does_not_hang_its_call(host_stage: HostStage) -> None:
    @tool
    async def give_up() -> str:
        raise asyncio.CancelledError

    @tool
    async def shoot_own_foot() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(10)
        return ""

    server = host_stage.server(give_up, shoot_own_foot)
    for number, name in enumerate(("give_up", "shoot_own_foot")):
        server.dispatch(number, name)
        error = await server.error()
        assert (error.code, error.executed) == ("tool_failed", "yes")


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (object(), "invalid_result"),
        ("x" * MAX_FRAME_BYTES, "too_large"),
    ],
    ids=["object", "size"],
)
async def test_result_that_cannot_be_sent_reports_that_the_tool_ran(
    host_stage: HostStage, value: Any, code: str
) -> None:
    @tool
    async def give() -> Any:
        return value

    server = host_stage.server(give)
    server.dispatch(1, "give")
    error = await server.error()
    assert (error.code, error.executed) == (code, "yes")


async def test_an_override_of_execute_sees_every_call(host_stage: HostStage) -> None:
    class Shouting(Toolkit):
        async def execute(
            self, context: ToolContext, name: str, arguments: dict[str, Any], attachment: Any = None
        ) -> Chunk:
            if arguments["text"] == "plain":
                return {"no": "chunk"}  # type: ignore[return-value]  # a common mistake
            if arguments["text"] == "refused":
                raise context.refuse(NotFound("not today"))
            chunk = await super().execute(context, name, arguments, attachment)
            return TextChunk(str(chunk.value).upper())

    server = host_stage.server(echo, kit=Shouting)
    server.dispatch(1, "echo", text="hello")
    assert await server.answer() == "HELLO"
    server.dispatch(2, "echo", text="refused")
    error = await server.error()
    assert (error.code, error.executed) == ("not_found", "no")
    server.dispatch(3, "echo", text="plain")
    error = await server.error()
    assert (error.code, error.executed) == ("tool_failed", "maybe")


# Timeouts, cancellation, slots


async def test_tools_own_time_limit_ends_an_async_tool(host_stage: HostStage) -> None:
    server = host_stage.server(hold(host_stage, timeout_s=0.02))
    server.dispatch(1, "hold")
    error = await server.error()
    assert (error.code, error.executed, error.retryable) == ("deadline_exceeded", "yes", False)
    assert host_stage.ended == ["hold 0"]


async def test_tools_own_time_limit_waits_for_the_end_of_a_sync_tool(host_stage: HostStage) -> None:
    @tool(timeout_s=0.02)
    def stubborn(context: ToolContext) -> str:
        while not context.cancelled:
            host_stage.gate.wait(0.001)
        host_stage.ended.append("saw it")
        return "late"

    server = host_stage.server(stubborn)
    server.dispatch(1, "stubborn")
    error = await server.error()
    assert (error.code, error.executed) == ("deadline_exceeded", "yes")
    assert host_stage.ended == ["saw it"]


async def test_cancelled_call_is_stopped_and_sends_no_reply(host_stage: HostStage) -> None:
    server = host_stage.server(hold(host_stage), echo)
    server.dispatch(1, "hold")
    await host_stage.wait_entered()
    server.cancel(1)
    server.cancel(1)
    await server.idle()
    assert host_stage.ended == ["hold 0"]
    server.cancel(1)
    server.dispatch(2, "echo", text="on")
    assert await server.answer() == "on"


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="there a call begins as it arrives")
async def test_call_cancelled_before_its_first_step_leaves_nothing(host_stage: HostStage) -> None:
    server = host_stage.server(hold(host_stage, max_concurrency=1))
    server.dispatch(1, "hold")
    server.cancel(1)
    await server.idle()
    assert host_stage.ended == []
    server.dispatch(2, "hold")
    await host_stage.wait_entered()


async def test_a_cancelled_call_leaves_the_queue_without_running(host_stage: HostStage) -> None:
    server = host_stage.server(hold(host_stage, max_concurrency=1))
    for number in range(3):
        server.dispatch(number, "hold", number=number)
    await host_stage.wait_entered()
    server.cancel(1)
    server.cancel(0)
    await host_stage.wait_entered()
    server.cancel(2)
    await server.idle()
    assert host_stage.ended == ["hold 0", "hold 2"]


async def test_a_sync_tool_that_ignores_cancel_keeps_its_slot_until_it_ends(
    host_stage: HostStage,
) -> None:
    server = host_stage.server(hold_thread(host_stage, concurrency_safe=False), max_in_flight=2)
    server.dispatch(1, "hold_thread", number=1)
    await host_stage.wait_entered()
    server.cancel(1)
    server.dispatch(2, "hold_thread", number=2)
    server.dispatch(3, "hold_thread", number=3)
    error = await server.error()
    assert (error.code, error.executed, error.retryable) == ("overloaded", "no", True)
    assert not host_stage.entered.is_set()

    host_stage.gate.set()
    assert await server.answer() == "2"
    assert host_stage.ended == ["cancelled True", "cancelled False"]


async def test_eight_calls_of_a_sync_tool_run_at_a_time(host_stage: HostStage) -> None:
    together = threading.Barrier(8)

    @tool
    def meet() -> int:
        return together.wait(PATIENCE_S)

    server = host_stage.server(meet)
    for number in range(16):
        server.dispatch(number, "meet")
    assert sorted([await server.answer() for _ in range(16)]) == sorted([*range(8)] * 2)


async def test_tool_that_awaits_threads_is_cancelled_after_the_last_one(
    host_stage: HostStage,
) -> None:
    @tool(max_concurrency=1)
    async def mixed(context: ToolContext) -> str:
        slow = asyncio.ensure_future(
            run_of(context).run_sync(lambda: host_stage.gate.wait(PATIENCE_S))
        )
        await run_of(context).run_sync(lambda: None)
        host_stage.entered.set()
        await slow
        host_stage.ended.append("went on")
        return ""

    server = host_stage.server(mixed)
    server.dispatch(1, "mixed")
    await host_stage.wait_entered()
    server.cancel(1)
    server.dispatch(2, "mixed")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await host_stage.entered.wait()
    host_stage.gate.set()
    assert await server.answer() == ""
    assert host_stage.ended == ["went on"]


async def test_call_beyond_the_limit_is_overloaded(host_stage: HostStage) -> None:
    server = host_stage.server(hold(host_stage, max_concurrency=1), max_in_flight=3)
    for number in range(4):
        server.dispatch(number, "hold")
    error = await server.error()
    assert (error.code, error.executed, error.retryable) == ("overloaded", "no", True)
    assert error.retry_after_s


async def test_a_caller_with_many_calls_delays_another_one_by_the_call_that_runs(
    host_stage: HostStage,
) -> None:
    """CALL-19: neither the places of the host nor the slot of the tool are all its own."""
    bob = {"caller": pack_body(["p2", "bob", "user", "acme"])}
    reconnected = {"caller": pack_body(["p3", "alice", "admin", "acme"])}
    server = host_stage.server(hold(host_stage, max_concurrency=1), max_in_flight=3)
    for number in range(3):
        server.dispatch(number, "hold", number=number)
    await host_stage.wait_entered()
    server.dispatch(3, "hold", header=reconnected)
    assert (await server.error()).code == "overloaded"
    for number in range(4, 8):  # the places of calls that have ended are free again
        server.dispatch(number, "hold", number=number, header=bob)
        task = server.runner._calls[number].task
        assert task is not None
        server.cancel(number)
        await asyncio.wait([task])
    server.dispatch(8, "hold", number=8, header=bob)
    server.dispatch(9, "hold", header=bob)
    assert (await server.error()).code == "overloaded"
    server.cancel(0)
    await host_stage.wait_entered()
    for number in (1, 2, 8):
        server.cancel(number)
    await server.idle()
    assert host_stage.ended == ["hold 0", "hold 8"]


async def test_loss_of_the_server_stops_all_calls(host_stage: HostStage) -> None:
    server = host_stage.server(hold(host_stage), hold_thread(host_stage))
    server.dispatch(1, "hold")
    await host_stage.wait_entered()
    server.dispatch(2, "hold_thread")
    await host_stage.wait_entered()
    server.runner.cancel_all()
    host_stage.gate.set()
    await server.idle()
    assert sorted(host_stage.ended) == [
        "cancelled True",
        "hold 0",
    ]  # a task and a thread: any order


async def test_draining_waits_for_the_calls_that_run(host_stage: HostStage) -> None:
    server = host_stage.server(hold(host_stage))
    hosted = hosted_by(server)
    server.dispatch(1, "hold")
    await host_stage.wait_entered()
    server.runner.definitions.remove(hosted)
    draining = asyncio.ensure_future(hosted.drained())
    done, _ = await asyncio.wait([draining], timeout=0.05)
    assert not done
    server.cancel(1)
    async with asyncio.timeout(60):
        await draining


async def test_a_class_based_tool_runs_like_any_other(host_stage: HostStage) -> None:
    class Add(Tool):
        name = "add"
        input_schema = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}  # noqa: RUF012

        async def execute(self, context: ToolContext, /, *_: Any, a: int = 0) -> Any:
            return [context.caller.name, a, context.room]

    server = host_stage.server(Add())
    server.dispatch(1, "add", a=2)
    assert await server.answer() == ["alice", 2, "a room"]
    assert server.rooms[0][0] == 1  # the tool used it, so it was made, bound to this call


async def test_span_of_a_call_has_what_a_policy_decided(host_stage: HostStage) -> None:
    provider, exporter = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    @tool(match_rule=lambda pattern, text: text == pattern)
    async def say(text: str) -> str:
        return text

    rule = Rule(behavior="deny", tool="t.say", match="x")
    kit: Any = partial(Toolkit, policy=Permissions("bypass", [rule]))
    server = host_stage.server(say, kit=kit, tracing=Tracing(provider))
    for number, text in enumerate("ax"):
        server.dispatch(number, "say", text=text)
        await server.answer()
    await server.idle()
    found = [
        tuple(value for name, value in span.attributes.items() if "permit" in name)
        for span in exporter.get_finished_spans()
        if span.attributes and span.kind is SpanKind.SERVER
    ]
    assert found == [("allow", "mode bypass"), ("deny", f"rule {rule}")]
    provider.shutdown()
