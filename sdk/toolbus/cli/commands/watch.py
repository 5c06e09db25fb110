"""`toolbus watch`: shows the participants, toolkits and calls of a room as they change.

It shows a live table on a terminal and prints lines into a pipe. It subscribes to events and does
not poll; a lost connection is reopened automatically. It does not subscribe to messages, because
it would be counted among their receivers.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any, TypeAlias, TypeVar

import typer
from rich.console import Console
from rich.live import Live

from toolbus.bounded_logging import bounded_logger
from toolbus.cli.room_options import CommandRoom, RoomOptions, in_room, joins_a_room
from toolbus.cli.signals import stop_on_signals
from toolbus.cli.watch_display import (
    RoomSnapshot,
    as_json,
    as_lines,
    as_screen,
    roster_lines,
    superseded_lines,
)
from toolbus.cli.watched_room import CallRates, Roster
from toolbus.concurrency.tasks import wait_for_first
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.errors import PermissionDenied, RoomException
from toolbus.log_output import LOG_FORMAT
from toolbus.untrusted_text import json_text

__all__ = ["watch"]

T = TypeVar("T")
_Show: TypeAlias = Callable[[RoomSnapshot], None]
_logger = bounded_logger(__name__)
_TOPICS = ("toolkits", "participants")


@joins_a_room
def watch(
    options: RoomOptions,
    interval: Annotated[float, typer.Option(help="Seconds between two updates.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Exit after the first update.")] = False,
    for_s: Annotated[
        float | None, typer.Option("--for", metavar="SECONDS", help="Exit after this many seconds.")
    ] = None,
) -> None:
    """Show participants, toolkits and calls of a room as they change.

    It ends with Ctrl-C. Needs the grant observe (`toolbus token create --name NAME --grant
    observe`). Rates and percentiles cover the last 10 s.
    """
    if not 0.1 <= interval <= 86_400:
        raise UsageError("--interval must be a number of seconds from 0.1 to 86400")
    if for_s is not None and not 0 < for_s <= 86_400:
        raise UsageError("--for must be a number of seconds above 0 and at most 86400")
    if once and for_s is not None:
        raise UsageError("--once and --for cannot be combined")
    # While it connects, and where signal handlers cannot be set: Ctrl-C ends the command normally.
    with suppress(KeyboardInterrupt), _display(as_json_lines=options.as_json) as show:
        in_room(options, lambda room: _Watcher(room, interval, once, for_s, show).run())


@contextmanager
def _display(*, as_json_lines: bool) -> Iterator[_Show]:
    """Return the function that shows a snapshot: a live table on a terminal, else lines."""
    console = Console()
    if as_json_lines or not console.is_terminal:
        logging.basicConfig(format=LOG_FORMAT)
        yield _Lines(as_json=as_json_lines).show
        return
    with Live(console=console, auto_refresh=False, redirect_stderr=sys.stderr.isatty()) as live:
        # `Live` has replaced stderr: the log is printed above the table.
        logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")

        def show(snapshot: RoomSnapshot) -> None:
            for line in superseded_lines(snapshot):  # above the table, where it stays
                console.print(line, markup=False, highlight=False)
            width, height = console.size
            live.update(as_screen(snapshot, width=width, height=height), refresh=True)

        yield show


@dataclass(slots=True)
class _Lines:
    """Prints JSON, or plain lines: participants and toolkits only if they have changed."""

    as_json: bool
    known: tuple[object, object] | None = None

    def show(self, snapshot: RoomSnapshot) -> None:
        if self.as_json:
            typer.echo(json_text(as_json(snapshot)))
            return
        if self.known != (snapshot.participants, snapshot.toolkits):
            self.known = (snapshot.participants, snapshot.toolkits)
            typer.echo("\n".join(roster_lines(snapshot)))
        typer.echo("\n".join(as_lines(snapshot)))


@dataclass(slots=True, eq=False)
class _Watcher:
    room: CommandRoom
    interval_s: float
    once: bool
    for_s: float | None
    show: _Show
    monitored: asyncio.Event = field(default_factory=asyncio.Event)
    """Set after the first event of the call monitor."""
    listed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set after the first lists of participants and toolkits, and so after `monitored`."""
    stale: asyncio.Event = field(default_factory=asyncio.Event)
    """Set if the lists must be requested again."""
    roster: Roster = field(default_factory=Roster)
    stop: asyncio.Event = field(init=False)
    rates: CallRates = field(init=False)

    async def run(self) -> None:
        """Watch until a signal or the end of the time. Raises RoomException if the room closes."""
        loop = asyncio.get_running_loop()
        self.stop = stop_on_signals()
        self.rates = CallRates(loop.time())
        try:
            async with asyncio.TaskGroup() as group:
                readers = (self._read_calls(), self._read_events(), self._refresh_lists())
                tasks = [
                    group.create_task(coroutine) for coroutine in (*readers, self.room.closed())
                ]
                await self._show_periodically()
                for task in tasks:
                    task.cancel()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    # Reading

    async def _read_calls(self) -> None:
        loop = asyncio.get_running_loop()
        async with self.room.watch_calls() as events:
            async for event in events:
                self.rates.add(event, loop.time())
                self.monitored.set()

    async def _read_events(self) -> None:
        await self.monitored.wait()  # changing two subscriptions at once may lose events
        self.stale.set()
        # Without the grants presence and use_tools the events are not available.
        with suppress(PermissionDenied):
            async with self.room.events(_TOPICS) as events:
                async for event in events:
                    self.roster.apply(event)
                    if event.name in ("reconnected", "missed"):
                        self.stale.set()

    async def _refresh_lists(self) -> None:
        while True:
            await self.stale.wait()
            self.stale.clear()
            try:
                self.roster.set_participants(await _if_granted(self.room.participants()))
                self.roster.set_toolkits(await _if_granted(self.room.all_toolkits()))
            except RoomException as error:  # the connection is lost; repeated after reconnecting
                _logger.info("cannot list participants and toolkits: %s", error)
            self.listed.set()

    # Showing

    async def _show_periodically(self) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + (self.for_s or inf)
        await self._wait(ends_at, self.listed.wait())
        while not self.stop.is_set():
            next_at = loop.time() + self.interval_s
            is_last = self.once or next_at >= ends_at
            await self._wait(min(next_at, ends_at))
            if not self.stop.is_set():
                self.show(self._snapshot())
            if is_last:
                return

    async def _wait(self, at: float, *until: Coroutine[Any, Any, object]) -> None:
        """Wait for the time `at`, for `stop`, or for `until`, whichever is first."""
        timeout_s: float | None = None
        if at < inf:
            timeout_s = max(0.0, at - asyncio.get_running_loop().time())
        await wait_for_first(self.stop.wait(), *until, timeout_s=timeout_s)

    def _snapshot(self) -> RoomSnapshot:
        now = asyncio.get_running_loop().time()
        started, ended, failed, has_gap = self.rates.take_counts()
        return RoomSnapshot(
            at=time.time(),
            room=self.room.room,
            connected=self.room.is_connected,
            participants=self.roster.participants(),
            toolkits=self.roster.toolkits(),
            in_flight=self.rates.in_flight,
            held=self.rates.held,
            waiting=[(wait, now - wait.at) for wait in self.rates.waiting],
            settled=self.rates.settled(now),
            new_settled=self.rates.take_settled(),
            started=started,
            ended=ended,
            failed=failed,
            has_gap=has_gap,
            total=self.rates.total(now),
            rows=self.rates.rows(now),
            errors=[(error, now - error.at) for error in self.rates.errors],
            new_errors=self.rates.take_errors(),
            superseded=self.roster.take_superseded(),
        )


async def _if_granted(request: Awaitable[T]) -> T | None:
    try:
        return await request
    except PermissionDenied:
        return None
