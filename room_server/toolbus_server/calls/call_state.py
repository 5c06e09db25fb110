"""State of the router: connections, rooms and the calls in flight between them.

Values only: `router` and `stream_relay` decide what happens to them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from math import inf
from random import randrange
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from msgspec import Struct
from msgspec import field as struct_field

from toolbus.errors import Executed, RoomException
from toolbus.telemetry.tracing import CallSpan
from toolbus.transport.websocket import NotifyingTicket, Ticket
from toolbus.wire import DEFAULT_APPROVAL_MS, Call, Holds, Settle, ToolManifest
from toolbus.wire.flow_control import ReceiveWindow
from toolbus_server.identity_usage import IdentityUsage
from toolbus_server.limits import RateLimiter
from toolbus_server.registry.generations import Claim
from toolbus_server.registry.models import (
    Identity,
    Participant,
    RegisteredToolkit,
    Visibility,
)
from toolbus_server.registry.room_state import RoomState
from toolbus_server.registry.toolkit_definition import Definition

__all__ = [
    "CallHold",
    "CallMonitor",
    "CallStreams",
    "CallWait",
    "Connection",
    "Delegation",
    "HeldTool",
    "HoldKeeper",
    "HoldOutcome",
    "InFlightCall",
    "MessagePort",
    "Offer",
    "Replication",
    "RoutedRoom",
    "ShownParticipant",
    "StreamDirection",
]

# How many messages one participant may send, and how many changes it may publish, in 10 s.
_MESSAGES = 1_000
_CHANGES = 2_000
_WINDOW_S = 10.0


class MessagePort(Protocol):
    """What the router needs of a transport."""

    def send_message(self, data: bytes, ticket: Ticket | None = None) -> bool:
        """Send a message that cannot be refused; return whether the connection was open."""

    def offer_message(self, data: bytes, ticket: Ticket) -> bool:
        """Send a message, or return False at once if the send queue is full."""

    def send_bounded(self, data: bytes, ticket: NotifyingTicket) -> None:
        """Send a message that a credit window already bounds; its ticket is notified."""

    def may_wait(self, size: int) -> bool:
        """Whether so many bytes of another participant may wait in the send queue."""

    def gather(self) -> None:
        """Write the small messages of this event-loop iteration together."""

    @property
    def is_behind(self) -> bool:
        """Whether a message sent now has to wait in the send queue."""

    @property
    def is_open(self) -> bool:
        """Whether anything can be sent."""


class CallMonitor(Protocol):
    """Receives the starts and ends of a room's calls while a participant observes them."""

    def call_started(self, call: InFlightCall) -> None:
        """Record a call that was dispatched to its host."""

    def call_refused(self, caller: Connection, request: Call, error: RoomException) -> None:
        """Record a call that ended before it was dispatched."""

    def call_ended(self, call: InFlightCall, error: RoomException | None) -> None:
        """Record the end of a call whose `monitor` this is; `error` is None for a result."""


class Replication(Protocol):
    """Replicates a room to the other nodes that hold it."""

    node: str
    """The name of this node."""

    def participant_changed(self, participant: Participant) -> None:
        """Publish that a participant of this node joined, changed or left."""

    def send_message(self, to: Identity | None, message: dict[str, Any], sender: Identity) -> int:
        """Send a message to the subscribers of an identity at other nodes, or to all of them.

        Returns:
            How many subscribers there are.
        """

    def publish_hold(self, hold: CallHold) -> None:
        """Publish that something waits for a person at this node, or was settled."""

    def wait_data(self, hold: CallHold, *, is_entered: bool) -> dict[str, Any]:
        """Return what the node of a caller is sent with `Held`, in place of what callers are."""

    def listing_holds(self) -> asyncio.Future[None] | None:
        """Return what is done once other nodes have sent their holds; None if they have."""

    async def ask_holder(
        self, hold: CallHold, participant: Participant, request: Holds | Settle
    ) -> dict[str, Any]:
        """Pass a request of a participant of this node to the node of a hold; return its reply.

        Raises:
            Unavailable: That node does not answer.
            RoomException: As it answers.
        """

    def room_closed(self, beyond: frozenset[Identity]) -> None:
        """Leave the room: its last participant of this node has left.

        Args:
            beyond: Owners whose reserved names are free at once if no node holds the room.
        """

    async def claim(self, participant: Participant, offer: Offer, claim: Claim) -> Claim:
        """Reserve the name of a toolkit before it is registered; return the generation's place.

        Raises:
            AlreadyExists: The name belongs to another identity.
            Unavailable: The other nodes cannot be reached now.
        """


