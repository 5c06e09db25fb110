"""`toolbus approvals --exec`: runs a command for each call that waits, such as one that sends mail.

Nothing waits for the command, and nothing reads what it says: it tells somebody, and does not
answer. What goes to it goes as JSON to its standard input, never into a command line, where words
of callers would be code.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Any

from toolbus.bounded_logging import bounded_logger
from toolbus.cli.approvals.questions import SHORT_ID, who_text
from toolbus.cli.room_options import CommandRoom
from toolbus.cli.signals import stop_on_signals
from toolbus.errors import NotFound, RoomException
from toolbus.room.events import EventStream, RoomEvent
from toolbus.room.holds import HoldInfo
from toolbus.untrusted_text import json_text, one_line

__all__ = ["HoldNotices"]

MAX_COMMANDS = 4
"""How many commands run at a time: each is a process of this machine, and whoever may make calls
that wait could start as many at once. The others wait in a line, in which there is one for each
call that waits."""
COMMAND_S = 30.0
"""Seconds until a command is killed: one that hangs would keep a place of the others."""

_logger = bounded_logger(__name__)


class HoldNotices:
    """Runs a command for each call that waits now, and each that begins to.

    Args:
        room: The room, joined.
        command: A line for the shell.
        with_arguments: Whether the command gets the arguments of calls too.
    """

    def __init__(self, room: CommandRoom, command: str, *, with_arguments: bool) -> None:
        self._room = room
        self._command = command
        self._with_arguments = with_arguments
        self._waiting: set[str] = set()
        """The ids of the calls that wait; no command begins for one that is settled."""
        self._places = asyncio.Semaphore(MAX_COMMANDS)
        self._running: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Follow the room until this process is stopped. Raises RoomException if the room ends."""
        stop = stop_on_signals()
        async with self._room.events(["holds"]) as events:
            await self._list()
            following = asyncio.create_task(self._follow(events))
            stopping = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait([following, stopping], return_when=asyncio.FIRST_COMPLETED)
            finally:
                left = [following, stopping, *self._running]
                for task in left:
                    task.cancel()
                await asyncio.wait(left)
            if not following.cancelled():
                following.result()  # raises why the events have ended

    async def _follow(self, events: EventStream[RoomEvent]) -> None:
        async for event in events:
            if event.name in ("reconnected", "missed"):
                await self._list()
            elif event.hold is not None and event.name == "hold_added":
                self._add(event.hold)
            elif event.hold is not None:
                self._waiting.discard(event.hold.id)

    async def _list(self) -> None:
        """Find the calls that wait; after a lost connection, those that were not known before."""
        try:
            found = await self._room.holds()
        except RoomException as error:
            if not error.retryable:
                raise
            return
        self._waiting &= {hold.id for hold in found}
        for hold in found:
            self._add(hold)

    def _add(self, hold: HoldInfo) -> None:
        if hold.id in self._waiting:
            return
        self._waiting.add(hold.id)
        task = asyncio.create_task(self._tell(hold))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _tell(self, hold: HoldInfo) -> None:
        async with self._places:
            if hold.id not in self._waiting:
                return
            try:
                failure = await self._run(json_text(await self._facts(hold)).encode())
            except NotFound:  # it has ended meanwhile
                return
            except OSError as error:
                failure = str(error)
        if failure:
            text = one_line(f"{hold.tool}, {hold.id[:SHORT_ID]}: {failure}", 300)
            _logger.warning("--exec has failed for the call of %s", text)

    async def _facts(self, hold: HoldInfo) -> dict[str, Any]:
        """Return what the command is told. Raises NotFound for a call that has ended."""
        facts: dict[str, Any] = {
            "id": hold.id,
            "tool": hold.tool,
            "who": who_text(hold),
            "why": hold.purpose,
        }
        if self._with_arguments:
            facts["arguments"] = None
            try:
                read = await self._room.hold(hold.id)
            except NotFound:
                raise
            except RoomException as error:  # somebody has to know of the call all the same
                _logger.warning("the arguments of %s cannot be read: %s", hold.id, error)
            else:
                facts["arguments"] = None if read.body is None else dict(read.body.arguments)
        return facts

    async def _run(self, facts: bytes) -> str:
        """Run the command, and return how it has failed; "" if it has not. Raises OSError."""
        with TemporaryFile() as stdin:  # a pipe would have to be written as the command reads it
            stdin.write(facts)
            stdin.seek(0)
            process = await asyncio.create_subprocess_shell(
                self._command,
                stdin=stdin,
                start_new_session=True,  # so that all that it starts can be killed
            )
        try:
            async with asyncio.timeout(COMMAND_S):
                await process.wait()
        except TimeoutError:
            return f"killed after {COMMAND_S:g} s"
        finally:
            if process.returncode is None:
                _kill(process)
                await process.wait()
        status = process.returncode
        return f"exit status {status}" if status else ""


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
