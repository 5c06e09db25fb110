"""A loop that is only a clock, and ports that only record: what the router needs, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast

from toolbus.transport.websocket import NotifyingTicket, Ticket
from toolbus.wire import Cancel, Dispatch, Failed, Frame, Result, UnknownFrame, decode_from_server

F = TypeVar("F")


class _Timer:
    def __init__(self, when: float, run: Callable[[], None]) -> None:
        self.when = when
        self.run = run
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualClock:
    """A clock that moves only by `advance`."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._timers: list[_Timer] = []
        self.fired = 0
        """How many timers have run."""

    def as_loop(self) -> asyncio.AbstractEventLoop:
        """Use it as an event loop, which has only the clock and its timers."""
        return cast(asyncio.AbstractEventLoop, self)

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, function: Callable[..., None], *args: Any) -> _Timer:
        timer = _Timer(when, lambda: function(*args))
        self._timers.append(timer)
        return timer

    def call_soon(self, function: Callable[..., None], *args: Any) -> _Timer:
        return self.call_at(self.now, function, *args)

    @property
    def waiting(self) -> int:
        """The number of timers that are set."""
        return sum(not timer.cancelled for timer in self._timers)

    def advance(self, seconds: float) -> None:
        """Advance the clock, and run the timers that are due."""
        self.now += seconds
        for timer in [each for each in self._timers if each.when <= self.now]:
            self._timers.remove(timer)
            if not timer.cancelled:
                self.fired += 1
                timer.run()


class RecordingPort:
    """A port that writes at once, holds what it is given, or has no room for it."""

    def __init__(self) -> None:
        self.sent: list[Frame | UnknownFrame] = []
        self.is_full = False
        self.holds = False
        self.gathered = 0
        """How often it was told that more may come in this turn."""
        self._held: list[tuple[bytes, Ticket | None]] = []

    @property
    def is_open(self) -> bool:
        return True

    def send_message(self, data: bytes, ticket: Ticket | None = None) -> bool:
        if self.holds:
            self._held.append((data, ticket))
        else:
            self._write(data, ticket)
        return True

    def offer_message(self, data: bytes, ticket: Ticket) -> bool:
        return not self.is_full and self.send_message(data, ticket)

    def send_bounded(self, data: bytes, ticket: NotifyingTicket) -> None:
        self.send_message(data, ticket)

    def may_wait(self, size: int) -> bool:
        return True

    def gather(self) -> None:
        self.gathered += 1

    @property
    def is_behind(self) -> bool:
        return self.holds

    def _write(self, data: bytes, ticket: Ticket | None) -> None:
        self.sent.append(decode_from_server(data))
        if ticket is not None:
            ticket.written = True
            if isinstance(ticket, NotifyingTicket):
                ticket.on_written()

    @property
    def held(self) -> list[Frame | UnknownFrame]:
        """The number of frames that it holds."""
        return [decode_from_server(data) for data, _ in self._held]

    def release(self) -> None:
        """Write the held frames that are still wanted."""
        self.holds = False
        held, self._held = self._held, []
        for data, ticket in held:
            if ticket is None or not ticket.ended:
                self._write(data, ticket)

    def take(self, kind: type[F]) -> F:
        """Return the oldest frame, which must be of this kind."""
        frame = self.sent.pop(0)
        assert isinstance(frame, kind), frame
        return frame

    def take_dispatch(self) -> Dispatch:
        return self.take(Dispatch)

    def take_failed(self) -> Failed:
        return self.take(Failed)

    def take_result(self) -> Result:
        return self.take(Result)

    def take_cancel(self) -> Cancel:
        return self.take(Cancel)