class Offer(NamedTuple):
    """A toolkit as one of its hosts offers it."""

    name: str
    public: bool
    shared_with: frozenset[str]
    definition: Definition


@dataclass(slots=True, eq=False)
class Connection:
    """A participant's connection, with the calls it makes and the calls it runs."""

    participant: Participant
    port: MessagePort
    calls: dict[int, InFlightCall] = field(default_factory=dict)
    """The calls it makes, by the request ids that it chose."""
    call_ids: set[str] = field(default_factory=set)
    dispatched: dict[int, InFlightCall] = field(default_factory=dict)
    """The calls it runs, by the dispatch ids that the router chose."""
    last_dispatch: int = field(default_factory=partial(randrange, 2**32, 2**48))
    """Starts at random, so that a dispatch id from before a reconnect never names another call.

    No request id of a caller packs into more bytes, so forwarding never makes a result larger.
    """
    messages: RateLimiter = field(default_factory=partial(RateLimiter, _MESSAGES, _WINDOW_S))
    """Messages it sends (PROTOCOL.md, SEND-2)."""
    changes: RateLimiter = field(default_factory=partial(RateLimiter, _CHANGES, _WINDOW_S))
    """Changes it makes to its toolkits, attributes and offers."""
    reads_chunks: bool = True
    """Whether it accepts a large file in chunks from a call that is not a stream."""
    reads_parts: bool = True
    """Whether it also accepts any other large result in parts."""
    asked: dict[int, CallHold] = field(default_factory=dict)
    """Its questions to persons that are open, by the ids of its requests."""
    reads_holds: bool = False
    """Whether it is told that a call of it waits for a person: then the time of that call stands
    still (PROTOCOL.md, HOLD-6)."""
    stream_count: int = 0
    """Its calls in flight that are streams or have input."""
    waiting_streams: dict[CallStreams, None] = field(default_factory=dict)
    """Its calls whose results in parts wait for another stream to end, in order."""
    waiting_reply_bytes: int = 0
    """Bytes of replies from hosts that wait in its send queue."""
    outstanding_bytes: int = 0
    """Bytes of streams that are on the way to it, or that their senders have credit for."""
    usage: IdentityUsage = field(default_factory=IdentityUsage)
    """What all connections of its identity at this server use together."""


@dataclass(slots=True, eq=False)
class RoutedRoom:
    """A room as the router sees it: its state, and the connection of each participant."""

    state: RoomState
    connections: dict[str, Connection] = field(default_factory=dict)
    replication: Replication | None = None
    """Set where other nodes may hold the room too."""
    monitor: CallMonitor | None = None
    """Set while calls are observed; otherwise this check is all that observing costs a call."""
    delegated: dict[Identity, dict[InFlightCall, None]] = field(default_factory=dict, repr=False)
    """The calls in flight, of callers at this node, for principals: by the identity of these."""

    def publish_change(self, participant: Participant) -> None:
        """Publish to other nodes, if there are any, that a participant of this one changed."""
        if self.replication is not None:
            self.replication.participant_changed(participant)


