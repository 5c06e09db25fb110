"""`Turn(context=context)`: the turn of a tool that is running, here and at a host."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from support.parts.virtual_clock import on_virtual_clock
from support.rooms.turns import Diary, Recorded, message_of, names
from toolbus import (
    AgentsGrant,
    ApiScope,
    ApprovalDecision,
    ApprovalRequest,
    Cancelled,
    DeadlineExceeded,
    NotFound,
    PermissionDenied,
    Permissions,
    RequiredToolkit,
    RoomClient,
    ToolContext,
    Toolkit,
    ToolkitConfig,
    ToolUse,
    Turn,
    Unavailable,
    tool,
)
from toolbus.telemetry.tracing import Tracing
from toolbus_server.testing import running_server

Body = Callable[[ToolContext], Awaitable[Any]]
FULL = ApiScope.full()


@tool
async def whose(context: ToolContext) -> list[str | None]:
    """Return who calls, and for whom."""
    principal = context.on_behalf_of
    return [context.caller.name, None if principal is None else principal.name]


@tool
async def time_left(context: ToolContext) -> float | None:
    return context.deadline


@tool
async def onward(context: ToolContext, tool: str) -> Any:
    """Call a tool through this call's room."""
    return await context.room.call(tool)


FAR = Toolkit("far", [whose, time_left])
NEAR = Toolkit("near", [whose, time_left, onward])


class Hanging:
    """A tool that runs until it is cancelled."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.stopped = asyncio.Event()

        @tool
        async def hang() -> None:
            self.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.stopped.set()

        self.kit = Toolkit("slow", [hang])


def helper_of(body: Body) -> Toolkit:
    """Make the toolkit of an agent that is a tool."""

    @tool
    async def ask(context: ToolContext) -> Any:
        return await body(context)

    return Toolkit("helper", [ask])


class Stage:
    """A room with `far` at a host, the agent `helper`, and `ann`, who asks."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.helper: RoomClient
        self.ann: RoomClient

    @classmethod
    async def of(cls, stack: AsyncExitStack, body: Body, api: ApiScope = FULL) -> Stage:
        stage = cls(stack)
        enter = stack.enter_async_context
        await enter(asyncio.timeout(60))
        server = await enter(running_server())
        host = await enter(server.room("host"))
        await enter(host.host(FAR))
        stage.helper = await enter(server.room("helper", api=ApiScope(agents=NO_ACT_FOR)))
        await enter(stage.helper.host(helper_of(body)))
        stage.ann = await enter(server.room("ann", api=api))
        return stage


NO_ACT_FOR = AgentsGrant(call=True, use_tools=True, register_public_toolkit=True)


async def test_turn_of_a_hosted_tool_calls_for_its_caller_without_act_for() -> None:
    async def body(context: ToolContext) -> Any:
        async with Turn(context=context, always=[NEAR], required=["far"]) as turn:
            calls = ["near.whose", "far.whose"]
            found = [await turn.call(each) for each in calls]
            return [*found, await turn.call("near.onward", tool="far.whose")]

    async with AsyncExitStack() as stack:
        stage = await Stage.of(stack, body)
        assert await stage.ann.call("helper.ask") == [["helper", "ann"]] * 3
        # The agent itself is no principal in its own turn; at the host it is, as in any call.
        own = await stage.helper.call("helper.ask")
        assert own == [["helper", None], ["helper", "helper"], ["helper", "helper"]]


async def test_caller_that_may_not_call_a_tool_does_not_reach_it_through_an_agent() -> None:
    async def body(context: ToolContext) -> Any:
        async with Turn(context=context, available=True) as turn:
            assert "far.whose" in names(turn)
            return (await turn.run([ToolUse("1", "far.whose", {})]))[0].state

    api = ApiScope(agents=AgentsGrant(call=True, use_tools=True, allow=["helper"]))
    async with AsyncExitStack() as stack:
        stage = await Stage.of(stack, body, api)
        assert await stage.ann.call("helper.ask") == "denied"


async def test_turn_of_a_tool_in_a_turn_goes_on_with_that_turn() -> None:
    async def body(context: ToolContext) -> Any:
        async with Turn(context=context, always=[NEAR], required=["far"]) as turn:
            calls = ["near.whose", "far.whose"]
            return [await turn.call(each) for each in calls]

    async with AsyncExitStack() as stack:
        stage = await Stage.of(stack, body)
        kit = helper_of(body)
        agent = stage.ann  # it may act for others
        async with Turn(agent, always=[kit]) as turn:
            assert await turn.call("helper.ask") == [["ann", None]] * 2
        async with Turn(agent, always=[kit], message=message_of("helper")) as turn:
            assert await turn.call("helper.ask") == [["ann", "helper"]] * 2


async def test_turn_of_a_tool_without_a_room_has_none_either() -> None:
    async def body(context: ToolContext) -> Any:
        async with Turn(context=context, always=[NEAR]) as turn:
            return await turn.call("near.whose")

    async with Turn(None, always=[helper_of(body)]) as turn:
        assert await turn.call("helper.ask") == ["local", None]


