"""Events about calls: exact counts, few events, and no cost without observers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.parts.router_harness import RouterHarness, port_of
from toolbus.auth.grants import ApiScope
from toolbus.wire import Call, Cancel, Event, Failed, Result, unpack_body
from toolbus.wire.body_steps import run_steps
from toolbus_server.calls.call_statistics import FLUSH_S, MAX_RECORDS, NodeCallReport
from toolbus_server.calls.router import Connection
from toolbus_server.rooms.event_feed import EventFeeds
from toolbus_server.rooms.scheduling import FairScheduler

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class ObservedTable(RouterHarness):
    """A table whose calls can be observed."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = FairScheduler(self.clock.as_loop())
        self.feeds = EventFeeds(self.room, self.clock.as_loop(), self.scheduler)

    def observer(self, name: str = "eve") -> Connection:
        connection = self.connection(name)
        self.subscribe(connection)
        return connection

    def subscribe(self, connection: Connection) -> None:
        run_steps(self.feeds.subscribe(connection, ["calls"]))

    def event_data(self, connection: Connection) -> dict[str, Any]:
        """Take the data of the one event that an observer was sent at the next flush."""
        self.clock.advance(FLUSH_S)
        event = port_of(connection).take(Event)
        assert port_of(connection).sent == []
        assert event.name == "calls"
        data = event.data
        return {**data, "calls": unpack_body(data["calls"])}

    def answer(self, host: Connection) -> None:
        dispatch = port_of(host).take_dispatch()
        self.router.answer(host, Result(dispatch.id, b"\x91\x00"))


@pytest.fixture
def harness() -> Iterator[ObservedTable]:
    harness = ObservedTable()
    yield harness
    for connection in list(harness.room.connections.values()):
        harness.feeds.remove(connection.participant)
    assert harness.room.monitor is None
    harness.clock.advance(1e6)
    assert harness.clock.waiting == 0


def counts(event_data: dict[str, Any]) -> tuple[int, int, int, int]:
    return event_data["in_flight"], event_data["started"], event_data["ended"], event_data["failed"]


def test_no_call_is_monitored_without_observers(harness: ObservedTable) -> None:
    host, alice, eve = harness.host("host", "t"), harness.connection("alice"), harness.observer()
    harness.feeds.remove(eve.participant)
    harness.call(alice, 1)
    (call,) = host.dispatched.values()
    assert (harness.room.monitor, call.monitor, harness.clock.waiting) == (None, None, 1)
    harness.answer(host)


def test_the_record_of_a_call_names_caller_tool_host_and_duration(harness: ObservedTable) -> None:
    """WATCH-2."""
    host, alice, eve = harness.host("host", "t"), harness.connection("alice"), harness.observer()
    assert counts(harness.event_data(eve)) == (0, 0, 0, 0)
    frame = Call(1, "call-1", "t", "run", 5_000, b"\x80", None, TRACEPARENT)
    harness.router.call(harness.room, alice, frame)
    assert counts(harness.event_data(eve)) == (1, 1, 0, 0)
    harness.clock.advance(0.25)
    harness.answer(host)
    event_data = harness.event_data(eve)
    assert counts(event_data) == (0, 0, 1, 0)
    ids = [
        [connection.participant.id, connection.participant.identity.name]
        for connection in (alice, host)
    ]
    (call,) = event_data["calls"]
    duration_us = call.pop(7)
    assert 349_000 < duration_us < 351_000
    assert call == ["call-1", ids[0], "t", "run", ids[1], None, "yes", TRACEPARENT, None, 0, None]


def test_a_refused_call_starts_and_ends_without_a_host(harness: ObservedTable) -> None:
    """WATCH-3: long names that the caller wrote are cut."""
    alice, eve = harness.connection("alice"), harness.observer()
    frame = Call(1, "i" * 99, "x" * 50_000, "y" * 99, None, b"\x80", None, TRACEPARENT)
    harness.router.call(harness.room, alice, frame)
    event_data = harness.event_data(eve)
    assert counts(event_data) == (0, 1, 1, 1)
    card = [alice.participant.id, "alice"]
    rest = [None, "not_found", "no", 0, TRACEPARENT, None, 0, None]
    assert event_data["calls"] == [["i" * 64, card, "x" * 64, "y" * 64, *rest]]


def test_the_record_of_a_nested_call_names_the_call_that_it_was_made_within(
    harness: ObservedTable,
) -> None:
    """WATCH-2: also of one that is refused."""
    host, alice = harness.host("host", "t"), harness.connection("alice")
    eve = harness.observer()
    harness.call(alice, 1)
    (parent,) = host.dispatched
    harness.call(host, 2, parent=parent)
    harness.call(host, 3, "t.missing", parent=parent)
    harness.call(host, 4, "t.missing", parent=parent + 99)
    for dispatch_id in reversed(list(host.dispatched)):
        harness.router.answer(host, Result(dispatch_id, b"\x91\x00"))
    calls = harness.event_data(eve)["calls"]
    assert [(call[0], call[9]) for call in calls] == [
        ("call-3", "call-1"),
        ("call-4", None),
        ("call-2", "call-1"),
        ("call-1", None),
    ]


