"""The scenes of `toolbus demo --nodes`: many servers are one bus, and one of them is killed.

What is shown rests on one rule: a call goes to a host at the caller's own server where there is
one. So of the callers some need the killed server for themselves, some for the host that is there,
and some not at all.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from toolbus import RoomException
from toolbus_toolkits.demo_counting import COUNT, how_far
from toolbus_toolkits.demo_crowd import Caller, Crowd
from toolbus_toolkits.demo_scenes import expect, inventory_scene
from toolbus_toolkits.demo_stage import Scene, SceneFailed, Stage, table

__all__ = ["nodes_scenes"]

_TRIES = 4
"""Each counts twice as far as the one before, where that ended too soon."""
_LONG_S = 0.75
"""What a long query takes where a core is free: with 3 at a host, and others beside them, far below
the 10 s after which it would end by itself."""
_LONG_CALL_S = 20.0
_ASK_S = 1.5
_CUT_OFF = frozenset({"connection_lost", "host_lost"})


def nodes_scenes(crowd: Crowd, stage: Stage) -> list[Scene]:
    """Write the scenes; the third costs one server its life."""
    loss = _Loss(crowd, stage)
    return [
        inventory_scene(crowd),
        Scene(
            f"{len(crowd.nodes)} servers, one bus",
            f"start {len(crowd.nodes)} servers that share a Redis, and hosts of sql at all but one",
            "callers at each server see everybody, and ask; also where no host is",
            partial(_ask_everywhere, crowd),
        ),
        Scene(
            "A server is killed",
            "send a long query from each caller, with retry=False; SIGKILL a server with a host",
            "long calls that needed it: executed: maybe; no call that may be made again fails",
            loss.happen,
        ),
        Scene(
            "What the lists say",
            "read the lists of each caller again",
            "everybody and every host, as before; who was at that server has another connection",
            loss.compare,
        ),
    ]


async def _ask_everywhere(crowd: Crowd) -> str:
    await crowd.assemble()
    await crowd.until_seen(len(crowd.hosts) + len(crowd.callers), len(crowd.hosts))
    await crowd.ask_on()
    began_s = time.monotonic()
    await asyncio.gather(*(each.answered_since(began_s + _ASK_S) for each in crowd.callers))
    failures = [error for each in crowd.callers for error in each.failures]
    expect(not failures, f"{len(failures)} calls failed: {failures[:1]}")
    *_, without_host = crowd.nodes
    pids = ", ".join(f"{label} is pid {actor.pid}" for label, actor in crowd.actors.items())
    return (
        f"{sum(len(each.calls) for each in crowd.callers)} answers; half of them within "
        f"{crowd.typical_ms(crowd.nodes[0]):.1f} ms at {crowd.nodes[0]}, which has a host, and "
        f"{crowd.typical_ms(without_host):.1f} ms at {without_host}, which has none; {pids}"
    )


@dataclass(slots=True)
class _Loss:
    """One server's end, and what the others make of it."""

    crowd: Crowd
    stage: Stage
    victim: str = ""
    was_at: dict[str, str] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)

    async def happen(self) -> str:
        """Kill the server under load, and wait until everybody is back."""
        crowd = self.crowd
        self.was_at = dict(crowd.balancer.at)
        self.victim = self.was_at[crowd.hosts[-1]]
        self.before, _ = await crowd.callers[0].sees()
        count = await how_far(partial(_count_to, crowd.callers[0]), _LONG_S)
        for _ in range(_TRIES):
            if (killed := await self._kill_under(count)) is not None:
                break
            count *= 2
        else:
            raise SceneFailed("long queries end too soon here")
        killed_s, outcomes = killed
        back_s = await self._until_back(killed_s)
        self._show(outcomes, killed_s)
        cut_off = self._check(outcomes, count)
        again = sum(ended >= killed_s for each in crowd.callers for _, ended in each.calls)
        return (
            f"{self.victim} was killed; of {len(outcomes)} long calls {cut_off} were cut off, each "
            f"executed: maybe; {again} that may be made again were answered since then, and none "
            f"failed; everybody was back after {back_s:.1f} s"
        )

    async def _kill_under(self, count: int) -> tuple[float, list[Any]] | None:
        """Kill the server while each caller's long call runs; tell when, and what became of them.

        None where one of these has ended before, so that nothing was killed.
        """
        callers = self.crowd.callers
        long_calls = [asyncio.create_task(_count_to(each, count)) for each in callers]
        try:
            now_s = time.monotonic()
            # What is sent behind a long call is answered when that one has begun.
            await asyncio.gather(*(each.answered_since(now_s) for each in callers))
            if any(call.done() for call in long_calls):
                return None
            killed_s = time.monotonic()
            await self.crowd.actors[self.victim].kill()
            return killed_s, await asyncio.gather(*long_calls, return_exceptions=True)
        finally:
            for call in long_calls:
                call.cancel()

    async def _until_back(self, killed_s: float) -> float:
        crowd = self.crowd
        await crowd.until_seen(len(self.before), len(crowd.hosts))
        seen_s = time.monotonic()
        asked = (each.answered_since(killed_s) for each in crowd.callers)
        return max(seen_s, *await asyncio.gather(*asked)) - killed_s

    def _show(self, outcomes: Sequence[Any], killed_s: float) -> None:
        at = self.crowd.balancer.at
        rows = [
            (
                caller.name,
                self.was_at[caller.name],
                at[caller.name],
                _told(outcome),
                f"{caller.longest_s(killed_s):.2f} s",
            )
            for caller, outcome in zip(self.crowd.callers, outcomes, strict=True)
        ]
        rows += [(host, self.was_at[host], at[host], "(hosts)", "-") for host in self.crowd.hosts]
        columns = ("who", "was at", "is at", "its long call", "longest wait for an answer")
        self.stage.tables(table("who noticed", columns, rows, max_chars=60))

    def _check(self, outcomes: Sequence[Any], count: int) -> int:
        """Hold everybody to what was promised; return how many long calls were cut off."""
        failures = [error for each in self.crowd.callers for error in each.failures]
        expect(not failures, f"{len(failures)} that may be made again failed: {failures[:1]}")
        cut_off = 0
        for caller, outcome in zip(self.crowd.callers, outcomes, strict=True):
            if isinstance(outcome, RoomException):
                cut_off += 1
                kept = outcome.code in _CUT_OFF and outcome.executed == "maybe"
                expect(kept, f"{caller.name} was told {_told(outcome)}")
                local_host = self.was_at[caller.name] in self._others_with_hosts
                expect(not local_host, f"{caller.name} did not need {self.victim}")
            else:
                expect(outcome == count, f"{caller.name} counted to {outcome!r}")
                expect(self.was_at[caller.name] != self.victim, f"{caller.name} lost nothing")
        moved = [name for name, node in self.crowd.balancer.at.items() if node == self.victim]
        expect(not moved, f"{moved} are still at {self.victim}")
        return cut_off

    @property
    def _others_with_hosts(self) -> set[str]:
        return {self.was_at[host] for host in self.crowd.hosts} - {self.victim}

    async def compare(self) -> str:
        """Compare what each caller's lists say with what they said before."""
        had = Counter(self.before.values())
        stayed = Counter(name for name, node in self.was_at.items() if node != self.victim)
        gone = [name for name, node in self.was_at.items() if node == self.victim]
        for caller in self.crowd.callers:
            people, hosts = await caller.sees()
            expect(Counter(people.values()) == had, f"{caller.name} sees {sorted(people.values())}")
            expect(hosts == len(self.crowd.hosts), f"{caller.name} sees {hosts} hosts")
            same = len(people.keys() & self.before.keys())
            expect(same == stayed.total(), f"{same} connections are the same")
        return (
            f"all {len(self.crowd.callers)} callers see {had.total()} participants and "
            f"{len(self.crowd.hosts)} hosts of sql, as before; {', '.join(sorted(gone))} came back "
            "on another connection"
        )


async def _count_to(caller: Caller, count: int) -> int:
    arguments = {"sql": COUNT, "parameters": [count]}
    chunk = await caller.room.invoke("sql", "query", arguments, timeout_s=_LONG_CALL_S, retry=False)
    return int(chunk.value["rows"][0][0])


def _told(outcome: Any) -> str:
    if isinstance(outcome, RoomException):
        return f"{outcome.code}, executed: {outcome.executed}"
    return f"counted to {outcome:,}" if isinstance(outcome, int) else repr(outcome)
