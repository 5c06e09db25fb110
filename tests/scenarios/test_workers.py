"""`toolbus serve --workers N`: several processes behind one address, as people meet them."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path

import psutil
import pytest

from scenarios.test_nodes import Holding, until_listed, until_there
from support.command_line import CommandLine
from support.plain_http import numbers_at
from support.raw_client import RawClient, bearer, raw_connection
from support.redis_server import RedisServer
from support.room_watch import until_hosts
from support.server_process import ServerProcess, server_process
from support.worker_processes import (
    connections_of,
    leases,
    until_ended,
    until_killed,
    until_listens_at,
    until_others_work,
    workers_of,
)
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
from toolbus.grants import ApiScope
from toolbus.wire import Call, CallId, RequestId, Result, pack_body
from toolbus_server.key_files import add_key
from toolbus_server.nodes.node import LEASE_S

TIME_S = 60
EMPTY = pack_body({})
PEOPLE = 12
"""So many that all at one of two workers is a chance in thousands."""


@asynccontextmanager
async def workers(
    folder: Path, redis: RedisServer, *flags: str, count: int = 2
) -> AsyncIterator[ServerProcess]:
    """Run workers that share a Redis; at the end none is left."""
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
    """A toolkit that writes down what it ran."""

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
    """Calls without end: those that may be made again must not fail, others tell the truth."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._number = 0
        self._more = asyncio.Semaphore(0)
        self._stopping = False
        self.failures: list[tuple[str, str]] = []
        """Code and `executed` of those that are not made again."""

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
            call = room.invoke("kit", "once", {"number": number}, retry=False)
            outcome: object = (await asyncio.gather(call, return_exceptions=True))[0]
            if isinstance(outcome, RoomException):
                self.failures.append((outcome.code, outcome.executed))
                assert outcome.executed == "maybe" or number not in self._ledger.ran
                await asyncio.sleep(0.01)

    async def goes_on(self, calls: int = 100) -> None:
        """Wait until more calls are done."""
        for _ in range(calls):
            await self._more.acquire()

    @asynccontextmanager
    async def running(self, *rooms: RoomClient) -> AsyncIterator[Load]:
        async with asyncio.TaskGroup() as lanes:
            for room in rooms:
                lanes.create_task(self._again(room))
                lanes.create_task(self._once(room))
            yield self
            self._stopping = True


async def until_list_is(room: RoomClient, names: list[str]) -> None:
    """Wait until exactly these are listed, each as often as it is there."""
    async with room.events(["participants"]) as events:
        while sorted(each.name for each in await room.participants()) != sorted(names):
            await anext(events)


@asynccontextmanager
async def a_crowd(server: ServerProcess, ledger: Ledger) -> AsyncIterator[list[RoomClient]]:
    """Bring hosts of one pool, and callers who see them; give the callers."""
    async with AsyncExitStack() as stack:
        for _ in range(PEOPLE):
            host = await stack.enter_async_context(server.room("host"))
            await stack.enter_async_context(host.host(ledger.toolkit))
        names = [f"caller{number}" for number in range(PEOPLE)]
        callers = [await stack.enter_async_context(server.room(name)) for name in names]
        for caller in callers:
            await until_listed(caller, "kit")
        yield callers


async def test_participants_of_all_workers_are_in_one_room_and_in_one_table_of_numbers(
    redis: RedisServer, tmp_path: Path
) -> None:
    """Each series there is one worker's, so that counters only grow, whoever is asked."""
    async with asyncio.timeout(TIME_S), workers(tmp_path, redis, count=3) as server:
        async with AsyncExitStack() as stack:
            people = [
                await stack.enter_async_context(server.room(f"p{number}"))
                for number in range(PEOPLE)
            ]

            for number, person in enumerate(people):

                @tool
                async def me(number: int = number) -> int:
                    """Give the number of whose tool this is."""
                    return number

                await stack.enter_async_context(person.host(Toolkit(f"kit{number}", [me])))
            at = [connections_of(pid, server.url) for pid in workers_of(server.pid)]
            assert (len(at), sum(at)) == (3, PEOPLE)
            assert max(at) < PEOPLE
            for person in people:
                await until_there(person, *(f"p{number}" for number in range(PEOPLE)))
                for number in range(PEOPLE):
                    await until_listed(person, f"kit{number}")
                    assert await person.call(f"kit{number}.me") == number
            names = {"lab-1", "lab-2", "lab-3"}
            assert set(await leases(redis)) == names
            for _ in range(6):  # whichever worker is asked
                found = await numbers_at(server.url)
                assert sorted(found[f"toolbus_participants {name}"] for name in names) == sorted(at)
                ended = [found[f"toolbus_calls_total ok {name}"] for name in names]
                assert sum(ended) >= PEOPLE**2


