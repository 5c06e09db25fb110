"""Writes what has to outlive this process: in batches, in the background, until it succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from toolbus.bounded_logging import bounded_logger
from toolbus_server.access.extensions import TokenKey
from toolbus_server.access.revocations import Revocation

__all__ = ["StateBatch", "StateWriter"]

_PAUSE_S = 1.0
"""Before ends of lives are written, and after a write that failed."""
_logger = bounded_logger(__name__)


@dataclass
class StateBatch:
    """What is written at once."""

    ends: dict[TokenKey, float] = field(default_factory=dict)
    """The ends of the lives of tokens."""
    revocations: list[Revocation] = field(default_factory=list)


class StateWriter:
    """Writes in the order in which it is asked to; nothing waits for it but `is_written`.

    Ends of lives are collected first: thousands are noted within seconds, and each write waits for
    a disk or for Redis.

    Args:
        write: Writes a batch; what it has written may be written again.
        where: Where it writes, for the log.
    """

    def __init__(self, write: Callable[[StateBatch], Awaitable[None]], where: str) -> None:
        self._write = write
        self._where = where
        self._waiting = StateBatch()
        self._task: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._is_urgent = asyncio.Event()

    def add_ends(self, ends: Mapping[TokenKey, float]) -> None:
        """Write the ends of the last lives of tokens."""
        self._waiting.ends.update(ends)
        self._start()

    def add_revocation(self, revocation: Revocation) -> None:
        """Write a revocation."""
        self._waiting.revocations.append(revocation)
        self._is_urgent.set()
        self._start()

    async def is_written(self, limit_s: float) -> bool:
        """Wait until all that was added so far is written, within a limit; return whether it is."""
        written = asyncio.get_running_loop().create_future()
        self._waiters.append(written)
        self._is_urgent.set()
        self._start()
        await asyncio.wait([written], timeout=limit_s)
        return written.done()

    async def aclose(self, limit_s: float) -> None:
        """Write what waits, within a limit."""
        if not await self.is_written(limit_s) and self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        has_failed = False
        while self._waiters or self._waiting.ends or self._waiting.revocations:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE_S):
                    await self._is_urgent.wait()
            self._is_urgent.clear()
            batch, self._waiting = self._waiting, StateBatch()
            waiters, self._waiters = self._waiters, []
            try:
                if batch.ends or batch.revocations:
                    await self._write(batch)
            except Exception as error:  # of whatever kind: what waits is not to be lost
                later = self._waiting
                self._waiting = StateBatch(
                    batch.ends | later.ends, batch.revocations + later.revocations
                )
                self._waiters = waiters + self._waiters
                if not has_failed:
                    _logger.error(
                        "the state of tokens is not written to %s: %s", self._where, error
                    )
                has_failed = True
                continue
            for waiter in waiters:
                waiter.set_result(None)
        if has_failed:
            _logger.warning("the state of tokens is written to %s again", self._where)
