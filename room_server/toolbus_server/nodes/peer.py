"""Another node, as this one deals with it: what goes there, what comes, whose calls lead there.

A far participant's seat has a `FarPort` for its connection. To the router it is a participant like
others: what it writes there travels as the frame that it is, and the node of that participant hands
it to its own router. What never got there ends the calls that it belongs to, and no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol, TypeAlias

import msgspec

from toolbus.errors import RoomException
from toolbus.grants import ApiScope
from toolbus.transport import Ticket
from toolbus.wire import Dispatch, ParticipantId, decode_from_server, encode, failed
from toolbus_server.call_frames import CALL_FRAMES
from toolbus_server.call_watch import CallReport
from toolbus_server.flights import Flight, Seat
from toolbus_server.nodes.losses import CALLS, DISPATCH, FRAME, LOST, MESSAGE, ORDER, Losses
from toolbus_server.nodes.parcels import Arrived, Entry, Parcels, Sent
from toolbus_server.nodes.redis_line import RedisAway, RedisLine
from toolbus_server.nodes.redis_troubles import words_of
from toolbus_server.room_view import Identity, Member
from toolbus_server.routing import Router

__all__ = ["FarPort", "Peer", "RelayedCall", "inbox_of"]

_logger = logging.getLogger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_MOST_WAITING = 8 * 1024 * 1024
"""Bytes that may wait for one node; with more than that calls to it are `overloaded`."""
_NUMBERS = 28
"""Bits of a dispatch's number that are its seat's own; those above tell the seats apart."""
_WORD_S = 0.005
_TRANSIT_S = 0.002
"""How long what comes waits, for one parcel with more in it, while the last one is on its way."""
RelayedCall: TypeAlias = tuple[str, str, str, str | None, int, Dispatch]
"""Room, host, caller, principal, depth, and the call."""


class Home(Protocol):
    """The node that peers are peers of."""

    me: str
    sessions: Iterator[int]
    """Numbers for sessions with other nodes."""

    def takes_part(self) -> bool:
        """Whether this node is one of many now: it reaches Redis, and its lease has not ended."""

    def relay(self, peer: Peer, call: RelayedCall) -> None:
        """Take a call of a participant there to a host here. Raises what stops it."""

    def hear(self, room: str, to: str | None, message: dict[str, Any]) -> None:
        """Take a message of a participant there: for those of a name, or for all."""

    def hear_calls(self, node: str, room: str, report: CallReport) -> None:
        """Take what has become of the calls of participants there."""

    def report_anew(self, node: str) -> None:
        """Learn that something that went there was lost, maybe a report of calls."""

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
        self._parcels = Parcels(home.me, home.sessions, self._publish, home.window)
        self._seats = 0
        self._is_due = False
        self._is_closed = False
        self._in_transit = 0
        self._departed_at = 0.0
        self._said = ""
        self._patience: asyncio.TimerHandle | None = None
        self._word: asyncio.TimerHandle | None = None
        member = Member(ParticipantId(name), Identity("", name), "node", "", 1, ApiScope())
        self._desk = Seat(member, FarPort(self, "", name))
        """Whose calls are all that come from there, and whose dispatches all that go there."""
        self._losses = Losses(router, self._desk, self._put)

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
        return self._is_closed or not self._home.takes_part()

    def dispatch(self, room: str, host: str, data: bytes, flight: Flight) -> None:
        """Send a call to a host there."""
        principal = None if flight.principal is None else flight.principal.id
        head = (DISPATCH, room, host, flight.caller.member.id, principal, flight.hops, data)
        self._put(Entry(_encode(head), flight))

    def say(self, room: str, to: str | None, message: dict[str, Any]) -> None:
        """Send a message to participants there; dropped where there is no way or no room."""
        if not self.is_away and not self.is_full:
            self._put(Entry(_encode((MESSAGE, room, to, message))))

    def report(self, room: str, report: CallReport) -> bool:
        """Send what has become of calls; return whether there was a way and room."""
        if self.is_away or self.is_full:
            return False
        self._put(Entry(_encode((CALLS, room, report))))
        return True

    def order(self, action: str, options: dict[str, Any]) -> None:
        """Have an administrator's wish done there."""
        self._put(Entry(_encode((ORDER, action, options))))

    def frame(self, data: bytes, ticket: Ticket | None = None) -> bool:
        """Send what concerns a call that is under way between the two nodes."""
        if self.is_away:
            return False
        self._put(Entry(_encode((FRAME, data)), ticket))
        return True

    def _put(self, entry: Entry) -> None:
        self._parcels.put(entry)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Send what waits; what comes while a parcel is on its way goes into the next one."""
        self._is_due = False
        while self._parcels.waiting_bytes and not self.is_away:
            left_s = self._departed_at + _TRANSIT_S - self._loop.time()
            if self._in_transit and left_s > 0:
                if self._patience is None:
                    self._patience = self._loop.call_later(left_s, self._pump_on)
                return
            if not self._parcels.send():
                return

    def _pump_on(self) -> None:
        self._patience = None
        self._pump()

    def _publish(self, sent: Sent | None, data: bytes) -> bool:
        if self.is_away:
            return False
        try:
            answer = self._line.command("PUBLISH", inbox_of(self.name), data)
        except RedisAway:
            return False
        if sent is not None:
            self._in_transit += 1
            self._departed_at = self._loop.time()
        answer.add_done_callback(partial(self._published, sent))
        return True

    def _published(self, sent: Sent | None, answer: asyncio.Future[Any]) -> None:
        if sent is not None:
            self._in_transit -= 1
        error = answer.exception()
        if isinstance(error, RedisAway):
            return  # all that is under way has ended
        self._complain("" if error is None else words_of(error))
        if error is not None or answer.result() == 0:
            self._losses.unheard(self._parcels.give_up(sent))
            self._home.report_anew(self.name)
        self._pump()

    def _complain(self, words: str) -> None:
        """Say why Redis passes nothing on; as long as that is so it is not said again."""
        if words and words != self._said:
            _logger.error("a parcel for %s was refused: %s", self.name, words)
        self._said = words

    def ask(self) -> None:
        """Ask whether the node is where it was, and has got what was sent; if that is in doubt."""
        question = self._parcels.question()
        if question is not None:
            self._publish(None, question)

    # What comes from there

    def on_parcel(self, parcel: Arrived, size: int) -> None:
        """Take what came. Raises nothing."""
        arrival = self._parcels.arrive(parcel, size)
        if arrival.has_broken:
            self._losses.unread(arrival.lost)
            self._end_all("the other server had lost its way here")
        else:
            self._losses.missed(arrival.lost)
        if arrival.has_broken or arrival.lost:
            self._home.report_anew(self.name)
        for entry in arrival.entries:
            try:
                self._on_entry(_decode(entry))
            except Exception:  # of one entry, which touches no other
                _logger.exception("what came from node %s met a bug", self.name)
        self._pump()
        if self._parcels.owes_word:
            self._say()
        elif self._word is None:
            self._word = self._loop.call_later(_WORD_S, self._say_later)

    def _say_later(self) -> None:
        self._word = None
        self._say()

    def _say(self) -> None:
        word = self._parcels.word()
        if word is not None:
            self._publish(None, word)

    def _on_entry(self, entry: list[Any]) -> None:
        if entry[0] == MESSAGE:
            self._home.hear(*entry[1:])
        elif entry[0] == ORDER:
            self._home.obey(*entry[1:])
        elif entry[0] == CALLS:
            self._home.hear_calls(self.name, entry[1], CallReport(*entry[2]))
        elif entry[0] == LOST:
            self._losses.answer_lost(*entry[1:])
        else:
            self._on_frame(entry)

    def _on_frame(self, entry: list[Any]) -> None:
        frame = decode_from_server(entry[-1])
        if not isinstance(frame, Dispatch):
            CALL_FRAMES[type(frame)](self._router, self._desk, frame)
            return
        room, host, caller, principal, hops = entry[1:6]
        try:
            self._home.relay(self, (room, host, caller, principal, hops, frame))
        except RoomException as error:
            self.frame(encode(failed(frame.id, error)))

    # Ends

    def _end_all(self, words: str) -> None:
        """End all calls between the two nodes, by phase; the other node is told nothing."""
        self._is_closed = True
        try:
            self._router.abandon(self._desk, words)
            self._router.depart(self._desk)
        finally:
            self._is_closed = False

    def cut(self) -> None:
        """End all calls between the two nodes: there is no way between them now."""
        self._parcels.begin_anew()
        self._end_all("the other server cannot be reached")

    def gone(self) -> None:
        """End all calls between the two nodes: the other one has ended."""
        self._is_closed = True
        self._parcels.begin_anew()
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
