"""PROTOCOL.md, HOLD-19: a caller loses its line while a person is asked, and may come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from support.rooms.approvals import Person, person_in
from toolbus import ApiScope, RoomClient, Toolkit, tool
from toolbus.errors import NotFound, PermissionDenied
from toolbus_server.rooms import away_holds
from toolbus_server.testing import FaultProxy, TestServer


@dataclass
class Stage:
    """A caller behind a line that fails, and a person who decides."""

    ann: RoomClient
    line: FaultProxy
    person: Person
    wrote: list[str]

    def calling(self) -> asyncio.Task[str]:
        return asyncio.create_task(self.ann.invoke("files.write", {"path": "a"}, returns=str))

    async def cut(self) -> None:
        """Cut the line of the caller, and wait until the server knows."""
        await self.line.refuse()
        self.line.reset()
        assert (await self.person.asked()).is_away


@pytest.fixture
async def stage(server: TestServer) -> AsyncIterator[Stage]:
    async with staged(server) as stage:
        yield stage


@asynccontextmanager
async def staged(server: TestServer) -> AsyncIterator[Stage]:
    wrote: list[str] = []

    @tool(approval=True, idempotent=True)
    async def write(path: str) -> str:
        wrote.append(path)
        return path

    async with (
        FaultProxy(server.url) as line,
        server.room("host") as host,
        server.room("ann", via=line) as ann,
        server.room("ann") as other,
        host.host(Toolkit("files", [write])),
        person_in(other) as person,
    ):
        yield Stage(ann, line, person, wrote)


@pytest.mark.parametrize("is_changed", [False, True])
async def test_decision_made_meanwhile_runs_the_call_once_it_is_back(
    stage: Stage, is_changed: bool
) -> None:
    call = stage.calling()
    hold = await stage.person.asked()
    await stage.cut()
    await stage.person.room.approve(hold, {"path": "b"} if is_changed else None)
    assert (await stage.person.settled()).outcome == "approved"
    assert stage.wrote == []
    await stage.line.accept()
    assert await call == ("b" if is_changed else "a")
    assert stage.wrote == [await call]
    again = stage.calling()  # another call: it is asked about anew
    assert (await stage.person.added()).replaces == hold.id
    assert (await stage.person.settled()).outcome == "approved"
    assert (await stage.person.asked()).replaces == ""
    again.cancel()


async def test_caller_that_is_back_first_is_asked_in_place_of_the_former(stage: Stage) -> None:
    call = stage.calling()
    former = await stage.person.asked()
    await stage.cut()
    await stage.line.accept()
    assert (await stage.person.settled()).outcome == "cancelled"
    again = await stage.person.asked()
    assert (again.replaces, again.is_away) == (former.id, False)
    await stage.person.room.approve(again)
    assert await call == "a"
    assert stage.wrote == ["a"]


async def test_question_of_a_caller_that_stays_away_ends_and_nothing_runs(
    server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(away_holds, "AWAY_S", 0.2)
    async with staged(server) as stage:
        call = stage.calling()
        await stage.person.asked()
        await stage.cut()
        assert (await stage.person.settled()).outcome == "cancelled"
        assert await stage.person.room.holds() == []
        call.cancel()
    assert stage.wrote == []


async def test_others_see_no_more_of_it_than_before(server: TestServer, stage: Stage) -> None:
    call = stage.calling()
    hold = await stage.person.asked()
    async with server.room("eve", api=ApiScope(approve=("*",))) as eve:
        await stage.cut()
        assert await eve.holds() == []
        with pytest.raises(NotFound):
            await eve.approve(hold)
    async with server.room("host") as host:
        with pytest.raises(PermissionDenied):
            await host.approve(hold)
    call.cancel()


@pytest.mark.parametrize(("removed", "is_away"), [("ann", False), ("ann", True), ("carol", True)])
async def test_removal_of_the_caller_or_the_approver_ends_what_they_left(
    server: TestServer, removed: str, is_away: bool
) -> None:
    """HOLD-7: authority does not stand still."""
    carol = server.room("carol", api=replace(ApiScope.full(), approve_all=("*",)))
    root = server.room("root", api=replace(ApiScope.full(), admin=True, approve_all=("*",)))
    async with carol, root, staged(server) as stage, person_in(root) as person:
        call = stage.calling()
        hold = await person.asked()
        await stage.person.added()
        if is_away:
            await stage.cut()
            assert (await person.asked()).is_away
        if removed == "carol":
            await carol.approve(hold)
        await root.admin("kick", room=root.room, participant=removed)
        assert (await person.settled()).outcome == (
            "approved" if removed == "carol" else "cancelled"
        )
        if removed == "carol":
            await stage.line.accept()
            assert (await person.asked()).outcome == "open"
        call.cancel()
    assert stage.wrote == []
