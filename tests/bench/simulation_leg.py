"""One process of a simulation: many nodes, each with the server's own hub, rooms and registry.

What is left out is connections: whoever takes part has a port that swallows what it is sent. So
this tells what sharing rooms costs, and nothing of what websockets cost. Each room has
`PEOPLE` participants, each at another node, the first of whom hosts a toolkit.

Python's search for cycles stays off. It would stop all nodes of a process for as long as what they
all hold takes to be gone through, which is seconds where they are fifty on half a core: longer than
a beat may take. A node has a process to itself, and a fiftieth of that to go through.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, NamedTuple

from bench.gathering_leg import need_files
from bench.neighbours_leg import manifest
from bench.role import Where, next_line, run_role, say
from toolbus import ApiScope
from toolbus.transport import Ticket
from toolbus.wire import (
    Attributes,
    Event,
    ParticipantId,
    Register,
    RequestId,
    Subscribe,
    decode_from_server,
    pack_body,
)
from toolbus_server.administration import Administration
from toolbus_server.feed import Feed
from toolbus_server.flights import Seat
from toolbus_server.hub import Hub, OpenRoom
from toolbus_server.limits import Limits
from toolbus_server.nodes.node import Node
from toolbus_server.nodes.redis_url import pool_of
from toolbus_server.nodes.shared_room import SharedRoom
from toolbus_server.revocations import Revocations
from toolbus_server.room_view import Identity, Member
from toolbus_server.telemetry import ServerTelemetry

PEOPLE = 3
WATCHED = 25
"""Every so manieth room has somebody who is told what changes."""
PATIENCE_S = 300.0
JOIN_S = 30.0


class Place(NamedTuple):
    """One participant: which room, the how manieth there, and at which node."""

    room: int
    number: int
    node: int


def places_of(room: int, nodes: int) -> list[Place]:
    """Tell at which nodes the participants of a room are: the same for whoever asks."""
    chosen = Random(room).sample(range(nodes), PEOPLE)
    return [Place(room, number, node) for number, node in enumerate(chosen)]


class SilentPort:
    """A connection that is always open and takes everything; what it is told of is noted."""

    is_behind = False
    is_open = True

    def __init__(self, delays_ms: list[float]) -> None:
        self._delays_ms = delays_ms

    def send_message(self, data: bytes, ticket: Ticket | None = None) -> bool:
        """Note how old a pulse is that this participant is told of."""
        frame = decode_from_server(data)
        if isinstance(frame, Event):
            pulsed_s = frame.data["participant"]["attributes"].get("pulse")
            if pulsed_s is not None:
                self._delays_ms.append((time.monotonic() - pulsed_s) * 1e3)
        return True

    def offer_message(self, data: bytes, ticket: Ticket) -> bool:
        """Take it."""
        return True

    def send_bounded(self, data: bytes, ticket: Ticket) -> None:
        """Take it."""

    def gather(self) -> None:
        """Do nothing."""


class Sitter:
    """A participant without a connection."""

    def __init__(self, place: Place, delays_ms: list[float]) -> None:
        name = f"person{place.number}"
        identity = Identity("simulation", f"{name}-{place.room}")
        about = ParticipantId(f"{identity.name}-id")
        member = Member(about, identity, "user", "1", 1, ApiScope.full())
        self.seat = Seat(member, SilentPort(delays_ms))
        self.is_lost = False

    def replaced(self) -> None:
        """Never happens: everybody is another instance."""
        self.is_lost = True

    def sent_away(self) -> None:
        """Never happens: nobody administers."""
        self.is_lost = True


class SimulatedNode:
    """A node, and who is there.

    Args:
        loop: Whose clock and timers are used.
        redis: Where the Redis is.
        number: The how manieth node it is.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, redis: str, number: int) -> None:
        self._loop = loop
        self.hub = Hub(loop, Limits(), ServerTelemetry())
        administration = Administration(self.hub, Revocations(), time.time)
        self.node = Node(self.hub, pool_of(redis), administration, f"simulated-{number}")
        self.sitters: dict[Place, Sitter] = {}
        self.lease = ""
        """What it was called when it joined the others."""

    def insist_on_lease(self) -> None:
        """Raise RuntimeError where the lease had ended: its rooms are read and told anew then."""
        if self.node.me != self.lease:
            raise RuntimeError(f"{self.node.name} lost its lease: too many nodes for this machine")

    async def join(self, place: Place, delays_ms: list[float]) -> None:
        """Seat a participant, as the server does when somebody is let in."""
        room = f"room{place.room}"
        async with asyncio.timeout(JOIN_S):
            await self.node.enter(room)
        sitter = self.sitters[place] = Sitter(place, delays_ms)
        open_room = self.hub.join(room, sitter)
        if place.room % WATCHED == 0:
            feed = Feed(sitter.seat, self._loop, self.hub.rounds)
            request = Subscribe(RequestId(1), ["participants"])
            open_room.registry.subscribe(sitter.seat, feed, request)
        await _told(open_room)

    async def register(self, place: Place) -> None:
        """Let the first participant of a room host a toolkit."""
        request = Register(RequestId(2), MANIFEST, {})
        answer = self.room(place).registry.register(self.sitters[place].seat, request)
        assert not isinstance(answer, dict), "a shared room asks the others"
        await answer

    async def change(self, place: Place, attribute: str) -> None:
        """Let a participant change what it says of itself: when it did."""
        request = Attributes(RequestId(3), {attribute: time.monotonic()})
        self.room(place).people.attributes(self.sitters[place].seat, request)
        await _told(self.room(place))

    async def leave(self, place: Place) -> None:
        """Let a participant go, as fast as Redis takes it and no faster."""
        room = self.room(place)
        self.hub.leave(f"room{place.room}", self.sitters.pop(place), reserve=False)
        await _told(room)

    def room(self, place: Place) -> OpenRoom:
        """The room that a participant is in."""
        return self.hub.rooms[f"room{place.room}"]