def test_a_trace_that_is_not_continued_is_not_in_the_record(harness: ObservedTable) -> None:
    """WATCH-2, TRACE-3."""
    harness.host("host", "t")
    alice, eve = harness.connection("alice", api=ApiScope()), harness.observer()
    frame = Call(1, "c", "t", "run", None, b"\x80", None, TRACEPARENT)
    harness.router.call(harness.room, alice, frame)
    assert harness.event_data(eve)["calls"][0][5:] == [
        *("permission_denied", "no", 0, None, None, 0, None)
    ]


def test_every_end_of_a_call_decrements_the_calls_in_flight(harness: ObservedTable) -> None:
    """WATCH-2: `executed` is that of the caller's reply."""
    eve = harness.observer()
    hosts = [harness.host(f"host{number}", f"t{number}") for number in range(5)]
    alice, bob = harness.connection("alice"), harness.connection("bob")
    harness.event_data(eve)
    for number in range(5):
        harness.call(bob if number == 4 else alice, number, f"t{number}.run", ms=10_000 - number)
    assert counts(harness.event_data(eve)) == (5, 5, 0, 0)
    dispatch = port_of(hosts[0]).take_dispatch()
    harness.router.answer(hosts[0], Failed(dispatch.id, "made\x1bup", "no", False, "", None, None))
    harness.router.cancel(alice, Cancel(1, "cancelled"))
    harness.leave(hosts[2])
    harness.leave(bob)
    event_data = harness.event_data(eve)
    assert counts(event_data) == (1, 0, 4, 4)
    assert [call[5:7] for call in event_data["calls"]] == [
        ["made\x1bup", "no"],
        ["cancelled", "maybe"],
        ["host_lost", "maybe"],
        ["cancelled", "maybe"],
    ]
    harness.clock.advance(10)
    event_data = harness.event_data(eve)
    assert counts(event_data) == (0, 0, 1, 1)
    assert event_data["calls"][0][5:7] == ["deadline_exceeded", "maybe"]
    assert harness.router.in_flight == 0


def test_a_new_observer_is_sent_the_number_of_calls_in_flight(harness: ObservedTable) -> None:
    """WATCH-1, WATCH-2: also after all observers had left, with the same calls in flight."""
    host, alice = harness.host("host", "t"), harness.connection("alice")
    for number in range(3):
        harness.call(alice, number)
    eve = harness.observer()
    assert counts(harness.event_data(eve)) == (3, 0, 0, 0)
    harness.feeds.remove(eve.participant)
    harness.answer(host)
    harness.subscribe(eve)
    assert counts(harness.event_data(eve)) == (2, 0, 0, 0)
    harness.answer(host)
    harness.answer(host)
    event_data = harness.event_data(eve)
    assert counts(event_data) == (0, 0, 2, 0)
    assert [call[0] for call in event_data["calls"]] == ["call-1", "call-2"]


def test_a_later_observer_is_sent_only_later_calls(harness: ObservedTable) -> None:
    """WATCH-2: with the event that other observers get too."""
    host, alice, eve = harness.host("host", "t"), harness.connection("alice"), harness.observer()
    harness.event_data(eve)
    harness.call(alice, 1)
    harness.answer(host)
    zoe = harness.observer("zoe")
    harness.call(alice, 2)
    harness.answer(host)
    both = harness.event_data(eve), port_of(zoe).take(Event).data
    assert counts(both[0]) == (0, 2, 2, 0)
    assert counts(both[1]) == (0, 1, 1, 0)
    assert [call[0] for call in both[0]["calls"]] == ["call-1", "call-2"]
    assert [call[0] for call in unpack_body(both[1]["calls"])] == ["call-2"]


def test_many_calls_are_counted_and_the_last_and_failed_ones_recorded(
    harness: ObservedTable,
) -> None:
    """WATCH-3."""
    host, alice, eve = harness.host("host", "t"), harness.connection("alice"), harness.observer()
    harness.call(alice, 0, "t.missing")
    for number in range(1, 2 * MAX_RECORDS):
        harness.call(alice, number)
        harness.answer(host)
    event_data = harness.event_data(eve)
    assert counts(event_data) == (0, 2 * MAX_RECORDS, 2 * MAX_RECORDS, 1)
    named = [call[0] for call in event_data["calls"]]
    last = range(MAX_RECORDS + 1, 2 * MAX_RECORDS)
    assert named == ["call-0", *(f"call-{number}" for number in last)]
    assert len(named) == MAX_RECORDS


