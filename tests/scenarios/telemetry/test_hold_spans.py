"""The span of a wait for a person: below that of the call, at its host and at its agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from support.rooms.approvals import Person, person_in
from toolbus import (
    ApprovalDecision,
    ApprovalRequest,
    HoldInfo,
    Permissions,
    Records,
    RequiredToolkit,
    RoomClient,
    RoomException,
    ToolContext,
    Toolkit,
    Turn,
    tool,
)
from toolbus.telemetry.tracing import Tracing
from toolbus_server.testing import TestServer, running_server


@tool(approval=True)
async def pay(to: str) -> str:
    return to


PAYMENTS = Toolkit("payments", [pay])


@dataclass
class Recorded:
    """What one process records."""

    sampler: Sampler = ALWAYS_ON
    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)

    def tracing(self) -> Tracing:
        provider = TracerProvider(sampler=self.sampler, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        return Tracing(provider)

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def hold(self) -> tuple[str, dict[str, object]]:
        """Return the name of the span above the one hold, and the attributes of that."""
        (span,) = (each for each in self.spans() if each.name == "hold")
        assert span.parent is not None
        (above,) = (each for each in self.spans() if each.context == span.parent)
        assert span.start_time is not None
        assert above.end_time is not None
        assert span.end_time is not None
        assert span.start_time < span.end_time <= above.end_time
        return above.name, dict(span.attributes or {})


@asynccontextmanager
async def stage(
    at_host: Recorded, toolkit: Toolkit = PAYMENTS
) -> AsyncIterator[tuple[TestServer, RoomClient, Person]]:
    async with running_server() as server:
        token = server.token("host")
        async with (
            RoomClient(server.url, room="lab", token=token, tracing=at_host.tracing()) as host,
            host.host(toolkit, public=True),
            server.room("ann") as ann,
            person_in(ann) as person,
        ):
            yield server, ann, person


async def end_of(kind: str, ann: RoomClient, hold: HoldInfo, call: asyncio.Task[object]) -> None:
    """Let the wait end in this way, and the call with it."""
    if kind == "denied":
        await ann.deny(hold, "no")
    elif kind == "cancelled":
        call.cancel()
    elif kind != "expired":
        await ann.approve(hold, {"to": "bob"} if kind == "changed" else None)
    await asyncio.wait([call])


@pytest.mark.parametrize("kind", ["approved", "changed", "denied", "expired", "cancelled"])
async def test_wait_is_below_the_span_of_the_call_and_says_who_decided_what(kind: str) -> None:
    at_host = Recorded()
    async with stage(at_host) as (_, ann, person):
        timeout_s = 0.1 if kind == "expired" else 60
        invoked = ann.invoke("payments.pay", {"to": "eve"}, approval_timeout_s=timeout_s)
        call = asyncio.ensure_future(invoked)
        hold = await person.added()
        await end_of(kind, ann, hold, call)
    above, attributes = at_host.hold()
    assert above == "execute_tool pay"
    known = {"toolbus.hold.kind": "approve", "toolbus.hold.outcome": kind}
    if kind != "cancelled":
        known["toolbus.hold.id"] = hold.id
    if kind not in ("cancelled", "expired"):
        known["toolbus.hold.by"] = "ann"
    assert attributes == known


async def test_question_of_a_tool_is_a_wait_of_its_call_in_trace_and_record() -> None:
    at_host, records = Recorded(), Records.memory()

    @tool
    async def order(context: ToolContext) -> str:
        return str(await context.ask("Which size?"))

    async with stage(at_host, Toolkit("shop", [order], records=records)) as (_, ann, person):
        call = asyncio.ensure_future(ann.invoke("shop.order"))
        hold = await person.added()
        await ann.answer(hold.id, "large")
        assert (await call).value == "large"
    above, attributes = at_host.hold()
    assert above == "execute_tool order"
    assert attributes == {
        "toolbus.hold.id": hold.id,
        "toolbus.hold.kind": "answer",
        "toolbus.hold.outcome": "answered",
        "toolbus.hold.by": "ann",
    }
    (record,) = records.calls()
    assert (record.settled, record.settled_by, record.waited_s > 0) == ("answered", "ann", True)


async def test_call_that_its_caller_does_not_sample_has_no_span_of_its_wait() -> None:
    at_host, unsampled = Recorded(), Recorded(ALWAYS_OFF).tracing()
    async with stage(at_host) as (server, ann, person):
        token = server.token("ann")
        async with RoomClient(server.url, room="lab", token=token, tracing=unsampled) as caller:
            call = asyncio.ensure_future(caller.invoke("payments.pay", {"to": "eve"}))
            await ann.approve(await person.asked())
            await call
    assert at_host.spans() == []


async def yes(_: ApprovalRequest) -> ApprovalDecision:
    return ApprovalDecision.allow(by="eve")


@pytest.mark.parametrize("in_room", [True, False])
async def test_question_of_an_agent_is_below_the_call_of_its_turn(in_room: bool) -> None:
    at_agent = Recorded()
    async with stage(Recorded()) as (server, _, _):
        token = server.token("agent")
        async with (
            RoomClient(server.url, room="lab", token=token, tracing=at_agent.tracing()) as agent,
            server.room("agent") as beside,
            person_in(beside) as person,
            Turn(
                agent,
                required=[RequiredToolkit("payments")],
                permissions=Permissions(),
                approve="room" if in_room else yes,
            ) as turn,
        ):
            call = asyncio.ensure_future(turn.call("payments.pay", to="eve"))
            asked = [await person.asked()]
            if in_room:
                await beside.approve(asked[0])
                await person.settled()
                asked.append(await person.asked())
            await beside.approve(asked[-1])
            await call
    above, attributes = at_agent.hold()
    assert above == "execute_tool pay"
    known = {"toolbus.hold.kind": "approve", "toolbus.hold.outcome": "approved"}
    if in_room:
        assert asked[0].is_own
        known |= {"toolbus.hold.id": asked[0].id, "toolbus.hold.by": "agent"}
    else:
        known["toolbus.hold.by"] = "eve"
    assert attributes == known


async def test_question_that_nobody_can_be_asked_is_no_wait() -> None:
    at_agent = Recorded()
    async with stage(Recorded()) as (server, _, _):
        token = server.token("agent")
        async with (
            RoomClient(server.url, room="lab", token=token, tracing=at_agent.tracing()) as agent,
            Turn(agent, required=[RequiredToolkit("payments")], permissions=Permissions()) as turn,
        ):
            with pytest.raises(RoomException):
                await turn.call("payments.pay", to="eve")
    assert "hold" not in {span.name for span in at_agent.spans()}
