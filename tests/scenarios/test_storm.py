"""The ledger over everything: all kinds of calls while processes and lines fail, and a witness.

Server and hosts are processes of their own, and half of the callers come by a line that is hurt.
What was asked for, what callers were told and what the hosts wrote down is compared at the end, and
what all of them still hold is counted.

A failing run prints its seed; `TOOLBUS_LEDGER_SEED` draws the same calls and troubles again. When
each of them falls is not repeated, so that a failure may take some runs to come again. Thirty
seconds of it are part of `make test`, five minutes are `make soak`; `TOOLBUS_STORM_S` says another
time for both.
"""

from __future__ import annotations

import asyncio
import collections
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.bystanders import nothing_complains
from support.leftovers import entries_of, look
from support.storm_callers import Ledger, lane, own_failures_unlogged
from support.storm_plan import Deed, deeds, line_troubles, troubles
from support.storm_stage import HOSTS, Stage, stage
from support.storm_verdict import problems
from support.storm_witness import witness_of
from toolbus import RoomClient

# Read here: each test takes such variables away.
SEED = os.environ.get("TOOLBUS_LEDGER_SEED")
SECONDS = os.environ.get("TOOLBUS_STORM_S")
CALLERS, LANES = 4, 6
STRETCHES = 3
MOST_MEMORY = 1.1
"""What the server has at the end, in times what it had after the second of three stretches."""


class Storm:
    """One run: who calls, and what all held before.

    Args:
        seed: Of all that is drawn.
        made: Who takes part.
        callers: Who calls.
        of_others: Objects of calls that tests before this one have left in this process.
    """

    def __init__(
        self, seed: str, made: Stage, callers: list[RoomClient], of_others: dict[str, int]
    ) -> None:
        self.seed = seed
        self.stage = made
        self.callers = callers
        self.ledger = Ledger()
        self._lanes: list[Iterator[Deed]] = [
            deeds(seed, number + 1) for number in range(CALLERS * LANES)
        ]
        self._before: list[dict[str, Any]] = []
        self._of_others = collections.Counter(of_others)

    async def begin(self) -> None:
        """Wait until all are there, and count what they hold."""
        self._before = await self.settled()

    async def stretch(self, seconds: float, *, server: bool, part: int) -> None:
        """Call while things happen, then let all end."""
        is_over = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, is_over.set)
        made = self.stage
        pulse = asyncio.create_task(self.ledger.pulse.run())
        async with asyncio.TaskGroup() as group:
            group.create_task(made.make_trouble(troubles(self.seed, server=server), is_over))
            group.create_task(made.make_trouble(line_troubles(self.seed, part), is_over))
            for number, drawn in enumerate(self._lanes):
                room = self.callers[number % CALLERS]
                group.create_task(lane(room, drawn, self.ledger, is_over))
        pulse.cancel()
        for line in made.lines:
            await line.heal()

    async def settled(self) -> list[dict[str, Any]]:
        """Wait until all are there again and nothing of a call is left anywhere; give that look."""
        left: list[str] = ["not looked yet"]
        try:
            async with asyncio.timeout(25):
                while True:
                    looks = await self._looks()
                    left = self._left_in(looks)
                    if not left:
                        return looks
                    await asyncio.sleep(0.2)
        except TimeoutError:
            pytest.fail(f"left behind: {left}")

    async def _looks(self) -> list[dict[str, Any]]:
        assert self.stage.server is not None
        mine = {**look(), "entries": sum(map(entries_of, self.callers))}
        mine["objects"] = dict(collections.Counter(mine["objects"]) - self._of_others)
        hosts = [await host.look() for host in self.stage.hosts]
        return [mine, await self.stage.server.look(), *hosts]

    def _left_in(self, looks: list[dict[str, Any]]) -> list[str]:
        names = ["callers", "server", *(f"host {number}" for number in range(HOSTS))]
        left: list[str] = []
        for number, (name, looked) in enumerate(zip(names, looks, strict=True)):
            before = self._before[number] if self._before else None
            left += [f"{name}: {words}" for words in _more(looked, before)]
        if looks[1]["seats"] != HOSTS + CALLERS:
            left.append(f"{looks[1]['seats']} are there")
        return left

    def check(self) -> None:
        """Compare what was told with what was seen."""
        ledger, seen = self.ledger, witness_of(self.stage.witness)
        found = problems(ledger.asked, ledger.told, seen)
        assert not found, f"{len(found)} problems, the first: " + "\n".join(found[:10])
        complaints = self.stage.log.read_text()
        assert not complaints, complaints[:8_000]

    def summary(self) -> str:
        """Tell what it was made of."""
        codes = collections.Counter(told.code for told in self.ledger.told)
        executed = collections.Counter(told.executed for told in self.ledger.told)
        happened = collections.Counter(self.stage.happened)
        late_s = self.ledger.pulse.late_s
        return (
            f"{len(self.ledger.told)} calls: {codes}, {executed}; {happened}; {late_s:.1f} s late"
        )