def test_events_are_sent_only_for_changes_and_at_most_ten_times_a_second(
    harness: ObservedTable,
) -> None:
    """WATCH-1."""
    host, alice, eve = harness.host("host", "t"), harness.connection("alice"), harness.observer()
    harness.event_data(eve)
    harness.clock.advance(60)
    assert port_of(eve).sent == []
    for number in range(100):
        harness.call(alice, number)
        harness.answer(host)
        harness.clock.advance(0.01)
    harness.clock.advance(FLUSH_S)
    assert 9 <= len(port_of(eve).sent) <= 11
    events = [port_of(eve).take(Event) for _ in range(len(port_of(eve).sent))]
    assert sum(event.data["ended"] for event in events) == 100


@pytest.mark.parametrize("fault", ["is_full", "holds"])
def test_an_observer_without_room_misses_events_and_gets_right_counts_later(
    harness: ObservedTable, fault: str
) -> None:
    """WATCH-5: also if no call starts or ends after it has room again."""
    host, alice = harness.host("host", "t"), harness.connection("alice")
    slow, eve = harness.observer("slow"), harness.observer()
    harness.clock.advance(FLUSH_S)
    for port in (port_of(slow), port_of(eve)):
        port.take(Event)
    setattr(port_of(slow), fault, True)
    for number in range(3):
        harness.call(alice, number)
        harness.clock.advance(FLUSH_S)
    for _ in range(2):
        harness.answer(host)
        harness.clock.advance(FLUSH_S)
    assert len(port_of(eve).sent) == 5
    assert port_of(slow).sent == []
    setattr(port_of(slow), fault, False)
    port_of(slow).release()
    harness.clock.advance(FLUSH_S)
    events = [port_of(slow).take(Event) for _ in range(len(port_of(slow).sent))]
    # At most one event is queued, however long it waits.
    assert len(events) == (2 if fault == "holds" else 1)
    assert [event.number for event in events] == list(range(2, 2 + len(events)))
    assert events[-1].data["in_flight"] == 1
    assert sum(event.data["started"] for event in events) == 3
    assert sum(event.data["ended"] for event in events) == 2
    harness.answer(host)


def test_an_observer_that_loses_the_grant_is_sent_no_more(harness: ObservedTable) -> None:
    eve, alice = harness.observer(), harness.connection("alice")
    harness.event_data(eve)
    eve.participant.scope = ApiScope()
    harness.feeds.update_grants(eve.participant)
    assert harness.room.monitor is None
    harness.call(alice, 1)
    harness.clock.advance(1)
    assert port_of(eve).sent == []


# Over nodes


class Pair:
    """Two nodes that hold one room; one has observers, and the other reports to it."""

    def __init__(self, here: ObservedTable, there: ObservedTable) -> None:
        self.here, self.there = here, there
        self.is_cut = False
        self.reports: list[NodeCallReport] = []

    def observe(self) -> Connection:
        """Add an observer here, and start the reports of the other node."""
        eve = self.here.observer()
        self.there.feeds.monitor.start_reports("here", eve.participant.monitor_id, self._send)
        return eve

    def _send(self, report: NodeCallReport) -> bool:
        if not self.is_cut:
            self.reports.append(report)
            self.here.feeds.monitor.receive_report("there", report)
        return not self.is_cut

    def event_data(self, eve: Connection) -> dict[str, Any]:
        self.there.clock.advance(FLUSH_S)
        return self.here.event_data(eve)


@pytest.fixture
def pair(harness: ObservedTable) -> Iterator[Pair]:
    pair = Pair(harness, ObservedTable())
    yield pair
    pair.there.feeds.monitor.stop_reports("here")
    assert pair.there.room.monitor is None


def test_calls_of_another_node_are_reported_like_own_calls(pair: Pair) -> None:
    """WATCH-2: those that were in flight there before count here too."""
    host, ann = pair.there.host("host", "t"), pair.there.connection("ann")
    pair.there.call(ann, 1)
    eve = pair.observe()
    assert counts(pair.event_data(eve)) == (1, 0, 0, 0)
    pair.there.call(ann, 2)
    pair.there.call(ann, 3, "t.missing")
    pair.there.answer(host)
    pair.there.answer(host)
    event_data = pair.event_data(eve)
    assert counts(event_data) == (0, 2, 3, 1)
    assert {call[0]: call[5] for call in event_data["calls"]} == {
        "call-1": None,
        "call-2": None,
        "call-3": "not_found",
    }


def test_calls_in_flight_elsewhere_are_reported_at_once(pair: Pair) -> None:
    """WATCH-1."""
    pair.there.host("host", "t")
    pair.there.call(pair.there.connection("ann"), 1)
    eve = pair.observe()
    assert counts(pair.here.event_data(eve)) == (0, 0, 0, 0)
    assert counts(pair.event_data(eve)) == (1, 0, 0, 0)


