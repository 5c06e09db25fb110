"""Many events at once: each subscriber gets all of them, and no call waits for that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any

import pytest

from support.clients.raw_requests import offer, toolkit_of
from support.parts.models import participant, scope
from toolbus.auth.grants import ApiScope
from toolbus.transport.websocket import NotifyingTicket, Ticket
from toolbus.wire import (
    Attributes,
    Call,
    CallId,
    Dispatch,
    Event,
    Notice,
    RequestId,
    Result,
    Subscribe,
    Unregister,
    decode_from_server,
)
from toolbus.wire.body_steps import run_steps
from toolbus_server.calls.router import Connection
from toolbus_server.calls.telemetry import ServerTelemetry
from toolbus_server.limits import Limits
from toolbus_server.registry.issuers import Issuers
from toolbus_server.rooms import event_feed as feed
from toolbus_server.rooms import scheduling as scheduler
from toolbus_server.rooms.hub import Hub, OpenRoom

HOSTS, SUBSCRIBERS = 1_000, 100
STEPS = 20
"""Events that the scheduler sends within its slice of an iteration."""
MOST_EVENTS = 4 * STEPS
"""During a call, which takes two iterations."""


class FakeSession:
    """A participant whose connection only records."""

    def __init__(self, name: str, instance: str, api: ApiScope | None) -> None:
        self.connection = Connection(participant(name, instance, api=api), self)
        self.sent: list[bytes] = []
        self.received = asyncio.Event()

    def send_message(self, data: bytes, ticket: Ticket | None = None) -> bool:
        self.sent.append(data)
        self.received.set()
        return True

    @property
    def is_open(self) -> bool:
        return True

    def offer_message(self, data: bytes, ticket: Ticket) -> bool:
        return self.send_message(data, ticket)

    def send_bounded(self, data: bytes, ticket: NotifyingTicket) -> None:
        self.send_message(data, ticket)

    def may_wait(self, size: int) -> bool:
        return True

    is_behind = False

    def gather(self) -> None: ...

    def replaced(self) -> None: ...

    def evict(self) -> None: ...

    @property
    def events(self) -> list[Event]:
        """All events that it was sent, numbered from 1 on."""
        received = [
            frame for frame in map(decode_from_server, self.sent) if isinstance(frame, Event)
        ]
        assert [event.number for event in received] == list(range(1, len(received) + 1))
        return received


class BusyRoom:
    """A room with many participants, on a running loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.hub = Hub(self.loop, Limits(), ServerTelemetry(), Random(1))
        self.room: OpenRoom
        self._instances = map(str, count())

    def session(self, name: str, api: ApiScope | None = None) -> FakeSession:
        session = FakeSession(name, next(self._instances), api)
        self.room = self.hub.join("lab", session)
        return session

    def subscriber(self, *topics: str, api: ApiScope | None = None) -> FakeSession:
        session = self.session("subscriber", api)
        request = Subscribe(1, [*topics])
        run_steps(self.room.toolkit_requests.subscribe(session.connection, request))
        return session

    def host(self, session: FakeSession, name: str, *tools: str, **fields: Any) -> None:
        manifest = toolkit_of(name, *(tools or ("run",)), **fields)
        run_steps(self.room.toolkit_requests.register(session.connection, offer(manifest)))

    async def call(self, caller: FakeSession, host: FakeSession, number: int) -> None:
        """Make a call and take its reply, with loop iterations between them as sockets need."""
        frame = Call(RequestId(number), CallId(f"c{number}"), "t", "run", None, b"\x80", None)
        caller.sent.clear()
        self.hub.router.call(self.room.routed, caller.connection, frame)
        await asyncio.sleep(0)
        dispatch = decode_from_server(host.sent.pop())
        assert isinstance(dispatch, Dispatch)
        self.hub.router.answer(host.connection, Result(dispatch.id, b"\x91\x00"))
        await asyncio.sleep(0)
        assert isinstance(decode_from_server(caller.sent.pop()), Result)


async def until_received(session: FakeSession, events: int) -> None:
    """Run the loop until a subscriber was sent so many events."""
    async with asyncio.timeout(60):
        while len(session.sent) < events:
            session.received.clear()
            await session.received.wait()


