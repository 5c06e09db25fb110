"""A router with participants, and with neither sockets nor real time."""

from __future__ import annotations

from random import Random
from typing import Any

from support.parts.manual_clock import ManualClock, RecordingPort
from support.parts.models import definition, participant
from toolbus.auth.grants import ApiScope
from toolbus.telemetry.tracing import Tracing
from toolbus.wire import Call, CallId, Failed, RequestId, pack_body
from toolbus_server.calls.router import Connection, RoutedRoom, Router
from toolbus_server.calls.telemetry import ServerTelemetry
from toolbus_server.limits import Limits
from toolbus_server.registry.room_state import RoomState

ARGUMENTS = pack_body({})


class RouterHarness:
    """A room with participants, and a router."""

    def __init__(self, limits: Limits | None = None, tracing: Tracing | None = None) -> None:
        self.clock = ManualClock()
        telemetry = ServerTelemetry(tracing)
        self.router = Router(self.clock.as_loop(), limits or Limits(), telemetry)
        self.room = RoutedRoom(RoomState("lab", Random(1)))
        self.ports: dict[str, RecordingPort] = {}
        self.connections: list[Connection] = []
        """All that ever were."""

    def connection(self, name: str, instance: str = "1", api: ApiScope | None = None) -> Connection:
        port = self.ports[f"{name}{instance}"] = RecordingPort()
        connection = Connection(participant(name, instance, api=api), port)
        self.room.state.join(connection.participant)
        self.room.connections[connection.participant.id] = connection
        self.connections.append(connection)
        return connection

    def named(self, name: str) -> Connection:
        """Return the connection of this name; make it if there is none."""
        for connection in self.room.connections.values():
            if connection.participant.identity.name == name:
                return connection
        return self.connection(name)

    def host(self, name: str, toolkit: str, instance: str = "1", **tools: Any) -> Connection:
        connection = self.connection(name, instance)
        self.room.state.register(connection.participant, definition(toolkit, **tools), public=True)
        return connection

    def call(
        self,
        caller: Connection,
        number: int,
        tool: str = "t.run",
        ms: int | None = 5_000,
        traceparent: str | None = None,
        **options: Any,
    ) -> None:
        toolkit, _, name = tool.partition(".")
        call_id = CallId(f"call-{number}")
        request = RequestId(number)
        frame = Call(request, call_id, toolkit, name, ms, ARGUMENTS, options or None, traceparent)
        self.router.call(self.room, caller, frame)

    def leave(self, connection: Connection) -> None:
        self.room.state.leave(connection.participant)
        self.router.end_calls_of(connection)
        del self.room.connections[connection.participant.id]


def port_of(connection: Connection) -> RecordingPort:
    assert isinstance(connection.port, RecordingPort)
    return connection.port


def phase(failed: Failed) -> tuple[str, str]:
    return (failed.code, failed.executed)