def _more(looked: dict[str, Any], before: dict[str, Any] | None) -> Iterator[str]:
    """Name what is there and should not be: of calls anything, of other things more than before."""
    for name in ("entries", "in_flight", "inflight", "streams", "ahead"):
        if looked.get(name):
            yield f"{name} {looked[name]}"
    if looked["objects"]:
        yield f"objects {looked['objects']}"
    if before is None:
        return
    tasks = collections.Counter(looked["tasks"]) - collections.Counter(before["tasks"])
    if tasks:
        yield f"tasks {dict(tasks)}"
    if looked["descriptors"] > before["descriptors"]:
        yield f"descriptors {looked['descriptors']}, before {before['descriptors']}"
    if looked["futures"] > before["futures"] + 2:
        yield f"futures {looked['futures']}, before {before['futures']}"


@asynccontextmanager
async def storm_of(seed: str, folder: Path) -> AsyncIterator[Storm]:
    of_others = look()["objects"]
    async with stage(folder) as made, AsyncExitStack() as people:
        callers = [
            await people.enter_async_context(made.caller(number)) for number in range(CALLERS)
        ]
        storm = Storm(seed, made, callers, of_others)
        await storm.begin()
        yield storm


async def run(folder: Path, seconds: float) -> None:
    seed = SEED or secrets.token_hex(4)
    print(f"storm seed: {seed}")  # noqa: T201 - shown when the test fails, to repeat it
    share_s, memory = float(SECONDS or seconds) / STRETCHES, []
    with nothing_complains(), own_failures_unlogged():
        async with storm_of(seed, folder) as storm:
            for part in range(STRETCHES):
                # A new server has new memory: it is compared where there is one for long.
                await storm.stretch(share_s, server=part == 0, part=part)
                print(storm.summary())  # noqa: T201 - shown when the test fails
                await storm.settled()
                assert storm.stage.server is not None
                memory.append((await storm.stage.server.look())["memory"])
            print(memory)  # noqa: T201 - shown when the test fails
            storm.check()
            assert memory[-1] <= memory[-2] * MOST_MEMORY, f"memory grew: {memory} bytes"


@pytest.mark.alone
@pytest.mark.timeout(300)
@pytest.mark.row(90)
async def test_in_a_storm_each_call_ends_once_and_as_it_is_told(tmp_path: Path) -> None:
    """CALL-8, ERR-2, ERR-4, RETRY-1, RETRY-5, STREAM-2, STREAM-5, INPUT-1, INPUT-2, LEAVE-4."""
    await run(tmp_path, 30.0)


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.timeout(900)
@pytest.mark.row(90)
async def test_in_a_storm_of_minutes_memory_is_flat_too(tmp_path: Path) -> None:
    """As the short one, with more of everything."""
    await run(tmp_path, 300.0)
