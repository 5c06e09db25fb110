"""What waits for a person at one node, as another one lists it that takes messages slowly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from itertools import count
from typing import Any

import pytest

from support.parts.manual_clock import RecordingPort
from support.parts.models import definition, participant
from support.patience import PATIENCE_S
from toolbus.errors import Unavailable
from toolbus.wire import Call, CallId, Cancel, Hold, RequestId, Settle
from toolbus_server.calls.router import Connection
from toolbus_server.calls.telemetry import ServerTelemetry
from toolbus_server.cluster import hold_replicas
from toolbus_server.cluster.hold_replicas import HoldReplicas, HoldShare
from toolbus_server.limits import Limits
from toolbus_server.rooms import hold_requests
from toolbus_server.rooms.hub import Hub

DIGEST = b"d" * 32
OTHER = "there 1"
SHARE_BYTES = 64 * 1024


class Node:
    """A room of one node, which sends its holds to another one that takes them by `take`."""

    def __init__(self, other: Node | None = None) -> None:
        self.hub = Hub(asyncio.get_running_loop(), Limits(), ServerTelemetry())
        self.open_room = self.hub.open("lab")
        self.replicas = HoldReplicas(self.open_room, self)
        self.open_room.routed.replication = self  # type: ignore[assignment]  # what holds use of it
        self.asker = Connection(participant("host"), RecordingPort())
        self.open_room.routed.connections[self.asker.participant.id] = self.asker
        self.open_room.routed.state.join(self.asker.participant)
        self.waiting: list[HoldShare] = []
        self.most_bytes = 0
        self.is_reachable = True
        self._other = other
        self._ids = count(1)
        if other is not None:
            self.replicas.update(OTHER, other.asker.participant)
            self.take()  # that there is nothing yet

    def node_id(self) -> str:
        return "here 1"

    def publish_hold(self, hold: Any) -> None:
        self.replicas.publish(hold)

    def wait_data(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}

    def send_holds(self, node: str, room: str, share: HoldShare) -> bool:
        if self.is_reachable:
            self.waiting.append(share)
        shares = [packed for packed, _, ticket in self.waiting if not ticket.ended]
        self.most_bytes = max(self.most_bytes, sum(len(hold) for share in shares for hold in share))
        return self.is_reachable

    def take(self, *, is_lost: bool = False) -> bool:
        """Pass what waits to the other node, or lose it; return whether anything waited."""
        if not self.waiting:
            return False
        packed, open_ids, ticket = self.waiting.pop(0)
        if ticket.ended:
            return True
        assert self._other is not None
        for hold in () if is_lost else packed:
            self._other.replicas.receive("here 1", hold)
        if open_ids is not None and not is_lost:
            self._other.replicas.receive_open("here 1", open_ids)
        ticket.written = True
        ticket.on_written()
        return True

    def ask(self, body: bytes = b"\x80", kind: str = "approve") -> int:
        """Ask about a call of its own, or list a rule, and return the id of the request."""
        number = next(self._ids)
        options = {"tool": "t.run", "public": True, "local": True}
        request = Hold(RequestId(number), None, kind, DIGEST, body, options)
        self.open_room.hold_requests.hold(self.asker, request)
        return number

    def withdraw(self, number: int) -> None:
        self.hub.router.cancel(self.asker, Cancel(RequestId(number), "cancelled"))

    def outcomes(self) -> list[str]:
        return [hold.outcome for hold in self.open_room.hold_requests.table.settled.values()]

    def listed(self) -> dict[str, str]:
        table = self.open_room.hold_requests.table
        return {hold.id: hold.kind for hold in table.open.values()}


async def test_late_acknowledgement_counts_for_no_later_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """HOLD-14: the node of the caller does not know yet that the second one is approved."""
    monkeypatch.setattr(hold_requests, "_ACKNOWLEDGED_S", 0.01)
    here = Node()
    state, requests = here.open_room.routed.state, here.open_room.hold_requests
    state.register(here.asker.participant, definition("t"), public=True)
    caller = Connection(participant("ann"), RecordingPort(), reads_holds=True)
    state.join(caller.participant)
    caller.participant.is_remote = True
    frame = Call(RequestId(1), CallId("a"), "t", "run", 5_000, b"\x80", None, None)
    here.hub.router.call(here.open_room.routed, caller, frame)
    call = caller.calls[1]

    def ask_and_approve(number: int) -> tuple[str, Awaitable[dict[str, Any]]]:
        hold = Hold(RequestId(number), call.dispatch_id, "approve", DIGEST, b"\x80", {})
        requests.hold(here.asker, hold)
        (id,) = requests.table.open
        settled = requests.settle(caller, Settle(RequestId(2), id, "approve", DIGEST, {}))
        assert isinstance(settled, Awaitable)
        return id, settled

    first, reply = ask_and_approve(1)
    with pytest.raises(Unavailable):
        await reply
    monkeypatch.setattr(hold_requests, "_ACKNOWLEDGED_S", 60)
    second, reply = ask_and_approve(2)
    executed = []
    for acknowledged in (first, second, second):
        requests.enter(call, acknowledged)
        executed.append(call.executed)
    assert await reply == {"outcome": "approved"}
    assert executed == ["no", "maybe", "maybe"]


async def test_slow_node_is_sent_what_is_listed_and_not_what_was() -> None:
    there = Node()
    here = Node(there)
    for _ in range(5_000):
        here.withdraw(here.ask())
    here.ask()
    assert here.most_bytes < SHARE_BYTES
    while here.take():
        pass
    assert there.listed() == here.listed()
    assert len(there.listed()) == 1


async def test_what_fits_no_queue_is_sent_in_shares() -> None:
    """Rules of one host take 16 MiB: more than may wait for a node."""
    there = Node()
    here = Node(there)
    here.open_room.routed.state.register(here.asker.participant, definition("t"), public=True)
    for _ in range(1_000):
        here.ask(b"\xc4" * 16 * 1024, "granted")
    while here.take():
        pass
    assert here.most_bytes < 2 * SHARE_BYTES
    assert there.listed() == here.listed()


async def test_outcome_is_known_again_after_its_node_was_away() -> None:
    there = Node()
    here = Node(there)
    number = here.ask()
    here.take()
    there.replicas.disconnected()
    assert there.outcomes() == ["lost"]
    here.withdraw(number)
    while here.take():
        pass
    assert there.outcomes() == ["cancelled"]


async def test_rule_that_ends_unseen_is_listed_no_more() -> None:
    there = Node()
    here = Node(there)
    here.open_room.routed.state.register(here.asker.participant, definition("t"), public=True)
    rule = here.ask(kind="granted")
    assert here.take()
    here.ask()  # waits until the other node takes it
    here.withdraw(rule)
    while here.take():
        pass
    assert list(there.listed().values()) == ["approve"]


@pytest.mark.parametrize("is_reachable", [True, False])
async def test_what_was_lost_is_sent_once_more_but_not_at_once(
    monkeypatch: pytest.MonkeyPatch, *, is_reachable: bool
) -> None:
    """To a node that has just ended all is lost at once, again and again."""
    there = Node()
    here = Node(there)
    here.ask()
    here.take(is_lost=True)
    here.is_reachable = is_reachable
    monkeypatch.setattr(hold_replicas, "_RETRY_S", 0.0)
    for _ in range(3):
        here.replicas.resend(OTHER)
        assert not here.take()
    assert there.listed() == {}
    here.is_reachable = True
    while there.listed() != here.listed():
        await asyncio.sleep(0)
        here.take()


async def test_one_loss_after_another_puts_nothing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Node()
    here = Node(there)
    here.ask()
    monkeypatch.setattr(hold_replicas, "_RETRY_S", 0.05)
    async with asyncio.timeout(PATIENCE_S):
        while there.listed() != here.listed():
            here.replicas.resend(OTHER)
            await asyncio.sleep(0)
            here.take()