@pytest.fixture
def _twenty_steps_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clock of the scheduler go on by a twentieth of a slice with each look at it."""
    clock = count(0.0, scheduler.SLICE_S / STEPS)
    monkeypatch.setattr(scheduler, "perf_counter", lambda: next(clock))


@pytest.fixture
def _one_step_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "SLICE_S", 0.0)


@pytest.mark.usefixtures("_twenty_steps_a_turn")
async def test_calls_go_on_while_events_of_a_thousand_hosts_go_to_a_hundred_subscribers() -> None:
    """EVENT-2, EVENT-3: no event is missing, and no number."""
    room = BusyRoom()
    caller, host = room.session("caller"), room.session("host")
    room.host(host, "t")
    subscribers = [room.subscriber("toolkits", "participants") for _ in range(SUBSCRIBERS)]
    await until_received(subscribers[0], SUBSCRIBERS - 1)  # for those that joined after it
    for number in range(HOSTS):
        room.host(room.session("host"), f"t{number}")
    calls = 0
    # Each gets hosts, toolkits and the subscribers that joined after it.
    expected = [(each, 2 * HOSTS + later) for later, each in enumerate(reversed(subscribers))]
    async with asyncio.timeout(60):
        while any(len(subscriber.sent) < events for subscriber, events in expected):
            before = sum(len(each.sent) for each in subscribers)
            await room.call(caller, host, calls)
            calls += 1
            assert sum(len(each.sent) for each in subscribers) - before <= MOST_EVENTS
    assert calls > 100
    for subscriber in subscribers:
        came = [event for event in subscriber.events if event.name != "participant_changed"]
        hosts = [event for event in came if event.data.get("participant", {}).get("name") == "host"]
        toolkits = [each.data["toolkit"]["name"] for each in came if each.name == "toolkit_added"]
        assert len(hosts) == HOSTS
        assert toolkits == [f"t{number}" for number in range(HOSTS)]


@pytest.mark.usefixtures("_one_step_a_turn")
async def test_a_change_is_sent_with_the_state_at_the_time_of_sending() -> None:
    """EVENT-3: one that left meanwhile causes no event, one that changed causes one."""
    room = BusyRoom()
    subscriber = room.subscriber("participants")
    first, second, third = (room.session(name) for name in ("first", "second", "third"))
    await until_received(subscriber, 1)
    for session in (first, second):
        room.room.participant_requests.attributes(
            session.connection, Attributes(1, {"status": "busy"})
        )
    room.hub.leave("lab", third)
    await until_received(subscriber, 3)
    last = room.session("last")
    await until_received(subscriber, 4)
    received = [(event.name, event.data["participant"]["name"]) for event in subscriber.events]
    assert received == [
        ("participant_joined", "first"),
        ("participant_joined", "second"),
        ("participant_changed", "first"),
        ("participant_joined", "last"),
    ]
    attributes = [event.data["participant"]["attributes"] for event in subscriber.events]
    assert attributes == [{}, {"status": "busy"}, {"status": "busy"}, {}]
    assert last.sent == []


async def test_subscribers_with_the_same_rights_share_a_packed_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """REG-14: each event has the tools that its receiver may see."""
    made: list[Any] = []
    summary = feed.toolkit_summary

    def counted(toolkit: Any, tools: Any, issuers: Issuers) -> dict[str, Any]:
        made.append(tools)
        return summary(toolkit, tools, issuers)

    monkeypatch.setattr(feed, "toolkit_summary", counted)
    room = BusyRoom()
    grants = {
        "ab": scope(use_tools=True),
        "a": scope(use_tools=True, allow=["t.a"]),
        "b": scope(use_tools=True, deny=["t.a"]),
    }
    subscribers = {
        name: [room.subscriber("toolkits", api=api) for _ in range(5)]
        for name, api in grants.items()
    }
    blind = room.subscriber("toolkits", api=scope(use_tools=True, deny=["t"]))
    now = room.loop.time()
    with monkeypatch.context() as still:  # all are due at once
        still.setattr(room.loop, "time", lambda: now)
        room.host(room.session("host"), "t", "a", "b")
    for name, alike in subscribers.items():
        for subscriber in alike:
            await until_received(subscriber, 1)
            (event,) = subscriber.events
            assert "".join(event.data["toolkit"]["tools"]) == name
    assert len(made) == len(grants)
    assert blind.sent == []
    async with asyncio.timeout(60):  # the last event may be sent before that
        while room.hub.scheduler._packed:  # noqa: ASYNC110 - a plain dict
            await asyncio.sleep(0)


@pytest.mark.usefixtures("_one_step_a_turn")
async def test_a_packed_event_is_not_sent_after_a_change() -> None:
    room = BusyRoom()
    subscribers = [room.subscriber("toolkits") for _ in range(3)]
    host = room.session("host")
    room.host(host, "t", version="1")
    await until_received(subscribers[0], 1)
    room.host(host, "t", version="2")
    await until_received(subscribers[0], 2)
    received = [[event.data["toolkit"]["version"] for event in each.events] for each in subscribers]
    assert received == [["1", "2"], ["2"], ["2"]]
    room.hub.leave("lab", host)  # its name stays reserved
    await until_received(subscribers[2], 2)
    assert subscribers[2].events[-1].data["toolkit"]["hosts"] == 0


async def test_the_memory_for_packed_events_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_MAX_PACKED_BYTES", 2_000)
    monkeypatch.setattr(scheduler, "SLICE_S", 0.0)
    room = BusyRoom()
    subscribers = [room.subscriber("toolkits") for _ in range(2)]
    host = room.session("host")
    for number in range(30):
        room.host(host, f"t{number}")
    while len(subscribers[1].sent) < 30:
        await until_received(subscribers[1], len(subscribers[1].sent) + 1)
        assert sum(len(kinds) for kinds in room.hub.scheduler._packed.values()) < 8
    assert [event.data["toolkit"]["name"] for event in subscribers[1].events] == [
        f"t{number}" for number in range(30)
    ]


@pytest.mark.usefixtures("_one_step_a_turn")
async def test_a_subscriber_that_unsubscribes_during_sending_is_sent_no_more() -> None:
    room = BusyRoom()
    leaving, staying = room.subscriber("toolkits"), room.subscriber("toolkits")
    host = room.session("host")
    for number in range(5):
        room.host(host, f"t{number}")
    await until_received(leaving, 2)
    room.room.feeds.remove(leaving.connection.participant)
    await until_received(staying, 5)
    assert len(leaving.sent) == 2


async def test_an_exception_for_one_subscriber_does_not_affect_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    summary = feed.toolkit_summary

    def broken(toolkit: Any, listing: Any, issuers: Issuers) -> dict[str, Any]:
        if toolkit.name == "bad" and len(listing.tools) == 1:
            raise RuntimeError("a bug")
        return summary(toolkit, listing, issuers)

    monkeypatch.setattr(feed, "toolkit_summary", broken)
    room = BusyRoom()
    unlucky = room.subscriber("toolkits", api=scope(use_tools=True, deny=["*.b"]))
    others = room.subscriber("toolkits")
    host = room.session("host")
    for name in ("bad", "good"):
        room.host(host, name, "a", "b")
    with caplog.at_level(logging.ERROR, "toolbus_server.rooms.event_feed"):
        await until_received(others, 2)
        await until_received(unlucky, 1)
    assert [record.message for record in caplog.records] == [
        "events of its room could not be sent to 'subscriber'"
    ]
    assert [event.data["toolkit"]["name"] for event in unlucky.events] == ["good"]


@pytest.mark.usefixtures("_one_step_a_turn")
async def test_a_superseded_definition_is_reported_to_those_that_were_sent_it() -> None:
    """EVENT-2: once, after the event about its successor, whatever changed at the same time."""
    room = BusyRoom()
    one, two, higher, highest = (room.session("host") for _ in range(4))
    room.host(one, "t", version="1")
    early = room.subscriber("toolkits")
    room.host(two, "t", version="1")
    for host, version in ((higher, "2"), (highest, "3")):
        room.host(host, "t", version=version)
    late = room.subscriber("toolkits")
    room.host(highest, "z")
    await until_received(early, 3)
    await until_received(late, 1)
    names = ["toolkit_changed", "toolkit_superseded", "toolkit_added"]
    assert [event.name for event in early.events] == names
    superseded = early.events[1].data
    assert superseded["superseded"]["version"] == "1"
    assert superseded["toolkit"]["version"] == "3"
    assert [event.name for event in late.events] == names[2:]


@pytest.mark.usefixtures("_one_step_a_turn")
async def test_hosts_are_notified_in_slices_of_what_serves_when_the_notice_is_sent() -> None:
    """REG-24: a host that has registered another definition gets no notice of its former one."""
    room = BusyRoom()
    hosts = [room.session("host") for _ in range(20)]
    for host in hosts:
        room.host(host, "t", version="1")
    room.host(room.session("host"), "t", version="2")
    assert [host.sent for host in hosts] == [[]] * 20
    room.host(hosts[-1], "t", version="3")
    for host in hosts[:-1]:
        await until_received(host, 1)
        (notice,) = map(decode_from_server, host.sent)
        assert isinstance(notice, Notice)
        assert (notice.name, notice.data["generation"]) == ("serving", 1)
        assert (notice.data["serving"], notice.data["instead"]["version"]) == (False, "3")
    while room.hub.scheduler.is_busy:  # noqa: ASYNC110 - a plain queue
        await asyncio.sleep(0)
    assert hosts[-1].sent == []


async def test_private_toolkits_of_one_that_leaves_cost_other_subscribers_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """REG-8, REG-18: the names are reserved at once, and only their owner is sent events."""
    room = BusyRoom()
    host = room.session("host")
    for number in range(1_024):
        offered = offer(toolkit_of(f"t{number}", "run"), public=False)
        run_steps(room.room.toolkit_requests.register(host.connection, offered))
    others = [room.subscriber("toolkits") for _ in range(SUBSCRIBERS)]
    own = room.session("host")
    request = Subscribe(1, ["toolkits"])
    run_steps(room.room.toolkit_requests.subscribe(own.connection, request))
    jobs: list[Any] = []
    add = room.hub.scheduler.add

    def counted(job: Iterator[None]) -> None:
        jobs.append(job)
        add(job)

    monkeypatch.setattr(room.hub.scheduler, "add", counted)
    room.hub.leave("lab", host)
    assert room.room.routed.state.reserved_count == 1_024
    await until_received(own, 1_024)
    assert len(jobs) == 2  # one hands out the changes, one sends them to their owner
    assert {event.data["toolkit"]["hosts"] for event in own.events} == {0}
    assert [each.sent for each in others] == [[]] * SUBSCRIBERS


async def test_a_subscription_reports_each_change_during_its_walk_once() -> None:
    """EVENT-1, EVENT-2: what it reads is known; what changes after that is sent."""
    room = BusyRoom()
    host, subscriber = room.session("host"), room.session("subscriber")
    other = room.subscriber("toolkits")
    for name in ("b", "d", "f", "h"):
        room.host(host, name)
    request = Subscribe(1, ["toolkits"])
    walk = room.room.toolkit_requests.subscribe(subscriber.connection, request)
    await until_received(other, 4)
    other.sent.clear()
    next(walk)
    next(walk)  # it has read b and d
    for name in ("b", "f"):
        room.host(host, name, version="2")
    for name in ("a", "g"):
        room.host(host, name)
    for name in ("d", "h"):
        unregister = Unregister(1, name, True)
        run_steps(room.room.toolkit_requests.unregister(host.connection, unregister))
    await until_received(other, 6)  # the batch ends before the walk
    run_steps(walk)
    assert subscriber.sent == []
    room.host(host, "last")
    await until_received(subscriber, 5)
    received = [(event.name, event.data["toolkit"]["name"]) for event in subscriber.events]
    assert received == [
        ("toolkit_changed", "b"),
        ("toolkit_added", "a"),
        ("toolkit_removed", "d"),
        ("toolkit_removed", "h"),
        ("toolkit_added", "last"),
    ]


async def test_jobs_of_one_owner_share_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """REG-20: a hundred jobs of one identity delay the job of another one by as much as one."""
    monkeypatch.setattr(scheduler, "SLICE_S", 0.0)
    fair, order = scheduler.FairScheduler(asyncio.get_running_loop()), list[str]()

    def job(name: str) -> Iterator[None]:
        for _ in range(10):
            order.append(name)
            yield

    def failing() -> Iterator[None]:
        yield
        raise ValueError

    fair.add(failing(), "mallory")
    for number in range(100):
        fair.add(job(f"mallory-{number}"), "mallory")
    fair.add(job("ann"), "ann")
    while fair.is_busy:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0)
    assert order.count("ann") == 10
    assert len(order) == 1_010
    last = len(order) - order[::-1].index("ann")
    assert last <= 22
    assert len(set(order[:last])) >= 9
