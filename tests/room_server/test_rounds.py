"""When much is to be told at once: everybody is told all of it, and no call waits for that."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from itertools import count
from random import Random
from time import thread_time
from typing import Any

import pytest

from support.facts import member, scope
from support.wire_talk import offer, toolkit_of
from toolbus.grants import ApiScope
from toolbus.transport import Ticket
from toolbus.wire import (
    Attributes,
    Call,
    CallId,
    Dispatch,
    Event,
    RequestId,
    Result,
    Subscribe,
    decode_from_server,
)
from toolbus_server import feed, rounds
from toolbus_server.hub import Hub, OpenRoom
from toolbus_server.limits import Limits
from toolbus_server.routing import Seat
from toolbus_server.telemetry import ServerTelemetry

HOSTS, WATCHERS = 1_000, 100
# Of the loop's time; telling all of them of all hosts in one turn takes ten times as long.
MOST_S = 0.1


class Guest:
    """A participant whose connection only writes down."""

    def __init__(self, name: str, instance: str, api: ApiScope | None) -> None:
        self.seat = Seat(member(name, instance, api=api), self)
        self.sent: list[bytes] = []
        self.told = asyncio.Event()

    def send_message(self, data: bytes, ticket: Ticket | None = None) -> bool:
        self.sent.append(data)
        self.told.set()
        return True

    @property
    def is_open(self) -> bool:
        return True

    def offer_message(self, data: bytes, ticket: Ticket) -> bool:
        return self.send_message(data, ticket)

    def send_bounded(self, data: bytes, ticket: Ticket) -> None:
        self.send_message(data, ticket)

    is_behind = False

    def gather(self) -> None: ...

    def replaced(self) -> None: ...

    def sent_away(self) -> None: ...

    @property
    def events(self) -> list[Event]:
        """All that it was told, which is numbered from 1 on."""
        told = [frame for frame in map(decode_from_server, self.sent) if isinstance(frame, Event)]
        assert [event.number for event in told] == list(range(1, len(told) + 1))
        return told


class Hall:
    """A room full of guests, on a loop that runs."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.hub = Hub(self.loop, Limits(), ServerTelemetry(), Random(1))
        self.room: OpenRoom
        self._instances = map(str, count())

    def guest(self, name: str, api: ApiScope | None = None) -> Guest:
        guest = Guest(name, next(self._instances), api)
        self.room = self.hub.join("lab", guest)
        return guest

    def watcher(self, *topics: str, api: ApiScope | None = None) -> Guest:
        guest = self.guest("watcher", api)
        its_feed = feed.Feed(guest.seat, self.loop, self.hub.rounds)
        self.room.registry.subscribe(guest.seat, its_feed, Subscribe(1, [*topics]))
        return guest

    def host(self, guest: Guest, name: str, *tools: str, **fields: Any) -> None:
        manifest = toolkit_of(name, *(tools or ("run",)), **fields)
        self.room.registry.register(guest.seat, offer(manifest))

    async def call(self, caller: Guest, host: Guest, number: int) -> None:
        """Make a call and take its answer, with turns of the loop between as sockets have them."""
        frame = Call(RequestId(number), CallId(f"c{number}"), "t", "run", None, b"\x80", None)
        caller.sent.clear()
        self.hub.router.call(self.room.room, caller.seat, frame)
        await asyncio.sleep(0)
        dispatch = decode_from_server(host.sent.pop())
        assert isinstance(dispatch, Dispatch)
        self.hub.router.answer(host.seat, Result(dispatch.id, b"\x91\x00"))
        await asyncio.sleep(0)
        assert isinstance(decode_from_server(caller.sent.pop()), Result)


async def until_told(guest: Guest, events: int) -> None:
    """Let the loop turn until a guest was told so much."""
    async with asyncio.timeout(30):
        while len(guest.sent) < events:
            guest.told.clear()
            await guest.told.wait()


