"""Repeated calls of the tools of `ledger_host`, each with a key that runs at most once."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from support.processes.launch import ChildProcess
from toolbus import RoomClient, RoomException

_PROGRAM = Path(__file__).with_name("ledger_host.py")


async def start_ledger(url: str, token: str, witness: Path, **variables: str) -> ChildProcess:
    """Start a host of the toolkit `ledger` in the room "lab"; it may not be registered yet on
    return.
    """
    environment = {"TOOLBUS_URL": url, "TOOLBUS_ROOM": "lab", "TOOLBUS_TOKEN": token, **variables}
    return await ChildProcess.start([sys.executable, str(_PROGRAM), str(witness)], environment)


class Load:
    """Concurrent calls of one caller, each followed by the next one.

    Args:
        room: The caller.
        tool: One of `ledger`: "count", or "count_again", which is idempotent.
        keys: Identify the calls; no other load may use them.
        retry: Whether calls are retried.
    """

    def __init__(
        self, room: RoomClient, tool: str, keys: Iterator[int], *, retry: bool = True
    ) -> None:
        self._room = room
        self._tool = tool
        self._keys = keys
        self._retry = retry
        self._progress = asyncio.Condition()
        self._is_over = False
        self.succeeded: list[int] = []
        """The keys of the calls that ended well."""
        self.failed: dict[int, RoomException] = {}
        """How the others ended, by their keys."""

    @property
    def done(self) -> int:
        """The number of calls that have ended."""
        return len(self.succeeded) + len(self.failed)

    @asynccontextmanager
    async def running(self, tasks: int = 8) -> AsyncIterator[None]:
        """Call until the block ends; at its end all calls have ended."""
        async with asyncio.TaskGroup() as group:
            for _ in range(tasks):
                group.create_task(self._call_repeatedly())
            yield
            self._is_over = True

    async def _call_repeatedly(self) -> None:
        while not self._is_over:
            key = next(self._keys)
            arguments = {"key": key, "work_s": 0.01}
            try:
                chunk = await self._room.invoke(
                    f"ledger.{self._tool}", arguments, timeout_s=30, retry=self._retry
                )
            except RoomException as error:
                self.failed[key] = error
                await asyncio.sleep(0.01)  # a refusal comes at once: that is no load
            else:
                assert chunk.value == key
                self.succeeded.append(key)
            async with self._progress:
                self._progress.notify_all()

    async def succeeds(self, more: int = 50) -> None:
        """Wait until this many further calls have succeeded."""
        wanted = len(self.succeeded) + more
        await self._until(lambda: len(self.succeeded) >= wanted)

    async def fails(self, more: int = 1) -> None:
        """Wait until this many further calls have failed."""
        wanted = len(self.failed) + more
        await self._until(lambda: len(self.failed) >= wanted)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(60), self._progress:
            await self._progress.wait_for(is_so)

    def check(self, witness: Path) -> None:
        """Compare the callers' results with the lines of the hosts."""
        entered, ended = runs_of(witness)
        for key in self.succeeded:
            assert ended[key], f"call {key} ended well, and never ran to its end"
        for key, error in self.failed.items():
            received = f"call {key} was told {error!r}, entered {entered[key]}, ended {ended[key]}"
            assert not (error.executed == "no" and entered[key]), received
            assert not (error.executed == "yes" and not ended[key]), received
        if self._tool == "count":
            twice = [key for key in (*self.succeeded, *self.failed) if entered[key] > 1]
            assert not twice, f"not idempotent, and ran more than once: {twice}"


def runs_of(witness: Path) -> tuple[Counter[int], Counter[int]]:
    """Count, for each key, how often a function was entered, and how often it ended."""
    entered: Counter[int] = Counter()
    ended: Counter[int] = Counter()
    for line in witness.read_text().splitlines():
        mark, key = line.split()
        (entered if mark == "S" else ended)[int(key)] += 1
    return entered, ended


def keys_from(first: int) -> Iterator[int]:
    """Make keys for one load."""
    return itertools.count(first)
