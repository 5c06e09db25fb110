"""`toolbus serve --workers N`: several processes behind one port."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from redis.asyncio import Redis

from support.clients.plain_http import numbers_at
from support.clients.raw_client import RawClient, bearer, raw_connection
from support.nodes.cluster import until_listed, until_present
from support.nodes.tools import Holding
from support.nodes.workers import (
    connections_of,
    leases,
    lengthen_leases,
    until_ended,
    until_killed,
    until_listens_at,
    until_others_work,
    workers_of,
)
from support.processes.command_line import CommandLine
from support.processes.server_process import ServerProcess, server_process
from support.redis.server import RedisServer
from support.rooms.events import until_hosts
from toolbus import (
    HostLost,
    Key,
    KeyRing,
    ParticipantToken,
    RoomClient,
    RoomException,
    Toolkit,
    tool,
)
from toolbus.auth.grants import ApiScope
from toolbus.wire import Call, CallId, RequestId, Result, pack_body

TIME_S = 60
EMPTY = pack_body({})
LOST = {"host_lost", "connection_lost", "no_host", "unavailable"}
PARTICIPANTS = 12
"""So many that the chance of all being at one of two workers is one in thousands."""


@asynccontextmanager
async def workers(
    folder: Path, redis: RedisServer, *flags: str, count: int = 2
) -> AsyncIterator[ServerProcess]:
    """Run workers that share a Redis; at the end no process is left."""
    shared = ("--redis", redis.url, "--workers", str(count), "--node", "lab", *flags)
    async with server_process(folder, *shared) as server:
        pids: set[int] = set()
        try:
            yield server
        finally:
            if psutil.pid_exists(server.pid):
                pids = workers_of(server.pid)
                await server.end(signal.SIGKILL)
            await until_killed(pids)


class Ledger:
    """A toolkit that records the calls that it ran."""

    def __init__(self) -> None:
        self.ran: set[int] = set()

        @tool(idempotent=True)
        async def again(number: int) -> int:
            """Give the number."""
            self.ran.add(number)
            await asyncio.sleep(0.01)
            return number

        @tool
        async def once(number: int) -> int:
            """Give the number."""
            self.ran.add(number)
            await asyncio.sleep(0.01)
            return number

        self.toolkit = Toolkit("kit", [again, once])


class Load:
    """Continuous calls: idempotent ones must succeed, others may fail with a correct `executed`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._number = 0
        self._more = asyncio.Semaphore(0)
        self._stopping = False
        self.failures: list[tuple[str, str]] = []
        """Code and `executed` of the calls that are not retried."""

    async def _again(self, room: RoomClient) -> None:
        while not self._stopping:
            self._number += 1
            number = self._number
            assert await room.call("kit.again", number=number) == number
            self._more.release()

    async def _once(self, room: RoomClient) -> None:
        while not self._stopping:
            self._number += 1
            number = self._number
            call = room.invoke("kit.once", {"number": number}, retry=False)
            outcome: object = (await asyncio.gather(call, return_exceptions=True))[0]
            if isinstance(outcome, RoomException):
                self.failures.append((outcome.code, outcome.executed))
                assert outcome.executed == "maybe" or number not in self._ledger.ran
                await asyncio.sleep(0.01)

    async def progress(self, calls: int = 100) -> None:
        """Wait until more calls have succeeded."""
        for _ in range(calls):
            await self._more.acquire()

    @asynccontextmanager
    async def running(self, *rooms: RoomClient) -> AsyncIterator[Load]:
        async with asyncio.TaskGroup() as tasks:
            for room in rooms:
                tasks.create_task(self._again(room))
                tasks.create_task(self._once(room))
            yield self
            self._stopping = True


async def until_list_is(room: RoomClient, names: list[str]) -> None:
    """Wait until exactly these participants are listed."""
    async with room.events(["participants"]) as events:
        while sorted(each.name for each in await room.participants()) != sorted(names):
            await anext(events)


