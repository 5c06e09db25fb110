"""PROTOCOL.md, HOLD-18: a server or a host that is stopped does not wait for a person.

What waits is asked again elsewhere, and runs once. The grace is 10 minutes: what used it would end
no test.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.deploy.balancer import balancer
from support.patience import PATIENCE_S
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
    Key,
    Permissions,
    RoomClient,
    ToolCall,
    ToolFailed,
    Toolkit,
    Turn,
    tool,
)
from toolbus.wire import Notice, encode
from toolbus_server.testing import TestServer, running_server

GRACE = ("--drain", "600")


def calling(room: RoomClient, path: str = "a", **options: Any) -> asyncio.Task[Any]:
    arguments = {"path": path, "text": "b"}
    return asyncio.create_task(room.invoke("files.write", arguments, returns=str, **options))


def host_command(server: TestServer, witness: Path) -> AbstractAsyncContextManager[Host]:
    """Run `toolbus host` while the block runs."""
    command = ["-m", "toolbus", "host", "support.processes.approval_parts:FILES", *GRACE]
    return host_of(server.url, server.token("host"), command, **{WITNESS: str(witness)})


async def asked(room: RoomClient, number: int = 1) -> list[HoldInfo]:
    """Wait until so many calls wait for a person, and read them."""
    async with asyncio.timeout(PATIENCE_S), room.events(["holds"]) as events:
        while len(holds := await room.holds()) < number:
            await anext(events)
        return [await room.hold(hold.id) for hold in holds]


async def test_call_that_waits_at_a_host_that_is_stopped_is_asked_again_at_another_at_once(
    server: TestServer, tmp_path: Path
) -> None:
    """Its time has stood still, and goes on for the moment between the two."""
    witness, seen = tmp_path / "witness", list[HeldCall]()
    async with server.room("ann") as ann, host_command(server, witness) as first:
        await until_hosts(ann, "files", 1)
        call = calling(ann, timeout_s=5, on_held=seen.append)
        (lost,) = await asked(ann)
        async with host_command(server, witness):
            await until_hosts(ann, "files", 2)  # it takes a while
            first.signal(signal.SIGTERM)
            assert await first.ended() == 0
            assert "waiting up to" not in first.output
            (again,) = await asked(ann)
            assert (again.replaces, again.call_id) == (lost.id, lost.call_id)
            await ann.approve(again)
            assert await call == "wrote a"
    assert [held.outcome for held in seen] == ["open", "lost", "open", "approved"]
    assert witness.read_text() == "a: b\n"


async def test_what_waits_at_a_server_that_is_stopped_is_asked_again_at_the_next(
    tmp_path: Path,
) -> None:
    """A call, and the question of an agent about a call that it has not made."""
    witness, own = tmp_path / "witness", list[str]()

    @tool
    async def write(path: str) -> None:
        own.append(path)

    always, permissions = [Toolkit("own", [write])], Permissions()
    async with (
        server_process(tmp_path, *GRACE) as server,
        server.room("ann") as ann,
        Turn(ann, always=always, permissions=permissions, approve="room") as turn,
        program(server, "host", "host", **{WITNESS: str(witness)}),
    ):
        calls = [calling(ann), asyncio.ensure_future(turn.call("own.write", path="a"))]
        former = await asked(ann, 2)
        assert await server.end(signal.SIGTERM) == 0
        await server.start()
        again = await asked(ann, 2)
        assert {hold.call_id for hold in again} == {hold.call_id for hold in former}
        for hold in again:
            await ann.approve(hold)
        assert await asyncio.gather(*calls) == ["wrote a", None]
    assert (witness.read_text(), own) == ("a: b\n", ["a"])


async def test_call_waits_at_a_host_that_drains_only_if_it_was_entered(
    server: TestServer, tmp_path: Path
) -> None:
    """Two calls ask while it drains: a second attempt, and one that goes to another host."""
    wrote: list[str] = []
    gate, arrived = asyncio.Event(), asyncio.Semaphore(0)

    @tool(approval=True)
    async def write(path: str, text: str) -> str:
        wrote.append(text)
        if text == "b":
            raise ToolFailed("it is tried again with another text")
        return text

    async def twice(call: ToolCall, next: CallNext) -> AsyncIterator[Chunk]:
        for text in ("b", "c") if call.arguments["path"] == "a" else ("b",):
            if wrote or text == "c":
                arrived.release()
                await gate.wait()
            with suppress(ToolFailed):
                async for chunk in next(replace(call, arguments={"path": "a", "text": text})):
                    yield chunk

    async with (
        server.room("ann") as ann,
        person_in(ann) as person,
        server.room("host") as host,
        host.host(Toolkit("files", [write], middlewares=[twice])),
    ):
        entered = calling(ann)
        await ann.approve(await person.asked())
        await arrived.acquire()
        other = calling(ann, path="other")
        await arrived.acquire()
        async with program(server, "host", "host", **{WITNESS: str(tmp_path / "witness")}):
            draining = asyncio.create_task(host.drain(600))
            await until_hosts(ann, "files", 1)
            gate.set()
            for hold in await asked(ann, 2):
                await ann.approve(hold)
            assert (await entered, await other) == ("c", "wrote other")
            await draining
    assert wrote == ["b", "c"]


async def test_call_at_a_host_that_moves_to_another_server_is_asked_again_there() -> None:
    """LEAVE-11: by the frame `drain` of its former connection."""
    wrote: list[str] = []

    @tool(approval=True)
    async def write(path: str, text: str) -> str:
        wrote.append(text)
        return text

    key = Key.generate(kid="test", iss="acme")
    async with (
        balancer() as address,
        running_server(key=key) as first,
        running_server(key=key) as second,
    ):
        address.lead_to(first.url)
        url, token = address.url, first.token
        async with (
            RoomClient(url, room="lab", token=token("host")) as host,
            RoomClient(url, room="lab", token=token("ann")) as ann,
            second.room("ann") as person,
            host.host(Toolkit("files", [write])),
        ):
            call = calling(ann)
            (former,) = await asked(ann)
            address.lead_to(second.url)
            for connection in first.server.hub.rooms["lab"].routed.connections.values():
                connection.port.send_message(encode(Notice("move", {})))
            (again,) = await asked(person)
            assert again.call_id == former.call_id
            await person.approve(again)
            assert await call == "b"
    assert wrote == ["b"]