@pytest.mark.row(72)
async def test_a_worker_that_is_killed_is_replaced_and_everybody_is_back(
    redis: RedisServer, tmp_path: Path
) -> None:
    """The next one of its name does not wait for the end of its lease, nor do callers elsewhere."""
    ledger, holding = Ledger(), Holding()
    load = Load(ledger)
    solo = Toolkit("solo", [holding.tool])
    async with asyncio.timeout(TIME_S), workers(tmp_path, redis) as server:
        async with AsyncExitStack() as people:
            host = await people.enter_async_context(server.room("solo"))
            await people.enter_async_context(host.host(solo))
            one, other = workers_of(server.pid)
            victim, stays = (one, other) if connections_of(one, server.url) else (other, one)
            callers = await people.enter_async_context(a_crowd(server, ledger))
            await people.enter_async_context(load.running(*callers))
            await load.goes_on()
            mine = await participants_until_at(stays, server, people)
            caller = mine[-1]
            await until_listed(caller, "solo")
            call = asyncio.create_task(caller.invoke("solo", "hold", {}, retry=False))
            await holding.began.wait()
            incarnations = await leases(redis)
            psutil.Process(victim).kill()
            async with asyncio.timeout(LEASE_S / 2):
                await until_others_work(server.pid, {victim}, 2)
                while len(set((await leases(redis)).items()) - set(incarnations.items())) != 1:
                    pass
                with pytest.raises(HostLost) as raised:
                    await call
            assert raised.value.executed == "maybe"
            await load.goes_on(500)
            assert set(await leases(redis)) == {"lab-1", "lab-2"}
            names = [each.me.name for each in (host, *callers, *mine)] + ["host"] * PEOPLE
            for each in callers:
                await until_list_is(each, names)
                await until_hosts(each, "kit", PEOPLE)
        assert load.failures
        codes = {code for code, _ in load.failures}
        assert codes <= {"host_lost", "connection_lost", "no_host", "unavailable"}


async def participants_until_at(
    worker: int, server: ServerProcess, people: AsyncExitStack
) -> list[RoomClient]:
    """Bring participants until one is at this worker: the last one."""
    before = connections_of(worker, server.url)
    mine: list[RoomClient] = []
    while connections_of(worker, server.url) == before:
        mine.append(await people.enter_async_context(server.room("me")))
    return mine


@pytest.mark.row(71)
async def test_workers_that_are_told_to_stop_lose_no_call_that_may_be_made_again(
    redis: RedisServer, tmp_path: Path
) -> None:
    """All of them leave, and others start in their place: calls wait for these."""
    ledger = Ledger()
    load = Load(ledger)
    async with asyncio.timeout(TIME_S), workers(tmp_path, redis) as server:
        async with a_crowd(server, ledger) as callers, load.running(*callers):
            await load.goes_on()
            former = workers_of(server.pid)
            assert await server.end(signal.SIGTERM) == 0
            assert not any(psutil.pid_exists(pid) for pid in former)
            assert await leases(redis) == {}
            await server.start()
            await load.goes_on()


async def test_a_signal_that_comes_to_all_processes_is_one_signal(
    redis: RedisServer, tmp_path: Path
) -> None:
    """As from a service manager: calls under way end well, and so does everybody."""
    began, may_end = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> int:
        """Wait until it may end."""
        began.set()
        await may_end.wait()
        return 7

    async with asyncio.timeout(TIME_S), workers(tmp_path, redis) as server:
        async with server.room("host") as host, server.room("me") as me:
            async with host.host(Toolkit("kit", [wait])):
                await until_listed(me, "kit")
                call = asyncio.create_task(me.invoke("kit", "wait", {}, retry=False))
                await began.wait()
                for pid in (server.pid, *workers_of(server.pid)):
                    psutil.Process(pid).send_signal(signal.SIGTERM)
                may_end.set()
                assert (await call).value == 7
        assert await server.ended() == 0


