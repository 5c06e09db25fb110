"""`executed` against a witness: tens of thousands of calls, and a file of what really ran.

One call in five waits for a person. Hosts and that person are processes, which are killed.

A failing run prints its seed; `TOOLBUS_LEDGER_SEED` repeats the same decisions, and
`TOOLBUS_LEDGER_CALLS` makes it longer or shorter. `make soak` makes ten times as many calls.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import secrets
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.processes import approver
from support.processes.launch import ChildProcess
from support.processes.ledger import CANCELLED, MAYBE, NO, OK, YES, Ledger
from toolbus import RoomClient, RoomException
from toolbus.room.room import connection_of
from toolbus_server.testing import TestServer, running_server

# Read here: each test removes such variables.
SEED = os.environ.get("TOOLBUS_LEDGER_SEED")
CALLS = int(os.environ.get("TOOLBUS_LEDGER_CALLS", "20000"))
CALLERS = 6
TASKS = 8
"""Calls that each caller has in flight."""
KILL_EVERY = 1_200
KILL_APPROVER_EVERY = 1_600
CUT_EVERY = 900
PROCESSES = Path(__file__).parents[2] / "support/processes"


class Storm:
    """Callers that call, and the faults that they suffer."""

    def __init__(self, seed: str, server: TestServer, witness: Path, calls: int) -> None:
        self.random = random.Random(seed)
        self.server = server
        self.witness = witness
        self.ledger = Ledger(calls)
        self.hosts: list[ChildProcess] = []
        self.approver: ChildProcess | None = None
        self.keys: Iterator[int] = iter(range(calls))
        self.done = 0
        self._inner_key = calls
        self._restarts: set[asyncio.Task[None]] = set()

    async def start(self, token: str, program: str, *arguments: str) -> ChildProcess:
        environment = {
            "TOOLBUS_URL": self.server.url,
            "TOOLBUS_ROOM": "lab",
            "TOOLBUS_TOKEN": token,
        }
        command = [sys.executable, str(PROCESSES / program), *arguments]
        return await ChildProcess.start(command, environment)

    async def start_host(self) -> None:
        token = self.server.token("host", room="lab")
        self.hosts.append(await self.start(token, "ledger_host.py", str(self.witness)))

    async def replace_approver(self) -> None:
        """Start one, after the end of the one before: meanwhile nobody decides."""
        if self.approver is not None:
            await self.approver.kill()
        token = self.server.token(approver.NAME, room="lab", api=approver.SCOPE)
        self.approver = await self.start(token, "approver.py")

    async def replace_host(self) -> None:
        """Start a host, and kill an older one, so that there is always one."""
        await self.start_host()
        await self.hosts.pop(0).kill()

    def cut(self, callers: list[RoomClient]) -> None:
        """Abort a caller's connection."""
        victim = self.random.choice(callers)
        rooms = self.server.server.hub.rooms
        for session in rooms["lab"].sessions.values():
            if session.connection.participant.identity.name == victim.name:
                session.connection.port.transport.abort()  # type: ignore[attr-defined]
                return

    async def run(self, callers: list[RoomClient], until: int) -> None:
        async with asyncio.TaskGroup() as group:
            for caller in callers:
                for _ in range(TASKS):
                    group.create_task(self.call_repeatedly(caller, callers, until))
        if self._restarts:
            await asyncio.wait(self._restarts)

    async def call_repeatedly(
        self, caller: RoomClient, callers: list[RoomClient], until: int
    ) -> None:
        while self.done < until and (key := next(self.keys, None)) is not None:
            kind = self.random.choice(KINDS)
            await kind(self, caller, key)
            self.done += 1
            if self.done % KILL_EVERY == 0:
                self._restart(self.replace_host())
            if self.done % KILL_APPROVER_EVERY == 0:
                self._restart(self.replace_approver())
            if self.done % CUT_EVERY == 0:
                self.cut(callers)

    def _restart(self, replacing: Coroutine[Any, Any, None]) -> None:
        restart = asyncio.create_task(replacing)
        self._restarts.add(restart)
        restart.add_done_callback(self._restarts.discard)

    async def watch(self, key: int, call: Awaitable[Any]) -> None:
        try:
            assert await call == key
        except RoomException as error:
            for code in ("approval_denied", "approval_expired"):
                self.ledger.insist(key, error, code, NO)
            self.ledger.note(key, error.executed)
        else:
            self.ledger.note(key, OK)

    # The kinds of calls

    async def plain(self, caller: RoomClient, key: int) -> None:
        await self.watch(key, caller.call("ledger.count", key=key))

    async def idempotent(self, caller: RoomClient, key: int) -> None:
        self.ledger.idempotent[key] = 1
        work_s = self.random.choice([0.0, 0.01])
        await self.watch(key, caller.call("ledger.count_again", key=key, work_s=work_s))

    async def threaded(self, caller: RoomClient, key: int) -> None:
        await self.watch(key, caller.call("ledger.count_in_thread", key=key, work_s=0.001))

    async def bad(self, caller: RoomClient, key: int) -> None:
        try:
            await caller.call("ledger.count", key=key, work_s="long")
        except RoomException as error:
            self.ledger.insist(key, error, "invalid_arguments", NO)
            self.ledger.note(key, error.executed)

    async def late(self, caller: RoomClient, key: int) -> None:
        limit_s = self.random.choice([0.0, 0.002, 0.02])
        tool = self.random.choice(["count", "count_in_thread"])
        try:
            arguments = {"key": key, "work_s": 0.05}
            await caller.invoke(f"ledger.{tool}", arguments, timeout_s=limit_s)
        except RoomException as error:
            self.ledger.note(key, error.executed)
        else:
            self.ledger.note(key, OK)

    async def held(self, caller: RoomClient, key: int) -> None:
        arguments = {"key": key, "work_s": self.random.choice([0.0, 0.01])}
        wait_s = self.random.choice([0.0, 0.01, 1.0, 1.0, 1.0])
        limit_s = self.random.choice([0.005, 0.05, 5.0])
        call = caller.invoke(
            "ledger.count_approved", arguments, timeout_s=limit_s, approval_timeout_s=wait_s
        )
        await self.watch(key, _value_of(call))

    async def held_within(self, caller: RoomClient, key: int) -> None:
        self._inner_key += 1
        arguments = {"key": key, "inner_key": self._inner_key, "inner": "count_approved"}
        call = caller.invoke(
            "ledger.nest", {**arguments, "good": True}, timeout_s=0.1, approval_timeout_s=1.0
        )
        try:
            await call
        except RoomException as error:
            self.ledger.note(key, error.executed)
        else:
            self.ledger.note(key, OK)

    async def given_up(self, caller: RoomClient, key: int) -> None:
        await self._give_up(key, caller.call("ledger.count", key=key, work_s=0.02))

    async def given_up_held(self, caller: RoomClient, key: int) -> None:
        await self._give_up(key, caller.call("ledger.count_approved", key=key, work_s=0.02))

    async def _give_up(self, key: int, making: Awaitable[Any]) -> None:
        call = asyncio.ensure_future(making)
        await asyncio.wait([call], timeout=self.random.choice([0.0, 0.005, 0.05]))
        call.cancel()
        try:
            await call
        except asyncio.CancelledError:
            self.ledger.note(key, CANCELLED)
        except RoomException as error:
            self.ledger.note(key, error.executed)
        else:
            self.ledger.note(key, OK)

    async def failing(self, caller: RoomClient, key: int) -> None:
        words = self.random.random() < 0.5
        try:
            await caller.call("ledger.fail", key=key, words=words)
        except RoomException as error:
            self.ledger.insist(key, error, "tool_failed", YES)
            self.ledger.note(key, error.executed)

    async def nested(self, caller: RoomClient, key: int) -> None:
        good = self.random.random() < 0.5
        self._inner_key += 1
        inner_key = self._inner_key
        try:
            await caller.call("ledger.nest", key=key, inner_key=inner_key, good=good)
        except RoomException as error:
            self.ledger.note(key, error.executed)
        else:
            self.ledger.note(key, OK)

    async def hurried(self, caller: RoomClient, key: int) -> None:
        await self.watch(key, caller.call("ledger.hurry", key=key, work_s=0.2))


