"""The scenes of `toolbus demo --nodes`: several servers are one bus, and one of them is killed.

They rely on one rule: a call goes to a host at the caller's own server where there is one. So some
callers are connected to the killed server, some use the host at it, and some do not need it.
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
from toolbus_toolkits.demo.cluster_processes import Caller, ClusterProcesses
from toolbus_toolkits.demo.scene_runner import Scene, SceneFailed, SceneOutput, table
from toolbus_toolkits.demo.scenes import COUNT, calibrated_count, expect, inventory_scene

__all__ = ["cluster_scenes"]

_TRIES = 4
"""Each counts twice as far as the one before, which ended too soon."""
_LONG_S = 0.75
"""How long a long query takes where a core is free. With 3 at a host, and others beside them, that
stays far below the 10 s limit of `sql`."""
_LONG_CALL_S = 60.0
_CALLING_S = 1.5
_INTERRUPTED = frozenset({"connection_lost", "host_lost"})


def cluster_scenes(cluster: ClusterProcesses, output: SceneOutput) -> list[Scene]:
    """Make the scenes; the third kills one server."""
    loss = _ServerLoss(cluster, output)
    return [
        inventory_scene(cluster),
        Scene(
            f"{len(cluster.nodes)} servers, one bus",
            f"start {len(cluster.nodes)} servers on one Redis, and a host of sql at all but one",
            "callers at each server list all participants and call sql, also where no host is",
            partial(_call_everywhere, cluster),
        ),
        Scene(
            "A server is killed",
            "send a long query from each caller, with retry=False; SIGKILL a server with a host",
            "long calls that needed it: executed: maybe; no call that may be retried fails",
            loss.kill_server,
        ),
        Scene(
            "The lists after the loss",
            "list participants and toolkits again from each caller",
            "all participants and hosts, as before; those of the killed server have reconnected",
            loss.compare,
        ),
    ]


async def _call_everywhere(cluster: ClusterProcesses) -> str:
    await cluster.start_cluster()
    await cluster.wait_until_listed(len(cluster.hosts) + len(cluster.callers), len(cluster.hosts))
    await cluster.keep_calling()
    began_s = time.monotonic()
    await asyncio.gather(
        *(caller.wait_answered_since(began_s + _CALLING_S) for caller in cluster.callers)
    )
    failures = [error for caller in cluster.callers for error in caller.failures]
    expect(not failures, f"{len(failures)} calls failed: {failures[:1]}")
    *_, without_host = cluster.nodes
    pids = ", ".join(f"{label} is pid {started.pid}" for label, started in cluster.by_label.items())
    with_host = cluster.nodes[0]
    return (
        f"{sum(len(caller.calls) for caller in cluster.callers)} calls; median "
        f"{cluster.median_ms(with_host):.1f} ms at {with_host}, which has a host, and "
        f"{cluster.median_ms(without_host):.1f} ms at {without_host}, which has none; {pids}"
    )


@dataclass(slots=True)
class _ServerLoss:
    """The loss of one server, and its effects on the participants."""

    cluster: ClusterProcesses
    output: SceneOutput
    killed: str = ""
    server_before: dict[str, str] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)

    async def kill_server(self) -> str:
        """Kill the server under load, and wait until all participants are connected again."""
        cluster = self.cluster
        self.server_before = dict(cluster.balancer.at)
        self.killed = self.server_before[cluster.hosts[-1]]
        self.before, _ = await cluster.callers[0].lists()
        count = await calibrated_count(partial(_count_to, cluster.callers[0]), _LONG_S)
        for _ in range(_TRIES):
            if (killed := await self._kill_during_calls(count)) is not None:
                break
            count *= 2
        else:
            raise SceneFailed("long queries end too soon on this machine")
        killed_s, outcomes = killed
        await cluster.wait_until_listed(len(self.before), len(cluster.hosts))
        listed_s = time.monotonic()
        answered = (caller.wait_answered_since(killed_s) for caller in cluster.callers)
        recovery_s = max(listed_s, *await asyncio.gather(*answered)) - killed_s
        self._show(outcomes, killed_s)
        interrupted = self._check(outcomes, count)
        again = sum(ended >= killed_s for caller in cluster.callers for _, ended in caller.calls)
        return (
            f"{self.killed} was killed; of {len(outcomes)} long calls {interrupted} were "
            f"interrupted, each executed: maybe; {again} retryable calls were answered since then, "
            f"and none failed; all participants were connected again after {recovery_s:.1f} s"
        )

    async def _kill_during_calls(self, count: int) -> tuple[float, list[Any]] | None:
        """Kill the server while each caller's long call runs; return when, and their outcomes.

        None where one of these has ended before, so that nothing was killed.
        """
        callers = self.cluster.callers
        long_calls = [asyncio.create_task(_count_to(caller, count)) for caller in callers]
        try:
            # A call sent after a long call is answered after that one has started. These call
            # another tool, as the long calls may take all places of `query` at a host.
            rooms = (caller.room for caller in callers)
            short = (room.invoke("sql.list_tables", {}, timeout_s=_LONG_CALL_S) for room in rooms)
            await asyncio.gather(*short)
            if any(call.done() for call in long_calls):
                return None
            killed_s = time.monotonic()
            await self.cluster.by_label[self.killed].kill()
            return killed_s, await asyncio.gather(*long_calls, return_exceptions=True)
        finally:
            for call in long_calls:
                call.cancel()

    def _show(self, outcomes: Sequence[Any], killed_s: float) -> None:
        at = self.cluster.balancer.at
        rows = [
            (
                caller.name,
                self.server_before[caller.name],
                at[caller.name],
                _outcome_text(outcome),
                f"{caller.longest_call_s(killed_s):.2f} s",
            )
            for caller, outcome in zip(self.cluster.callers, outcomes, strict=True)
        ]
        rows += [
            (host, self.server_before[host], at[host], "(host)", "-") for host in self.cluster.hosts
        ]
        columns = ("participant", "server before", "server now", "long call", "longest other call")
        self.output.print_tables(table("effects on participants", columns, rows, max_chars=60))

    def _check(self, outcomes: Sequence[Any], count: int) -> int:
        """Check all outcomes; return how many long calls were interrupted."""
        failures = [error for caller in self.cluster.callers for error in caller.failures]
        expect(not failures, f"{len(failures)} retryable calls failed: {failures[:1]}")
        with_hosts = {self.server_before[host] for host in self.cluster.hosts} - {self.killed}
        interrupted = 0
        for caller, outcome in zip(self.cluster.callers, outcomes, strict=True):
            if isinstance(outcome, RoomException):
                interrupted += 1
                is_expected = outcome.code in _INTERRUPTED and outcome.executed == "maybe"
                expect(is_expected, f"{caller.name} got {_outcome_text(outcome)}")
                has_host = self.server_before[caller.name] in with_hosts
                expect(not has_host, f"{caller.name} did not need {self.killed}")
            else:
                expect(outcome == count, f"{caller.name} counted to {outcome!r}")
                expect(
                    self.server_before[caller.name] != self.killed, f"{caller.name} lost no call"
                )
        moved = [name for name, node in self.cluster.balancer.at.items() if node == self.killed]
        expect(not moved, f"{moved} are still at {self.killed}")
        return interrupted

    async def compare(self) -> str:
        """Compare each caller's lists with those before the loss."""
        had = Counter(self.before.values())
        stayed = Counter(name for name, node in self.server_before.items() if node != self.killed)
        moved = [name for name, node in self.server_before.items() if node == self.killed]
        for caller in self.cluster.callers:
            participants, hosts = await caller.lists()
            names = sorted(participants.values())
            expect(Counter(names) == had, f"{caller.name} lists {names}")
            expect(hosts == len(self.cluster.hosts), f"{caller.name} lists {hosts} hosts")
            same = len(participants.keys() & self.before.keys())
            expect(same == stayed.total(), f"{same} connections are unchanged")
        return (
            f"all {len(self.cluster.callers)} callers list {had.total()} participants and "
            f"{len(self.cluster.hosts)} hosts of sql, as before; {', '.join(sorted(moved))} have "
            "reconnected"
        )


async def _count_to(caller: Caller, count: int) -> int:
    arguments = {"sql": COUNT, "parameters": [count]}
    chunk = await caller.room.invoke("sql.query", arguments, timeout_s=_LONG_CALL_S, retry=False)
    return int(chunk.value["rows"][0][0])


def _outcome_text(outcome: Any) -> str:
    if isinstance(outcome, RoomException):
        return f"{outcome.code}, executed: {outcome.executed}"
    return f"counted to {outcome:,}" if isinstance(outcome, int) else repr(outcome)
