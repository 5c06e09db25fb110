"""Another node, as this one deals with it: what goes there, what comes, whose calls lead there.

A far participant's seat has a `FarPort` for its connection. To the router it is a participant like
others: what it writes there travels as the frame that it is, and the node of that participant hands
it to its own router.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, Protocol, TypeAlias

import msgspec

from toolbus.errors import RoomException, StreamBroken, Unavailable
from toolbus.grants import ApiScope
from toolbus.transport import Ticket
from toolbus.wire import (
    Cancel,
    Credit,
    Dispatch,
    Failed,
    Input,
    ParticipantId,
    Progress,
    RequestId,
    Result,
    StreamChunk,
    decode_from_server,
    encode,
    exception_of,
    failed,
)
from toolbus_server.flights import Flight, Seat
from toolbus_server.nodes.parcels import Arrived, Entry, Parcels
from toolbus_server.nodes.redis_line import RedisAway, RedisLine
from toolbus_server.room_view import Identity, Member
from toolbus_server.routing import Router

__all__ = ["FarPort", "Peer", "RelayedCall", "inbox_of"]

_logger = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_DISPATCH, _FRAME, _MESSAGE, _ORDER = 1, 2, 3, 4
_MOST_WAITING = 8 * 1024 * 1024
"""Bytes that may wait for one node; with more than that calls to it are `overloaded`."""
_NUMBERS = 28
"""Bits of a dispatch's number that are its seat's own; those above tell the seats apart."""
_WORD_S = 0.005
RelayedCall: TypeAlias = tuple[str, str, str, str | None, int, Dispatch]
"""Room, host, caller, principal, depth, and the call."""


class Home(Protocol):
    """The node that peers are peers of."""

    me: str

    def relay(self, peer: Peer, call: RelayedCall) -> None:
        """Take a call of a participant there to a host here. Raises what stops it."""

    def hear(self, room: str, to: str | None, message: dict[str, Any]) -> None:
        """Take a message of a participant there: for those of a name, or for all."""

    def obey(self, action: str, options: dict[str, Any]) -> None:
        """Do what an administrator asked for there."""

    def window(self) -> int:
        """Say how many bytes may be under way to one node."""


def inbox_of(node: str) -> str:
    """Name the channel of a node."""
    return f"toolbus:inbox:{node}"


class Peer:
    """One other node.

    Args:
        name: How the nodes know it.
        line: The way there.
        router: Whose calls go there, and come from there.
        home: This node.
    """

    def __init__(self, name: str, line: RedisLine, router: Router, home: Home) -> None:
        self.name = name
        self._line = line
        self._router = router
        self._home = home
        self._loop = asyncio.get_running_loop()
        self._parcels = Parcels(home.me, self._publish, home.window)
        self._seats = 0
        self._is_due = False
        self._in_transit = 0
        self._word: asyncio.TimerHandle | None = None
        member = Member(ParticipantId(name), Identity("", name), "node", "", 1, ApiScope())
        self._desk = Seat(member, FarPort(self, "", name))
        """Whose calls are all that come from there, and whose dispatches all that go there."""

    # Who sits there

    def seat(self, room: str, member: Member, *, reads_chunks: bool) -> Seat:
        """Make the seat of a participant that is connected there."""
        self._seats += 1
        return Seat(
            member,
            FarPort(self, room, member.id),
            calls=self._desk.calls,
            dispatched=self._desk.dispatched,
            last_dispatch=self._seats << _NUMBERS,
            reads_chunks=reads_chunks,
        )

    # What goes there

    @property
    def is_behind(self) -> bool:
        """Whether what is sent now has to wait."""
        return self._parcels.is_behind

    @property
    def is_full(self) -> bool:
        """Whether so much waits that no call may be added."""
        return self._parcels.waiting_bytes > _MOST_WAITING

    @property
    def is_away(self) -> bool:
        """Whether nothing can be sent there now."""
        return not self._line.is_up

    def dispatch(self, room: str, host: str, data: bytes, flight: Flight) -> None:
        """Send a call to a host there."""
        principal = None if flight.principal is None else flight.principal.id
        head = (_DISPATCH, room, host, flight.caller.member.id, principal, flight.hops, data)
        self._put(Entry(_encode(head), flight))

    def say(self, room: str, to: str | None, message: dict[str, Any]) -> None:
        """Send a message to participants there; dropped where there is no way or no room."""
        if not self.is_away and not self.is_full:
            self._put(Entry(_encode((_MESSAGE, room, to, message))))

    def order(self, action: str, options: dict[str, Any]) -> None:
        """Have an administrator's wish done there."""
        self._put(Entry(_encode((_ORDER, action, options))))

    def frame(self, data: bytes, ticket: Ticket | None = None) -> bool:
        """Send what concerns a call that is under way between the two nodes."""
        if self.is_away:
            return False
        self._put(Entry(_encode((_FRAME, data)), ticket))
        return True

    def _put(self, entry: Entry) -> None:
        self._parcels.put(entry)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Send what waits, one parcel at a time: what comes meanwhile goes into the next one."""
        self._is_due = False
        while not self._in_transit and self._parcels.send():
            pass

    def _publish(self, number: int, parcel: bytes) -> bool:
        try:
            answer = self._line.command("PUBLISH", inbox_of(self.name), parcel)
        except RedisAway:
            return False
        self._in_transit += number > 0
        answer.add_done_callback(partial(self._published, number))
        return True

    def _published(self, number: int, answer: asyncio.Future[Any]) -> None:
        self._in_transit -= number > 0
        error = answer.exception()
        if error is not None and not isinstance(error, RedisAway):
            _logger.error("a parcel for %s was refused: %s", self.name, error)
        if error is None and answer.result() == 0 and number:
            self._end_lost(self._parcels.give_up(number))
        self._pump()

    # What comes from there

    def on_parcel(self, parcel: Arrived, size: int) -> None:
        """Take what came. Raises nothing."""
        is_new, lost = self._parcels.arrive(parcel, size)
        self._end_lost(lost)
        for entry in parcel.entries if is_new else ():
            try:
                self._on_entry(_decode(entry))
            except Exception:  # of one entry, which touches no other
                _logger.exception("what came from node %s met a bug", self.name)
        if self._word is None:
            self._word = self._loop.call_later(_WORD_S, self._say)
        self._pump()

    def _say(self) -> None:
        self._word = None
        word = self._parcels.word()
        if word is not None:
            self._publish(0, word)

    def _on_entry(self, entry: list[Any]) -> None:
        if entry[0] == _MESSAGE:
            self._home.hear(*entry[1:])
            return
        if entry[0] == _ORDER:
            self._home.obey(*entry[1:])
            return
        frame = decode_from_server(entry[-1])
        if not isinstance(frame, Dispatch):
            self._on_frame(frame)
            return
        room, host, caller, principal, hops = entry[1:6]
        try:
            self._home.relay(self, (room, host, caller, principal, hops, frame))
        except RoomException as error:
            self.frame(encode(failed(frame.id, error)))

    def _on_frame(self, frame: Any) -> None:
        router, desk = self._router, self._desk
        if isinstance(frame, Result | Failed):
            router.answer(desk, frame)
        elif isinstance(frame, Cancel):
            router.cancel(desk, frame)
        elif isinstance(frame, StreamChunk):
            router.streams.chunk(desk, frame)
        elif isinstance(frame, Input):
            router.streams.input(desk, frame)
        elif isinstance(frame, Credit):
            router.streams.credit(desk, frame)
        elif isinstance(frame, Progress):
            router.streams.progress(desk, frame)

    # What never arrived

    def _end_lost(self, entries: list[Entry]) -> None:
        """End the calls of what never arrived; nothing of it is sent a second time."""
        for entry in entries:
            kind, *_, last = _decode(entry.data)
            if kind in (_MESSAGE, _ORDER):
                continue  # the one is promised to nobody; the other Redis keeps
            frame: Any = decode_from_server(last)
            if isinstance(frame, Cancel):
                continue  # its call has ended here, and ends there with its time
            if isinstance(frame, Result | Failed):
                self._tell_lost(frame)
                continue
            is_ours = isinstance(frame, Dispatch | Input) or (
                isinstance(frame, Credit) and not frame.of_input
            )
            calls = self._desk.dispatched if is_ours else self._desk.calls
            flight = calls.get(frame.id)
            if flight is None:
                continue
            if isinstance(frame, Dispatch):
                flight.written = False
                lost = Unavailable("the host's node could not be reached")
                self._router.break_off(flight, lost, "lost")
            else:
                self._router.break_off(flight, StreamBroken("a part was lost on the way"), "broken")

    def _tell_lost(self, reply: Result | Failed) -> None:
        executed = "yes" if isinstance(reply, Result) else exception_of(reply).executed
        lost = Unavailable("the answer was lost on the way", executed=executed, retryable=False)
        self.frame(encode(failed(RequestId(reply.id), lost)))

    def cut(self) -> None:
        """End all calls between the two nodes: there is no way between them now."""
        self._parcels.give_up_all()
        self._router.abandon(self._desk, "the other server cannot be reached")
        self._router.depart(self._desk)

    def gone(self) -> None:
        """End all calls between the two nodes: the other one has ended."""
        self._parcels.give_up_all()
        if self._word is not None:
            self._word.cancel()
        self._router.depart(self._desk)


class FarPort:
    """Stands for the connection of a participant at another node.

    Args:
        peer: That node.
        room: Where it sits.
        participant: Who it is.
    """

    __slots__ = ("_participant", "_peer", "_room")

    def __init__(self, peer: Peer, room: str, participant: str) -> None:
        self._peer = peer
        self._room = room
        self._participant = participant

    def send_message(self, data: bytes, ticket: Ticket | None = None) -> bool:
        """Send what cannot be refused; return whether there is a way to its node."""
        return self._peer.frame(data, ticket)

    def offer_message(self, data: bytes, ticket: Ticket) -> bool:
        """Send a call to be run, or say at once that there is no room for it."""
        if self._peer.is_away or self._peer.is_full:
            return False
        assert isinstance(ticket, Flight), "what is offered to a host is a call"
        self._peer.dispatch(self._room, self._participant, data, ticket)
        return True

    def send_bounded(self, data: bytes, ticket: Ticket) -> None:
        """Send what its senders were given credit for."""
        self._peer.frame(data, ticket)

    def gather(self) -> None:
        """Do nothing: what is sent in one turn of the loop leaves together anyway."""

    @property
    def is_behind(self) -> bool:
        """Whether what is sent now has to wait."""
        return self._peer.is_behind

    @property
    def is_open(self) -> bool:
        """Whether its node can be reached now."""
        return not self._peer.is_away
