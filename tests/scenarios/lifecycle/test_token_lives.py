"""Tokens with `until`: they live while they are used, over restarts, and end when they are not."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from support.clients.forged_tokens import HEADER, signed
from support.clients.forged_tokens import KEY as FORGED
from support.clients.handshakes import ask, claims
from support.clients.living_tokens import LIFE_S, MovedClock, living
from support.clients.raw_client import bearer, raw_connection, raw_participant
from support.clients.raw_requests import next_of
from support.nodes.cluster import until_listed
from support.patience import PATIENCE_S
from support.redis.server import RedisServer, free_port, redis_server
from support.rooms.events import until
from toolbus import ApiScope, Key, KeyRing, RoomClient, Toolkit, tool
from toolbus.auth.claim_rules import ClaimRule
from toolbus.auth.jws import read_unverified
from toolbus.auth.key_sets import Issuer
from toolbus.auth.tokens import LEEWAY_S
from toolbus.errors import PermissionDenied
from toolbus.wire import Notice, Refresh
from toolbus_server.access.revocations import Revocation
from toolbus_server.access.state_file import FolderUnavailable, StateFolder
from toolbus_server.access.state_writer import StateBatch, StateWriter
from toolbus_server.settings import ServerSettings
from toolbus_server.testing import TestServer, running_nodes, running_server
from toolbus_server.websocket.session import Session

KEY = Key.generate(kid="first", iss="acme", alias="acme", alg="EdDSA")
NEWER = Key.generate(kid="second", iss="acme", alias="acme", alg="EdDSA")
IDP = Key.generate(kid="idp", iss="idp", alg="EdDSA")


@tool
async def double(number: int) -> int:
    return 2 * number


@asynccontextmanager
async def serving(clock: MovedClock, state: Path | None) -> AsyncIterator[TestServer]:
    settings = ServerSettings(keys=KeyRing([]), port=free_port(), drain_s=0.2, state=state)
    async with running_server(key=KEY, settings=settings, clock=clock) as server:
        yield server


def joined(server: TestServer, jwt: str) -> RoomClient:
    return RoomClient(server.url, room="lab", token=jwt)


async def is_refused(server: TestServer, jwt: str) -> bool:
    try:
        async with joined(server, jwt):
            return False
    except PermissionDenied:
        return True


async def restart(server: TestServer) -> None:
    await server.server.stop()
    await server.server.start()


async def test_sixty_lives_with_calls_restarts_and_rotations(tmp_path: Path) -> None:
    """TOKEN-8: no call fails."""
    clock = MovedClock()
    tokens = [living(KEY, name, clock.now(), lives=60) for name in ("host", "caller")]
    async with (
        asyncio.timeout(PATIENCE_S),
        serving(clock, tmp_path) as server,
        joined(server, tokens[0]) as host,
        host.host(Toolkit("kit", [double]), public=True),
        joined(server, tokens[1]) as caller,
    ):
        for life in range(58):
            if life in (20, 40):
                await restart(server)
            if life in (10, 30):  # the public half of the old key stays
                server.server.trust(KeyRing([NEWER, KEY.public_half()]))
            for part in range(3):
                clock.move(LIFE_S / 3)
                number = 3 * life + part
                assert await caller.call("kit.double", number=number) == 2 * number


async def test_with_a_bus_lives_go_on_at_each_node_and_over_a_redis_that_lost_all() -> None:
    """TOKEN-8: what one node has noted, another one reads at a handshake."""
    clock = MovedClock()
    async with asyncio.timeout(PATIENCE_S), redis_server() as redis:
        nodes = running_nodes(redis.url, settings=_OF_NODES, clock=clock)
        async with nodes as (here, there):
            host_token, token = (living(here.key, name, clock.now()) for name in ("host", "ann"))
            async with (
                joined(here, host_token) as host,
                host.host(Toolkit("kit", [double]), public=True),
            ):
                async with joined(here, token) as ann:
                    for _ in range(3):
                        clock.move(LIFE_S)
                        assert await ann.call("kit.double", number=1) == 2
                await until_stored(there, here)
                async with joined(there, token) as ann:
                    await until_listed(ann, "kit")
                    assert await ann.call("kit.double", number=2) == 4
                await redis.kill()
                await redis.start()  # it has nothing any more
                await until_stored(here, there)
                clock.move(LIFE_S / 2)
                async with joined(there, host_token) as again:
                    assert again.name == "host"

                async with Redis.from_url(redis.url) as client:
                    await client.flushall()
                settings = replace(_OF_NODES, redis=redis.url)
                async with running_server(key=here.key, settings=settings, clock=clock) as later:
                    await until_stored(later)
                    while (status := await answered(later, host_token)) != 101:
                        assert status == 503  # 401 would end a client


async def answered(server: TestServer, jwt: str) -> int:
    async with raw_connection(server.url) as client:
        return (await client.upgrade("/rooms/lab", bearer(jwt))).status


_OF_NODES = ServerSettings(keys=KeyRing([]), port=0, drain_s=0.2)


async def until_stored(*servers: TestServer) -> None:
    for server in servers:
        node = server.server.node
        assert node is not None
        await node.is_joined.wait()
        assert await node.tokens.writer.is_written(PATIENCE_S)


async def test_a_token_that_was_not_used_for_one_life_is_refused_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = MovedClock()
    token = living(KEY, "ann", clock.now())
    async with asyncio.timeout(PATIENCE_S), serving(clock, tmp_path) as server:
        async with joined(server, token):
            clock.move(1.9 * LIFE_S)
        clock.move(0.2 * LIFE_S)  # the third life was noted
        assert not await is_refused(server, token)
        clock.move(LIFE_S + 61)
        assert await is_refused(server, token)
        await restart(server)
        assert await is_refused(server, token)
    assert "connection refused: unused" in caplog.text


async def test_a_newer_token_with_the_same_id_shares_the_lives(tmp_path: Path) -> None:
    """TOKEN-8: `token create --if-needed` may write one while the older one is in use."""
    clock = MovedClock()
    async with asyncio.timeout(PATIENCE_S), serving(clock, tmp_path) as server:
        older = living(KEY, "ann", clock.now())
        async with joined(server, older):
            clock.move(5 * LIFE_S)
            jti = _claim(older, "jti")
            newer, short = (
                living(KEY, "ann", clock.now(), lives=lives, jti=jti) for lives in (9, 3.1)
            )
            other = living(KEY, "ann", clock.now())
            clock.move(3 * LIFE_S)
            assert await is_refused(server, other)
            assert not await is_refused(server, newer)
            async with raw_participant(server, token=short) as ann:
                clock.move(0.1 * LIFE_S + 61)  # its own `until`, not the end of the life noted
                assert await ann.close_code() == 4401


async def test_after_the_last_life_a_newer_token_is_asked_for_and_the_connection_ends(
    tmp_path: Path,
) -> None:
    """REFRESH-2, CONN-12: and not before."""
    clock = MovedClock()
    async with asyncio.timeout(PATIENCE_S), serving(clock, tmp_path) as server:
        token = living(KEY, "ann", clock.now(), lives=2.5)
        async with raw_participant(server, token=token) as ann:
            clock.move(2.2 * LIFE_S)
            clock.move(0.1 * LIFE_S)
            notice = await next_of(ann, Notice)
            assert notice.data["left_ms"] == pytest.approx(1000 * (0.2 * LIFE_S + 60), rel=0.6)
            clock.move(0.2 * LIFE_S + 61)
            assert await ann.close_code() == 4401
        assert await is_refused(server, token)


def with_provider() -> KeyRing:
    """The keys of a server with an identity provider, whose tokens join every room."""
    rule = ClaimRule(number=1, iss="idp", match={"sub": "*"}, rooms=("*",), api=ApiScope.full())
    keys = {IDP.kid: IDP.public_half()}
    issuer = Issuer(iss="idp", alias="idp", jwks="idp.json", rules=(rule,), keys=keys)
    return KeyRing([KEY], [issuer])


@pytest.mark.parametrize("cause", ["no state", "no key", "provider", "revoked"])
async def test_a_life_is_noted_only_while_the_token_would_be_accepted(
    tmp_path: Path, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    """TOKEN-6: a connection lasts to the end of its current life."""
    clock = MovedClock()
    state = None if cause == "no state" else tmp_path
    async with asyncio.timeout(PATIENCE_S), serving(clock, state) as server:
        server.server.trust(with_provider())
        token = living(IDP if cause == "provider" else KEY, "ann", clock.now())
        async with raw_participant(server, token=token) as ann:
            if cause == "no key":
                server.server.trust(KeyRing([NEWER]))
            if cause == "revoked":
                async with joined(server, server.token("admin", room="*")) as admin:
                    assert await admin.admin("revoke", name="ann") == {"closed": 1}
                assert await ann.close_code() == 4440
            else:
                clock.move(0.9 * LIFE_S)
                await next_of(ann, Notice)
                line = "ann gets no further life: unknown_kid (kid 'first', in room lab)"
                assert caplog.text.count(line) == (cause == "no key")
                assert not server.server.admission.refused
                clock.move(0.1 * LIFE_S + 61)
                assert await ann.close_code() == 4401
        if cause != "no key":
            await restart(server)
        assert await is_refused(server, token)


async def test_a_revocation_is_known_after_each_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """ADMIN-4"""
    clock = MovedClock()
    async with asyncio.timeout(PATIENCE_S), serving(clock, tmp_path) as server:
        tokens = [living(KEY, name, clock.now()) for name in ("ann", "bob", "eve")]
        async with joined(server, server.token("admin", room="*")) as admin:
            await admin.admin("revoke", name="ann")
            jti = _claim(tokens[1], "jti")
            await admin.admin("revoke", jti=jti, until=_claim(tokens[1], "until"))
        assert caplog.messages[-2:] == [
            "admin revoked all tokens of ann",
            f"admin revoked the token {jti!r}",
        ]
        for _ in range(2):
            await restart(server)
            assert [await is_refused(server, jwt) for jwt in tokens] == [True, True, False]


def _claim(jwt: str, name: str) -> Any:
    return read_unverified(jwt)[name]


async def test_two_connections_with_one_token_write_one_row_for_each_life(tmp_path: Path) -> None:
    clock = MovedClock()
    async with asyncio.timeout(PATIENCE_S), serving(clock, tmp_path) as server:
        token = living(KEY, "ann", clock.now())
        async with joined(server, token), joined(server, token):
            clock.move(5 * LIFE_S)
        await server.server.stop()
        with closing(sqlite3.connect(tmp_path / "tokens.db")) as file:
            ((ends_at,),) = file.execute("SELECT ends_at FROM extensions").fetchall()
        assert ends_at == pytest.approx(clock.now() + LIFE_S, abs=2)
        await server.server.start()


async def test_a_state_that_cannot_be_read_is_no_refusal(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolbus_server.cluster.token_state._RESTORED_S", 0.5)
    clock = MovedClock()
    async with asyncio.timeout(PATIENCE_S):
        nodes = running_nodes(redis.url, 1, settings=_OF_NODES, clock=clock)
        async with nodes as (server,):
            token = living(server.key, "ann", clock.now())
            clock.move(LIFE_S + 61)
            while (status := await answered(server, token)) != 401:
                assert status == 503  # other nodes may have to write again what they know
            redis.freeze()
            answer = await ask(server, "/rooms/lab", bearer(token))
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            redis.thaw()
            await redis.kill()
            node = server.server.node
            assert node is not None
            await until(lambda: not node.is_joined.is_set())
            answer = await ask(server, "/rooms/lab", bearer(token))
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    async with redis_server() as server:
        yield server


async def test_three_lives_by_the_clock_of_the_machine(tmp_path: Path) -> None:
    now = time.time()
    # Each life is a second; the leeway makes the first one end a second from now.
    expired_at = now - LEEWAY_S + 1
    made = claims(iat=expired_at - 1, exp=expired_at, until=now + 600, jti="one", room=["lab"])
    jwt = signed(HEADER, made | {"api": ApiScope.full().to_claims()})
    settings = ServerSettings(keys=KeyRing([]), port=0, state=tmp_path)
    async with (
        asyncio.timeout(PATIENCE_S),
        running_server(key=FORGED, settings=settings) as server,
        joined(server, jwt) as room,
    ):
        extensions = server.server.admission.extensions
        assert extensions is not None
        await until(lambda: len(extensions) == 1)
        ((_, first),) = extensions
        await until(lambda: max(end for _, end in extensions) >= first + 3)
        assert [person.name for person in await room.participants()] == [room.name]


async def test_a_revocation_reaches_all_nodes_and_those_that_start_later(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADMIN-4: also one that was made while Redis was away."""
    monkeypatch.setattr("toolbus_server.rooms.administration._STORED_S", 0.2)
    clock = MovedClock()
    async with asyncio.timeout(PATIENCE_S):
        async with running_nodes(redis.url, settings=_OF_NODES, clock=clock) as (here, there):
            key = here.key
            tokens = [living(key, name, clock.now()) for name in ("ann", "bob")]
            admin_token = living(key, "admin", clock.now())
            async with (
                raw_participant(here, token=tokens[0]) as ann_here,
                raw_participant(there, token=tokens[0]) as ann_there,
                joined(here, admin_token) as admin,
            ):
                assert "stored" not in await admin.admin("revoke", name="ann")
                async with Redis.from_url(redis.url) as client:
                    assert await client.zcard("toolbus:revocations") == 1
                assert await ann_here.close_code() == 4440
                assert await ann_there.close_code() == 4440
                node = here.server.node
                assert node is not None
                await redis.kill()
                await until(lambda: not node.is_joined.is_set())
                async with raw_participant(there, token=tokens[1]) as bob:
                    done = await admin.admin("revoke", jti=_claim(tokens[1], "jti"))
                    assert done == {"closed": 0, "stored": False}
                    await redis.start()
                    assert await bob.close_code() == 4440
        settings = replace(_OF_NODES, redis=redis.url)
        async with running_server(key=key, settings=settings, clock=clock) as later:
            assert later.server.node is not None
            await later.server.node.is_joined.wait()
            assert [await is_refused(later, jwt) for jwt in tokens] == [True, True]


