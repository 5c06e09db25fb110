"""One other node, as seen from this one: messages in both directions, and the calls between them.

The connection of a remote participant has a `RemotePort`. To the router it is a connection like
any other: a frame written to it travels unchanged, and the participant's node passes it to its own
router. A frame that is lost ends the call that it belongs to, and no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Protocol, TypeAlias

import msgspec

from toolbus.auth.grants import ApiScope
from toolbus.bounded_logging import bounded_logger
from toolbus.errors import Executed, Overloaded, RoomException, StreamBroken, Unavailable
from toolbus.transport.websocket import NotifyingTicket, Ticket
from toolbus.wire import (
    DEFAULT_APPROVAL_MS,
    AssessDispatch,
    Cancel,
    Credit,
    Dispatch,
    Failed,
    Held,
    Holds,
    Input,
    ParticipantId,
    Progress,
    RequestId,
    Result,
    Resumed,
    Settle,
    decode_from_server,
    encode,
    exception_of,
    failed,
    unpack_body,
)
from toolbus_server.calls.call_state import Connection, InFlightCall
from toolbus_server.calls.call_statistics import NodeCallReport
from toolbus_server.calls.holds import calls_around
from toolbus_server.calls.router import FRAME_HANDLERS, Router
from toolbus_server.cluster.hold_replicas import HoldShare
from toolbus_server.cluster.peer_link import Batch, Entry, PeerLink, SentBatch
from toolbus_server.cluster.redis.client import RedisClient, RedisUnavailable, safe_message
from toolbus_server.registry.models import Identity, Participant

__all__ = [
    "ADMIN_ACTION",
    "CALL_REPORT",
    "DISPATCH",
    "FRAME",
    "HOLD",
    "HOLD_REQUEST",
    "MESSAGE",
    "OPEN_HOLDS",
    "RESULT_LOST",
    "Peer",
    "RelayedCall",
    "inbox_of",
]

_logger = bounded_logger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
DISPATCH, FRAME, MESSAGE, ADMIN_ACTION, RESULT_LOST, CALL_REPORT = 1, 2, 3, 4, 5, 6
HOLD, OPEN_HOLDS, HOLD_REQUEST, HOLD_REPLY, RESUMED = 7, 8, 9, 10, 11
"""The kinds of entries; a dispatch and a frame end with a packed frame.

