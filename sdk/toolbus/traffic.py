"""What is under way on each connection of one participant, by whom it was begun: here or elsewhere.

Mostly there is one connection. While a server leaves there are two, and each call ends where it
began: its answer goes by the line that it came by, and so do the calls that are made within it.
Which line is for new calls is decided in `link`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial

from toolbus.call_table import CallTable
from toolbus.errors import RoomException
from toolbus.lines import Handlers, Line
from toolbus.room import Core, Room
from toolbus.runner import Runner
from toolbus.wire import (
    Cancel,
    Credit,
    Dispatch,
    Drain,
    Event,
    Failed,
    Input,
    Progress,
    Result,
    StreamChunk,
)

__all__ = ["Traffic"]

_ANSWER_S = 10.0


class Traffic:
    """The calls of one participant, line by line.

    Args:
        core: Whose caller sends by the line for new calls.
        table: Where the answers to all of them are awaited.
        runner: Has what is hosted, for all lines together.
    """

    def __init__(self, core: Core, table: CallTable, runner: Runner) -> None:
        self._core = core
        self._table = table
        self._runner = runner
        self._runners: dict[Line, Runner] = {}

    def begin(self, line: Line) -> Handlers:
        """Run what comes by a new line; return who takes its frames."""
        core = replace(self._core, caller=self._core.caller.bound_to(line))
        runner = self._runner.beside(line.connection, partial(Room, core))
        self._runners[line] = runner

        def credit(frame: Credit) -> None:
            # Of input it is for a call of mine, of chunks for one that I run.
            (self._table.take if frame.of_input else runner.on_input)(frame)

        table = self._table
        return {
            Result: table.settle,
            Failed: table.settle,
            StreamChunk: table.take,
            Progress: table.take,
            Dispatch: runner.dispatch,
            Cancel: runner.cancel,
            Input: runner.on_input,
            Credit: credit,
        }

    def lose(self, line: Line) -> None:
        """End what is under way on a line that is gone."""
        runner = self._runners.pop(line, None)
        if runner is not None:
            runner.cancel_all()
        self._table.lose(line.connection)

    async def finish(self, line: Line) -> None:
        """Let no further call come by a line, and wait until all on it have ended."""
        runner = self._runners.get(line)
        line.ignore(Event)  # what happens is told by the other line, and once is enough
        await self._ask_for_no_more(line)
        if runner is not None:
            await runner.idle()
        await self._table.settled(line.connection)
        await line.emptied()

    async def drain(self, timeout_s: float) -> None:
        """Let no further call come, and wait until those that run have ended.

        Args:
            timeout_s: How long that may take; what then still runs is given up.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for line in list(self._runners):
                    await self._ask_for_no_more(line)
                for line, runner in list(self._runners.items()):
                    await runner.idle()
                    await line.emptied()
        await self.stop()

    async def stop(self) -> None:
        """Give every call up that runs here, and wait for those that can be stopped."""
        for runner in self._runners.values():
            runner.cancel_all()
        await self._runner.stop()

    def close(self) -> None:
        """End everything that is under way: the room is left."""
        for line in list(self._runners):
            self.lose(line)
        self._table.close()

    async def _ask_for_no_more(self, line: Line) -> None:
        deadline_at = self._core.loop.time() + _ANSWER_S
        with suppress(RoomException):  # the line is gone, or its server knows nothing of this
            caller = self._core.caller.bound_to(line)
            await caller.ask(Drain, {}, deadline_at=deadline_at)
