"""What the router holds: who sits where, and which calls are under way between whom.

Values only. What becomes of them is decided in `routing`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from random import randrange
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from toolbus.errors import Executed, RoomException
from toolbus.transport import Ticket
from toolbus.wire import Call, ToolManifest
from toolbus.wire.windows import ReceiveWindow
from toolbus_server.definition import Definition
from toolbus_server.limits import Meter
from toolbus_server.room_state import RoomState
from toolbus_server.room_view import Member

__all__ = [
    "Ending",
    "Exchange",
    "Flight",
    "Lane",
    "Offer",
    "Port",
    "Room",
    "Seat",
    "Share",
    "Watch",
]

# What one participant may say to others or have told of itself within 10 s.
_MESSAGES = 1_000
_CHANGES = 2_000
# Half of what there is: others wait for it, and are not given up for silence (CONN-7) meanwhile.
_WORK_S = 5.0
_WINDOW_S = 10.0


class Port(Protocol):
    """What the router needs of a connection."""

    def send_message(self, data: bytes, ticket: Ticket | None = None) -> bool:
        """Send what cannot be refused; return whether the connection is there to take it."""

    def offer_message(self, data: bytes, ticket: Ticket) -> bool:
        """Send, or say at once that there is no room for it."""

    def send_bounded(self, data: bytes, ticket: Ticket) -> None:
        """Send what its senders were given credit for."""

    def gather(self) -> None:
        """Let small messages that are sent in this turn of the loop leave together."""

    @property
    def is_behind(self) -> bool:
        """Whether what is sent now has to wait."""

    @property
    def is_open(self) -> bool:
        """Whether anything can be sent."""


class Ending(Protocol):
    """What ends with a call: its span, or what watches it in the place of that."""

    def end(self, error: RoomException | None = None) -> None:
        """Learn that the call has ended, and with which error."""


class Watch(Protocol):
    """What is told of a room's calls while somebody watches them."""

    def follow(self, flight: Flight) -> None:
        """Learn that a call was handed to its host; its end is told by `flight.span`."""

    def refused(self, caller: Seat, call: Call, error: RoomException) -> None:
        """Learn that a call ended before a host had it."""


class Share(Protocol):
    """What is told of a room that other nodes may hold too."""

    node: str
    """The name of this node among them."""

    def touch(self, member: Member) -> None:
        """Learn that a participant of this node came, changed or went."""

    def say(self, to: str | None, message: dict[str, Any]) -> int:
        """Send a message to those of a name at other nodes, or to all; return how many listen."""

    async def claim(self, member: Member, offer: Offer, number: int | None) -> int | None:
        """Ask for the name of a toolkit before it is registered; return its generation.

        Raises:
            AlreadyExists: The name is another identity's.
            Unavailable: Nobody can be asked now.
        """


class Offer(NamedTuple):
    """A toolkit as one of its hosts offers it."""

    name: str
    public: bool
    shared_with: frozenset[str]
    definition: Definition


@dataclass(slots=True, eq=False)
class Seat:
    """A participant as the router sees it, with its calls as a caller and as a host."""

    member: Member
    port: Port
    calls: dict[int, Flight] = field(default_factory=dict)
    """By the ids that it chose."""
    call_ids: set[str] = field(default_factory=set)
    dispatched: dict[int, Flight] = field(default_factory=dict)
    """Calls it runs, by the ids that the router chose."""
    last_dispatch: int = field(default_factory=partial(randrange, 2**32, 2**48))
    """Begins anywhere, so that what a host names after a reconnect is never another call; no id of
    a caller is packed in more bytes, so that no result grows on its way."""
    messages: Meter = field(default_factory=partial(Meter, _MESSAGES, _WINDOW_S))
    """Those it sends (PROTOCOL.md, SEND-2)."""
    changes: Meter = field(default_factory=partial(Meter, _CHANGES, _WINDOW_S))
    """What it changes of what others see: its toolkits, its attributes, its offers."""
    reads_chunks: bool = True
    """Whether it takes a large file in pieces from a call that is no stream."""
    streams: int = 0
    """Its calls in flight that are streams or have input."""
    ahead: int = 0
    """Bytes of streams that are on the way to it, or may be at any moment."""
    work: Meter = field(default_factory=partial(Meter, _WORK_S, _WINDOW_S))
    """Seconds that the server worked on its requests, calls left out (PROTOCOL.md, REG-20)."""


@dataclass(slots=True, eq=False)
class Room:
    """A room as the router sees it: the facts, and where each participant sits."""

    state: RoomState
    seats: dict[str, Seat] = field(default_factory=dict)
    share: Share | None = None
    """Set where other nodes may hold the room too."""
    watch: Watch | None = None
    """Set while somebody watches the calls: all that they cost others is a look at this."""


class Flight(Struct, eq=False):
    """One call in flight. As a ticket it tells whether the host's transport has taken it."""

    caller: Seat
    request_id: int
    call_id: str
    host: Seat
    dispatch_id: int
    principal: Member | None
    hops: int
    deadline_at: float
    began_at: float
    tool: ToolManifest
    definition: Definition
    """The one that served when the call came."""
    span: Ending | None = None
    traceparent: str | None = None
    """What its host was sent, if the call is to be recorded."""
    written: bool = False
    ended: bool = False
    exchange: Exchange | None = None
    """Its streams, if it has any."""

    @property
    def executed(self) -> Executed:
        """What the router knows by itself of whether the tool ran."""
        return "maybe" if self.written else "no"


class Lane(Struct, eq=False):
    """One direction of one call."""

    flight: Flight
    sender: Seat
    sender_id: int
    """The call's id at the sender, and below at the reader."""
    reader: Seat
    reader_id: int
    window: ReceiveWindow
    """What the sender was told, and what came."""
    allowed_chunks: int
    """What the reader gave."""
    allowed_bytes: int
    slice: int
    """How far the sender may be ahead, where there is room: more for who makes use of it."""
    passed: int = 0
    """Bytes that have left for the reader."""
    left: int = 0
    """Chunks that have."""
    counted: int = 0
    """What of this lane is in `reader.ahead`."""
    of_input: bool = False
    """Whether it leads to the host."""
    is_done: bool = False
    """The last of an input has come."""
    told: tuple[int, int] = (0, 0)
    """The credit that the sender was sent last."""
    credit_waits: bool = False
    """Whether a credit waits in the sender's outbox; the next one goes when it has left."""


class Exchange(Struct, eq=False):
    """What a call has beside its arguments and its one result."""

    flight: Flight
    results: Lane | None = None
    inputs: Lane | None = None
    progress: bool = False
    has_progressed: bool = False
    idle_s: float = 0.0
    """How long the host may be silent; 0 for ever."""
    active_at: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether its call has ended."""
        return self.flight.ended
