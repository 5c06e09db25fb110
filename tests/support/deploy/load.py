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
from itertools import chain, count
from pathlib import Path
from random import Random

from support.deploy.containers import Project
from support.patience import PATIENCE_S
from support.rooms.events import until_hosts
from support.storm.callers import Ledger, make_calls
from support.storm.plan import IDEMPOTENT, PlannedCall
from support.storm.processes import StormProcess
from support.storm.verdict import BETWEEN_NODES, NEVER, OK, CallOutcome, problems
from support.storm.witness import witness_of
from toolbus import ApiScope, KeyRing, ParticipantToken, RoomClient

__all__ = ["CALLS_IN_FLIGHT", "Load", "calls_through"]

_ROOM = "main"
_HOSTS, _CALLERS, _TASKS = 2, 3, 2
CALLS_IN_FLIGHT = _CALLERS * _TASKS
"""How many short calls are in flight at any time."""
_COUNTED = range(1, CALLS_IN_FLIGHT + 1)
_LONG = range(_COUNTED.stop, _COUNTED.stop + _CALLERS)
"""The tasks that make long calls."""
_KEYS_PER_TASK = 10_000_000
_LONG_S = 5.0
_DEADLINE_S = 60.0


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

    async def _until(self, is_true: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not is_true():
                    self.ledger.reported.clear()
                    await self.ledger.reported.wait()
        except TimeoutError:
            failed = "\n".join(map(str, self.failed[:10]))
            raise AssertionError(f"calls did not continue: {self.summary()}\n{failed}") from None

    def _good_since(self, before: int) -> list[int]:
        good = Counter(
            each.key // _KEYS_PER_TASK for each in self.ledger.reports[before:] if each.code == OK
        )
        return [good[task] for task in _COUNTED]

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
    def failed(self) -> list[CallOutcome]:
        """The calls that did not end well."""
        return [each for each in self.ledger.reports if each.code != OK]

    @property
    def unexplained(self) -> list[CallOutcome]:
        """The failed calls that no fault explains.

        They could be repeated, since they did not run or are idempotent, or they waited for their
        deadline, which is later than the end of every fault.
        """
        asked = self.ledger.asked
        return [
            each
            for each in self.failed
            if each.executed == "no"
            or each.code == "deadline_exceeded"
            or asked[each.key].tool in IDEMPOTENT
        ]


def _long_calls(task: int) -> Iterator[PlannedCall]:
    """Plan calls that end within the drain of a node, and must not be repeated."""
    for key in count(task * _KEYS_PER_TASK + 1):
        yield PlannedCall(key=key, tool="once", work_s=_LONG_S, timeout_s=_DEADLINE_S)


def _short_calls(task: int) -> Iterator[PlannedCall]:
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
    show = "docker compose run --rm -T --entrypoint cat tokens /keys/keys.toml"
    keys = folder / "keys.toml"
    keys.write_text(project.type(show), encoding="utf-8")
    key = next(iter(KeyRing.load(keys)))
    names = ("host", *(f"caller-{number}" for number in range(_CALLERS)))
    made = {name: ParticipantToken(name=name, room=[_ROOM], api=ApiScope.full()) for name in names}
    return {name: token.to_jwt(key, ttl_s=3600) for name, token in made.items()}


@asynccontextmanager
async def calls_through(
    project: Project, folder: Path, *, long: bool = False
) -> AsyncIterator[Load]:
    """Call until the block ends; then all calls must have ended as the witness says.

    Args:
        project: The nodes and their balancer.
        folder: Where witness and error log are written.
        long: Whether each caller also makes calls of 5 s; `Load.continues` does not count them.
    """
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
            for task in chain(_COUNTED, _LONG if long else ()):
                planned = _long_calls(task) if task in _LONG else _short_calls(task)
                room = callers[task % _CALLERS]
                group.create_task(make_calls(room, planned, load.ledger, is_over))
            yield load
            is_over.set()
        pulse.cancel()
        load.check()
        assert not log.read_text(), log.read_text()[:8_000]
