"""`toolbus watch`: who is in a room, which toolkits, what becomes of calls, as it changes.

A live table on a terminal, lines into a pipe. It reads what the server tells and asks for nothing
again and again; a lost connection comes back by itself. It takes no message: it would count among
those who did.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias, TypeVar

import typer
from rich.console import Console
from rich.live import Live

from toolbus.commands.call_rates import CallRates
from toolbus.commands.census import Census
from toolbus.commands.room_options import CommandRoom, RoomOptions, in_room, joins_a_room
from toolbus.commands.stop_signals import stop_on_signals
from toolbus.commands.watch_output import Look, as_json, as_lines, as_screen, census_lines
from toolbus.errors import PermissionDenied, RoomException
from toolbus.exit_codes import UsageMistake
from toolbus.toolkit_proxy import ToolkitInfo

__all__ = ["watch"]

T = TypeVar("T")
_Show: TypeAlias = Callable[[Look], None]
_logger = logging.getLogger(__name__)
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_TOPICS = ("toolkits", "participants")
_GAPS = frozenset({"reconnected", "missed"})
_MIN_INTERVAL_S = 0.1
_MAX_S = 86_400.0


@joins_a_room
def watch(
    options: RoomOptions,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="End after the first look.")] = False,
    for_s: Annotated[
        float | None, typer.Option("--for", metavar="SECONDS", help="End after so many seconds.")
    ] = None,
) -> None:
    """Show who is there, which toolkits, and what becomes of calls, until Ctrl-C.

    Needs the grant observe. Rates and percentiles are of the last 10 s.
    """
    if not _MIN_INTERVAL_S <= interval <= _MAX_S:
        raise UsageMistake("--interval is a number of seconds, 0.1 to 86400")
    if for_s is not None and not 0 < for_s <= _MAX_S:
        raise UsageMistake("--for is a number of seconds above 0, at most 86400")
    if once and for_s is not None:
        raise UsageMistake("--once ends by itself: leave --for out")
    # Where signals are not handled otherwise, and while it connects: Ctrl-C is a good end here.
    with suppress(KeyboardInterrupt), _showing(as_json_lines=options.as_json) as show:
        in_room(options, lambda room: _Watching(room, interval, once, for_s, show).run())


@contextmanager
def _showing(*, as_json_lines: bool) -> Iterator[_Show]:
    """Give what shows a look: a table that changes in its place on a terminal, else lines."""
    console = Console()
    if as_json_lines or not console.is_terminal:
        logging.basicConfig(format=_LOG_FORMAT)
        yield _show_json if as_json_lines else _Lines().show
        return
    with Live(console=console, auto_refresh=False, redirect_stderr=sys.stderr.isatty()) as live:
        # What stderr is now, is above the table.
        logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")

        def show(look: Look) -> None:
            width, height = console.size
            live.update(as_screen(look, width=width, height=height), refresh=True)

        yield show


def _show_json(look: Look) -> None:
    typer.echo(json.dumps(as_json(look), ensure_ascii=False))


@dataclass(slots=True)
class _Lines:
    """Plain lines; who and what is there is told again only where it has changed."""

    known: tuple[object, object] | None = None

    def show(self, look: Look) -> None:
        if self.known != (look.people, look.toolkits):
            self.known = (look.people, look.toolkits)
            typer.echo("\n".join(census_lines(look)))
        typer.echo("\n".join(as_lines(look)))


@dataclass(slots=True, eq=False)
class _Watching:
    """One run of the command."""

    room: CommandRoom
    interval_s: float
    once: bool
    for_s: float | None
    show: _Show
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    told: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the server has told how many calls are in flight."""
    listed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once who and what is there was listed, as far as that may be known."""
    stale: asyncio.Event = field(default_factory=asyncio.Event)
    """Set where the list is worth asking for again."""
    census: Census = field(default_factory=Census)
    rates: CallRates = field(init=False)

    async def run(self) -> None:
        """Watch until told to stop, or the time is up. Raises RoomException if the room ends."""
        loop = asyncio.get_running_loop()
        stop_on_signals(loop, self.stop.set)
        self.rates = CallRates(loop.time())
        try:
            async with asyncio.TaskGroup() as group:
                readers = (self._read_calls(), self._read_events(), self._keep_listed())
                tasks = [group.create_task(each) for each in (*readers, self.room.closed())]
                await self._look_again_and_again()
                for task in tasks:
                    task.cancel()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    # Reading

    async def _read_calls(self) -> None:
        loop = asyncio.get_running_loop()
        async with self.room.watch_calls() as news:
            async for each in news:
                self.rates.note(each, loop.time())
                self.told.set()

    async def _read_events(self) -> None:
        await self.told.wait()  # one subscription after the other: replacing one may lose news
        self.stale.set()
        # Without presence and use_tools nothing of them is shown.
        with suppress(PermissionDenied):
            async with self.room.events(_TOPICS) as events:
                async for event in events:
                    self.census.note(event)
                    if event.name in _GAPS:
                        self.stale.set()

    async def _keep_listed(self) -> None:
        while True:
            await self.stale.wait()
            self.stale.clear()
            try:
                self.census.list_people(await _if_granted(self.room.participants()))
                self.census.list_toolkits(await _if_granted(self._toolkits()))
            except RoomException as error:  # the connection is lost: when it is back, once more
                _logger.info("who and what is there is not known yet: %s", error)
            self.listed.set()

    async def _toolkits(self) -> list[ToolkitInfo]:
        return [each async for each in self.room.toolkits()]

    # Showing

    async def _look_again_and_again(self) -> None:
        loop = asyncio.get_running_loop()
        ends_at = None if self.for_s is None else loop.time() + self.for_s
        await self._before(ends_at, self._begun())
        while not self.stop.is_set():
            next_at = loop.time() + self.interval_s
            is_last = self.once or (ends_at is not None and next_at >= ends_at)
            await self._before(next_at if ends_at is None else min(next_at, ends_at))
            if not self.stop.is_set():
                self.show(self._look())
            if is_last:
                return

    async def _begun(self) -> None:
        await self.told.wait()
        await self.listed.wait()

    async def _before(
        self, at: float | None, until: Coroutine[Any, Any, None] | None = None
    ) -> None:
        """Wait until then, until told to stop, or until something else has come about."""
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(self.stop.wait())]
        if until is not None:
            waiting.append(asyncio.ensure_future(until))
        timeout_s = None if at is None else max(0.0, at - loop.time())
        try:
            await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()

    def _look(self) -> Look:
        now = asyncio.get_running_loop().time()
        started, ended, failed, has_gap = self.rates.take_counts()
        return Look(
            at=time.time(),
            room=self.room.name,
            connected=self.room.is_connected,
            people=self.census.people(),
            toolkits=self.census.toolkits(),
            in_flight=self.rates.in_flight,
            started=started,
            ended=ended,
            failed=failed,
            has_gap=has_gap,
            total=self.rates.total(now),
            rows=self.rates.rows(now),
            errors=[(error, now - error.at) for error in self.rates.errors],
            fresh=self.rates.take_errors(),
        )


async def _if_granted(asked: Awaitable[T]) -> T | None:
    try:
        return await asked
    except PermissionDenied:
        return None
