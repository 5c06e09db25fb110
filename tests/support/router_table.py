"""A router with people around it, and neither sockets nor time of its own."""

from __future__ import annotations

from random import Random
from typing import Any

from support.facts import definition, member
from support.still_clock import Notebook, StillClock
from toolbus.grants import ApiScope
from toolbus.wire import Call, CallId, Failed, RequestId, pack_body
from toolbus_server.limits import Limits
from toolbus_server.room_state import RoomState
from toolbus_server.routing import Room, Router, Seat
from toolbus_server.telemetry import ServerTelemetry

ARGUMENTS = pack_body({})


class Table:
    """A room with people in it, and a router."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.clock = StillClock()
        self.router = Router(self.clock.as_loop(), limits or Limits(), ServerTelemetry())
        self.room = Room(RoomState("lab", Random(1)))
        self.ports: dict[str, Notebook] = {}
        self.seats: list[Seat] = []
        """All that ever were."""

    def seat(self, name: str, instance: str = "1", api: ApiScope | None = None) -> Seat:
        port = self.ports[f"{name}{instance}"] = Notebook()
        seat = Seat(member(name, instance, api=api), port)
        self.room.state.join(seat.member)
        self.room.seats[seat.member.id] = seat
        self.seats.append(seat)
        return seat

    def named(self, name: str) -> Seat:
        """The seat of this name, taken now if it is free."""
        for seat in self.room.seats.values():
            if seat.member.identity.name == name:
                return seat
        return self.seat(name)

    def host(self, name: str, toolkit: str, instance: str = "1", **tools: Any) -> Seat:
        seat = self.seat(name, instance)
        self.room.state.register(seat.member, definition(toolkit, **tools), public=True)
        return seat

    def call(
        self, caller: Seat, number: int, tool: str = "t.run", ms: int | None = 5_000, **options: Any
    ) -> None:
        toolkit, _, name = tool.partition(".")
        call_id = CallId(f"call-{number}")
        request = RequestId(number)
        frame = Call(request, call_id, toolkit, name, ms, ARGUMENTS, options or None)
        self.router.call(self.room, caller, frame)

    def leave(self, seat: Seat) -> None:
        self.room.state.leave(seat.member)
        self.router.depart(seat)
        del self.room.seats[seat.member.id]


def port_of(seat: Seat) -> Notebook:
    assert isinstance(seat.port, Notebook)
    return seat.port


def phase(failed: Failed) -> tuple[str, str]:
    return (failed.code, failed.executed)
