"""The holds of one room as nodes exchange them: each node lists those of all others.

A hold belongs to the node of its host, which publishes it when it is added and when it is settled.
After a loss, and to a node that enters the room, it sends all that it has: what that node lists
beyond them has ended. Who asks at a node that has just entered waits for that. Who decides about a
hold at another node is answered by the node of its host.

What a slow node was not sent yet is not queued. It is found among the holds that the room lists,
once that node has taken what it was sent before. So it takes no memory, and calls to that node do
not wait behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from toolbus.bounded_logging import bounded_logger
from toolbus.transport.websocket import NotifyingTicket
from toolbus_server.calls.call_state import CallHold
from toolbus_server.cluster.hold_codec import pack_hold, unpack_hold
from toolbus_server.registry.models import Participant
from toolbus_server.rooms.hub import OpenRoom

__all__ = ["HoldChannel", "HoldReplicas", "HoldShare"]

_logger = bounded_logger(__name__)
_RETRY_S = 1.0
"""After this time a node that could not be sent a hold, or has lost some, is sent them again. At
once would be too early: a node that has just ended is sent to until its lease ends."""
_LIST_S = 1.0
"""So long is waited for the lists of other nodes: a message takes milliseconds. A node that was
asked before, and of which a participant has come back, sends none."""
_SHARE_BYTES = 64 * 1024
"""Holds of one room that wait at a time until they are passed to Redis, for each node."""


class HoldShare(NamedTuple):
    """What is sent at a time: holds, and maybe the ids of all that are open, as one."""

    packed: Sequence[bytes]
    open_ids: list[str] | None
    ticket: NotifyingTicket
    """Of all its entries."""


class HoldChannel(Protocol):
    """Sends to other nodes."""

    def node_id(self) -> str:
        """Return the id of this node."""

    def send_holds(self, node: str, room: str, share: HoldShare) -> bool:
        """Send holds to another node; return False if it is unreachable or full."""


@dataclass(slots=True, eq=False)
class _Receiver:
    """Another node with participants in the room, and what it was sent."""

    participants: set[str]
    sent: int
    """The last change of a hold that it was sent."""
    lacks_ids: bool
    """Whether it may list holds as open that are not listed here any more."""
    ticket: NotifyingTicket | None = None
    """Of what waits to be passed to Redis."""
    timer: asyncio.TimerHandle | None = None
    """Tries again."""

    @property
    def waits(self) -> bool:
        return self.ticket is not None or self.timer is not None

    def restart(self) -> None:
        """Send nothing of what waits, and then everything once more."""
        if self.ticket is not None:
            self.ticket.ended = True
            self.release(self.ticket)
        self.sent, self.lacks_ids = 0, True

    def stop(self) -> None:
        """Wait for nothing any more: what is sent next is everything."""
        self.restart()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def release(self, ticket: NotifyingTicket) -> None:
        """Wait no longer: what is in flight refers to the ticket, and so must not to the room."""
        ticket.on_written = _nothing
        self.ticket = None


@dataclass(slots=True, eq=False)
class HoldReplicas:
    """Publishes the holds of this node in one room, and lists those of other nodes."""

    _open: OpenRoom
    _channel: HoldChannel
    _nodes: dict[str, _Receiver] = field(default_factory=dict)
    _listed: set[str] = field(default_factory=set)
    """The nodes that have sent all that they have."""
    _listing: asyncio.Future[None] | None = None

    @property
    def _name(self) -> str:
        return self._open.routed.state.name

    def update(self, node: str, participant: Participant) -> None:
        """Record a participant of another node that was added, changed or removed."""
        there = self._nodes.get(node)
        if not participant.is_present:
            if there is not None:
                there.participants.discard(participant.id)
                if not there.participants:
                    self._nodes.pop(node).stop()
                    self._listed.discard(node)
                    self._end_listing()
        elif there is None:
            self._nodes[node] = _Receiver({participant.id}, sent=0, lacks_ids=True)
            self._send(node)
        else:
            there.participants.add(participant.id)

    def publish(self, hold: CallHold) -> None:
        """Send a hold of this node, which was added or settled, to all other nodes."""
        packed = [pack_hold(hold, _now())]
        for node, there in self._nodes.items():
            if there.waits or there.sent < hold.changed - 1:
                self._send(node)
            elif there.sent < hold.changed:
                self._offer(node, there, packed, hold.changed, None)

    def send_all(self) -> None:
        """Send all holds of this node once more to all nodes: one may have been lost."""
        for node, there in self._nodes.items():
            there.stop()
            self._send(node)

    def resend(self, node: str) -> None:
        """Send all holds of this node once more to a node that has lost something, in a while."""
        there = self._nodes.get(node)
        if there is not None:
            there.restart()
            self._send_later(node, there)

    def _send(self, node: str) -> None:
        """Send the next changes to a node that takes them, as many as fit into a share."""
        there, table = self._nodes.get(node), self._open.hold_requests.table
        if there is None or there.waits:
            return
        there.lacks_ids |= there.sent < table.last_unlisted
        packed: list[bytes] = []
        size, reached, open_ids, now = 0, 0, None, _now()
        for hold in table.changes_after(there.sent):
            if size >= _SHARE_BYTES:
                break
            packed.append(pack_hold(hold, now))
            size += len(packed[-1])
            reached = hold.changed
        else:
            reached = table.last_change
            if there.lacks_ids:
                open_ids = [hold.id for hold in table.open.values() if not hold.node]
        if packed or open_ids is not None:
            self._offer(node, there, packed, reached, open_ids)

    def _offer(
        self,
        node: str,
        there: _Receiver,
        packed: list[bytes],
        reached: int,
        open_ids: list[str] | None,
    ) -> None:
        ticket = NotifyingTicket(partial(self._written, node))
        if self._channel.send_holds(node, self._name, HoldShare(packed, open_ids, ticket)):
            there.ticket, there.sent = ticket, reached
            there.lacks_ids = there.lacks_ids and open_ids is None
        else:
            self._send_later(node, there)

    def _written(self, node: str) -> None:
        """Go on with the next share: the last one is on its way."""
        there = self._nodes.get(node)
        if there is not None and there.ticket is not None and there.ticket.written:
            there.release(there.ticket)
            self._send(node)

    def _send_later(self, node: str, there: _Receiver) -> None:
        if there.timer is None:  # else one loss after another would put it off
            there.timer = asyncio.get_running_loop().call_later(_RETRY_S, self._retry, node)

    def _retry(self, node: str) -> None:
        self._nodes[node].timer = None
        self._send(node)

    def receive(self, node: str, packed: bytes) -> None:
        """List what another node has published."""
        hold = self.read(node, packed)
        if hold is not None:
            self._open.hold_requests.receive(hold)

    def read(self, node: str, packed: bytes) -> CallHold | None:
        """Unpack a hold of another node; None for one that cannot be read, which is logged."""
        try:
            return unpack_hold(packed, node, self._open.hold_requests, _now())
        except ValueError as error:
            _logger.error("a hold of node %s cannot be read: %s", node, error)
            return None

    def receive_open(self, node: str, ids: list[str]) -> None:
        """End what is listed of another node and is not open there any more."""
        self._open.hold_requests.close_elsewhere(node, ids)
        self._listed.add(node)
        self._end_listing()

    def listing(self) -> asyncio.Future[None] | None:
        """Return what is done once the other nodes have sent what they have; None if they have."""
        if self._listing is None and not self._nodes.keys() <= self._listed:
            loop = asyncio.get_running_loop()
            self._listing = loop.create_future()
            timer = loop.call_later(_LIST_S, self._stop_listing)
            self._listing.add_done_callback(lambda _: timer.cancel())
        return self._listing

    def _stop_listing(self) -> None:
        self._listed |= self._nodes.keys()
        self._end_listing()

    def _end_listing(self) -> None:
        if self._listing is not None and self._nodes.keys() <= self._listed:
            self._listing.set_result(None)
            self._listing = None

    def wait_data(self, hold: CallHold, *, is_entered: bool) -> dict[str, Any]:
        """Return what the node of a caller is sent with `Held`."""
        return {
            "room": self._name,
            "node": hold.node or self._channel.node_id(),
            "packed": pack_hold(hold, _now()),
            "entered": is_entered,
        }

    def forget_node(self, node: str) -> None:
        """End the holds of a node that has ended."""
        self._open.hold_requests.close_elsewhere(node)

    def disconnected(self) -> None:
        """End the holds of all other nodes: they cannot be reached any more."""
        for node in {hold.node for hold in self._open.hold_requests.table.open.values()}:
            if node:
                self._open.hold_requests.close_elsewhere(node)

    def close(self) -> None:
        """Stop: the room has been closed at this node."""
        for there in self._nodes.values():
            there.stop()
        self._nodes.clear()
        self._end_listing()


def _nothing() -> None: ...


def _now() -> float:
    return asyncio.get_running_loop().time()