MANIFEST = pack_body(manifest())
WHOM: dict[str, Callable[[Place], bool]] = {
    "register": lambda place: place.number == 0,
    "pulse": lambda place: place.room % WATCHED == 0,
}
"""For whom something is done, where it is not everybody."""
PULSE_S = 0.01
"""The pause after each pulse."""


class Simulation:
    """The nodes of this process, and what they are told to do.

    Args:
        where: Which nodes and rooms there are, and which of the nodes are here.
    """

    def __init__(self, where: Where) -> None:
        loop = asyncio.get_running_loop()
        numbers = range(where["first"], where["first"] + where["nodes"])
        self._nodes = {n: SimulatedNode(loop, where["redis"], n) for n in numbers}
        self._rooms = [places_of(room, where["all_nodes"]) for room in range(where["rooms"])]
        self._places = [at for places in self._rooms for at in places if at.node in numbers]
        self._hears = PEOPLE * sum(place.room % WATCHED == 0 for place in self._places)
        """How much is told here of a pulse: each who listens hears of all in its room."""
        self._delays_ms: list[float] = []
        self._doings: dict[str, Callable[[Place], Awaitable[None]]] = {
            "join": lambda at: self._nodes[at.node].join(at, self._delays_ms),
            "register": lambda at: self._nodes[at.node].register(at),
            "change": lambda at: self._nodes[at.node].change(at, "change"),
            "pulse": lambda at: self._nodes[at.node].change(at, "pulse"),
            "leave": lambda at: self._nodes[at.node].leave(at),
        }
        self._settled: dict[str, Callable[[], bool]] = {
            "join": lambda: self._all_rooms(lambda room: len(room.room.seats) == PEOPLE),
            "register": lambda: self._all_rooms(lambda room: room.room.state.toolkit_count == 1),
            "change": lambda: self._all_rooms(_has_changed),
            "pulse": lambda: len(self._delays_ms) >= self._hears,
            "leave": lambda: not any(node.hub.rooms for node in self._nodes.values()),
            "death": self._knows_no_dead,
        }
        self._dead: range = range(0)

    async def start(self) -> None:
        """Let all nodes join."""
        for node in self._nodes.values():
            await node.node.start()
        for node in self._nodes.values():
            await node.node.is_joined.wait()
            node.lease = node.node.me

    async def do(self, what: str) -> dict[str, Any]:
        """Do something for every participant here; say how many there were, and how long it took.

        Each node does it for one after the other, all nodes at the same time: so however many they
        are, as much waits at each for the same connection. A pulse changes those of watched rooms
        alone, one by one, with pauses: what that takes to be told is not a queue's length.
        """
        is_chosen = WHOM.get(what)
        chosen = [at for at in self._places if is_chosen is None or is_chosen(at)]
        rows = [chosen] if what == "pulse" else self._by_node(chosen)
        pause_s = PULSE_S if what == "pulse" else 0.0
        doing = self._doings[what]
        began_s = time.perf_counter()

        async def one_after_the_other(places: list[Place]) -> None:
            for place in places:
                self._nodes[place.node].insist_on_lease()
                await doing(place)
                await asyncio.sleep(pause_s)

        async with asyncio.TaskGroup() as tasks:
            for places in rows:
                tasks.create_task(one_after_the_other(places))
        return {"events": len(chosen), "took_s": time.perf_counter() - began_s}

    def _by_node(self, places: list[Place]) -> list[list[Place]]:
        rows: dict[int, list[Place]] = {number: [] for number in self._nodes}
        for place in places:
            rows[place.node].append(place)
        return list(rows.values())

    async def settle(self, what: str) -> dict[str, Any]:
        """Wait until everything that was done anywhere is known here; give the delays seen."""
        is_settled = self._settled[what]
        until = time.monotonic() + PATIENCE_S
        while not is_settled():
            for node in self._nodes.values():
                node.insist_on_lease()
            if time.monotonic() > until:
                raise TimeoutError(f"not everything is known here: {what}")
            await asyncio.sleep(0.2)
        return {"delays_ms": list(self._delays_ms)}

    def mourn(self, first: int, count: int) -> None:
        """Take note of which nodes have been killed."""
        self._dead = range(first, first + count)

    def _all_rooms(self, holds: Callable[[OpenRoom], bool]) -> bool:
        return all(holds(room) for node in self._nodes.values() for room in node.hub.rooms.values())

    def _knows_no_dead(self) -> bool:
        """Whether each room here has everybody but those of nodes that were killed."""
        for place in self._places:
            left = sum(other.node not in self._dead for other in self._rooms[place.room])
            if len(self._nodes[place.node].room(place).room.seats) != left:
                return False
        return True

    async def stop(self) -> None:
        """Let all nodes leave the others."""
        await asyncio.gather(*(node.node.stop() for node in self._nodes.values()))


async def _told(room: OpenRoom) -> None:
    """Wait until Redis has what was to be told of a room."""
    share = room.room.share
    assert isinstance(share, SharedRoom)
    await share.told()


def _has_changed(room: OpenRoom) -> bool:
    return all("change" in seat.member.attributes for seat in room.room.seats.values())


async def simulate(where: Where) -> None:
    """Run some nodes, and do what each line says."""
    gc.disable()
    need_files(2 * where["nodes"])
    simulation = Simulation(where)
    await simulation.start()
    say(ready=True)
    while line := await next_line():
        order = json.loads(line)
        match order:
            case {"do": str(what)}:
                say(**await simulation.do(what))
            case {"settle": str(what)}:
                say(**await simulation.settle(what))
            case {"mourn": [int(first), int(count)]}:
                simulation.mourn(first, count)
                say(**await simulation.settle("death"))
    await simulation.stop()


if __name__ == "__main__":
    run_role({"nodes": simulate})