@asynccontextmanager
async def hosts_and_callers(
    server: ServerProcess, ledger: Ledger
) -> AsyncIterator[list[RoomClient]]:
    """Connect hosts of one pool and callers that see them; yield the callers."""
    async with AsyncExitStack() as stack:
        for _ in range(PARTICIPANTS):
            host = await stack.enter_async_context(server.room("host"))
            await stack.enter_async_context(host.host(ledger.toolkit))
        names = [f"caller{number}" for number in range(PARTICIPANTS)]
        callers = [await stack.enter_async_context(server.room(name)) for name in names]
        for caller in callers:
            await until_listed(caller, "kit")
        yield callers


async def test_participants_of_all_workers_are_in_one_room(
    redis: RedisServer, tmp_path: Path
) -> None:
    """And `/metrics` shows only the worker that answers."""
    async with asyncio.timeout(TIME_S), workers(tmp_path, redis, count=3) as server:
        async with AsyncExitStack() as stack:
            participants = [
                await stack.enter_async_context(server.room(f"p{number}"))
                for number in range(PARTICIPANTS)
            ]

            for number, each in enumerate(participants):

                @tool
                async def me(number: int = number) -> int:
                    """Return the number of this host."""
                    return number

                await stack.enter_async_context(each.host(Toolkit(f"kit{number}", [me])))
            at = [connections_of(pid, server.url) for pid in workers_of(server.pid)]
            assert (len(at), sum(at)) == (3, PARTICIPANTS)
            assert max(at) < PARTICIPANTS
            for each in participants:
                await until_present(each, *(f"p{number}" for number in range(PARTICIPANTS)))
                for number in range(PARTICIPANTS):
                    await until_listed(each, f"kit{number}")
                    assert await each.call(f"kit{number}.me") == number
            assert set(await leases(redis)) == {"lab-1", "lab-2", "lab-3"}
            for _ in range(6):
                assert (await numbers_at(server.url))["toolbus_participants"] in at


async def test_a_killed_worker_is_replaced_and_its_participants_reconnect(
    redis: RedisServer, tmp_path: Path
) -> None:
    """Neither its successor nor callers at other workers wait for the end of its lease."""
    ledger, holding = Ledger(), Holding()
    load = Load(ledger)
    solo = Toolkit("solo", [holding.tool])
    async with asyncio.timeout(TIME_S), workers(tmp_path, redis) as server:
        async with AsyncExitStack() as stack:
            host = await stack.enter_async_context(server.room("solo"))
            await stack.enter_async_context(host.host(solo))
            one, other = workers_of(server.pid)
            victim, stays = (one, other) if connections_of(one, server.url) else (other, one)
            callers = await stack.enter_async_context(hosts_and_callers(server, ledger))
            await stack.enter_async_context(load.running(*callers))
            await load.progress()
            mine = await participants_until_at(stays, server, stack)
            caller = mine[-1]
            await until_listed(caller, "solo")
            call = asyncio.create_task(caller.invoke("solo.hold", {}, retry=False))
            await holding.began.wait()
            incarnations = await leases(redis)
            psutil.Process(victim).suspend()  # so that it does not renew its lease once more
            await lengthen_leases(redis, 10 * TIME_S)
            psutil.Process(victim).kill()
            await until_others_work(server.pid, {victim}, 2)
            while len(set((await leases(redis)).items()) - set(incarnations.items())) != 1:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.05)
            with pytest.raises(HostLost) as raised:
                await call
            assert raised.value.executed == "maybe"
            await load.progress(500)
            assert set(await leases(redis)) == {"lab-1", "lab-2"}
            names = [each.me.name for each in (host, *callers, *mine)] + ["host"] * PARTICIPANTS
            for each in callers:
                await until_list_is(each, names)
                await until_hosts(each, "kit", PARTICIPANTS)
        assert load.failures
        codes = {code for code, _ in load.failures}
        assert codes <= LOST


