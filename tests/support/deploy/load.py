"""Continuous calls through the nodes of compose.nodes.yaml, with the witness of the storm.

Hosts are processes of this machine and callers tasks of the test. Both know only the published port
of the balancer.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

from support.deploy.containers import Project
from support.rooms.events import until_hosts
from support.storm.callers import Ledger, make_calls
from support.storm.plan import PlannedCall
from support.storm.processes import StormProcess
from support.storm.verdict import BETWEEN_NODES, NEVER, OK, problems
from support.storm.witness import witness_of
from toolbus import ApiScope, KeyRing, ParticipantToken, RoomClient

__all__ = ["Load", "calls_through"]

_ROOM = "main"
_HOSTS, _CALLERS, _TASKS = 2, 3, 2
_KEYS_PER_TASK = 10_000_000
_DEADLINE_S = 30.0
_PATIENCE_S = 90.0


class Load:
    """The calls so far.

    Args:
        witness: The file to which hosts write.
    """

    def __init__(self, witness: Path) -> None:
        self.ledger = Ledger()
        self._witness = witness

    async def continues(self, count: int = 20) -> None:
        """Wait until each task has completed this many more calls without an error."""
        before = len(self.ledger.reports)
        await self._until(lambda: min(self._good_since(before)) >= count)

    async def ends(self, count: int) -> None:
        """Wait until this many more calls have ended, well or not."""
        before = len(self.ledger.reports)
        await self._until(lambda: len(self.ledger.reports) >= before + count)

    async def _until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            while not is_true():
                self.ledger.reported.clear()
                await self.ledger.reported.wait()

    def _good_since(self, before: int) -> list[int]:
        good = Counter(
            each.key // _KEYS_PER_TASK for each in self.ledger.reports[before:] if each.code == OK
        )
        return [good[task] for task in range(1, _CALLERS * _TASKS + 1)]

    def check(self) -> None:
        """Compare the reports of the callers with the witness."""
        ledger, seen = self.ledger, witness_of(self._witness)
        found = problems(ledger.asked, ledger.reports, seen, NEVER - BETWEEN_NODES)
        assert not found, f"{len(found)} problems, the first: " + "\n".join(found[:10])

    def summary(self) -> str:
        """Describe how many calls ended how."""
        reports = self.ledger.reports
        return (
            f"{len(reports)} calls: {dict(Counter((each.code, each.executed) for each in reports))}"
        )

    @property
    def failed(self) -> list[str]:
        """The calls that did not end well."""
        return [str(each) for each in self.ledger.reports if each.code != OK]


def _planned(task: int) -> Iterator[PlannedCall]:
    """Draw calls of which none needs to fail."""
    random, key = Random(task), task * _KEYS_PER_TASK
    while True:
        key += 1
        tool = random.choice(("again", "again", "once", "once", "nest", "count"))
        is_stream = tool == "count"
        yield PlannedCall(
            key=key,
            tool=tool,
            count=10 if is_stream else 0,
            size=10 if is_stream else 0,
            work_s=0.002 if is_stream else random.choice((0.0, 0.01, 0.05)),
            timeout_s=_DEADLINE_S,
        )


def _tokens(project: Project, folder: Path) -> dict[str, str]:
    """Mint tokens from the key in the volume."""
    show = "docker compose run --rm -T --entrypoint cat toolbus /keys/keys.toml"
    keys = folder / "keys.toml"
    keys.write_text(project.type(show), encoding="utf-8")
    key = next(iter(KeyRing.load(keys)))
    names = ("host", *(f"caller-{number}" for number in range(_CALLERS)))
    made = {name: ParticipantToken(name=name, room=[_ROOM], api=ApiScope.full()) for name in names}
    return {name: token.to_jwt(key, ttl_s=3600) for name, token in made.items()}


@asynccontextmanager
async def calls_through(project: Project, folder: Path) -> AsyncIterator[Load]:
    """Call until the block ends; then all calls must have ended as the witness says."""
    url = f"ws://127.0.0.1:{project.port}"
    tokens = await asyncio.to_thread(_tokens, project, folder)
    witness, log = folder / "witness", folder / "errors.log"
    load, is_over = Load(witness), asyncio.Event()
    async with AsyncExitStack() as stack:
        for _ in range(_HOSTS):
            variables = {"TOOLBUS_URL": url, "TOOLBUS_ROOM": _ROOM, "TOOLBUS_TOKEN": tokens["host"]}
            host = await StormProcess.start("host.py", [str(witness)], variables, log)
            stack.push_async_callback(host.end, signal.SIGKILL)
        callers = [
            await stack.enter_async_context(
                RoomClient(url, room=_ROOM, token=tokens[f"caller-{number}"])
            )
            for number in range(_CALLERS)
        ]
        await until_hosts(callers[0], "storm", _HOSTS)
        pulse = asyncio.create_task(load.ledger.pulse.run())
        async with asyncio.TaskGroup() as group:
            for task in range(_CALLERS * _TASKS):
                planned = _planned(task + 1)
                room = callers[task % _CALLERS]
                group.create_task(make_calls(room, planned, load.ledger, is_over))
            yield load
            is_over.set()
        pulse.cancel()
        load.check()
        assert not log.read_text(), log.read_text()[:8_000]
