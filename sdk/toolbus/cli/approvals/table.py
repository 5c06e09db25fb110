"""The live table of `toolbus approvals`: the calls that wait, and the dialog about one of them."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr, suppress
from dataclasses import dataclass, field
from io import StringIO, TextIOBase

from prompt_toolkit.application import Application, in_terminal
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import FormattedTextControl, Layout, Window
from rich.console import Console
from rich.text import Text

from toolbus.cli.approvals.editing import edited_json
from toolbus.cli.approvals.questions import (
    SHORT_ID,
    ask_about,
    clock_text,
    outcome_text,
    settle,
    tool_text,
    who_text,
)
from toolbus.cli.approvals.rows import fitted_words, table_lines
from toolbus.cli.columns import counted
from toolbus.cli.room_options import CommandRoom
from toolbus.cli.signals import stop_on_signals
from toolbus.errors import NotFound, RoomException
from toolbus.room.events import EventStream, RoomEvent
from toolbus.room.holds import HoldInfo
from toolbus.untrusted_text import one_line

__all__ = ["ApprovalTable"]

_NARROW = 60
"""Columns of a terminal below which the title does not say for whom."""
_KEYS = "up/down  Enter open  a approve/answer  d deny  e change  A always  q quit"
_SHORT_KEYS = "up/down Enter a d e A, q quits"
_OTHER_ROWS = 7
"""Rows of the screen beside the calls: title, two of status, header, log, keys, and a free one."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A call that waits, and when that was read."""

    hold: HoldInfo
    read_at: float = field(default_factory=time.monotonic)

    @property
    def age_s(self) -> float:
        return self.hold.age_s + time.monotonic() - self.read_at

    @property
    def left_text(self) -> str:
        left_s = self.hold.left_s
        return "-" if left_s is None else clock_text(left_s + self.read_at - time.monotonic())


class _LogLine(TextIOBase):
    """Replaces stderr at a terminal, where a line of the log would be written over the table."""

    def __init__(self, refresh: Callable[[], None]) -> None:
        self.text = ""
        """The latest line."""
        self._refresh = refresh

    def write(self, text: str) -> int:
        """Take a line, from any thread."""
        lines = text.split("\n")
        if line := next((line for line in reversed(lines) if line.strip()), ""):
            self.text = one_line(line, 1_000)
            self._refresh()
        return len(text)