def test_counts_are_right_again_after_reports_that_could_not_be_sent(pair: Pair) -> None:
    """WATCH-3: the records of their calls are lost."""
    host, ann = pair.there.host("host", "t"), pair.there.connection("ann")
    eve = pair.observe()
    pair.event_data(eve)
    pair.is_cut = True
    for number in range(3):
        pair.there.call(ann, number)
        pair.there.answer(host)
        pair.there.clock.advance(FLUSH_S)
    pair.is_cut = False
    assert counts(pair.event_data(eve)) == (0, 3, 3, 0)


def test_a_report_for_an_earlier_monitor_is_dropped(pair: Pair) -> None:
    ann = pair.there.connection("ann")
    eve = pair.observe()
    pair.event_data(eve)
    pair.there.call(ann, 1, "t.missing")
    pair.there.clock.advance(FLUSH_S)
    late = pair.reports[-1]
    pair.here.feeds.remove(eve.participant)
    pair.there.feeds.monitor.stop_reports("here")
    eve = pair.observe()
    pair.here.feeds.monitor.receive_report("there", late)
    assert counts(pair.event_data(eve)) == (0, 0, 0, 0)


def test_an_observer_that_subscribes_again_gets_all_remote_calls_since(pair: Pair) -> None:
    """WATCH-2: the other node does not have to know of it first."""
    ann, eve = pair.there.connection("ann"), pair.observe()
    pair.event_data(eve)
    pair.here.subscribe(eve)
    pair.there.call(ann, 1, "t.missing")
    assert counts(pair.event_data(eve)) == (0, 1, 1, 1)


def test_a_report_that_may_have_been_lost_is_sent_again(pair: Pair) -> None:
    """WATCH-3: what was received twice counts once."""
    pair.there.host("host", "t")
    eve = pair.observe()
    pair.there.call(pair.there.connection("ann"), 1)
    assert counts(pair.event_data(eve)) == (1, 1, 0, 0)
    reports = len(pair.reports)
    pair.there.feeds.monitor.resend_report("elsewhere")
    pair.there.clock.advance(FLUSH_S)
    assert len(pair.reports) == reports
    pair.there.feeds.monitor.resend_report("here")
    pair.there.clock.advance(FLUSH_S)
    pair.here.clock.advance(FLUSH_S)
    assert len(pair.reports) == reports + 1
    assert port_of(eve).sent == []


def test_calls_that_ended_between_two_series_count_as_ended(pair: Pair) -> None:
    """WATCH-2: for example, the other node left the room and its last report was lost."""
    host, ann = pair.there.host("host", "t"), pair.there.connection("ann")
    eve = pair.observe()
    for number in range(2):
        pair.there.call(ann, number)
    assert counts(pair.event_data(eve)) == (2, 2, 0, 0)
    pair.there.feeds.monitor.stop_reports("here")
    pair.there.answer(host)
    pair.there.feeds.monitor.start_reports("here", eve.participant.monitor_id, pair._send)
    assert counts(pair.event_data(eve)) == (1, 0, 1, 1)


def test_the_calls_of_a_node_that_ends_count_as_ended(pair: Pair) -> None:
    """WATCH-2: also if nothing else changes for its observers."""
    pair.there.host("host", "t")
    ann = pair.there.connection("ann")
    eve = pair.observe()
    for number in range(2):
        pair.there.call(ann, number)
    assert counts(pair.event_data(eve)) == (2, 2, 0, 0)
    pair.here.feeds.monitor.forget_node("there")
    assert counts(pair.here.event_data(eve)) == (0, 0, 2, 2)


def test_a_node_that_leaves_a_room_reports_how_its_calls_ended(pair: Pair) -> None:
    pair.there.host("host", "t")
    ann = pair.there.connection("ann")
    eve = pair.observe()
    pair.there.call(ann, 1)
    assert counts(pair.event_data(eve)) == (1, 1, 0, 0)
    pair.there.leave(ann)
    pair.there.feeds.monitor.finish_reports()
    assert pair.there.room.monitor is None
    event_data = pair.here.event_data(eve)
    assert counts(event_data) == (0, 0, 1, 1)
    assert event_data["calls"][0][5:7] == ["cancelled", "maybe"]


def test_participants_of_other_nodes_are_not_counted_for_them(harness: ObservedTable) -> None:
    """A call from another node is reported by that node, also to a new observer."""
    harness.host("host", "t")
    ann = harness.connection("ann")
    ann.participant.is_remote = True
    harness.call(ann, 1)
    eve = harness.observer()
    assert counts(harness.event_data(eve)) == (0, 0, 0, 0)
