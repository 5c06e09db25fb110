"""Connections of members: opened once, given out while they last, and closed; refused tokens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from support.clients.ending_tokens import ends_in
from support.clients.forged_tokens import KEY
from support.rooms.events import until
from toolbus import PermissionDenied, RoomClient, Toolkit, Unavailable, tool
from toolbus.auth.keys import KeyRing
from toolbus.room.room import connection_of
from toolbus.wire import PROTOCOL_HEADER
from toolbus_gateway.definitions import Definitions
from toolbus_gateway.listing import Target
from toolbus_gateway.member import Member
from toolbus_gateway.member_pool import MemberPool, PoolFull
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import FaultProxy, TestServer, running_server

HERE = "127.0.0.1"


@asynccontextmanager
async def pool_of(url: str, **options: Any) -> AsyncIterator[MemberPool]:
    pool = MemberPool(url, Definitions(), **options)
    try:
        async with asyncio.timeout(60):
            yield pool
    finally:
        await pool.aclose()
    assert len(pool) == 0


async def member_of(pool: MemberPool, token: str, address: str = HERE) -> Member:
    async with pool.lease(token, "lab", address) as member:
        return member


async def members_in(room: RoomClient) -> list[str]:
    return [
        person.name
        for person in await room.participants()
        if person.attributes.get("via") == "gateway"
    ]


def admin_of(server: TestServer) -> RoomClient:
    return RoomClient(server.url, room="lab", token=server.token("admin", room="*"))


class ScriptedServer:
    """Answers each request for a connection with one status, or never."""

    def __init__(self, status: int | None) -> None:
        self._status = status
        self.asked = 0
        self.left = asyncio.Event()
        self.url = ""

    async def __aenter__(self) -> ScriptedServer:
        self._server = await asyncio.start_server(self._answer, HERE, 0)
        self.url = f"ws://{HERE}:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        if self._status is not None:
            head = f"HTTP/1.1 {self._status} No\r\n{PROTOCOL_HEADER}: 1\r\nContent-Length: 0"
            writer.write(f"{head}\r\nConnection: close\r\n\r\n".encode())
        else:
            await reader.read()
        writer.close()
        self.left.set()


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    async with running_server(key=KEY) as running:
        yield running


async def test_requests_of_one_token_and_room_share_a_connection(server: TestServer) -> None:
    alice, bob = server.token("alice"), server.token("bob")
    async with server.room("watcher") as watcher, pool_of(server.url) as pool:
        waiting = [member_of(pool, token) for token in [alice, bob] * 10]
        members = await asyncio.gather(*waiting)
        assert len({*members}) == len(pool) == 2
        assert sorted(await members_in(watcher)) == ["alice", "bob"]
        with pytest.raises(PermissionDenied):  # the same token elsewhere is a connection of its own
            async with pool.lease(alice, "other", HERE):
                pass


async def test_a_connection_without_requests_is_closed(server: TestServer) -> None:
    async with pool_of(server.url, idle_s=0.01) as pool:
        async with pool.lease(server.token("alice"), "lab", HERE) as member:
            closed = asyncio.create_task(member.room.closed())
            assert pool.busy == 1
            await member_of(pool, server.token("bob"))
            await until(lambda: len(pool) == 1)
            assert not member.has_ended
        await closed
        assert len(pool) == 0


@pytest.mark.parametrize("how", ["revoked", "expired", "kicked"])
async def test_a_member_that_has_ended_is_not_given_out_again(server: TestServer, how: str) -> None:
    token = ends_in("alice", 1.0) if how == "expired" else server.token("alice")
    async with admin_of(server) as admin, pool_of(server.url) as pool:
        async with pool.lease(token, "lab", HERE) as member:
            ended = asyncio.Event()
            member.on_end(ended.set)
            await member.follow()
            if how == "revoked":
                await admin.admin("revoke", name="alice")
            elif how == "kicked":
                await admin.admin("kick", room="lab", participant=member.room.me.id)
            await ended.wait()
            assert member.has_ended
        await until(lambda: len(pool) == 0)
        if how == "kicked":
            assert await member_of(pool, token) is not member
        else:
            with pytest.raises(PermissionDenied) as refused:
                await member_of(pool, token)
            assert refused.value.details["status"] == 401


async def test_a_full_pool_closes_the_longest_idle_connection(server: TestServer) -> None:
    tokens = [server.token(name) for name in "abcd"]
    async with pool_of(server.url, max_members=2) as pool:
        first = await member_of(pool, tokens[0])
        second = await member_of(pool, tokens[1])
        assert await member_of(pool, tokens[0]) is first
        foreign = server.token("e", room="other")
        with pytest.raises(PermissionDenied):  # costs nobody a connection
            await member_of(pool, foreign)
        assert await member_of(pool, tokens[1]) is second
        assert await member_of(pool, tokens[0]) is first
        closed = asyncio.create_task(second.room.closed())
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(pool.lease(tokens[2], "lab", HERE))
            await closed
            await stack.enter_async_context(pool.lease(tokens[0], "lab", HERE))
            assert len(pool) == pool.busy == 2
            with pytest.raises(PoolFull):
                await member_of(pool, tokens[3])
        assert await member_of(pool, tokens[3])
        assert len(pool) == 2


@pytest.mark.parametrize(("status", "asked"), [(401, 1), (403, 1), (503, 3)])
async def test_a_refused_token_is_not_tried_again_at_once(
    server: TestServer, status: int, asked: int
) -> None:
    error = Unavailable if status == 503 else PermissionDenied
    token = server.token("alice")
    async with ScriptedServer(status) as scripted, pool_of(scripted.url) as pool:
        for _ in range(3):
            with pytest.raises(error) as refused:
                await member_of(pool, token)
            assert refused.value.details["status"] == status
        assert scripted.asked == asked
        assert len(pool) == 0


async def test_a_refused_token_is_tried_again_later(server: TestServer) -> None:
    async with ScriptedServer(401) as scripted, pool_of(scripted.url, refused_s=0) as pool:
        for asked in (1, 2):
            with pytest.raises(PermissionDenied):
                await member_of(pool, server.token("alice"))
            assert scripted.asked == asked


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "/etc/passwd", "@file", "é.é.é"])
async def test_a_malformed_token_reaches_no_server(token: str) -> None:
    async with ScriptedServer(401) as scripted, pool_of(scripted.url) as pool:
        with pytest.raises(PermissionDenied) as refused:
            await member_of(pool, token)
        assert refused.value.details["status"] == 401
        assert scripted.asked == len(pool) == 0


async def test_wrong_settings_of_the_gateway_are_in_its_log(
    server: TestServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOOLBUS_CONTEXT", "gone")
    async with pool_of(server.url) as pool:
        with pytest.raises(Unavailable, match="wrong settings"):
            await member_of(pool, server.token("ann"))
    assert "gone" in caplog.text


async def test_an_opening_that_nobody_waits_for_is_given_up(server: TestServer) -> None:
    token = server.token("alice")
    async with ScriptedServer(None) as scripted, pool_of(scripted.url) as pool:
        waiting = [asyncio.create_task(member_of(pool, token)) for _ in range(2)]
        await until(lambda: scripted.asked == 1)
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        assert len(pool) == 1
        waiting[1].cancel()
        await scripted.left.wait()
        assert len(pool) == 0


async def test_a_request_that_is_cancelled_leaves_the_opening_to_others(
    server: TestServer,
) -> None:
    token = server.token("alice")
    async with pool_of(server.url) as pool:
        first, second = (asyncio.create_task(member_of(pool, token)) for _ in range(2))
        await asyncio.sleep(0)
        assert pool.busy == 1
        first.cancel()
        assert not (await second).has_ended


async def test_closing_ends_what_waits_and_what_runs(server: TestServer) -> None:
    token = server.token("alice")
    async with ScriptedServer(None) as scripted, pool_of(scripted.url) as pool:
        opening = asyncio.create_task(member_of(pool, token))
        await until(lambda: scripted.asked == 1)
        await pool.aclose()
        with pytest.raises(Unavailable):
            await opening
        await scripted.left.wait()
    async with pool_of(server.url) as pool, pool.lease(token, "lab", HERE) as member:
        await pool.aclose()
        with pytest.raises(Unavailable) as closed:
            await member.room.invoke("words.echo", {})
        assert closed.value.executed == "no"


async def test_a_lost_connection_comes_back_by_itself(server: TestServer) -> None:
    @tool
    async def echo(text: str) -> str:
        return text

    token = server.token("alice")
    async with (
        server.room("host") as host,
        host.host(Toolkit("words", [echo])),
        FaultProxy(server.url) as proxy,
        pool_of(proxy.url) as pool,
        pool.lease(token, "lab", HERE) as member,
    ):
        await proxy.refuse()
        proxy.reset()
        await until(lambda: not connection_of(member.room).link.check_ready())
        call = asyncio.create_task(member.room.invoke("words.echo", {"text": "again"}))
        assert await member_of(pool, token) is member
        await proxy.accept()
        assert (await call).value == "again"


async def test_tokens_stand_in_no_log_and_no_error(
    server: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[object] = []
    good, refused = server.token("alice"), server.token("alice", room="other")
    async with pool_of(server.url) as pool, admin_of(server) as admin:
        async with pool.lease(good, "lab", HERE) as member:
            shown += [member, member.room, pool, *vars(pool).values()]
            await member.listing(Target())
            await admin.admin("revoke", name="alice")
            with pytest.raises(PermissionDenied) as ended:
                await member.room.closed()
            shown += [ended.value, ended.value.details]
        for _ in range(2):
            with pytest.raises(PermissionDenied) as denied:
                await member_of(pool, refused)
            shown += [denied.value, denied.value.details]
        text = f"{shown!r} {[record.getMessage() for record in caplog.records]}"
    for token in (good, refused):
        assert token.rpartition(".")[2] not in text


async def test_the_first_callers_address_counts_at_the_room_server() -> None:
    settings = ServerSettings(
        keys=KeyRing([]), port=0, drain_s=1.0, trusted_proxies=(HERE,), max_per_address=1
    )
    async with running_server(settings=settings) as server, pool_of(server.url) as pool:
        await member_of(pool, server.token("a"), "192.0.2.1")
        await member_of(pool, server.token("b"), "192.0.2.2")
        with pytest.raises(Unavailable) as full:
            await member_of(pool, server.token("c"), "192.0.2.1")
        assert full.value.details["limit"] == "address"
