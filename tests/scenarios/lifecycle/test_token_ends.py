"""Tokens that end while their participant is connected: by expiry, or revoked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.clients.ending_tokens import ends_in, lives_for
from support.clients.forged_tokens import HEADER, KEY, signed
from support.clients.handshakes import claims
from support.clients.raw_client import RawClient, bearer, raw_connection, raw_participant
from support.clients.raw_requests import (
    answer,
    ask,
    call_of,
    call_through,
    failure_of,
    next_of,
    offer,
    refusal,
)
from support.processes.host_process import host_process
from support.rooms.events import listed, next_toolkit_event, until_hosts
from support.rooms.failures import error_of_call
from support.rooms.unharmed_server import no_logged_errors
from toolbus import ApiScope, RoomClient
from toolbus.errors import PermissionDenied, RoomException
from toolbus.wire import Notice, Refresh, Result, Subscribe
from toolbus_server.testing import TestServer, running_server


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    async with running_server(key=KEY) as server, asyncio.timeout(60):
        yield server


# By expiry


async def test_token_expiry_is_announced_after_four_fifths_of_its_lifetime(
    server: TestServer,
) -> None:
    """REFRESH-2: once for each end."""
    began = time.time()
    short = lives_for("bob", 2.0)
    async with raw_participant(server, token=short) as bob:
        notice = await next_of(bob, Notice)
        assert time.time() - began >= 1.5
        assert notice.name == "token_expires"
        assert 55_000 < notice.data["left_ms"] <= 60_500  # it includes the leeway
        await ask(bob, Refresh(1, short))
        bob.send_frame(Refresh(2, ends_in("bob", 50)))  # another expiry, which is soon as well
        seen = [await bob.read_frame() for _ in range(2)]
        assert [type(frame) for frame in seen] == [Result, Notice]
        assert isinstance(seen[1], Notice)
        assert 40_000 < seen[1].data["left_ms"] <= 50_000


async def test_a_newer_token_keeps_the_connection_past_the_end_of_the_old_one(
    server: TestServer,
) -> None:
    """REFRESH-1, CONN-12."""
    async with (
        raw_participant(server, token=ends_in("host", 1.5)) as host,
        raw_participant(server, token=ends_in("other", 2.0)) as other,
    ):
        await ask(host, offer())
        await ask(host, Refresh(2, server.token("host")))
        assert await other.close_code() == 4401
        await call_through(host, host, call_of())


async def until_toolkit_goes(bob: RawClient) -> None:
    while (await bob.next_event()).name != "toolkit_removed":
        pass


async def test_no_call_starts_after_the_end_and_calls_in_flight_may_still_end(
    server: TestServer,
) -> None:
    """CONN-12, guarantee "token expires"."""
    async with raw_participant(server, "bob") as bob:
        await ask(bob, Subscribe(1, ["toolkits"]))
        await ask(bob, offer({"name": "bobs", "tools": [{"name": "say", "input_schema": {}}]}, 2))
        async with raw_participant(server, token=ends_in("host", 1.5)) as host:
            await ask(host, offer())
            ran = await call_through(bob, host, call_of())
            made = await call_through(host, bob, call_of("bobs.say", 8))
            await until_toolkit_goes(bob)
            assert (await refusal(bob, call_of(request_id=9))).code == "not_found"
            for request in (call_of("bobs.say", 10), offer(request_id=11), fresh(server)):
                refused = await refusal(host, request)
                assert (refused.code, refused.executed) == ("permission_denied", "no")
            answer(host, ran)
            assert isinstance(await bob.reply_to(7), Result)
            answer(bob, made)
            assert isinstance(await host.reply_to(8), Result)
            assert await host.close_code() == 4401


def fresh(server: TestServer) -> Refresh:
    return Refresh(12, server.token("host"))


async def test_calls_in_flight_delay_the_end_of_an_expired_connection_only_shortly(
    server: TestServer,
) -> None:
    """CONN-12, CALL-12, CALL-13, guarantee "token expires": the rest ends by phase."""
    async with raw_participant(server, "bob") as bob:
        await ask(bob, Subscribe(1, ["toolkits"]))
        async with raw_participant(server, token=ends_in("host", 1.0)) as host:
            await ask(host, offer())
            await call_through(bob, host, call_of())
            await until_toolkit_goes(bob)
            async with asyncio.timeout(60):
                lost = await failure_of(bob, 7)
            assert (lost.code, lost.executed) == ("host_lost", "maybe")
            assert await host.close_code() == 4401


async def test_the_expiry_of_a_token_whose_participant_has_left_has_no_effect(
    server: TestServer,
) -> None:
    hall, boss_token = "hall", server.token("boss", room="*")
    with no_logged_errors():
        async with (
            raw_connection(server.url) as other,
            RoomClient(server.url, room=hall, token=boss_token) as boss,
            raw_participant(server, token=ends_in("out", 1.0)),
        ):
            await other.upgrade("/rooms/hall", bearer(ends_in("other", 1.5, room=hall)))
            async with raw_participant(server, token=ends_in("left", 1.0)):
                pass
            assert await boss.admin("kick", room="lab", participant="out") == {"closed": 1}
            assert await other.close_code() == 4401
            assert [room["name"] for room in (await boss.admin("rooms"))["rooms"]] == [hall]


async def test_joining_with_a_token_that_has_expired_says_so(server: TestServer) -> None:
    with pytest.raises(PermissionDenied, match=r"refuses the token: it expired 1 min \d+ s ago"):
        await RoomClient(server.url, room="lab", token=ends_in("late", -30.0)).connect()


# Revoked


@pytest.mark.parametrize("how", ["identity", "jti"])
async def test_a_revoked_host_is_removed_at_once_with_its_toolkits(
    server: TestServer, tmp_path: Path, how: str
) -> None:
    """ADMIN-4, CALL-13, guarantee "token is revoked": a process of its own, which then ends."""
    every = ApiScope.full().to_claims()
    token = signed(HEADER, claims(sub="host", jti="the-one", api=every))
    meant = {"issuer": KEY.iss, "name": "host"} if how == "identity" else {"jti": "the-one"}
    boss_token = server.token("boss", room="*")
    async with (
        RoomClient(server.url, room="lab", token=boss_token) as boss,
        server.room("bob") as bob,
        host_process(server, tmp_path / "w", hold=True, token=token) as host,
    ):
        await until_hosts(bob, "work", 1)
        async with bob.events(["toolkits"]) as events:
            running = asyncio.ensure_future(error_of_call(bob, "work.wait"))
            await host.wrote("began wait")
            assert await boss.admin("revoke", **meant) == {"closed": 1}
            lost = await running
            gone = await next_toolkit_event(events)
        assert (lost.code, lost.executed, lost.retryable) == ("host_lost", "maybe", False)
        assert gone.name == "toolkit_removed"  # no name is reserved
        assert await listed(bob) == []
        assert (await error_of_call(bob, "work.wait")).code == "not_found"
        await host.wrote("left wait")
        assert await host.ended() != 0  # it does not reconnect


async def test_the_calls_of_a_revoked_caller_are_given_up_where_they_run(
    server: TestServer, tmp_path: Path
) -> None:
    """ADMIN-4, CALL-12, guarantee "token is revoked"."""
    boss_token = server.token("boss", room="*")
    async with (
        RoomClient(server.url, room="lab", token=boss_token) as boss,
        server.room("eve") as eve,
        host_process(server, tmp_path / "w", hold=True) as host,
    ):
        await until_hosts(eve, "work", 1)
        running = asyncio.ensure_future(error_of_call(eve, "work.wait"))
        await host.wrote("began wait")
        assert await boss.admin("revoke", issuer=KEY.iss, name="eve") == {"closed": 1}
        lost = await running
        assert (lost.code, lost.executed) == ("connection_lost", "maybe")
        await host.wrote("left wait")
        with pytest.raises(RoomException, match="revoked its token"):
            await eve.closed()