async def test_no_call_has_more_time_than_the_call_that_it_serves() -> None:
    async def body(context: ToolContext) -> Any:
        required = ["far"] if context.is_hosted else []
        async with Turn(context=context, always=[NEAR], required=required) as turn:
            found = [await turn.call(f"{kit}.time_left") for kit in ("near", *required)]
            uses = [ToolUse("1", "near.time_left", {})]
            found.append((await turn.run(uses, timeout_s=50))[0].value)
            short = await turn.invoke("near.time_left", timeout_s=20)
            return [*found, short.into(float)]

    async with AsyncExitStack() as stack:
        stage = await Stage.of(stack, body)
        hosted = await stage.ann.invoke("helper.ask", timeout_s=40, returns=list[float])
        async with Turn(None, always=[helper_of(body)]) as turn:
            local = (await turn.invoke("helper.ask", timeout_s=40)).into(list[float])
        for *all_others, short in (hosted, local):
            assert all(0 < left <= 40 for left in all_others)
            assert 0 < short <= 20


def test_time_of_a_call_is_over_while_a_person_of_its_turn_is_asked() -> None:
    """The call in the turn stands still meanwhile; the one that it serves does not."""
    on_virtual_clock(_time_is_over_while_a_person_is_asked())


async def _time_is_over_while_a_person_is_asked() -> None:
    async def ask(question: ApprovalRequest) -> ApprovalDecision:
        await asyncio.Event().wait()
        raise AssertionError

    loop = asyncio.get_running_loop()
    context = ToolContext(deadline_at=loop.time() + 0.2, clock=loop.time)
    options: Any = {"permissions": Permissions(), "approve": ask}
    async with Turn(context=context, always=[NEAR], **options) as turn:
        with pytest.raises(DeadlineExceeded, match="the call that the turn serves") as raised:
            await turn.call("near.whose")
        assert raised.value.executed == "no"
        with pytest.raises(DeadlineExceeded, match="no time was left"):
            await turn.call("near.whose")


@pytest.mark.parametrize("hosted", [True, False])
async def test_calls_end_when_the_call_that_they_serve_is_cancelled(hosted: bool) -> None:
    slow = Hanging()
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def body(context: ToolContext) -> None:
        async with Turn(context=context, always=[slow.kit]) as turn:
            try:
                await turn.run([ToolUse("1", "slow.hang", {})])
            finally:
                ended.set_result([(each.state, each.executed) for each in turn.results])

    async with AsyncExitStack() as stack:
        if hosted:
            caller: Any = (await Stage.of(stack, body)).ann
        else:
            caller = await stack.enter_async_context(Turn(None, always=[helper_of(body)]))
        calling = asyncio.create_task(caller.call("helper.ask"))
        await slow.began.wait()
        calling.cancel()
        with suppress(asyncio.CancelledError):
            await calling
        assert await ended == [("interrupted", "yes")]
    assert slow.stopped.is_set()


@pytest.mark.parametrize("hosted", [True, False])
async def test_turn_that_outlives_its_call_calls_nothing_more(hosted: bool) -> None:
    slow = Hanging()
    kept: list[tuple[Turn, ToolContext, asyncio.Task[Any]]] = []

    async def body(context: ToolContext) -> str:
        turn = await Turn(context=context, always=[slow.kit, NEAR]).__aenter__()
        kept.append((turn, context, asyncio.create_task(turn.call("slow.hang"))))
        await slow.began.wait()
        return "left behind"

    async with AsyncExitStack() as stack:
        if hosted:
            caller: Any = (await Stage.of(stack, body)).ann
        else:
            caller = await stack.enter_async_context(Turn(None, always=[helper_of(body)]))
        assert await caller.call("helper.ask") == "left behind"
        ((turn, context, running),) = kept
        with pytest.raises(Cancelled, match="the call that this turn serves has ended") as raised:
            await running
        assert raised.value.executed == "yes"
        with pytest.raises(Unavailable, match="the call that this turn serves has ended"):
            await turn.call("near.whose")
        await turn.__aexit__(None, None, None)
        with pytest.raises(Unavailable, match="the call that this turn serves has ended"):
            await Turn(context=context).__aenter__()


def test_turn_does_not_begin_where_no_time_is_left() -> None:
    on_virtual_clock(_no_time_is_left())


async def _no_time_is_left() -> None:
    loop = asyncio.get_running_loop()
    diary: list[str] = []
    always = [Toolkit("own", [Recorded("write", diary)])]
    over = ToolContext(deadline_at=loop.time(), clock=loop.time)
    with pytest.raises(DeadlineExceeded, match="no time is left"):
        await Turn(context=over, always=always).__aenter__()
    assert diary == []

    class Slow(Diary):
        async def make(self, *_: Any) -> Toolkit:
            await asyncio.Event().wait()
            raise AssertionError

    soon = ToolContext(deadline_at=loop.time() + 0.05, clock=loop.time)
    tools = [ToolkitConfig(name="slow")]
    with pytest.raises(DeadlineExceeded, match="before the turn began"):
        await Turn(context=soon, builders=[Slow("slow", diary)], tools=tools).__aenter__()


