"""Agents that ask agents: for whom, until when, what may be built, and chains that close."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from support.models.prepared_model import PreparedModel, uses
from toolbus import (
    Agent,
    AgentsGrant,
    ApiScope,
    DeadlineExceeded,
    NotFound,
    RequiredToolkit,
    RoomClient,
    ToolContext,
    Toolkit,
    ToolkitBuilder,
    ToolkitConfig,
    tool,
)
from toolbus.telemetry.tracing import Tracing
from toolbus_server.testing import room_of, running_server

Events = list[Any]


@tool
async def seen(context: ToolContext) -> str:
    """Tell who calls, for whom, whether there is a deadline, and in which trace."""
    principal = context.on_behalf_of
    left = context.deadline
    return " ".join(
        [
            context.caller.name,
            "-" if principal is None else principal.name,
            str(left is not None and left <= 50),
            f"{trace.get_current_span().get_span_context().trace_id:032x}",
        ]
    )


class Clocks(ToolkitBuilder[ToolkitConfig]):
    async def make(self, room: Any, model: Any, config: ToolkitConfig) -> Toolkit:
        return Toolkit(self.name, [seen])


CLOCKS = Clocks("clock", ToolkitConfig)


def asks(name: str, **arguments: Any) -> list[Any]:
    return uses(f"{name}.ask", text="?", **arguments)


def needs(*names: str) -> list[RequiredToolkit]:
    return [RequiredToolkit(name, participant=name) for name in names]


async def ask(asker: RoomClient, agent: str, **options: Any) -> Events:
    stream = asker.stream(f"{agent}.ask", {"text": "?"}, participant=agent, **options)
    async with stream as chunks:
        return [chunk.value async for chunk in chunks]


def results(events: Events) -> list[str]:
    return [event["text"] for event in events if event["type"] == "tool_result"]


@asynccontextmanager
async def chain(*agents: Agent, host: RoomClient | None = None) -> AsyncIterator[None]:
    """Enter agents, the last one first, and host `far`."""
    async with AsyncExitStack() as stack:
        if host is not None:
            await stack.enter_async_context(host.host(Toolkit("far", [seen])))
        for agent in reversed(agents):
            await stack.enter_async_context(agent)
        yield


async def test_last_of_three_calls_for_the_first_asker_within_its_time_and_trace() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with running_server() as server, AsyncExitStack() as stack:
        host, *rooms = [
            await stack.enter_async_context(
                RoomClient(
                    server.url, room="lab", token=server.token(name), tracing=Tracing(provider)
                )
            )
            for name in ("host", "ann", "one", "two", "three")
        ]
        ann, *own = rooms
        one = Agent(own[0], PreparedModel(asks("two"), "done"), name="one", required=needs("two"))
        two = Agent(own[1], PreparedModel(asks("three"), "so"), name="two", required=needs("three"))
        last = PreparedModel(uses("far.seen"), "as seen")
        three = Agent(own[2], last, name="three")
        async with chain(one, two, three, host=host):
            events = await ask(ann, "one", timeout_s=50)
    *_, told = last.requests[-1]["messages"]
    (result,) = told["results"]
    trace_id = events[-1]["trace"]
    assert result["text"] == f"three ann True {trace_id}"
    assert results(events) == ["so"]
    spans = exporter.get_finished_spans()
    mine = [span for span in spans if span.context and f"{span.context.trace_id:032x}" == trace_id]
    known = {span.context.span_id for span in mine if span.context}
    assert [s.name for s in mine if s.parent is None or s.parent.span_id not in known] == [
        "one.ask"
    ]
    turns = [span.name for span in mine if span.name.startswith("invoke_agent")]
    assert sorted(turns) == ["invoke_agent one", "invoke_agent three", "invoke_agent two"]


async def test_time_of_the_first_asker_ends_the_last_model() -> None:
    began, closed = asyncio.Event(), asyncio.Event()

    async def thinks() -> AsyncGenerator[Any, None]:
        began.set()
        try:
            await asyncio.Event().wait()
            yield {}
        finally:
            closed.set()

    async with room_of("ann", "one", "two") as (ann, one_room, two_room):
        one = Agent(one_room, PreparedModel(asks("two"), "-"), name="one", required=needs("two"))
        two = Agent(two_room, PreparedModel(thinks), name="two")
        async with chain(one, two):
            with pytest.raises(DeadlineExceeded):
                await ask(ann, "one", timeout_s=3)
            assert began.is_set()
            await closed.wait()


def may_build(*names: str) -> ApiScope:
    grant = AgentsGrant(
        call=True, use_tools=True, register_private_toolkit=True, builders=list(names)
    )
    return ApiScope(agents=grant)


@pytest.mark.parametrize(
    ("of_ann", "of_one", "built"),
    [
        (("clock",), ("clock",), True),
        ((), ("clock",), False),
        (("clock",), (), False),
        (("*",), ("cl*",), True),
    ],
)
async def test_agent_in_between_builds_only_what_it_and_the_first_asker_may(
    of_ann: tuple[str, ...], of_one: tuple[str, ...], built: bool
) -> None:
    async with running_server() as server, AsyncExitStack() as stack:
        enter = stack.enter_async_context
        ann = await enter(server.room("ann", api=may_build(*of_ann)))
        one_room = await enter(server.room("one", api=may_build(*of_one)))
        two_room = await enter(server.room("two"))
        model = PreparedModel(asks("two", tools=[{"name": "clock"}]), "done")
        one = Agent(one_room, model, name="one", required=needs("two"), available=False)
        two = Agent(
            two_room, PreparedModel(uses("clock.seen"), "noon"), name="two", builders=[CLOCKS]
        )
        async with chain(one, two):
            (result,) = results(await ask(ann, "one"))
    if built:
        assert result == "noon"
    else:
        assert "error permission_denied: /tools/0: no grant for builder clock" in result
        assert "did not run" in result


async def test_agents_that_ask_each_other_end_at_the_depth_of_calls() -> None:
    async with room_of("ann", "one", "two") as (ann, one_room, two_room):
        models = [PreparedModel(asks("two")), PreparedModel(asks("one"))]
        one = Agent(one_room, models[0], name="one", max_steps=1)
        two = Agent(two_room, models[1], name="two", max_steps=1, required=needs("one"))
        async with one, two:
            one._required = tuple(needs("two"))  # neither could wait for the other at its start
            events = await ask(ann, "one")
            again = await ask(ann, "one")
    assert "[the agent ended early: max_steps]" in results(events)[0]
    assert len(events) == len(again)
    told = [str(event) for event in events if "loop_detected" in str(event)]
    assert told
    assert "more than 16 calls within each other" in told[0]


async def test_two_agents_that_ask_each_other_at_once_both_answer() -> None:
    both = asyncio.Barrier(2)

    def reply(other: str) -> Any:
        async def events() -> AsyncGenerator[Any, None]:
            await both.wait()
            yield {"uses": asks(other)}

        return events

    async with room_of("ann", "one", "two") as (ann, one_room, two_room):
        one = Agent(one_room, PreparedModel(reply("two"), "of one"), name="one")
        two = Agent(
            two_room, PreparedModel(reply("one"), "of two"), name="two", required=needs("one")
        )
        async with one, two:
            one._required = tuple(needs("two"))
            first, second = await asyncio.gather(ask(ann, "one"), ask(ann, "two"))
    assert (results(first), results(second)) == (["of two"], ["of one"])


async def test_agent_of_the_same_process_is_a_toolkit_of_another() -> None:
    async with room_of("ann", "boss") as (ann, room):
        helper = Agent(room, PreparedModel("helped"), name="helper")
        boss = Agent(
            room, PreparedModel(asks("helper"), "done"), name="boss", always=[helper.toolkit]
        )
        async with helper, boss:
            events = await ask(ann, "boss")
            own = await ann.invoke("helper.about", participant="boss")
    assert results(events) == ["helped"]
    assert own.value["conversation"]["messages"] == 0


async def test_agent_that_is_required_by_its_name_alone_is_told_whose_it_is() -> None:
    async with room_of("ann", "helper") as (ann, room):
        async with Agent(room, PreparedModel("-"), name="helper"):
            with pytest.raises(NotFound, match="participant='helper'"):
                await RequiredToolkit("helper", timeout_s=0).find(ann)
