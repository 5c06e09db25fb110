"""The holds of one room as nodes exchange them: each node lists those of all others.

A hold belongs to the node of its host, which publishes it when it is added and when it is settled.
After a loss, and to a node that enters the room, it sends all that it has: what that node lists
beyond them has ended. Who decides about a hold at another node is answered by the node of its host.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Protocol

from toolbus.bounded_logging import bounded_logger
from toolbus_server.calls.call_state import CallHold
from toolbus_server.cluster.hold_codec import pack_hold, unpack_hold
from toolbus_server.registry.models import Participant
from toolbus_server.rooms.hub import OpenRoom

__all__ = ["HoldChannel", "HoldReplicas"]

_logger = bounded_logger(__name__)
_RETRY_S = 1.0
"""After this time a node that could not be sent a hold is sent all of them."""


class HoldChannel(Protocol):
    """Sends to other nodes."""

    def node_id(self) -> str:
        """Return the id of this node."""

    def send_hold(self, node: str, room: str, packed: bytes) -> bool:
        """Send a hold; return False if the node is unreachable or full."""

    def send_open_holds(self, node: str, room: str, ids: list[str]) -> bool:
        """Send the ids of all open holds; return False if the node is unreachable or full."""


@dataclass(slots=True, eq=False)
class HoldReplicas:
    """Publishes the holds of this node in one room, and lists those of other nodes."""

    _open: OpenRoom
    _channel: HoldChannel
    _nodes: dict[str, set[str]] = field(default_factory=dict)
    """The ids of the participants at each other node."""
    _retries: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    """The nodes that have to be sent all holds again."""

    @property
    def _name(self) -> str:
        return self._open.routed.state.name

    def update(self, node: str, participant: Participant) -> None:
        """Record a participant of another node that was added, changed or removed."""
        there = self._nodes.get(node)
        if not participant.is_present:
            if there is not None:
                there.discard(participant.id)
                if not there:
                    self._forget(node)
        elif there is None:
            self._nodes[node] = {participant.id}
            if any(not hold.node for hold in self._open.hold_requests.table.open.values()):
                self.send_all(node)
        else:
            there.add(participant.id)

    def _forget(self, node: str) -> None:
        del self._nodes[node]
        if (timer := self._retries.pop(node, None)) is not None:
            timer.cancel()

    def publish(self, hold: CallHold) -> None:
        """Send a hold of this node, which was added or settled, to all other nodes."""
        packed = pack_hold(hold, _now())
        for node in self._nodes:
            if node not in self._retries and not self._channel.send_hold(node, self._name, packed):
                self.send_later(node)

    def send_all(self, node: str | None = None) -> None:
        """Send all holds of this node once more to a node, or to all: one may have been lost."""
        for other in [node] if node in self._nodes else [] if node else list(self._nodes):
            self._send_all(other)

    def _send_all(self, node: str) -> None:
        table, now = self._open.hold_requests.table, _now()
        own = [hold for hold in (*table.settled.values(), *table.open.values()) if not hold.node]
        if (timer := self._retries.pop(node, None)) is not None:
            timer.cancel()
        ids = [hold.id for hold in own if not hold.ended]
        is_sent = all(
            self._channel.send_hold(node, self._name, pack_hold(hold, now)) for hold in own
        )
        if not (is_sent and self._channel.send_open_holds(node, self._name, ids)):
            self.send_later(node)

    def send_later(self, node: str) -> None:
        """Send all holds of this node to another node after a pause."""
        if node in self._nodes and node not in self._retries:
            later = asyncio.get_running_loop().call_later
            self._retries[node] = later(_RETRY_S, self._send_all, node)

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
        for timer in self._retries.values():
            timer.cancel()
        self._retries.clear()
        self._nodes.clear()


def _now() -> float:
    return asyncio.get_running_loop().time()