async def test_redis_keeps_the_revocations_that_end_last(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """ADMIN-4: a node that reads them again drops none."""
    monkeypatch.setattr("toolbus_server.cluster.token_state.MAX_REVOCATIONS", 2)
    clock = MovedClock()
    async with asyncio.timeout(PATIENCE_S):
        nodes = running_nodes(redis.url, 1, settings=_OF_NODES, clock=clock)
        async with nodes as (server,), Redis.from_url(redis.url) as client:
            async with joined(server, living(server.key, "admin", clock.now())) as admin:
                for number in range(4):
                    clock.move(1)
                    await admin.admin("revoke", jti=f"t{number}")
            for _ in range(2):
                assert await client.zcard("toolbus:revocations") == 2
                await client.client_kill_filter(_type="pubsub")
                await until_stored(server)
            assert len(server.server.admission.revocations) == 4
    assert "over 2 revocations are in Redis" in caplog.text
    assert "is valid again" not in caplog.text


async def test_a_refresh_that_ends_after_its_connection_gives_no_life(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TOKEN-8: a token without a connection gets none."""
    monkeypatch.setattr("toolbus_server.access.admission._READ_S", PATIENCE_S)
    clock = MovedClock()
    async with asyncio.timeout(PATIENCE_S):
        nodes = running_nodes(redis.url, 1, settings=_OF_NODES, clock=clock)
        async with nodes as (server,), Redis.from_url(redis.url) as client:
            now = clock.now()
            old = living(server.key, "ann", now - LIFE_S)  # another node has given it a life
            key = (str(_claim(old, "iss")), str(_claim(old, "jti")))
            await client.zadd("toolbus:tokens:extended", {"\0".join(key[::-1]): now + LIFE_S})
            clock.move(61)
            extensions = server.server.admission.extensions
            assert extensions is not None
            async with raw_participant(server, token=living(server.key, "bob", now)):
                async with raw_participant(server, token=living(server.key, "ann", now)) as ann:
                    sessions = server.server.hub.rooms["lab"].sessions
                    _, session = sessions.values()
                    assert isinstance(session, Session)
                    redis.freeze()
                    ann.send_frame(Refresh(1, old))
                    await until(lambda: bool(session._pending_answers))
                await until(lambda: len(sessions) == 1)
                redis.thaw()
                await until(lambda: not session._pending_answers)
                assert dict(extensions)[key] == pytest.approx(now + LIFE_S, abs=1)
                clock.move(LIFE_S)
                assert dict(extensions)[key] == pytest.approx(now + LIFE_S, abs=1)


async def test_what_cannot_be_written_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("toolbus_server.access.state_writer._PAUSE_S", 0.01)
    monkeypatch.setattr("toolbus_server.rooms.administration._STORED_S", 0.01)
    commit = StateFolder._commit
    monkeypatch.setattr(StateFolder, "_commit", _is_full)
    clock = MovedClock()
    async with asyncio.timeout(PATIENCE_S), serving(clock, tmp_path) as server:
        token = living(KEY, "ann", clock.now())
        async with joined(server, server.token("admin", room="*")) as admin:
            done = await admin.admin("revoke", name="ann")
            assert done == {"closed": 0, "stored": False}
        assert await is_refused(server, token)
        monkeypatch.setattr(StateFolder, "_commit", commit)
        await until(lambda: "is written to" in caplog.text)
        await restart(server)
        assert await is_refused(server, token)
    assert caplog.text.count("is not written to") == 1


def _is_full(_: StateFolder, batch: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


async def test_ten_thousand_lives_are_written_in_a_few_batches() -> None:
    batches: list[StateBatch] = []

    async def write(batch: StateBatch) -> None:
        batches.append(batch)
        await asyncio.sleep(0)

    writer = StateWriter(write, "memory")
    for number in range(10_000):
        writer.add_ends({("acme", str(number)): 1.0})
        writer.add_ends({("acme", str(number)): 2.0})
        if number % 1_000 == 0:
            await asyncio.sleep(0)
    assert await writer.is_written(PATIENCE_S)
    rows = [row for batch in batches for row in batch.ends.items()]
    assert sorted(rows) == sorted((("acme", str(number)), 2.0) for number in range(10_000))
    assert len(batches) < 12


async def test_a_revocation_is_written_at_once_while_more_lives_are_noted() -> None:
    async def write(batch: StateBatch) -> None:
        writer.add_ends({("acme", "1"): 1.0})
        await asyncio.sleep(0)

    writer = StateWriter(write, "memory")
    writer.add_revocation(Revocation("jti", 0.0, 1.0))
    assert await writer.is_written(PATIENCE_S)
    await writer.aclose(0.0)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("shared", "another server uses the folder"),
        ("a file", "File exists"),
        ("PRAGMA user_version = 99", "a newer version of toolbus"),
        ("PRAGMA application_id = 99", "database of another program"),
        ("DROP TABLE revocations", "cannot be read"),
    ],
)
async def test_a_state_folder_that_cannot_be_used_ends_the_start(
    tmp_path: Path, fault: str, words: str
) -> None:
    clock, folder = MovedClock(), tmp_path / "state"
    async with AsyncExitStack() as stack:
        if fault == "shared":
            await stack.enter_async_context(serving(clock, folder))
        elif fault == "a file":
            folder.touch()
        else:
            async with serving(clock, folder):
                pass
            with closing(sqlite3.connect(folder / "tokens.db")) as file, file:
                file.execute(fault)
        for _ in range(2):  # the folder is not left locked
            with pytest.raises(FolderUnavailable, match=words):
                async with serving(clock, folder):
                    pass
