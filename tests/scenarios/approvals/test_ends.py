"""How a wait for a person ends when somebody else does, and what is known then of what ran."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.processes.approval_parts import WITNESS, program
from support.rooms.approvals import Person, person_in
from toolbus import CallNext, Chunk, RoomClient, ToolCall, ToolContext, Toolkit, tool
from toolbus.errors import (
    AlreadyExists,
    ConnectionLost,
    DeadlineExceeded,
    HostLost,
    NotFound,
    Unavailable,
)
from toolbus_server.testing import FaultProxy, Faults, TestServer

ARGUMENTS = {"path": "a", "text": "b"}


class Files:
    """A toolkit that keeps what it wrote."""

    def __init__(self) -> None:
        self.wrote: list[str] = []
        self.toolkit = Toolkit("files", [self.write, self.number])

    @tool(approval=True)
    async def write(self, path: str, text: str) -> str:
        self.wrote.append(path)
        return path

    @tool
    async def number(self) -> int:
        return len(self.wrote)


def calling(ann: RoomClient, **options: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(ann.invoke("files.write", ARGUMENTS, returns=str, **options))


async def assert_settled(person: Person, id: str, outcome: str) -> None:
    """Nobody can answer any more; who tries is told what has happened."""
    assert (await person.settled()).outcome == outcome
    with pytest.raises(AlreadyExists) as late:
        await person.room.approve(id)
    assert late.value.details["outcome"] == outcome


async def test_next_attempt_of_a_call_whose_host_is_lost_takes_the_place_of_the_former(
    server: TestServer, tmp_path: Path
) -> None:
    """Its time has stood still: it is a second, and the new host comes later."""
    witness = {WITNESS: str(tmp_path / "witness")}
    async with server.room("ann") as ann, person_in(ann) as person:
        async with program(server, "host", "host", **witness) as first:
            call = calling(ann, timeout_s=1)
            lost = await person.asked()
            async with program(server, "host", "host", **witness):  # its start takes a while
                await asyncio.sleep(1)
                first.kill()
                await assert_settled(person, lost.id, "lost")
                again = await person.asked()
                assert again.replaces == lost.id
                assert again.call_id == lost.call_id
                await ann.approve(again)
                assert await call == "wrote a"
    assert (tmp_path / "witness").read_text() == "a: b\n"


async def test_call_whose_host_is_lost_while_it_waits_did_not_run(
    server: TestServer, tmp_path: Path
) -> None:
    """HOLD-14."""
    witness = tmp_path / "witness"
    async with (
        server.room("ann") as ann,
        person_in(ann) as person,
        program(server, "host", "host", **{WITNESS: str(witness)}) as host,
    ):
        call = calling(ann, retry=False)
        hold = await person.asked()
        host.kill()
        await assert_settled(person, hold.id, "lost")
        with pytest.raises(HostLost) as lost:
            await call
        assert (lost.value.executed, lost.value.retryable) == ("no", True)
    assert not witness.exists()


async def test_call_that_its_caller_cancels_waits_no_more(server: TestServer) -> None:
    files = Files()
    async with (
        server.room("host") as host,
        server.room("ann") as ann,
        host.host(files.toolkit),
        person_in(ann) as person,
    ):
        call = calling(ann)
        hold = await person.asked()
        call.cancel()
        await assert_settled(person, hold.id, "cancelled")
        with pytest.raises(asyncio.CancelledError):
            await call
    assert files.wrote == []


async def test_caller_that_loses_its_line_cannot_know_and_the_call_does_not_run(
    server: TestServer,
) -> None:
    """HOLD-7, HOLD-14: what is asked is listed on, for an attempt that does not come."""
    files = Files()
    async with (
        FaultProxy(server.url) as proxy,
        server.room("host") as host,
        server.room("ann", via=proxy) as ann,
        server.room("ann") as other,
        host.host(files.toolkit),
        person_in(other) as person,
    ):
        call = calling(ann, retry=False)
        hold = await person.asked()
        proxy.reset()
        assert (await person.asked()).is_away
        await other.approve(hold)
        with pytest.raises(ConnectionLost) as lost:
            await call
        assert lost.value.executed == "maybe"
        # The host runs what it is asked, in order.
        assert await ann.invoke("files.number", returns=int) == 0
    assert files.wrote == []


async def test_answer_whose_reply_is_lost_is_given_again(server: TestServer) -> None:
    """HOLD-8."""
    files = Files()
    async with (
        FaultProxy(server.url) as proxy,
        server.room("host") as host,
        server.room("ann") as ann,
        server.room("ann", via=proxy) as approver,
        host.host(files.toolkit),
        person_in(ann) as person,
    ):
        call = calling(ann)
        hold = await person.asked()
        proxy.to_participant = Faults(stalled=True)
        answer = asyncio.create_task(approver.approve(hold))
        assert await call == "a"
        proxy.reset()
        proxy.to_participant = Faults()
        await answer
        await approver.approve(hold)
        with pytest.raises(AlreadyExists) as late:
            await approver.deny(hold, "too late")
        assert late.value.details["by"]["name"] == "ann"
        with pytest.raises(NotFound):
            await approver.approve("0" * 16)
    assert files.wrote == ["a"]


async def test_wait_of_a_call_ends_with_the_call_around_it(server: TestServer) -> None:
    """HOLD-7: authority does not stand still."""
    files = Files()

    @tool
    async def pass_on(context: ToolContext) -> Any:
        return await context.room.call("files.write", ARGUMENTS)

    async with (
        server.room("host") as host,
        server.room("middle") as middle,
        server.room("ann") as ann,
        host.host(files.toolkit),
        middle.host(Toolkit("work", [pass_on])),
        person_in(ann) as person,
    ):
        call = asyncio.create_task(ann.call("work.pass_on"))
        hold = await person.asked()
        call.cancel()
        await assert_settled(person, hold.id, "cancelled")
    assert files.wrote == []


async def test_time_of_an_approved_call_goes_on(server: TestServer) -> None:
    """A person has no part in what it takes from then on; it may have run."""
    began = asyncio.Event()

    @tool(approval=True)
    async def slow() -> None:
        began.set()
        await asyncio.Event().wait()

    async with (
        server.room("host") as host,
        server.room("ann") as ann,
        host.host(Toolkit("work", [slow])),
        person_in(ann) as person,
    ):
        call = asyncio.create_task(ann.invoke("work.slow", timeout_s=0.5))
        await ann.approve(await person.asked())
        await began.wait()
        with pytest.raises(DeadlineExceeded) as late:
            await call
        assert late.value.executed == "maybe"


async def test_attempt_after_a_withdrawn_question_runs_by_an_approval_alone(
    server: TestServer,
) -> None:
    """HOLD-3: till then the server says for a host that is lost that nothing has run."""
    files = Files()
    limits: dict[str, asyncio.Timeout] = {}

    async def tries_again(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        try:
            async for chunk in next(call):
                yield chunk
        except TimeoutError:
            async for chunk in next(call):
                yield chunk

    async def limited(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        async with asyncio.timeout(None) as limits[call.id]:
            async for chunk in next(call):
                yield chunk

    toolkit = Toolkit("files", [files.write], middlewares=[tries_again, limited])
    async with (
        server.room("host") as host,
        server.room("ann") as ann,
        host.host(toolkit),
        person_in(ann) as person,
    ):
        call = calling(ann, retry=False)
        withdrawn = await person.asked()
        other = calling(ann)
        await ann.approve(await person.asked(), rule=True)
        assert await other == "a"
        assert (await person.settled()).outcome == "approved"
        limits[withdrawn.call_id].reschedule(0)
        await assert_settled(person, withdrawn.id, "cancelled")
        with pytest.raises(Unavailable) as refused:
            await call
        assert (refused.value.executed, refused.value.retryable) == ("no", True)
    assert files.wrote == ["a"]


class Ahead(Toolkit):
    """A toolkit that may do something before its tool is judged."""

    async def execute(self, *call: Any) -> Any:
        return await super().execute(*call)


@pytest.mark.parametrize(("kind", "executed"), [(Toolkit, "no"), (Ahead, "maybe")])
async def test_override_of_execute_may_have_run_something_before_the_call_waits(
    server: TestServer, kind: type[Toolkit], executed: str
) -> None:
    """HOLD-14."""
    files = Files()
    async with (
        FaultProxy(server.url) as proxy,
        server.room("host", via=proxy) as host,
        server.room("ann") as ann,
        host.host(kind("files", [files.write])),
        person_in(ann) as person,
    ):
        call = calling(ann, retry=False)
        hold = await person.asked()
        proxy.reset()
        await assert_settled(person, hold.id, "lost")
        with pytest.raises(HostLost) as lost:
            await call
        assert lost.value.executed == executed
    assert files.wrote == []