async def test_workers_end_when_their_parent_is_killed(redis: RedisServer, tmp_path: Path) -> None:
    async with asyncio.timeout(TIME_S), workers(tmp_path, redis) as server:
        left = workers_of(server.pid)
        assert len(left) == 2
        await server.end(signal.SIGKILL)
        await until_ended(left)
        assert await leases(redis) == {}


async def test_a_worker_that_is_told_to_stop_by_itself_leaves_well_and_is_replaced(
    redis: RedisServer, tmp_path: Path
) -> None:
    """While a call keeps it there, whoever comes is let in by the other one."""
    began, may_end = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> None:
        """Wait until it may end."""
        began.set()
        await may_end.wait()

    async with asyncio.timeout(TIME_S), workers(tmp_path, redis) as server:
        async with AsyncExitStack() as stack:
            host = await stack.enter_async_context(server.room("host"))
            await stack.enter_async_context(host.host(Toolkit("kit", [wait])))
            leaves = min(workers_of(server.pid), key=lambda pid: connections_of(pid, server.url))
            caller = await stranger_at(leaves, server, host, stack)
            caller.send_frame(Call(RequestId(1), CallId("1"), "kit", "wait", None, EMPTY, None))
            await began.wait()
            await until_listens_at(server.pid, server.url, 2)
            psutil.Process(leaves).send_signal(signal.SIGTERM)
            await until_listens_at(server.pid, server.url, 1)
            late = [
                await stack.enter_async_context(server.room(f"late{number}"))
                for number in range(PEOPLE)
            ]
            assert leaves in workers_of(server.pid)
            may_end.set()
            assert isinstance(await caller.reply_to(1), Result)
            await until_ended([leaves])
            await until_others_work(server.pid, {leaves}, 2)
            await until_listens_at(server.pid, server.url, 2)
            await until_listed(late[0], "kit")


async def stranger_at(
    worker: int, server: ServerProcess, host: RoomClient, people: AsyncExitStack
) -> RawClient:
    """Bring participants until one is at this worker, and known where the host is.

    It stays there until the worker has ended, whatever it is told.
    """
    for number in count():
        stranger = await people.enter_async_context(raw_connection(server.url))
        head = await stranger.upgrade("/rooms/lab", bearer(server.token(f"stranger{number}")))
        assert head.status == 101
        if connections_of(worker, server.url):
            break
    await until_there(host, f"stranger{number}")
    return stranger


async def test_an_operator_reads_one_line_of_each_event(tmp_path: Path) -> None:
    """Of Redis that is away, of keys that changed, of a worker that died; and of nothing else."""
    old, new = (Key.generate(kid=kid, iss="acme") for kid in ("old", "new"))
    keys = tmp_path / "keys.toml"
    KeyRing([old]).save(keys)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = f"redis://127.0.0.1:{closed.getsockname()[1]}/0"
    flags = ("--keys", str(keys), "--redis", nowhere, "--workers", "3", "--node", "lab")
    with CommandLine(tmp_path).serving(*flags) as (running, url):
        err = running.process.stderr
        assert err is not None
        said: list[str] = []

        async def until_said(words: str) -> None:
            while not said or words not in said[-1]:
                said.append(await asyncio.to_thread(err.readline))

        async with asyncio.timeout(TIME_S):
            await until_said("node lab serves by itself until Redis answers")
            add_key(keys, new)
            await until_said("trusted from now on: 'old', 'new'")
            token = ParticipantToken(name="ann", room=["lab"], api=ApiScope.full()).to_jwt(new)
            for _ in range(PEOPLE):
                async with raw_connection(url) as client:
                    head = await client.upgrade("/rooms/lab", bearer(token))
                assert head.status == 101
            (victim, *_) = workers_of(running.process.pid)
            psutil.Process(victim).kill()
            await until_said(f"pid {victim}, ended by SIGKILL: the next one is started in ")
            await until_others_work(running.process.pid, {victim}, 3)
        outcome = running.end()
    assert (outcome.code, outcome.out) == (0, "")
    lines = "".join([*said, outcome.err])
    assert lines.count("trusted from now on") == 1
    assert lines.count("ended by SIGKILL") == 1
    assert lines.count("serves by itself") <= 2  # all of them, and the one that came later
    assert "Traceback" not in lines