class InFlightCall(Struct, eq=False):
    """One call in flight; also the ticket that records whether its dispatch was written."""

    caller: Connection
    request_id: int
    call_id: str
    host: Connection
    dispatch_id: int
    principal: Participant | None
    is_named: bool
    """Whether the principal was named by `on_behalf_of`, in this call or around it: then it is made
    for an identity, else for the connection of one participant."""
    hops: int
    deadline_at: float
    started_at: float
    tool: ToolManifest
    toolkit: RegisteredToolkit
    definition: Definition
    """The one that served when the call arrived."""
    delegation: Delegation | None
    """Set at the caller's node if it has a principal."""
    forwarded_for: tuple[Participant, ...] = ()
    """Those that its caller forwarded it for, the nearest first; empty if it was not forwarded."""
    span: CallSpan | None = None
    monitor: CallMonitor | None = None
    """Receives the end of the call."""
    traceparent: str | None = None
    """What its host was sent, if the call is to be recorded."""
    written: bool = False
    ended: bool = False
    streams: CallStreams | None = None
    """Its streams, if it has any."""
    nested: dict[InFlightCall, None] | None = None
    """The calls in flight that its host makes within it."""
    patterns: list[str] | None = None
    """Those that its host is asked about, if it is not a call but an `Assess`: that runs nothing,
    and is neither counted nor shown as a call."""
    purpose: str = ""
    """What it is for, in the words of its caller; shown to those who approve it."""
    approval_s: float = DEFAULT_APPROVAL_MS / 1000
    """How long it may wait for a person, as its caller chose; 0 never waits."""
    wait: CallWait | None = None
    """Set once it has waited for a person, or a call within it has."""

    @property
    def executed(self) -> Executed:
        """Whether the tool ran, as far as the router alone can tell."""
        if not self.written or self.patterns is not None:
            return "no"
        awaits_approval = self.wait is not None and not self.wait.written
        return "no" if awaits_approval and not self.has_sent else "maybe"

    @property
    def contradicts_no(self) -> bool:
        """Whether the tool may have run although its host says that it did not."""
        return self.has_sent or (self.wait is not None and self.wait.was_read_by_others)

    @property
    def has_sent(self) -> bool:
        """Whether its host has sent a chunk or a progress, so that its tool has begun."""
        streams = self.streams
        if streams is None:
            return False
        is_streaming = streams.results is not None and streams.results.window.number > 0
        return is_streaming or streams.has_progressed

    @property
    def asked_for(self) -> Participant:
        """For whom the call is made: its principal, else its caller."""
        return self.principal or self.caller.participant

    @property
    def is_held(self) -> bool:
        """Whether it waits for a person before its function is entered."""
        wait = self.wait
        if wait is None or self.executed != "no":
            return False
        return any(not hold.is_own for hold in wait.holds)

    @property
    def awaits_answer(self) -> bool:
        """Whether its host, or the function that it runs, has asked a person for a value."""
        holds = () if self.wait is None else self.wait.holds
        return any(hold.kind == "answer" and not hold.is_own for hold in holds)

    @property
    def is_nested(self) -> bool:
        """Whether it was made within a call that is in flight at this server."""
        return self.delegation is not None and self.delegation.parent is not None

    @property
    def stands_still(self) -> bool:
        """Whether its time stands still, as it or a call within it waits for a person."""
        return self.wait is not None and self.wait.count > 0


class Delegation(Struct, eq=False):
    """Where a call with a principal is listed, so that it ends with its authority."""

    room: RoutedRoom
    parent: InFlightCall | None
    """The call that it is nested in."""

    def __repr__(self) -> str:
        # The calls of a room reach each other in many ways: a full text would be endless.
        return f"Delegation({self.room.state.name!r})"


class HoldKeeper(Protocol):
    """The holds of a room, as the router and other holds see them."""

    def call_began(self, call: InFlightCall, parent: InFlightCall) -> None:
        """Let a call stand still that began within one that does."""

    def call_ended(self, call: InFlightCall) -> None:
        """End the holds of a call that has ended; to be called before its caller gets the end."""

    def withdraw(self, hold: CallHold) -> None:
        """End a hold whose asker does not wait for the decision any more."""

    def leave(self, hold: CallHold) -> None:
        """End a hold as lost: its host, or this server, leaves and waits for no person."""

    def enter(self, call: InFlightCall, hold_id: str) -> None:
        """Let the host of a call enter the function: the caller's node knows of the approval."""

    def resumed_elsewhere(self, call: InFlightCall, data: dict[str, Any]) -> None:
        """Let a call go on whose host, or one within it, is at another node."""


