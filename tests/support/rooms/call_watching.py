"""The grant to observe the calls of a room, and the sum of the reports that an observer gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from toolbus import (
    ApiScope,
    CallReport,
    EndedCall,
)

OBSERVER = ApiScope(observe=True)


async def until_refused(reports: AsyncIterator[CallReport], code: str, times: int) -> None:
    """Read on until this many attempts have ended with this error."""
    async with asyncio.timeout(60):
        while times > 0:
            times -= sum(each.code == code for each in (await anext(reports)).calls)


class Sum:
    """The sum of all reports that a watcher has received."""

    def __init__(self) -> None:
        self.in_flight = -1
        self.started = self.ended = self.failed = 0
        self.calls: list[EndedCall] = []

    def add(self, report: CallReport) -> None:
        self.in_flight = report.in_flight
        self.started += report.started
        self.ended += report.ended
        self.failed += report.failed
        self.calls += report.calls

    async def until(self, report: AsyncIterator[CallReport], ended: int) -> None:
        """Read on until this many calls have ended in all."""
        async with asyncio.timeout(60):
            while self.ended < ended or self.in_flight < 0:
                self.add(await anext(report))