KINDS: list[Callable[[Storm, RoomClient, int], Awaitable[None]]] = [
    *[Storm.plain] * 8,
    *[Storm.held] * 3,
    Storm.held_within,
    Storm.given_up_held,
    *[Storm.idempotent] * 2,
    Storm.threaded,
    *[Storm.bad] * 2,
    *[Storm.late] * 2,
    *[Storm.given_up] * 2,
    Storm.failing,
    *[Storm.nested] * 2,
    Storm.hurried,
]


async def _value_of(call: Awaitable[Any]) -> Any:
    return (await call).value


def memory_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.soak)])
@pytest.mark.long
@pytest.mark.timeout(1_200)
async def test_executed_is_never_wrong_and_nothing_is_left(tmp_path: Path, times: int) -> None:
    """ERR-4, HOLD-14."""
    calls = CALLS * times
    seed = SEED or secrets.token_hex(4)
    print(f"ledger seed: {seed}")  # noqa: T201 - shown when the test fails, to repeat it
    async with running_server() as server, AsyncExitStack() as stack:
        storm = Storm(seed, server, tmp_path / "witness", calls)
        before = asyncio.all_tasks()
        async with AsyncExitStack() as exit_stack:
            for _ in range(2):
                await storm.start_host()
            await storm.replace_approver()
            stack.push_async_callback(stop_all, storm)
            callers = [
                await exit_stack.enter_async_context(server.room(f"caller-{number}"))
                for number in range(CALLERS)
            ]
            await serving(callers[0])
            # A first stretch fills caches and pools; after it memory must not grow.
            await storm.run(callers, calls // 2)
            first = memory_bytes()
            await storm.run(callers, calls)
            second = memory_bytes()
            await settled(storm, callers)
        await stop_all(storm)
        received = storm.ledger.check(storm.witness)
        assert second <= first * 1.05, f"memory grew from {first} to {second} bytes"
        assert min(received[outcome] for outcome in (OK, CANCELLED, NO, MAYBE, YES)) > 0, received
        assert server.server.hub.router.in_flight == 0
        leaked = {task for task in asyncio.all_tasks() - before if not task.done()}
        assert not any("toolbus" in repr(task.get_coro()) for task in leaked), leaked


async def serving(caller: RoomClient) -> None:
    """Wait until both hosts are registered."""
    async with asyncio.timeout(60), caller.events() as events:
        while await caller_hosts(caller) < 2:
            await anext(events)


async def caller_hosts(caller: RoomClient) -> int:
    return sum([each.hosts async for each in caller.toolkits() if each.name == "ledger"])


async def settled(storm: Storm, callers: list[RoomClient]) -> None:
    """Wait until nothing that was opened is left: at the callers and at the server."""
    router = storm.server.server.hub.router
    async with asyncio.timeout(60):
        await router.wait_until_idle()
    holds = storm.server.server.hub.rooms["lab"].hold_requests.table
    outcomes = {hold.outcome for hold in holds.settled.values()}
    assert outcomes >= {"approved", "denied", "expired", "cancelled"}
    assert not any((holds.open, holds.counts))
    for caller in callers:
        # The one description that is requested with a first call may still be pending.
        assert len(connection_of(caller)._pending) <= 1


async def stop_all(storm: Storm) -> None:
    for process in (*storm.hosts, storm.approver):
        if process is not None:
            await process.kill()