class CallWait(Struct, eq=False):
    """How a call waits for a person: by a hold of its own, or by those of calls within it.

    It is also the ticket that records whether the approval was written by which its host enters the
    function: until then the tool did not run.
    """

    keeper: HoldKeeper
    holds: list[CallHold] = struct_field(default_factory=list)
    """Its own open holds: one of its host, or those with which a host asks about further calls."""
    count: int = 0
    """For how many holds its time stands still."""
    since: float = 0.0
    """Since when, by the loop's clock."""
    waited_s: float = 0.0
    """For how long its time has stood still, without the present wait."""
    outcome: str = ""
    """How the last question of its host has ended; empty if there was none."""
    asked_s: float = 0.0
    """For how long its host has asked persons, by holds that have ended."""
    timer_is_due: bool = False
    """Whether the timer of its deadline has ended meanwhile."""
    begun: dict[InFlightCall, None] = struct_field(default_factory=dict)
    """The calls that began within it while it stands still: they go on together with it."""
    written: bool = True
    """False from a hold before the function is entered until its approval is written, or until
    somebody has read what he would answer in place of the function."""
    was_read_by_others: bool = False
    """Whether others than who refused to answer have read what the call waits for."""
    ended: bool = False
    """Whether the call has ended: what still waits in the host's send queue is never written."""
    may_be_made_again: bool = False
    """Whether it ends because its caller lost its connection, who may make it again."""

    def __repr__(self) -> str:  # short, as that of `Delegation`
        return f"CallWait({self.count}, {self.holds!r})"


HoldOutcome: TypeAlias = Literal[
    "open", "approved", "answered", "denied", "expired", "cancelled", "lost", "taken_back"
]
"""How a hold stands: `lost` is for a host or a server that leaves, and `cancelled` for any other
end of the call."""


class ShownParticipant(NamedTuple):
    """A participant as others are shown it: a hold outlives its connection."""

    identity: Identity
    shown: dict[str, Any]

    @classmethod
    def of(cls, participant: Participant) -> ShownParticipant:
        """Describe a participant."""
        return cls(participant.identity, participant.describe())


class HeldTool(NamedTuple):
    """The tool that a hold is about, and for whom it is called."""

    toolkit: RegisteredToolkit | Visibility | None
    """Who may know of it, once the hold is settled; None for a tool in the process of the
    participant that asks."""
    names: tuple[str, str]
    """Those of the toolkit and the tool."""
    owner: Identity
    definition: str
    """The digest of the definition of the toolkit."""
    caller: ShownParticipant | None
    """Who makes the call; None for a rule that was granted."""
    asked_for: Identity
    """For whom: the principal of the call, else its caller."""
    principal: ShownParticipant | None = None
    forwarded_for: tuple[ShownParticipant, ...] = ()
    call_id: str = ""
    purpose: str = ""

    @property
    def name(self) -> str:
        """The tool as people write it."""
        return ".".join(self.names)

    @property
    def makers(self) -> set[Identity]:
        """Those behind the call: its caller, whom that forwards it for, and whom it is made for."""
        makers = self.forwarded_for if self.caller is None else (self.caller, *self.forwarded_for)
        return {self.asked_for, *(maker.identity for maker in makers)}


class HoldAnswer(NamedTuple):
    """What somebody decided about a hold."""

    decision: str
    reason: str | None
    arguments: bytes | None
    """SHA-256 of other arguments."""
    rules: bytes | None
    """SHA-256 of the rules that were granted."""
    chunk: bytes | None
    """SHA-256 of what was answered."""


