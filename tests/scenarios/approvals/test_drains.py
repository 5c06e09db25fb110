"""PROTOCOL.md, HOLD-15: a server or a host that is stopped does not wait for a person.

What waits is asked again elsewhere, and runs once. The grace is 10 minutes: what used it would end
no test.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.processes.approval_parts import WITNESS, program
from support.processes.logged_host import Host, host_of
from support.processes.server_process import server_process
from support.rooms.approvals import person_in
from support.rooms.events import until_hosts
from toolbus import (
    CallNext,
    Chunk,
    HeldCall,
    HoldInfo,
    Permissions,
    RoomClient,
    ToolCall,
    ToolFailed,
    Toolkit,
    Turn,
    tool,
)
from toolbus_server.testing import TestServer

GRACE = ("--drain", "600")
ARGUMENTS = {"path": "a", "text": "b"}


def calling(room: RoomClient, **options: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(room.invoke("files.write", ARGUMENTS, returns=str, **options))


@asynccontextmanager
async def host_command(server: TestServer, witness: Path) -> AsyncIterator[Host]:
    """Run `toolbus host` until the block ends."""
    command = ["-m", "toolbus", "host", "support.processes.approval_parts:FILES", *GRACE]
    variables = {WITNESS: str(witness)}
    async with host_of(server.url, server.token("host"), command, **variables) as host:
        await host.wait_for_log("hosting files")
        yield host


async def asked(room: RoomClient) -> HoldInfo:
    """Wait until something waits for a person, and read it."""
    async with person_in(room) as person:
        for hold in await room.holds():
            return await room.hold(hold.id)
        return await person.asked()


async def test_call_that_waits_at_a_host_that_is_stopped_is_asked_again_at_another_at_once(
    server: TestServer, tmp_path: Path
) -> None:
    """Its time has stood still, and goes on for the moment between the two."""
    witness, seen = tmp_path / "witness", list[HeldCall]()
    async with (
        server.room("ann") as ann,
        person_in(ann) as person,
        host_command(server, witness) as first,
    ):
        call = calling(ann, timeout_s=5, on_held=seen.append)
        lost = await person.asked()
        async with host_command(server, witness):  # its start takes a while
            first.signal(signal.SIGTERM)
            assert (await person.settled()).outcome == "lost"
            again = await person.asked()
            assert (again.replaces, again.call_id) == (lost.id, lost.call_id)
            assert await first.ended() == 0
            assert "waiting up to" not in first.output
            await ann.approve(again)
            assert await call == "wrote a"
    assert [held.outcome for held in seen] == ["open", "lost", "open", "approved"]
    assert witness.read_text() == "a: b\n"


async def test_call_that_waits_at_a_server_that_is_stopped_is_asked_again_at_the_next(
    tmp_path: Path,
) -> None:
    witness = tmp_path / "witness"
    async with (
        server_process(tmp_path, *GRACE) as server,
        server.room("ann") as ann,
        program(server, "host", "host", **{WITNESS: str(witness)}),
    ):
        call = calling(ann)
        lost = await asked(ann)
        assert await server.end(signal.SIGTERM) == 0
        await server.start()
        again = await asked(ann)
        assert again.call_id == lost.call_id
        await ann.approve(again)
        assert await call == "wrote a"
    assert witness.read_text() == "a: b\n"


async def test_own_question_of_an_agent_is_asked_again_at_the_next_server(tmp_path: Path) -> None:
    wrote: list[str] = []

    @tool
    async def write(path: str) -> str:
        wrote.append(path)
        return path

    always, permissions = [Toolkit("own", [write])], Permissions()
    async with (
        server_process(tmp_path, *GRACE) as server,
        server.room("ann") as ann,
        Turn(ann, always=always, permissions=permissions, approve="room") as turn,
    ):
        call = asyncio.ensure_future(turn.call("own.write", path="a"))
        first = await asked(ann)
        assert await server.end(signal.SIGTERM) == 0
        await server.start()
        again = await asked(ann)
        assert again.is_own
        assert again.id != first.id
        await ann.approve(again)
        assert await call == "a"
    assert wrote == ["a"]


class Gated:
    """Hosts `files`, whose calls wait at a gate before anybody is asked, and run twice."""

    def __init__(self) -> None:
        self.wrote: list[str] = []
        self.arrived = asyncio.Event()
        self.gate = asyncio.Event()

        @tool(approval=True)
        async def write(path: str, text: str) -> str:
            self.wrote.append(path)
            if path != "again":
                raise ToolFailed("it runs again as another call")
            return path

        async def waits(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
            self.arrived.set()
            await self.gate.wait()
            try:
                async for chunk in next(call):
                    yield chunk
            except ToolFailed:
                async for chunk in next(replace(call, arguments={**ARGUMENTS, "path": "again"})):
                    yield chunk

        self.toolkit = Toolkit("files", [write], middlewares=[waits])


async def test_call_that_asks_while_its_host_drains_is_asked_about_elsewhere(
    server: TestServer, tmp_path: Path
) -> None:
    gated, witness = Gated(), tmp_path / "witness"
    async with (
        server.room("ann") as ann,
        person_in(ann) as person,
        server.room("host") as host,
        host.host(gated.toolkit),
    ):
        call = calling(ann)
        await gated.arrived.wait()
        async with program(server, "host", "host", **{WITNESS: str(witness)}):
            draining = asyncio.create_task(host.drain(600))
            await until_hosts(ann, "files", 1)
            gated.gate.set()
            await draining
            await ann.approve(await person.asked())
            assert await call == "wrote a"
    assert gated.wrote == []


async def test_call_that_was_entered_keeps_its_question_and_has_the_grace(
    server: TestServer,
) -> None:
    gated = Gated()
    gated.gate.set()
    async with (
        server.room("ann") as ann,
        person_in(ann) as person,
        server.room("host") as host,
        host.host(gated.toolkit),
    ):
        call = calling(ann)
        await ann.approve(await person.asked())
        await person.settled()
        hold = await person.asked()
        draining = asyncio.create_task(host.drain(600))
        await until_hosts(ann, "files", 0)
        await ann.approve(hold)
        assert await call == "again"
        await draining
    assert gated.wrote == ["a", "again"]
