"""The streams of calls: chunks on their way to callers, input on its way to hosts, and credit back.

A `Lane` is one direction of one call. Its reader gives credit for as much as it wants; the server
passes that on to the sender in slices, so that what is under way to one reader stays small however
many streams it has and however slowly it reads. A sender always has credit for a little beyond what
has left for the reader, if the reader gave it: no stream waits for another one. What has to wait
for a slow reader waits in its outbox, in order, and counts as not having left.

Nothing here decides what a call ends with but for its stream's sake: a stream that breaks a rule,
and one whose host has fallen silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any

from toolbus.deadlines import Deadlines
from toolbus.errors import QuotaExceeded, RoomException, StreamBroken, StreamStalled
from toolbus.wire import Credit, Frame, Input, Progress, StreamChunk, encode
from toolbus.wire.windows import FIRST_BYTES, FIRST_CHUNKS, WINDOW_BYTES, ReceiveWindow
from toolbus_server.flights import Exchange, Flight, Lane, Seat
from toolbus_server.limits import Limits
from toolbus_server.request_options import bad_option

__all__ = ["BUDGET_BYTES", "FLOOR_BYTES", "Streams", "is_stream"]

FLOOR_BYTES = FIRST_BYTES
"""What the sender of a stream may always be ahead of what has left for its reader."""

BUDGET_BYTES = 8 * 1024 * 1024
"""What may be under way to one reader; with more than that its calls are `overloaded`."""
_MOST_CHUNKS = 1_024
"""How many chunks a sender may be ahead: empty ones cost no bytes, and memory."""
_MAX_PROGRESS_BYTES = 16 * 1024
_RETRY_AFTER_S = 0.05
_MAX_CREDIT = 2**53
_UNREAD_S = 300.0
"""How long a host waits for a caller that reads nothing."""
_LOOK_S = 1.0
_CLOCK_S = 0.001
"""A timer may run so much early."""


class _Parcel:
    """The ticket of what waits in an outbox and tells when it has left."""

    __slots__ = ("_left", "ended")

    def __init__(self, left: Callable[[], None]) -> None:
        self._left = left
        self.ended = False

    @property
    def written(self) -> bool:
        """Nobody asks."""
        return False

    @written.setter
    def written(self, _: bool) -> None:
        self._left()


class Streams:
    """The streams of one server's calls.

    Args:
        loop: Its clock.
        limits: How many streams one participant may have.
        break_off: Ends a call with an error, and tells its host why.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        break_off: Callable[[Flight, RoomException, str], None],
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._break_off = break_off
        self._stalls: Deadlines[Exchange] = Deadlines(loop, self._look_for_life)
        self.dropped = 0
        """Frames for what is not in flight, or not open for them."""

    # Beginning and end

    def open(self, flight: Flight, options: Mapping[str, Any], header: dict[str, Any]) -> None:
        """Give a call its streams, and its host the header that tells of them.

        Raises:
            InvalidArguments: The options make no sense.
            QuotaExceeded: The caller has too many streams.
        """
        exchange = Exchange(flight, progress=options.get("progress", False))
        if is_stream(options):
            exchange.results = lane = _results_of(flight, *_credit_in(options))
            header["credit_chunks"], header["credit_bytes"] = lane.window.chunks, lane.window.bytes
            exchange.idle_s = _idle_s(options, self._limits)
        if options.get("input"):
            exchange.inputs = _input_of(flight)
            header["input"] = True
        if exchange.progress:
            header["progress"] = True
        if self._is_full(flight.caller):
            words = f"{self._limits.max_streams} streams are in flight"
            raise QuotaExceeded(words, retry_after_s=_RETRY_AFTER_S)
        flight.exchange = exchange

    def _is_full(self, caller: Seat) -> bool:
        return caller.streams >= self._limits.max_streams

    def begin(self, exchange: Exchange) -> None:
        """Take note that the call was handed to its host."""
        exchange.active_at = self._loop.time()
        exchange.flight.caller.streams += 1
        for lane in (exchange.results, exchange.inputs):
            if lane is not None:
                _account(lane)
        self._stalls.add(exchange.active_at + (exchange.idle_s or _UNREAD_S), exchange)

    def close(self, exchange: Exchange) -> None:
        """Take note that the call has ended: nothing more comes, what waits may still leave."""
        self._stalls.forget(exchange)
        exchange.flight.caller.streams -= 1
        for lane in (exchange.results, exchange.inputs):
            if lane is not None:
                lane.window.bytes = 0
                _account(lane)

    def has_sent(self, exchange: Exchange) -> bool:
        """Whether a chunk or a progress has come from the host: its tool has begun."""
        return exchange.has_progressed or (
            exchange.results is not None and exchange.results.window.number > 0
        )

    # What comes

    def chunk(self, host: Seat, frame: StreamChunk) -> None:
        """Pass a chunk on to the caller."""
        flight = host.dispatched.get(frame.id)
        lane = None if flight is None else self._lane_of_results(flight)
        if lane is None:
            self.dropped += 1
            return
        onward = StreamChunk(lane.reader_id, frame.number, frame.body)
        self._pass_on(lane, frame.number, len(frame.body), onward)

    def _lane_of_results(self, flight: Flight) -> Lane | None:
        """Find the way of a call's chunks; that of a file begins with the first of its pieces."""
        exchange = flight.exchange
        if exchange is None:
            if not flight.caller.reads_chunks:
                return None
            if self._is_full(flight.caller):
                self._break_off(flight, StreamBroken("the caller has too many streams"), "broken")
                return None
            flight.exchange = exchange = Exchange(flight)
            exchange.results = _results_of(flight, FIRST_CHUNKS, FIRST_BYTES)
            self.begin(exchange)
        elif exchange.results is None and flight.caller.reads_chunks:
            exchange.results = _results_of(flight, FIRST_CHUNKS, FIRST_BYTES)
            _account(exchange.results)
        return exchange.results

    def input(self, caller: Seat, frame: Input) -> None:
        """Pass a chunk of a call's input on to its host."""
        flight = caller.calls.get(frame.id)
        exchange = None if flight is None else flight.exchange
        lane = None if exchange is None else exchange.inputs
        if lane is None:
            self.dropped += 1
            return
        onward = Input(lane.reader_id, frame.number, frame.body, frame.last)
        if lane.is_done or (frame.body is None and not frame.last):
            self._broken(lane, StreamBroken("the input goes on behind its end, or with nothing"))
        elif frame.body is not None:
            lane.is_done = frame.last
            self._pass_on(lane, frame.number, len(frame.body), onward)
        elif frame.number != lane.window.number + 1:
            self._broken(lane, StreamBroken(f"the input ends with chunk {frame.number}"))
        else:
            lane.is_done = True
            self._send(lane, onward, 0)

    def credit(self, seat: Seat, frame: Credit) -> None:
        """Let the sender of a stream go on, as its reader says."""
        flight = (seat.dispatched if frame.of_input else seat.calls).get(frame.id)
        exchange = None if flight is None else flight.exchange
        if exchange is None:
            self.dropped += 1
            return
        lane = exchange.inputs if frame.of_input else exchange.results
        if lane is None:
            self.dropped += 1
            return
        lane.allowed_chunks = max(lane.allowed_chunks, frame.chunks)
        lane.allowed_bytes = max(lane.allowed_bytes, frame.bytes)
        self._grant(lane)

    def progress(self, host: Seat, frame: Progress) -> None:
        """Tell the caller how far its call is, if it asked for that and its way is free."""
        flight = host.dispatched.get(frame.id)
        exchange = None if flight is None else flight.exchange
        if flight is None or exchange is None or not exchange.progress:
            self.dropped += 1
            return
        exchange.active_at, exchange.has_progressed = self._loop.time(), True
        port = flight.caller.port
        if len(frame.body) > _MAX_PROGRESS_BYTES or port.is_behind:
            self.dropped += 1
            return
        port.send_message(encode(Progress(flight.request_id, frame.body)))

    # On its way

    def _pass_on(self, lane: Lane, number: int, size: int, onward: Frame) -> None:
        try:
            lane.window.arrive(number, size)
        except StreamBroken as error:
            self._broken(lane, error)
            return
        exchange = lane.flight.exchange
        if exchange is not None:
            exchange.active_at = self._loop.time()
        self._send(lane, onward, size)

    def _send(self, lane: Lane, onward: Frame, size: int) -> None:
        port = lane.reader.port
        if port.is_behind:
            _account(lane)
            left = _Parcel(partial(self._left, lane, size))
            port.send_bounded(encode(onward), left)
        else:
            port.gather()
            port.send_message(encode(onward))
            self._left(lane, size)

    def _left(self, lane: Lane, size: int) -> None:
        """Take note that a chunk has left for its reader: the sender may go on."""
        lane.passed += size
        lane.left += 1
        if lane.flight.ended:
            _account(lane)
        else:
            self._grant(lane)

    def _grant(self, lane: Lane) -> None:
        """Give the sender what the reader allows, as far as there is room on the way to it."""
        window, told = lane.window, (lane.window.chunks, lane.window.bytes)
        was_open = window.is_open
        if window.chunks - lane.left <= _MOST_CHUNKS // 2:
            most = min(lane.left + _MOST_CHUNKS, lane.allowed_chunks)
            window.chunks = max(window.chunks, most)
        if window.bytes - lane.passed <= lane.slice // 2:
            window.bytes = max(window.bytes, min(lane.passed + _share(lane), lane.allowed_bytes))
        _account(lane)
        if told == (window.chunks, window.bytes):
            return
        if window.arrived:
            lane.slice = min(2 * lane.slice, WINDOW_BYTES)
        exchange = lane.flight.exchange
        if exchange is not None and not was_open:
            exchange.active_at = self._loop.time()  # from now on silence is the sender's
        self._tell(lane)

    def _tell(self, lane: Lane) -> None:
        """Tell the sender its credit; while it does not read that, one word waits for it."""
        if lane.credit_waits:
            return
        window, port = lane.window, lane.sender.port
        lane.told = told = window.chunks, window.bytes
        data = encode(Credit(lane.sender_id, lane.of_input, *told))
        if port.is_behind:
            lane.credit_waits = True
            port.send_bounded(data, _Parcel(partial(self._credit_left, lane)))
        else:
            port.send_message(data)

    def _credit_left(self, lane: Lane) -> None:
        lane.credit_waits = False
        if not lane.flight.ended and lane.told != (lane.window.chunks, lane.window.bytes):
            self._tell(lane)

    # What is wrong

    def _broken(self, lane: Lane, error: StreamBroken) -> None:
        self._break_off(lane.flight, error, "broken")

    def _look_for_life(self, exchange: Exchange) -> None:
        """End a stream whose host is silent though it has credit, or whose caller gives none."""
        now, lane = self._loop.time(), exchange.results
        waits_for_reader = lane is not None and not lane.window.is_open
        limit_s = _UNREAD_S if waits_for_reader else exchange.idle_s or inf
        left_s = exchange.active_at + limit_s - now
        if left_s > _CLOCK_S:
            # The reader may let it go on at any moment, but nobody is looked at all the time.
            soon_s = max(exchange.idle_s or inf, _LOOK_S) if waits_for_reader else inf
            self._stalls.add(now + min(left_s, soon_s, _UNREAD_S), exchange)
            return
        what = "its caller gave no credit" if waits_for_reader else "nothing came"
        error = StreamStalled(f"{what} for {limit_s:g} s")
        self._break_off(exchange.flight, error, "stalled")