@asynccontextmanager
async def flooded(server: ServerProcess) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Flood the port around the block, with eight tasks."""
    clients: list[RawClient] = []
    tasks = [asyncio.create_task(flood(server, clients)) for _ in range(8)]
    try:
        yield tasks
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in clients:
            client.abort()


async def flood(server: ServerProcess, clients: list[RawClient]) -> None:
    """Open connections without end: silent ones, ones with a wrong token, and participants."""
    token = server.token("mallory")
    for number in count():
        with suppress(OSError, asyncio.IncompleteReadError, AssertionError):
            client = await RawClient.connect(server.url)
            clients.append(client)
            if number % 3 == 1:
                await client.upgrade("/rooms/lab", bearer("wrong"))
            elif number % 3 == 2:
                await client.upgrade("/rooms/lab?instance=m", bearer(token))
                client.send_frame(
                    Call(RequestId(1), CallId("1"), "kit", "again", None, EMPTY, None)
                )
        await asyncio.sleep(0)
        if len(clients) > 2_000:
            clients.pop(0).abort()


@pytest.mark.soak
async def test_flooded_workers_are_replaced_and_leave_nothing(
    redis: RedisServer, tmp_path: Path
) -> None:
    """One is killed, one is suspended, and all are stopped while connections flood the port."""
    ledger = Ledger()
    load = Load(ledger)
    async with asyncio.timeout(3 * TIME_S), workers(tmp_path, redis) as server:
        async with AsyncExitStack() as stack:
            flooding = await stack.enter_async_context(flooded(server))
            callers = await stack.enter_async_context(hosts_and_callers(server, ledger))
            async with load.running(*callers):
                await load.progress(500)
                for how in (signal.SIGKILL, signal.SIGSTOP):
                    victim = min(workers_of(server.pid))
                    psutil.Process(victim).send_signal(how)
                    await until_ended([victim])
                    for pid in await until_others_work(server.pid, {victim}, 2):
                        await until_listens_at(pid, server.url, 1)
                    await load.progress(500)
            former = workers_of(server.pid)
            assert await server.end(signal.SIGTERM) == 0
            assert not any(psutil.pid_exists(pid) for pid in former)
            assert await leases(redis) == {}
            assert not any(each.done() for each in flooding)
        async with Redis.from_url(redis.url) as client:
            left = [key for key in await client.keys("toolbus:*") if b"{r:" not in key]
            assert left == [b"toolbus:tokens:since"]
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", urlsplit(server.url).port or 0))
    assert {code for code, _ in load.failures} <= LOST


@pytest.mark.soak
async def test_flooded_workers_end_with_their_supervisor(
    redis: RedisServer, tmp_path: Path
) -> None:
    async with asyncio.timeout(TIME_S), workers(tmp_path, redis) as server:
        left = workers_of(server.pid)
        async with flooded(server), hosts_and_callers(server, Ledger()):
            await server.end(signal.SIGKILL)
            await until_ended(left)
            assert await leases(redis) == {}


async def participants_until_at(
    worker: int, server: ServerProcess, stack: AsyncExitStack
) -> list[RoomClient]:
    """Connect participants until one is at this worker: the last one."""
    before = connections_of(worker, server.url)
    mine: list[RoomClient] = []
    while connections_of(worker, server.url) == before:
        mine.append(await stack.enter_async_context(server.room("me")))
    return mine


async def test_draining_workers_lose_no_idempotent_call(redis: RedisServer, tmp_path: Path) -> None:
    """All of them stop, and others start in their place: calls wait for these."""
    ledger = Ledger()
    load = Load(ledger)
    async with asyncio.timeout(TIME_S), workers(tmp_path, redis) as server:
        async with hosts_and_callers(server, ledger) as callers, load.running(*callers):
            await load.progress()
            former = workers_of(server.pid)
            assert await server.end(signal.SIGTERM) == 0
            assert not any(psutil.pid_exists(pid) for pid in former)
            assert await leases(redis) == {}
            await server.start()
            await load.progress()


async def test_a_signal_to_all_processes_counts_once(redis: RedisServer, tmp_path: Path) -> None:
    """As from a service manager: calls in flight finish, and all processes end with 0."""
    began, may_end = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> int:
        """Wait for permission to end."""
        began.set()
        await may_end.wait()
        return 7

    async with asyncio.timeout(TIME_S), workers(tmp_path, redis) as server:
        async with server.room("host") as host, server.room("me") as me:
            async with host.host(Toolkit("kit", [wait])):
                await until_listed(me, "kit")
                call = asyncio.create_task(me.invoke("kit.wait", {}, retry=False))
                await began.wait()
                for pid in (server.pid, *workers_of(server.pid)):
                    psutil.Process(pid).send_signal(signal.SIGTERM)
                may_end.set()
                assert (await call).value == 7
        assert await server.ended() == 0


async def test_workers_drain_when_their_supervisor_is_killed(
    redis: RedisServer, tmp_path: Path
) -> None:
    async with asyncio.timeout(TIME_S), workers(tmp_path, redis) as server:
        left = workers_of(server.pid)
        assert len(left) == 2
        await server.end(signal.SIGKILL)
        await until_ended(left)
        assert await leases(redis) == {}


async def test_a_single_worker_that_is_stopped_drains_and_is_replaced(
    redis: RedisServer, tmp_path: Path
) -> None:
    """While a call keeps it running, the other worker accepts new connections."""
    began, may_end = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> None:
        """Wait for permission to end."""
        began.set()
        await may_end.wait()

    async with asyncio.timeout(TIME_S), workers(tmp_path, redis) as server:
        async with AsyncExitStack() as stack:
            host = await stack.enter_async_context(server.room("host"))
            await stack.enter_async_context(host.host(Toolkit("kit", [wait])))
            leaves = min(workers_of(server.pid), key=lambda pid: connections_of(pid, server.url))
            caller = await raw_participant_at(leaves, server, host, stack)
            caller.send_frame(Call(RequestId(1), CallId("1"), "kit", "wait", None, EMPTY, None))
            await began.wait()
            psutil.Process(leaves).send_signal(signal.SIGTERM)
            await until_listens_at(leaves, server.url, 0)
            late = [
                await stack.enter_async_context(server.room(f"late{number}"))
                for number in range(PARTICIPANTS)
            ]
            assert leaves in workers_of(server.pid)
            may_end.set()
            assert isinstance(await caller.reply_to(1), Result)
            await until_ended([leaves])
            for pid in await until_others_work(server.pid, {leaves}, 2):
                await until_listens_at(pid, server.url, 1)
            await until_listed(late[0], "kit")


async def raw_participant_at(
    worker: int, server: ServerProcess, host: RoomClient, stack: AsyncExitStack
) -> RawClient:
    """Connect participants until one is at this worker, and known at the host's.

    It stays connected until the worker has ended.
    """
    for number in count():
        participant = await stack.enter_async_context(raw_connection(server.url))
        head = await participant.upgrade("/rooms/lab", bearer(server.token(f"raw{number}")))
        assert head.status == 101
        if connections_of(worker, server.url):
            break
    await until_present(host, f"raw{number}")
    return participant


async def test_each_worker_reloads_the_keys_and_a_restarted_one_reads_them(tmp_path: Path) -> None:
    old, new = (Key.generate(kid=kid, iss="acme") for kid in ("old", "new"))
    keys = tmp_path / "keys.toml"
    KeyRing([old]).save(keys)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = f"redis://127.0.0.1:{closed.getsockname()[1]}/0"
    flags = ("--keys", str(keys), "--redis", nowhere, "--workers", "2", "--node", "lab")
    with CommandLine(tmp_path).serving(*flags) as (running, url):
        err = running.process.stderr
        assert err is not None
        log: list[str] = []

        async def until_logged(text: str) -> str:
            while not log or text not in log[-1]:
                log.append(await asyncio.to_thread(err.readline))
            return log.pop()

        async def check(key: Key, status: int) -> None:
            token = ParticipantToken(name="ann", room=["lab"], api=ApiScope.full()).to_jwt(key)
            for _ in range(PARTICIPANTS):
                async with raw_connection(url) as client:
                    head = await client.upgrade("/rooms/lab", bearer(token))
                assert head.status == status

        async with asyncio.timeout(TIME_S):
            KeyRing([new]).save(keys)
            logged = [await until_logged("trusted keys: 'new'") for _ in range(2)]
            assert {"[lab-1]" in line for line in logged} == {True, False}
            await check(new, 101)
            await check(old, 401)
            (victim, *_) = workers_of(running.process.pid)
            psutil.Process(victim).kill()
            await until_logged(f"pid {victim}, ended by SIGKILL: restart in ")
            for pid in await until_others_work(running.process.pid, {victim}, 2):
                await until_listens_at(pid, url, 1)
            await check(old, 401)
        outcome = running.end()
    assert (outcome.code, outcome.out) == (0, "")
    assert "Traceback" not in "".join([*log, outcome.err])