class ApprovalTable:
    """Shows the calls that wait, and asks about the one that is chosen.

    Args:
        room: The room, joined.
        has_bell: Whether new calls ring the bell, and the terminal's title says how many wait.
    """

    def __init__(self, room: CommandRoom, *, has_bell: bool) -> None:
        self._room = room
        self._has_bell = has_bell
        self._waiting: dict[str, _Waiting] = {}
        self._chosen = ""
        """The id of the row that keys are for: other rows may come and go around it."""
        self._status = ""
        self._opened: asyncio.Task[None] | None = None
        self._asked = ""
        self._asking: asyncio.Task[object] | None = None
        self._app: Application[None] = Application(
            layout=Layout(Window(FormattedTextControl(self._screen, show_cursor=False))),
            key_bindings=self._keys(),
            full_screen=True,
            refresh_interval=1.0,  # ages and the time left
        )
        self._log = _LogLine(self._app.invalidate)

    async def run(self) -> None:
        """Show the table until the person quits. Raises RoomException if the room ends."""
        stop = stop_on_signals()
        async with self._room.events(["holds"]) as events:
            await self._list()
            following = asyncio.create_task(self._follow(events))
            stopping = asyncio.create_task(stop.wait())
            for task in (following, stopping):
                task.add_done_callback(lambda _: self._quit())
            try:
                with redirect_stderr(self._log) if sys.stderr.isatty() else nullcontext():
                    await self._app.run_async(handle_sigint=False)
            finally:
                stopping.cancel()
                following.cancel()
            with suppress(asyncio.CancelledError):
                await following  # raises why the events have ended

    def _quit(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        if self._opened is not None and not self._opened.done():
            # The terminal is the dialog's until that has ended.
            self._opened.add_done_callback(lambda _: self._quit())
        elif self._app.is_running and not self._app.is_done:
            self._app.exit()

    # What waits

    async def _follow(self, events: EventStream[RoomEvent]) -> None:
        async for event in events:
            if event.name in ("reconnected", "missed"):
                await self._list()
            elif event.hold is not None and event.name == "hold_added":
                self._add(event.hold)
            elif event.hold is not None:
                self._remove(event.hold)
            self._app.invalidate()

    async def _list(self) -> None:
        """Read all calls that wait; a lost connection is no error: they are read again after it."""
        try:
            found = await self._room.holds()
        except RoomException as error:
            if not error.retryable:
                raise
            return
        self._waiting = {hold.id: _Waiting(hold) for hold in found}
        if self._asked and self._asked not in self._waiting:
            await self._settled_unseen(self._asked)

    async def _settled_unseen(self, hold_id: str) -> None:
        with suppress(RoomException):
            self._remove(await self._room.hold(hold_id))

    def _add(self, hold: HoldInfo) -> None:
        is_new = hold.id not in self._waiting  # else its caller is away now
        self._waiting[hold.id] = _Waiting(hold)
        if self._has_bell and is_new:
            self._app.output.bell()
            self._set_title()

    def _remove(self, hold: HoldInfo) -> None:
        ids = [*self._waiting]
        if self._chosen == hold.id and hold.id in ids:
            ids.remove(hold.id)
            place = min([*self._waiting].index(hold.id), len(ids) - 1)
            self._chosen = ids[place] if ids else ""
        self._waiting.pop(hold.id, None)
        if self._asked == hold.id and self._asking is not None and not self._asking.done():
            self._status = f"{one_line(hold.tool)}, meanwhile: {outcome_text(hold)}"
            self._asking.cancel(outcome_text(hold))
        if self._has_bell:
            self._set_title()

    def _set_title(self) -> None:
        self._app.output.set_title(f"{counted(len(self._waiting), 'approval')} - toolbus")
        self._app.output.flush()

    # Keys

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        for key, step in (("up", -1), ("k", -1), ("down", 1), ("j", 1)):
            keys.add(key)(lambda _, step=step: self._choose(step))
        for key in ("q", "c-c", "c-d"):
            keys.add(key)(lambda _: self._quit())
        # Nobody approves what was not shown: `a` shows it, and is pressed again.
        for key, first in (("enter", ""), ("a", ""), ("d", "d"), ("e", "e"), ("A", "A")):
            keys.add(key)(lambda event, first=first: self._open(event, first))
        return keys

    def _choose(self, step: int) -> None:
        ids = [*self._waiting]
        if ids:
            self._chosen = ids[max(0, min(self._place() + step, len(ids) - 1))]

    def _place(self) -> int:
        ids = [*self._waiting]
        return ids.index(self._chosen) if self._chosen in ids else 0

    def _open(self, event: KeyPressEvent, first: str) -> None:
        is_open = self._opened is not None and not self._opened.done()
        if self._waiting and not is_open:
            chosen = self._chosen = [*self._waiting][self._place()]
            self._opened = event.app.create_background_task(self._ask(chosen, first))

    async def _ask(self, hold_id: str, first: str) -> None:
        """Ask about one call, and settle it as the person decides."""
        self._asked = hold_id
        try:
            self._status = ""
            hold = await self._room.hold(hold_id)
            if hold.kind == "answer" and first != "d":
                first = ""  # an answer is typed once it is known what is asked
            async with in_terminal():
                asking = self._asking = asyncio.create_task(ask_about(hold, first, edited_json))
                try:
                    await asyncio.wait([asking])
                finally:
                    asking.cancel()
            # Else it was settled meanwhile, or the person went back.
            if not asking.cancelled() and (decision := asking.result()) is not None:
                answer = await settle(self._room, hold, decision)
                self._status = f"{answer}: {one_line(hold.tool)} ({who_text(hold)})"
        except NotFound:
            self._status = "this call has ended"
        except RoomException as error:
            self._status = error.message
        finally:
            self._asked, self._asking = "", None

    # Showing

    def _screen(self) -> ANSI:
        size = self._app.output.get_size()
        written = StringIO()
        console = Console(
            file=written,
            width=size.columns,
            height=size.rows,
            force_terminal=True,
            color_system="standard",
            no_color=bool(os.environ.get("NO_COLOR")),
            legacy_windows=False,
        )
        is_narrow = size.columns < _NARROW
        title = f"{counted(len(self._waiting), 'call')} waiting in room {self._room.room}"
        if not is_narrow:
            title += f" for {one_line(self._room.me.full_name)}"
        if not self._room.is_connected:
            title = f"connection lost: {title}"
        console.print(Text(fitted_words(title, size.columns), style="bold"))
        console.print(Text(one_line(self._status, 2 * size.columns - 10)))
        for line in self._lines(size.columns, max(1, size.rows - _OTHER_ROWS)):
            console.print(line, no_wrap=True, overflow="ellipsis")
        if self._log.text:
            console.print(Text(fitted_words(self._log.text, size.columns), style="yellow"))
        keys = _SHORT_KEYS if size.columns < _NARROW + 10 else _KEYS
        console.print(Text(fitted_words(keys, size.columns), style="dim"))
        return ANSI(written.getvalue())

    def _lines(self, columns: int, rows: int) -> list[Text]:
        """Return the header, and the rows around the chosen one."""
        place = self._place()
        first = max(0, min(place - rows // 2, len(self._waiting) - rows))
        cells = [
            {
                "id": waiting.hold.id[:SHORT_ID],
                "age": clock_text(waiting.age_s),
                "tool": tool_text(waiting.hold),
                "who": who_text(waiting.hold),
                "why": one_line(waiting.hold.purpose),
                "left": waiting.left_text,
            }
            for waiting in [*self._waiting.values()][first : first + rows]
        ]
        head, *others = table_lines(cells, place - first, columns)
        return [
            Text(head, style="dim"),
            *(
                Text(line, style="reverse" if at == place else "")
                for at, line in enumerate(others, first)
            ),
        ]