async def test_sync_tool_runs_a_turn_in_a_loop_of_its_own_that_ends_with_its_call() -> None:
    outcome: list[Any] = []
    loop = asyncio.get_running_loop()
    began, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def hang() -> None:
        loop.call_soon_threadsafe(began.set)
        await asyncio.Event().wait()

    async def body(context: ToolContext) -> None:
        async with Turn(context=context, always=[Toolkit("slow", [hang])]) as turn:
            (result,) = await turn.run([ToolUse("1", "slow.hang", {})])
            outcome.extend((result.state, str(result.error)))

    @tool
    def ask(context: ToolContext) -> None:
        asyncio.run(body(context))
        loop.call_soon_threadsafe(ended.set)

    async with Turn(None, always=[Toolkit("helper", [ask])]) as turn, asyncio.timeout(60):
        calling = asyncio.create_task(turn.call("helper.ask"))
        await began.wait()
        calling.cancel()
        await ended.wait()
        with suppress(asyncio.CancelledError):
            await calling
    assert outcome[0] == "interrupted"
    assert "the call that this turn serves was cancelled" in outcome[1]


async def test_json_is_built_within_what_caller_and_principal_may_build() -> None:
    diary: list[str] = []
    builders = [Diary("notes", diary), Diary("shell", diary)]

    async def built(context: ToolContext, *tools: Any) -> list[str]:
        async with Turn(context=context, builders=builders, tools=tools) as turn:
            return names(turn)

    async def body(context: ToolContext) -> Any:
        found = await built(context, {"name": "notes"})
        with pytest.raises(PermissionDenied, match="no grant for builder shell") as raised:
            await built(context, {"name": "notes"}, {"name": "shell"})
        assert raised.value.details["path"] == "/tools/1"
        # What the tool itself asks for is not its caller's request.
        return [*found, *await built(context, ToolkitConfig(name="shell"))]

    async def nothing(context: ToolContext) -> Any:
        with pytest.raises(PermissionDenied, match="no grant for builder notes"):
            await built(context, {"name": "notes"})
        return await built(context, ToolkitConfig(name="notes"))

    may_notes = ApiScope(agents=AgentsGrant(call=True, use_tools=True, builders=["notes"]))
    async with AsyncExitStack() as stack:
        stage = await Stage.of(stack, body, may_notes)
        both = ["notes.notes", "shell.shell"]
        assert await stage.ann.call("helper.ask") == both
        message = message_of("ann", builders=["notes"])
        async with Turn(stage.ann, always=[helper_of(body)], message=message) as turn:
            assert await turn.call("helper.ask") == both
        for room in (stage.ann, None):  # nobody else has asked for anything
            async with Turn(room, always=[helper_of(nothing)]) as turn:
                assert await turn.call("helper.ask") == ["notes.notes"]


async def test_required_toolkit_that_is_missing_ends_the_turn_of_the_tool_alone() -> None:
    async def body(context: ToolContext) -> str:
        missing = RequiredToolkit("nothing", timeout_s=0)
        with pytest.raises(NotFound):
            await Turn(context=context, required=[missing]).__aenter__()
        return "answered"

    async with AsyncExitStack() as stack:
        stage = await Stage.of(stack, body)
        assert await stage.ann.call("helper.ask") == "answered"


async def test_turn_of_a_tool_is_in_the_trace_of_its_call() -> None:
    provider, exporter = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = Tracing(provider)

    async def body(context: ToolContext) -> Any:
        async with Turn(context=context, always=[NEAR]) as turn:
            return await turn.call("near.whose")

    async with asyncio.timeout(60), running_server() as server:
        clients = [
            RoomClient(server.url, room="lab", token=server.token(name), tracing=tracing)
            for name in ("helper", "ann")
        ]
        async with clients[0] as helper, helper.host(helper_of(body)), clients[1] as ann:
            async with Turn(ann, always=[helper_of(body)]) as turn:
                await turn.call("helper.ask")
            await ann.call("helper.ask")
    spans = {each.context.span_id: each for each in exporter.get_finished_spans() if each.context}
    found = set()
    for span in spans.values():
        line = [span.name]
        while span.parent is not None and span.parent.span_id in spans:
            span = spans[span.parent.span_id]
            line.append(span.name)
        found.add(" < ".join(line))
    inner = "execute_tool whose < invoke_agent {} < "
    assert inner.format("ann") + "execute_tool ask < invoke_agent ann" in found
    assert any(each.startswith(inner.format("helper") + "execute_tool") for each in found), found
    assert len({each.context.trace_id for each in spans.values() if each.context}) == 2
