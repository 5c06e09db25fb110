"""A room in which calls may wait for a person, with neither sockets nor real time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar

import pytest

from support.parts.router_harness import RouterHarness, port_of
from toolbus import ApiScope
from toolbus.errors import RoomException
from toolbus.wire import Dispatch, Hold, Holds, RequestId, Settle
from toolbus.wire.body_steps import run_steps
from toolbus_server.calls import holds as hold_rules
from toolbus_server.calls.call_state import CallHold
from toolbus_server.calls.router import Connection
from toolbus_server.rooms.event_feed import EventFeeds
from toolbus_server.rooms.hold_requests import HoldRequests
from toolbus_server.rooms.scheduling import FairScheduler

DIGEST = b"d" * 32


class HeldRoom(RouterHarness):
    """A room in which calls may wait for a person: whoever they are made for."""

    def __init__(self) -> None:
        super().__init__()
        loop = self.clock.as_loop()
        self.feeds = EventFeeds(self.room, loop, FairScheduler(loop))
        self.requests = HoldRequests(self.room, self.feeds, self.router, loop)
        self.room_holds = self.requests.table
        self.ids = count(1_000)

    def connection(self, name: str, instance: str = "1", api: ApiScope | None = None) -> Connection:
        connection = super().connection(name, instance, api)
        connection.reads_holds = True
        return connection

    def begin(self, caller: Connection, number: int, tool: str = "t.run", **more: Any) -> int:
        """Call a tool, and return the id of the dispatch at its host."""
        self.call(caller, number, tool, **more)
        toolkit = self.room.state.resolve(caller.participant, tool.partition(".")[0], None)
        host = self.room.connections[toolkit.serving.hosts[0].id]
        dispatch = port_of(host).sent.pop()
        assert isinstance(dispatch, Dispatch)
        return int(dispatch.id)

    def hold(self, host: Connection, dispatch: int | None, **options: Any) -> CallHold:
        kind = options.pop("kind", "approve")
        digest, body = options.pop("digest", DIGEST), options.pop("body", b"\x80")
        request = Hold(RequestId(next(self.ids)), dispatch, kind, digest, body, options)
        self.requests.hold(host, request)
        listed = (*self.room_holds.open.values(), *self.room_holds.settled.values())
        return max(listed, key=lambda hold: hold.number)

    def settle(
        self, by: Connection, hold: CallHold, decision: str = "approve", **options: Any
    ) -> None:
        request = Settle(RequestId(next(self.ids)), hold.id, decision, DIGEST, options)
        self.requests.settle(by, request)

    def read(self, by: Connection, hold: CallHold) -> None:
        request = Holds(RequestId(next(self.ids)), {"hold": hold.id})
        run_steps(self.requests.holds(by, request))

    def pass_time(self, seconds: float) -> None:
        """Advance the clock in steps, so that what looks again and again does."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)

    def drain(self, host: Connection, *, is_server: bool) -> None:
        """Let the host drain, or the server."""
        if is_server:
            self.router.is_draining = True
        else:
            self.room.state.drain(host.participant)
        self.router.end_holds_at(host)

    def refusal_of_hold(self, host: Connection, dispatch: int | None, **options: Any) -> Any:
        with pytest.raises(RoomException) as refused:
            self.hold(host, dispatch, **options)
        return refused.value


R = TypeVar("R", bound=HeldRoom)


@contextmanager
def held_room(room: R) -> Iterator[R]:
    """After each test no table has an entry, no hold is open, and no timer runs."""
    yield room
    assert room.router.in_flight == 0
    room.clock.advance(hold_rules.AWAY_S)
    assert not room.room_holds.open
    assert not room.room_holds.counts
    room.clock.advance(1e6)
    assert room.clock.waiting == 0
    for connection in room.connections:
        assert not connection.asked
        assert connection.usage.held_bytes == 0