def is_stream(options: Mapping[str, Any]) -> bool:
    """Whether a call with these options takes chunks before its end."""
    return "credit_bytes" in options or "credit_chunks" in options


def _results_of(flight: Flight, chunks: int, most_bytes: int) -> Lane:
    window = ReceiveWindow(min(chunks, _MOST_CHUNKS), min(most_bytes, FLOOR_BYTES))
    ids = flight.dispatch_id, flight.request_id
    given = chunks, most_bytes
    return Lane(flight, flight.host, ids[0], flight.caller, ids[1], window, *given, FLOOR_BYTES)


def _input_of(flight: Flight) -> Lane:
    window = ReceiveWindow(0, 0)
    ids = flight.request_id, flight.dispatch_id
    lane = Lane(flight, flight.caller, ids[0], flight.host, ids[1], window, 0, 0, FLOOR_BYTES)
    lane.of_input = True
    return lane


def _share(lane: Lane) -> int:
    """Say how far a sender may be ahead of what has left for the reader."""
    reader = lane.reader
    has_room = reader.ahead - lane.counted + lane.slice <= BUDGET_BYTES
    return lane.slice if has_room and not reader.port.is_behind else FLOOR_BYTES


def _account(lane: Lane) -> None:
    """Keep count of what is on the way to a reader, or may be at any moment."""
    ahead = max(lane.window.bytes, lane.window.arrived) - lane.passed
    lane.reader.ahead += ahead - lane.counted
    lane.counted = ahead


def _credit_in(options: Mapping[str, Any]) -> tuple[int, int]:
    chunks, most_bytes = options.get("credit_chunks", 0), options.get("credit_bytes", 0)
    if not 0 < chunks <= _MAX_CREDIT:
        raise bad_option("credit_chunks", "is at least 1")
    if not 0 < most_bytes <= _MAX_CREDIT:
        raise bad_option("credit_bytes", "is at least 1")
    return chunks, most_bytes


def _idle_s(options: Mapping[str, Any], limits: Limits) -> float:
    idle_ms: int = options.get("idle_ms", limits.stream_idle_ms)
    if not 0 <= idle_ms <= _MAX_CREDIT:
        raise bad_option("idle_ms", "is not negative")
    return idle_ms / 1000