@dataclass(slots=True, eq=False, repr=False)
class CallHold:
    """A question to a person, which waits for its answer."""

    id: str
    number: int
    """Its place among the holds of the room, as this node lists them."""
    keeper: HoldKeeper
    kind: str
    """What is asked for: "approve" or "answer"; "granted" is for a rule that may be taken back."""
    tool: HeldTool
    asked_by: Identity
    """The host of the call; of an own question the participant that is about to make it."""
    asker: Connection | None
    """Its connection; None once it is settled, and at other nodes."""
    request_id: int
    """The id of the request, whose reply is the decision."""
    call: InFlightCall | None
    """The call that waits at its host, or within which the asker asks; None once it is settled."""
    is_own: bool
    """Whether it asks about a call that it makes, and not about one that it runs."""
    digest: bytes
    """SHA-256 of what is asked about, as the asker computed it; an approval repeats it."""
    body: bytes
    """What is asked, packed by the asker; empty once the hold is settled."""
    approvers: tuple[str, ...]
    """Who may settle it, as the host chose; empty for those with the grant."""
    named: frozenset[str]
    """The roles and names among these, which are compared with those of 10,000 participants."""
    opened_at: float
    ends_at: float
    """When it expires, by the loop's clock; infinity for never."""
    changed: int = 0
    """Which change of the holds of this node was its last; 0 at other nodes."""
    timer: asyncio.TimerHandle | None = None
    """Ends it, at `ends_at` or somewhat later."""
    node: str = ""
    """The id of the node that it belongs to, if that is another one: its host is there."""
    replaces: str = ""
    """The hold of an earlier attempt of the call, whose host or caller was lost."""
    stopped: list[InFlightCall] = field(default_factory=list)
    """The calls whose time it stops."""
    outcome: HoldOutcome = "open"
    by: ShownParticipant | None = None
    """Who settled it."""
    answer: HoldAnswer | None = None
    """What the settler sent: the same again by the same identity succeeds again."""
    is_changed: bool = False
    """Whether it was approved with other arguments."""
    reason: str = ""
    """Why it was denied, in the words of the settler."""
    settled_at: float = 0.0
    is_away: bool = False
    """Whether its call has ended as the caller lost its connection; it is still listed."""
    read_by: set[Identity] = field(default_factory=set)
    """Who has read its body, of those who may settle it."""

    def __repr__(self) -> str:  # short, as that of `Delegation`
        return f"CallHold({self.id!r}, {self.outcome!r})"

    @property
    def ended(self) -> bool:
        """Whether it is settled."""
        return self.outcome != "open"

    @property
    def open_connection(self) -> Connection:
        """The connection of the asker, which waits for the decision."""
        assert self.asker is not None, "it is open"
        return self.asker


class StreamDirection(Struct, eq=False):
    """One direction of one call: results to the caller, or input to the host."""

    call: InFlightCall
    sender: Connection
    sender_id: int
    """The call's id at the sender, and below at the reader."""
    reader: Connection
    reader_id: int
    window: ReceiveWindow
    """The credit that the sender has, and what arrived of it."""
    allowed_chunks: int
    """The credit that the reader gave."""
    allowed_bytes: int
    window_bytes: int
    """The sender's window in bytes, if the budget allows; doubles while the sender uses it."""
    sent_bytes: int = 0
    """Bytes that were written to the reader."""
    sent_chunks: int = 0
    outstanding_bytes: int = 0
    """This direction's share of `reader.outstanding_bytes`."""
    is_input: bool = False
    """Whether it leads to the host."""
    is_done: bool = False
    """Whether the last chunk of an input has arrived."""
    sent_credit: tuple[int, int] = (0, 0)
    """The credit that was sent to the sender last: chunks and bytes."""
    credit_is_queued: bool = False
    """Whether a credit waits in the sender's send queue; the next one is sent after it."""


class CallStreams(Struct, eq=False):
    """The streams and the progress of one call."""

    call: InFlightCall
    results: StreamDirection | None = None
    inputs: StreamDirection | None = None
    progress: bool = False
    has_progressed: bool = False
    idle_s: float = 0.0
    """How long the host may be silent; 0 for no limit."""
    owed_input_s: float = inf
    """How long the caller may be silent whose input has not ended."""
    active_at: float = 0.0
    is_waiting: bool = False
    """Whether it is one of `Connection.waiting_streams`."""

    @property
    def ended(self) -> bool:
        """Whether its call has ended."""
        return self.call.ended