`RESULT_LOST` has the id of a dispatch whose result was lost, and the result's `executed`. A lost
`CALL_REPORT` is replaced by the next one. `HOLD` is what a node lists as waiting for a person, or
that it was settled; `OPEN_HOLDS` has the ids of all that are open: after a loss all are sent again.
`RESUMED` has the id of a call in flight, and of the hold whose approval its node has read.
"""
_OF_ROOMS = frozenset({MESSAGE, ADMIN_ACTION, CALL_REPORT, HOLD, OPEN_HOLDS, HOLD_REQUEST})
_REPLACED_IF_LOST = frozenset({MESSAGE, CALL_REPORT, HOLD, OPEN_HOLDS})
_REPLY_S = 10.0
"""How long another node has to answer: it may itself wait 5 s for the node of a caller."""
_MAX_WAITING_BYTES = 8 * 1024 * 1024
"""Bytes that may wait for one node; with more, calls to it are `overloaded`."""
_DISPATCH_BITS = 28
"""Bits of a dispatch id that count within one connection; the bits above number connections."""
_ACK_DELAY_S = 0.005
_BATCH_DELAY_S = 0.002
"""Seconds that entries wait for a larger batch, while the last batch is on its way."""
HoldOptions: TypeAlias = tuple[str, float]
"""The purpose of a call, and how many seconds it may wait for a person."""
RelayedCall: TypeAlias = tuple[
    str, str, str, str | None, int, bool, HoldOptions | None, Dispatch | AssessDispatch
]
"""Room, host, caller, principal, depth, whether the principal was named, how it may wait for a
person if that is not as usual, and the call."""


class PeerOwner(Protocol):
    """The node that peers belong to."""

    node_id: str
    sessions: Iterator[int]
    """Numbers for sessions with other nodes."""

    def has_lease(self) -> bool:
        """Whether this node is connected to Redis, and its lease has not expired."""

    def relay(self, peer: Peer, call: RelayedCall) -> None:
        """Accept a call of a remote participant to a host here. Raises an error of the call."""

    def on_entry(self, node: str, entry: list[Any]) -> None:
        """Handle an entry of another node that belongs to no call between the two."""

    def on_held(self, call: InFlightCall, data: dict[str, Any]) -> None:
        """Let a call stand still, as its node, or one behind it, waits for a person."""

    def resend_reports(self, node: str) -> None:
        """Report calls and holds again, as a report to this node may have been lost."""

    def window(self) -> int:
        """Return how many bytes may be in flight to one node."""


def inbox_of(node_id: str) -> str:
    """Return the Redis channel that a node receives from."""
    return f"toolbus:inbox:{node_id}"


class Peer:
    """One other node."""

    def __init__(self, node_id: str, redis: RedisClient, router: Router, owner: PeerOwner) -> None:
        self.node_id = node_id
        self._redis = redis
        self._router = router
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._link = PeerLink(owner.node_id, owner.sessions, self._publish, owner.window)
        self._connections = 0
        self._pump_is_scheduled = False
        self._is_closed = False
        self._batches_in_transit = 0
        self._sent_at = 0.0
        self._last_error = ""
        self._pump_timer: asyncio.TimerHandle | None = None
        self._ack_timer: asyncio.TimerHandle | None = None
        self._questions: dict[int, asyncio.Future[dict[str, Any]]] = {}
        """The requests to that node that it has not answered, by number."""
        self._last_question = 0
        node = Participant(ParticipantId(node_id), Identity("", node_id), "node", "", 1, ApiScope())
        self._connection = Connection(node, RemotePort(self, "", node_id))
        """Caller of all calls from there, and host of all dispatches to there."""

    def remote_connection(
        self, room: str, participant: Participant, *, reads_chunks: bool
    ) -> Connection:
        """Create the connection of a participant at that node."""
        self._connections += 1
        return Connection(
            participant,
            RemotePort(self, room, participant.id),
            calls=self._connection.calls,
            dispatched=self._connection.dispatched,
            last_dispatch=self._connections << _DISPATCH_BITS,
            reads_chunks=reads_chunks,
            reads_holds=True,  # its node decides whom it informs
        )

    # Sending

    @property
    def is_behind(self) -> bool:
        """Whether the window is full, so that new entries wait."""
        return self._link.is_behind

    @property
    def is_full(self) -> bool:
        """Whether too much waits for another call to be added."""
        return self._link.waiting_bytes > _MAX_WAITING_BYTES

    @property
    def is_unreachable(self) -> bool:
        """Whether nothing can be sent to that node now."""
        return self._is_closed or not self._owner.has_lease()

    def send_dispatch(self, room: str, host: str, data: bytes, call: InFlightCall) -> None:
        """Send a call to a host at that node."""
        principal = None if call.principal is None else call.principal.id
        caller, is_named = call.caller.participant.id, call.is_named
        entry = (DISPATCH, room, host, caller, principal, call.hops, is_named)
        self._put(Entry(_encode((*entry, _hold_options(call), data)), call))

    def send_message(self, room: str, to: str | None, message: dict[str, Any]) -> None:
        """Send a message to participants there; dropped if unreachable or full."""
        if not self.is_unreachable and not self.is_full:
            self._put(Entry(_encode((MESSAGE, room, to, message))))

    def send_report(self, room: str, report: NodeCallReport) -> bool:
        """Send a report of calls; return False if the node is unreachable or full."""
        if self.is_unreachable or self.is_full:
            return False
        self._put(Entry(_encode((CALL_REPORT, room, report))))
        return True

    def send_holds(self, room: str, share: HoldShare) -> bool:
        """Send holds; return False if the node is unreachable or full."""
        if self.is_unreachable or self.is_full:
            return False
        for hold in share.packed:
            self._put(Entry(_encode((HOLD, room, hold)), share.ticket))
        if share.open_ids is not None:
            self._put(Entry(_encode((OPEN_HOLDS, room, share.open_ids)), share.ticket))
        return True

    async def ask(self, room: str, participant: str, request: Holds | Settle) -> dict[str, Any]:
        """Pass a request of a participant about a hold to that node, and return its reply.

        Raises:
            Unavailable: It does not answer.
            Overloaded: Too much waits for it.
            RoomException: As it answers.
        """
        self._last_question += 1
        number = self._last_question
        if self.is_unreachable:
            raise _no_answer_error("no")
        if self.is_full:
            raise Overloaded("too much waits for the server of the host", executed="no")
        self._put(Entry(_encode((HOLD_REQUEST, room, participant, number, encode(request)))))
        answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._questions[number] = answer
        try:
            async with asyncio.timeout(_REPLY_S):
                return await answer
        except (TimeoutError, ConnectionResetError):
            # It may have let the call run before its reply was lost.
            executed: Executed = "maybe" if isinstance(request, Settle) else "no"
            raise _no_answer_error(executed) from None
        finally:
            del self._questions[number]

    def send_reply(self, number: int, reply: Result | Failed) -> None:
        """Answer a request of that node."""
        if not self.is_unreachable:
            self._put(Entry(_encode((HOLD_REPLY, number, encode(reply)))))

    def _on_reply(self, number: int, data: bytes) -> None:
        answer = self._questions.get(number)
        if answer is None or answer.done():
            return  # it came too late
        frame = decode_from_server(data)
        if isinstance(frame, Result):
            answer.set_result(unpack_body(frame.body, binary=True))
        elif isinstance(frame, Failed):
            answer.set_exception(exception_of(frame))

    def send_admin_action(self, action: str, options: dict[str, Any]) -> None:
        """Send an administrator's action."""
        self._put(Entry(_encode((ADMIN_ACTION, action, options))))

    def send_frame(self, data: bytes, ticket: Ticket | None = None) -> bool:
        """Send a frame of a call between the two nodes; return False if unreachable."""
        if self.is_unreachable:
            return False
        self._put(Entry(_encode((FRAME, data)), ticket))
        return True

    def _put(self, entry: Entry) -> None:
        self._link.put(entry)
        if not self._pump_is_scheduled:
            self._pump_is_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Send waiting entries; while a batch is in transit they wait for the next batch."""
        self._pump_is_scheduled = False
        while self._link.waiting_bytes and not self.is_unreachable:
            left_s = self._sent_at + _BATCH_DELAY_S - self._loop.time()
            if self._batches_in_transit and left_s > 0:
                if self._pump_timer is None:
                    self._pump_timer = self._loop.call_later(left_s, self._pump_later)
                return
            if not self._link.send():
                return

    def _pump_later(self) -> None:
        self._pump_timer = None
        self._pump()

    def _publish(self, sent: SentBatch | None, data: bytes) -> bool:
        if self.is_unreachable:
            return False
        try:
            answer = self._redis.command("PUBLISH", inbox_of(self.node_id), data)
        except RedisUnavailable:
            return False
        if sent is not None:
            self._batches_in_transit += 1
            self._sent_at = self._loop.time()
        answer.add_done_callback(partial(self._published, sent))
        return True

    def _published(self, sent: SentBatch | None, answer: asyncio.Future[Any]) -> None:
        if sent is not None:
            self._batches_in_transit -= 1
        error = answer.exception()
        if isinstance(error, RedisUnavailable):
            return  # all that was in flight has ended
        message = "" if error is None else safe_message(error)
        if message and message != self._last_error:
            _logger.error("Redis refused a message to node %s: %s", self.node_id, message)
        self._last_error = message
        if error is not None or answer.result() == 0:
            self._on_lost(self._link.undelivered(sent), can_send=False)
            self._owner.resend_reports(self.node_id)
        self._pump()

    def probe(self) -> None:
        """Ask for the session of that node, and what it received, if either is in doubt."""
        probe = self._link.probe()
        if probe is not None:
            self._publish(None, probe)

    # Receiving

    def on_batch(self, batch: Batch, size: int) -> None:
        """Handle a batch of that node. Raises nothing."""
        received = self._link.receive(batch, size)
        if received.was_reset:
            for entry in received.lost:  # it had not read them: calls end as if never sent
                if isinstance(entry.ticket, InFlightCall):
                    entry.ticket.written = False
            self._end_calls("peer session was reset")
        else:
            self._on_lost(received.lost, can_send=True)
        if received.was_reset or received.lost:
            self._owner.resend_reports(self.node_id)
        for data in received.entries:
            try:
                self._on_entry(_decode(data))
            except Exception:  # of one entry, which affects no other
                _logger.exception("a message of node %s failed with a bug", self.node_id)
        self._pump()
        if self._link.ack_due:
            self._send_ack()
        elif self._ack_timer is None:
            self._ack_timer = self._loop.call_later(_ACK_DELAY_S, self._send_ack_later)

    def _send_ack_later(self) -> None:
        self._ack_timer = None
        self._send_ack()

    def _send_ack(self) -> None:
        ack = self._link.ack()
        if ack is not None:
            self._publish(None, ack)

    def _on_entry(self, entry: list[Any]) -> None:
        if entry[0] in _OF_ROOMS:
            self._owner.on_entry(self.node_id, entry)
            return
        if entry[0] == RESULT_LOST:
            self._on_result_lost(*entry[1:])
            return
        if entry[0] == HOLD_REPLY:
            self._on_reply(*entry[1:])
            return
        if entry[0] == RESUMED:
            self._on_resumed(*entry[1:])
            return
        frame = decode_from_server(entry[-1])
        if isinstance(frame, Held | Resumed):
            self._on_wait(frame)
            return
        if not isinstance(frame, Dispatch | AssessDispatch):
            FRAME_HANDLERS[type(frame)](self._router, self._connection, frame)
            return
        room, host, caller, principal, hops = entry[1:6]
        is_named, waits = entry[6:8]
        call = (room, host, caller, principal, hops, is_named, waits, frame)
        try:
            self._owner.relay(self, call)
        except RoomException as error:
            self.send_frame(encode(failed(frame.id, error)))

    def _on_wait(self, frame: Held | Resumed) -> None:
        """Let a call of this node to a host of that one stand still, or go on."""
        call = self._connection.dispatched.get(frame.id)
        if call is None:
            return  # it has ended meanwhile
        if isinstance(frame, Held):
            self._owner.on_held(call, frame.data)
        elif call.wait is not None:
            call.wait.keeper.resumed_elsewhere(call, frame.data)
            # Not the batch is acknowledged: the call may have ended here before it was read.
            if frame.data["outcome"] == "approved":
                self._put(Entry(_encode((RESUMED, frame.id, frame.data["hold"]))))

    def _on_resumed(self, request_id: int, hold: str) -> None:
        """Pass an approval on to the host: the node of the caller says "maybe" from now on."""
        call = self._connection.calls.get(request_id)
        if call is not None and call.wait is not None:
            call.wait.keeper.enter(call, hold)

    # Failures

    def _end_calls(self, reason: str) -> None:
        """End all calls between the two nodes, by phase, without a message to the other node."""
        self._is_closed = True
        for answer in self._questions.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError())
        try:
            self._router.fail_hosted_calls(self._connection, reason)
            self._router.end_calls_at_once(self._connection)
        finally:
            self._is_closed = False

    def on_disconnected(self) -> None:
        """End all calls between the two nodes: this node lost its connection to Redis."""
        self._link.reset()
        self._end_calls("the other server cannot be reached")

    def on_ended(self) -> None:
        """End all calls between the two nodes: the other node has ended."""
        self._is_closed = True
        self._link.reset()
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        self._router.end_calls_of(self._connection)

    # Entries that were lost: each ends its call, at once and by phase. Nothing of a call is sent a
    # second time, except the message that it has to end.

    def _on_lost(self, entries: Iterable[Entry], *, can_send: bool) -> None:
        """Handle entries that were lost.

        Without a subscriber nothing can be sent: that node has ended, or ends its own calls.
        """
        for entry in entries:
            kind, *_, last = _decode(entry.data)
            frame: Any = None
            if kind in (DISPATCH, FRAME):
                frame = decode_from_server(last)
                if not isinstance(frame, Cancel | Result | Failed):
                    self._end_call_of(frame)
                    continue
            if not can_send:
                continue
            if isinstance(frame, Result | Failed):
                executed = "yes" if isinstance(frame, Result) else exception_of(frame).executed
                self._put(Entry(_encode((RESULT_LOST, frame.id, executed))))
            elif kind not in _REPLACED_IF_LOST:
                self._put(entry)

    def _on_result_lost(self, dispatch_id: int, executed: Executed) -> None:
        """End a call whose result was lost on the way to this node."""
        call = self._connection.dispatched.get(dispatch_id)
        if call is not None:
            error = Unavailable(
                "the result was lost between two servers",
                executed=executed,
                retryable=executed == "no" or call.tool.idempotent,
                details={"digest": call.definition.digest},
            )
            self._router.answer(self._connection, failed(RequestId(dispatch_id), error))

    def _end_call_of(self, frame: Any) -> None:
        match frame:
            case Progress():
                return  # only the latest counts, and nothing waits for it
            case Dispatch() | AssessDispatch() | Input() | Credit(of_input=False):
                call = self._connection.dispatched.get(frame.id)
            case _:
                call = self._connection.calls.get(frame.id)
        if call is None:
            return
        if isinstance(frame, Dispatch | AssessDispatch):
            call.written = False
            error = Unavailable("the host's server could not be reached")
            self._router.abort(call, error, "lost")
        else:
            broken = StreamBroken("a part was lost between two servers")
            self._router.abort(call, broken, "broken")


def _hold_options(call: InFlightCall) -> HoldOptions | None:
    """Return how a call may wait for a person, if that is not as usual."""
    approval_s = min(around.approval_s for around in calls_around(call))
    if not call.purpose and approval_s == DEFAULT_APPROVAL_MS / 1000:
        return None
    return call.purpose, approval_s


def _no_answer_error(executed: Executed) -> Unavailable:
    return Unavailable("the server of the host does not answer", executed=executed)


class RemotePort:
    """The port of a participant that is connected to another node."""

    __slots__ = ("_participant", "_peer", "_room")

    def __init__(self, peer: Peer, room: str, participant: str) -> None:
        self._peer = peer
        self._room = room
        self._participant = participant

    def send_message(self, data: bytes, ticket: Ticket | None = None) -> bool:
        """Send a message that cannot be refused; return False if its node is unreachable."""
        return self._peer.send_frame(data, ticket)

    def offer_message(self, data: bytes, ticket: Ticket) -> bool:
        """Send a call to be run; return False if its node is unreachable or too much waits."""
        if self._peer.is_unreachable or self._peer.is_full:
            return False
        assert isinstance(ticket, InFlightCall), "only calls are offered to a host"
        self._peer.send_dispatch(self._room, self._participant, data, ticket)
        return True

    def send_bounded(self, data: bytes, ticket: NotifyingTicket) -> None:
        """Send a message for which its sender was given credit."""
        self._peer.send_frame(data, ticket)

    def may_wait(self, size: int) -> bool:
        """Return True: the node of the participant decides."""
        return True

    def gather(self) -> None:
        """Do nothing: entries of one event-loop iteration are sent together anyway."""

    @property
    def is_behind(self) -> bool:
        """Whether the window is full, so that new messages wait."""
        return self._peer.is_behind

    @property
    def is_open(self) -> bool:
        """Whether its node can be reached now."""
        return not self._peer.is_unreachable