@pytest.fixture
def _no_collector() -> Iterator[None]:
    """Keep the garbage of other tests out of what is timed here."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def _one_step_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "TURN_S", 0.0)


@pytest.mark.alone
@pytest.mark.row(82)
@pytest.mark.usefixtures("_no_collector")
async def test_calls_go_on_while_a_thousand_hosts_are_told_to_a_hundred_watchers() -> None:
    """EVENT-2, EVENT-3: nobody misses any, and no number is left out."""
    hall = Hall()
    caller, host = hall.guest("caller"), hall.guest("host")
    hall.host(host, "t")
    watchers = [hall.watcher("toolkits", "participants") for _ in range(WATCHERS)]
    await until_told(watchers[0], WATCHERS - 1)  # of those who came after it
    for number in range(HOSTS):
        hall.host(hall.guest("host"), f"t{number}")
    took_s: list[float] = []
    # Beside hosts and toolkits each is told of the watchers that came after it.
    expected = [(each, 2 * HOSTS + later) for later, each in enumerate(reversed(watchers))]
    async with asyncio.timeout(60):
        while any(len(watcher.sent) < events for watcher, events in expected):
            began_at = thread_time()
            await hall.call(caller, host, len(took_s))
            took_s.append(thread_time() - began_at)
    assert max(took_s) < MOST_S
    for watcher in watchers:
        came = [event for event in watcher.events if event.name != "participant_changed"]
        hosts = [event for event in came if event.data.get("participant", {}).get("name") == "host"]
        toolkits = [each.data["toolkit"]["name"] for each in came if each.name == "toolkit_added"]
        assert len(hosts) == HOSTS
        assert toolkits == [f"t{number}" for number in range(HOSTS)]


@pytest.mark.usefixtures("_one_step_a_turn")
async def test_what_changes_before_its_turn_is_told_as_it_then_is() -> None:
    """EVENT-3: who is gone by then is not told, who changed is told once."""
    hall = Hall()
    watcher = hall.watcher("participants")
    first, second, third = (hall.guest(name) for name in ("first", "second", "third"))
    await until_told(watcher, 1)
    for guest in (first, second):
        hall.room.people.attributes(guest.seat, Attributes(1, {"status": "busy"}))
    hall.hub.leave("lab", third)
    await until_told(watcher, 3)
    last = hall.guest("last")
    await until_told(watcher, 4)
    told = [(event.name, event.data["participant"]["name"]) for event in watcher.events]
    assert told == [
        ("participant_joined", "first"),
        ("participant_joined", "second"),
        ("participant_changed", "first"),
        ("participant_joined", "last"),
    ]
    attributes = [event.data["participant"]["attributes"] for event in watcher.events]
    assert attributes == [{}, {"status": "busy"}, {"status": "busy"}, {}]
    assert last.sent == []


async def test_who_has_the_same_rights_is_told_what_is_packed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """REG-14: of the tools, each is told those that it may see."""
    made: list[Seat] = []
    summary = feed.toolkit_summary

    def counted(toolkit: Any, seat: Seat) -> dict[str, Any]:
        made.append(seat)
        return summary(toolkit, seat)

    monkeypatch.setattr(feed, "toolkit_summary", counted)
    hall = Hall()
    grants = {
        "ab": scope(use_tools=True),
        "a": scope(use_tools=True, allow=["t.a"]),
        "b": scope(use_tools=True, deny=["t.a"]),
    }
    watchers = {
        name: [hall.watcher("toolkits", api=api) for _ in range(5)] for name, api in grants.items()
    }
    blind = hall.watcher("toolkits", api=scope(use_tools=True, deny=["t"]))
    now = hall.loop.time()
    with monkeypatch.context() as still:  # all are due at once, however long this takes
        still.setattr(hall.loop, "time", lambda: now)
        hall.host(hall.guest("host"), "t", "a", "b")
    for name, alike in watchers.items():
        for watcher in alike:
            await until_told(watcher, 1)
            (event,) = watcher.events
            assert "".join(event.data["toolkit"]["tools"]) == name
    assert len(made) == len(grants)
    assert blind.sent == []
    async with asyncio.timeout(5):  # the turn that tells the last of them may be over before
        while hall.hub.rounds._packed:  # noqa: ASYNC110 - nobody is told of that
            await asyncio.sleep(0)


@pytest.mark.usefixtures("_one_step_a_turn")
async def test_what_is_packed_is_not_told_once_it_is_old() -> None:
    hall = Hall()
    watchers = [hall.watcher("toolkits") for _ in range(3)]
    host = hall.guest("host")
    hall.host(host, "t", version="1")
    await until_told(watchers[0], 1)
    hall.host(host, "t", version="2")
    await until_told(watchers[0], 2)
    told = [[event.data["toolkit"]["version"] for event in each.events] for each in watchers]
    assert told == [["1", "2"], ["2"], ["2"]]
    hall.hub.leave("lab", host)  # and its name is kept
    await until_told(watchers[2], 2)
    assert watchers[2].events[-1].data["toolkit"]["hosts"] == 0


async def test_what_is_kept_packed_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_MAX_KEPT_BYTES", 2_000)
    monkeypatch.setattr(rounds, "TURN_S", 0.0)
    hall = Hall()
    watchers = [hall.watcher("toolkits") for _ in range(2)]
    host = hall.guest("host")
    for number in range(30):
        hall.host(host, f"t{number}")
    while len(watchers[1].sent) < 30:
        await until_told(watchers[1], len(watchers[1].sent) + 1)
        assert sum(len(kinds) for kinds in hall.hub.rounds._packed.values()) < 8
    assert [event.data["toolkit"]["name"] for event in watchers[1].events] == [
        f"t{number}" for number in range(30)
    ]


@pytest.mark.usefixtures("_one_step_a_turn")
async def test_who_ends_its_subscription_in_its_turn_is_told_no_more() -> None:
    hall = Hall()
    leaving, staying = hall.watcher("toolkits"), hall.watcher("toolkits")
    host = hall.guest("host")
    for number in range(5):
        hall.host(host, f"t{number}")
    await until_told(leaving, 2)
    hall.room.registry.forget(leaving.seat)
    await until_told(staying, 5)
    assert len(leaving.sent) == 2


async def test_a_bug_in_what_one_is_told_keeps_the_news_from_nobody_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    summary = feed.toolkit_summary

    def broken(toolkit: Any, seat: Seat) -> dict[str, Any]:
        if toolkit.name == "bad" and seat is unlucky.seat:
            raise RuntimeError("a bug")
        return summary(toolkit, seat)

    monkeypatch.setattr(feed, "toolkit_summary", broken)
    hall = Hall()
    unlucky = hall.watcher("toolkits", api=scope(use_tools=True))
    others = hall.watcher("toolkits")
    host = hall.guest("host")
    for name in ("bad", "good"):
        hall.host(host, name)
    with caplog.at_level(logging.ERROR, "toolbus_server.feed"):
        await until_told(others, 2)
        await until_told(unlucky, 1)
    assert [record.message for record in caplog.records] == [
        "'watcher' could not be told of its room"
    ]
    assert [event.data["toolkit"]["name"] for event in unlucky.events] == ["good"]
