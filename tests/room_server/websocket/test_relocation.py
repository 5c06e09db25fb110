"""Which participants of an isolated node are asked to move, in which order and how often."""

from __future__ import annotations

import asyncio

import pytest

from support.parts.manual_clock import RecordingPort
from support.parts.models import definition, participant
from support.parts.virtual_clock import on_virtual_clock
from toolbus.wire import Notice
from toolbus_server.calls.call_state import Connection
from toolbus_server.calls.telemetry import ServerTelemetry
from toolbus_server.limits import Limits
from toolbus_server.rooms.hub import Hub
from toolbus_server.websocket.leaving import Relocation


class Session:
    """A session of a participant whose port records when the notices were sent."""

    def __init__(self, name: str) -> None:
        self.port = TimedPort()
        self.connection = Connection(participant(name), self.port)

    def replaced(self) -> None:
        """No test has a second connection."""

    def evict(self) -> None:
        """No test has an administrator."""


class TimedPort(RecordingPort):
    """A port that notes the time of each message."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def send_message(self, data: bytes, ticket: object = None) -> bool:
        self.times.append(asyncio.get_running_loop().time())
        return super().send_message(data)


def hub_with(sessions: list[Session], hosts: set[int]) -> Hub:
    """Return a hub with these participants in one room; some of them host a toolkit."""
    hub = Hub(asyncio.get_running_loop(), Limits(), ServerTelemetry(None))
    for number, session in enumerate(sessions):
        room = hub.join("lab", session)
        if number in hosts:
            state, host = room.routed.state, session.connection.participant
            state.register(host, definition(f"kit{number}"), public=True)
    return hub


@pytest.mark.parametrize(("count", "at_once"), [(5, 1), (100, 10), (1_000, 50)])
def test_hosts_are_asked_first_and_never_more_than_fifty_at_once(count: int, at_once: int) -> None:
    async def scenario() -> None:
        hosts = set(range(0, count, 10))
        sessions = [Session(f"p{number}") for number in range(count)]
        relocation = Relocation(hub_with(sessions, hosts))
        relocation.set_active(True)
        await asyncio.sleep(2.5)  # on the virtual clock
        relocation.set_active(False)
        times = [session.port.times for session in sessions]
        assert all(session.port.sent == [Notice("move", {})] for session in sessions)
        asked_at = sorted(time for (time,) in times)
        assert max(asked_at.count(time) for time in set(asked_at)) == at_once
        assert max(times[number][0] for number in hosts) < min(
            times[number][0] for number in range(count) if number not in hosts
        )

    on_virtual_clock(scenario())


def test_participants_that_stay_are_asked_again_until_the_node_has_redis() -> None:
    """LEAVE-11: those that drain this connection have moved."""

    async def scenario() -> None:
        stays, moves = sessions = [Session("stays"), Session("moves")]
        relocation = Relocation(hub_with(sessions, set()))
        relocation.set_active(False)
        relocation.set_active(True)
        await asyncio.sleep(1)
        moves.connection.participant.is_draining = True
        await asyncio.sleep(3)
        assert (len(stays.port.sent), len(moves.port.sent)) == (2, 1)
        relocation.set_active(False)
        await asyncio.sleep(60)
        assert len(stays.port.sent) == 2
        relocation.set_active(True)
        await asyncio.sleep(1)
        assert len(stays.port.sent) == 3
        relocation.set_active(False)

    on_virtual_clock(scenario())
