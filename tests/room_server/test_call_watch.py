"""What watchers are told of calls: exact counts, few events, and nothing while nobody watches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.router_table import Table, port_of
from toolbus.grants import ApiScope
from toolbus.wire import Call, Cancel, Event, Failed, Result, unpack_body
from toolbus_server.call_watch import FLUSH_S, MAX_CALLS, CallReport
from toolbus_server.feed import Feed, Feeds
from toolbus_server.rounds import Rounds
from toolbus_server.routing import Seat

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Watched(Table):
    """A table whose calls can be watched."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = Rounds(self.clock.as_loop())
        self.feeds = Feeds(self.room, self.clock.as_loop(), self.rounds)

    def watcher(self, name: str = "eve") -> Seat:
        seat = self.seat(name)
        self.subscribe(seat)
        return seat

    def subscribe(self, seat: Seat) -> None:
        feed = Feed(seat, self.clock.as_loop(), self.rounds)
        feed.begin(["calls"], ())
        self.feeds.add(seat.member, feed)

    def news(self, seat: Seat) -> dict[str, Any]:
        """Take the one event that a watcher was sent when the time had come."""
        self.clock.advance(FLUSH_S)
        event = port_of(seat).take(Event)
        assert port_of(seat).sent == []
        assert event.name == "calls"
        data = event.data
        return {**data, "calls": unpack_body(data["calls"])}

    def answer(self, host: Seat) -> None:
        dispatch = port_of(host).take_dispatch()
        self.router.answer(host, Result(dispatch.id, b"\x91\x00"))


@pytest.fixture
def table() -> Iterator[Watched]:
    table = Watched()
    yield table
    for seat in list(table.room.seats.values()):
        table.feeds.forget(seat.member)
    assert table.room.watch is None
    table.clock.advance(1e6)
    assert table.clock.waiting == 0


def counts(news: dict[str, Any]) -> tuple[int, int, int, int]:
    return news["in_flight"], news["started"], news["ended"], news["failed"]


def test_nothing_is_followed_while_nobody_watches(table: Watched) -> None:
    host, alice, eve = table.host("host", "t"), table.seat("alice"), table.watcher()
    table.feeds.forget(eve.member)
    table.call(alice, 1)
    (flight,) = host.dispatched.values()
    assert (table.room.watch, flight.span, table.clock.waiting) == (None, None, 1)
    table.answer(host)


def test_a_call_is_told_with_who_what_where_and_how_long(table: Watched) -> None:
    """WATCH-2."""
    host, alice, eve = table.host("host", "t"), table.seat("alice"), table.watcher()
    assert counts(table.news(eve)) == (0, 0, 0, 0)
    frame = Call(1, "call-1", "t", "run", 5_000, b"\x80", None, TRACEPARENT)
    table.router.call(table.room, alice, frame)
    assert counts(table.news(eve)) == (1, 1, 0, 0)
    table.clock.advance(0.25)
    table.answer(host)
    news = table.news(eve)
    assert counts(news) == (0, 0, 1, 0)
    cards = [[seat.member.id, seat.member.identity.name] for seat in (alice, host)]
    (call,) = news["calls"]
    duration_us = call.pop(7)
    assert 349_000 < duration_us < 351_000
    assert call == ["call-1", cards[0], "t", "run", cards[1], None, "yes", TRACEPARENT]


def test_what_was_refused_came_and_ended_without_a_host(table: Watched) -> None:
    """WATCH-3: and of what the caller wrote only the beginning is told."""
    alice, eve = table.seat("alice"), table.watcher()
    frame = Call(1, "i" * 99, "x" * 50_000, "y" * 99, None, b"\x80", None, TRACEPARENT)
    table.router.call(table.room, alice, frame)
    news = table.news(eve)
    assert counts(news) == (0, 1, 1, 1)
    card = [alice.member.id, "alice"]
    rest = [None, "not_found", "no", 0, TRACEPARENT]
    assert news["calls"] == [["i" * 64, card, "x" * 64, "y" * 64, *rest]]


def test_the_trace_of_a_caller_that_is_not_continued_is_not_told(table: Watched) -> None:
    """WATCH-2, TRACE-3."""
    table.host("host", "t")
    alice, eve = table.seat("alice", api=ApiScope()), table.watcher()
    frame = Call(1, "c", "t", "run", None, b"\x80", None, TRACEPARENT)
    table.router.call(table.room, alice, frame)
    assert table.news(eve)["calls"][0][5:] == ["permission_denied", "no", 0, None]


def test_every_way_a_call_can_end_counts_it_out_again(table: Watched) -> None:
    """WATCH-2: `executed` is what the caller was told."""
    eve = table.watcher()
    hosts = [table.host(f"host{number}", f"t{number}") for number in range(5)]
    alice, bob = table.seat("alice"), table.seat("bob")
    table.news(eve)
    for number in range(5):
        table.call(bob if number == 4 else alice, number, f"t{number}.run", ms=10_000 - number)
    assert counts(table.news(eve)) == (5, 5, 0, 0)
    dispatch = port_of(hosts[0]).take_dispatch()
    table.router.answer(hosts[0], Failed(dispatch.id, "made\x1bup", "no", False, "", None, None))
    table.router.cancel(alice, Cancel(1, "cancelled"))
    table.leave(hosts[2])
    table.leave(bob)
    news = table.news(eve)
    assert counts(news) == (1, 0, 4, 4)
    assert [call[5:7] for call in news["calls"]] == [
        ["made\x1bup", "no"],
        ["cancelled", "maybe"],
        ["host_lost", "maybe"],
        ["cancelled", "maybe"],
    ]
    table.clock.advance(10)
    news = table.news(eve)
    assert counts(news) == (0, 0, 1, 1)
    assert news["calls"][0][5:7] == ["deadline_exceeded", "maybe"]
    assert table.router.in_flight == 0


def test_who_comes_in_mid_call_is_told_how_many_are_in_flight(table: Watched) -> None:
    """WATCH-1, WATCH-2: again after watching had ended, with the same calls still under way."""
    host, alice = table.host("host", "t"), table.seat("alice")
    for number in range(3):
        table.call(alice, number)
    eve = table.watcher()
    assert counts(table.news(eve)) == (3, 0, 0, 0)
    table.feeds.forget(eve.member)
    table.answer(host)
    table.subscribe(eve)
    assert counts(table.news(eve)) == (2, 0, 0, 0)
    table.answer(host)
    table.answer(host)
    news = table.news(eve)
    assert counts(news) == (0, 0, 2, 0)
    assert [call[0] for call in news["calls"]] == ["call-1", "call-2"]


def test_who_comes_later_is_told_of_what_comes_later(table: Watched) -> None:
    """WATCH-2: in the event that others get it too."""
    host, alice, eve = table.host("host", "t"), table.seat("alice"), table.watcher()
    table.news(eve)
    table.call(alice, 1)
    table.answer(host)
    zoe = table.watcher("zoe")
    table.call(alice, 2)
    table.answer(host)
    both = table.news(eve), port_of(zoe).take(Event).data
    assert counts(both[0]) == (0, 2, 2, 0)
    assert counts(both[1]) == (0, 1, 1, 0)
    assert [call[0] for call in both[0]["calls"]] == ["call-1", "call-2"]
    assert [call[0] for call in unpack_body(both[1]["calls"])] == ["call-2"]


def test_many_calls_are_counted_and_the_last_and_the_failed_ones_named(table: Watched) -> None:
    """WATCH-3."""
    host, alice, eve = table.host("host", "t"), table.seat("alice"), table.watcher()
    table.call(alice, 0, "t.missing")
    for number in range(1, 2 * MAX_CALLS):
        table.call(alice, number)
        table.answer(host)
    news = table.news(eve)
    assert counts(news) == (0, 2 * MAX_CALLS, 2 * MAX_CALLS, 1)
    named = [call[0] for call in news["calls"]]
    last = range(MAX_CALLS + 1, 2 * MAX_CALLS)
    assert named == ["call-0", *(f"call-{number}" for number in last)]
    assert len(named) == MAX_CALLS


def test_nothing_is_told_where_nothing_has_changed_and_no_more_than_ten_a_second(
    table: Watched,
) -> None:
    """WATCH-1."""
    host, alice, eve = table.host("host", "t"), table.seat("alice"), table.watcher()
    table.news(eve)
    table.clock.advance(60)
    assert port_of(eve).sent == []
    for number in range(100):
        table.call(alice, number)
        table.answer(host)
        table.clock.advance(0.01)
    table.clock.advance(FLUSH_S)
    assert 9 <= len(port_of(eve).sent) <= 11
    events = [port_of(eve).take(Event) for _ in range(len(port_of(eve).sent))]
    assert sum(event.data["ended"] for event in events) == 100


@pytest.mark.parametrize("trouble", ["is_full", "holds"])
def test_a_watcher_without_room_misses_events_and_has_right_counts_later(
    table: Watched, trouble: str
) -> None:
    """WATCH-5: also if nothing happens any more once it has room again."""
    host, alice = table.host("host", "t"), table.seat("alice")
    slow, eve = table.watcher("slow"), table.watcher()
    table.clock.advance(FLUSH_S)
    for port in (port_of(slow), port_of(eve)):
        port.take(Event)
    setattr(port_of(slow), trouble, True)
    for number in range(3):
        table.call(alice, number)
        table.clock.advance(FLUSH_S)
    for _ in range(2):
        table.answer(host)
        table.clock.advance(FLUSH_S)
    assert len(port_of(eve).sent) == 5
    assert port_of(slow).sent == []
    setattr(port_of(slow), trouble, False)
    port_of(slow).release()
    table.clock.advance(FLUSH_S)
    events = [port_of(slow).take(Event) for _ in range(len(port_of(slow).sent))]
    # What waits is never more than one event, however long it waits.
    assert len(events) == (2 if trouble == "holds" else 1)
    assert [event.number for event in events] == list(range(2, 2 + len(events)))
    assert events[-1].data["in_flight"] == 1
    assert sum(event.data["started"] for event in events) == 3
    assert sum(event.data["ended"] for event in events) == 2
    table.answer(host)


def test_who_loses_the_grant_is_told_no_more(table: Watched) -> None:
    eve, alice = table.watcher(), table.seat("alice")
    table.news(eve)
    eve.member.scope = ApiScope()
    table.feeds.regrant(eve.member, ())
    assert table.room.watch is None
    table.call(alice, 1)
    table.clock.advance(1)
    assert port_of(eve).sent == []


# Over nodes


class Pair:
    """Two nodes that hold one room: each reports to the other, where that has a watcher."""

    def __init__(self, here: Watched, there: Watched) -> None:
        self.here, self.there = here, there
        self.is_cut = False
        self.reports: list[CallReport] = []

    def watch(self) -> Seat:
        """Let somebody watch here, and the other node learn of it."""
        eve = self.here.watcher()
        self.there.feeds.calls.report_to("here", eve.member.watches, self._send)
        return eve

    def _send(self, report: CallReport) -> bool:
        if not self.is_cut:
            self.reports.append(report)
            self.here.feeds.calls.take_report("there", report)
        return not self.is_cut

    def news(self, eve: Seat) -> dict[str, Any]:
        self.there.clock.advance(FLUSH_S)
        return self.here.news(eve)


@pytest.fixture
def pair(table: Watched) -> Iterator[Pair]:
    pair = Pair(table, Watched())
    yield pair
    pair.there.feeds.calls.report_no_more("here")
    assert pair.there.room.watch is None


def test_calls_of_another_node_are_told_as_ones_own(pair: Pair) -> None:
    """WATCH-2: those that were under way there before are in flight here too."""
    host, ann = pair.there.host("host", "t"), pair.there.seat("ann")
    pair.there.call(ann, 1)
    eve = pair.watch()
    assert counts(pair.news(eve)) == (1, 0, 0, 0)
    pair.there.call(ann, 2)
    pair.there.call(ann, 3, "t.missing")
    pair.there.answer(host)
    pair.there.answer(host)
    news = pair.news(eve)
    assert counts(news) == (0, 2, 3, 1)
    assert {call[0]: call[5] for call in news["calls"]} == {
        "call-1": None,
        "call-2": None,
        "call-3": "not_found",
    }


def test_calls_under_way_elsewhere_are_told_where_nothing_else_is_new(pair: Pair) -> None:
    """WATCH-1."""
    pair.there.host("host", "t")
    pair.there.call(pair.there.seat("ann"), 1)
    eve = pair.watch()
    assert counts(pair.here.news(eve)) == (0, 0, 0, 0)
    assert counts(pair.news(eve)) == (1, 0, 0, 0)


def test_counts_are_right_again_after_reports_that_could_not_be_sent(pair: Pair) -> None:
    """WATCH-3: their calls are not told."""
    host, ann = pair.there.host("host", "t"), pair.there.seat("ann")
    eve = pair.watch()
    pair.news(eve)
    pair.is_cut = True
    for number in range(3):
        pair.there.call(ann, number)
        pair.there.answer(host)
        pair.there.clock.advance(FLUSH_S)
    pair.is_cut = False
    assert counts(pair.news(eve)) == (0, 3, 3, 0)


def test_a_report_for_an_earlier_watch_counts_for_nothing(pair: Pair) -> None:
    ann = pair.there.seat("ann")
    eve = pair.watch()
    pair.news(eve)
    pair.there.call(ann, 1, "t.missing")
    pair.there.clock.advance(FLUSH_S)
    late = pair.reports[-1]
    pair.here.feeds.forget(eve.member)
    pair.there.feeds.calls.report_no_more("here")
    eve = pair.watch()
    pair.here.feeds.calls.take_report("there", late)
    assert counts(pair.news(eve)) == (0, 0, 0, 0)


def test_who_subscribes_again_hears_of_all_calls_elsewhere_since(pair: Pair) -> None:
    """WATCH-2: the other node need not hear of it first."""
    ann, eve = pair.there.seat("ann"), pair.watch()
    pair.news(eve)
    pair.here.subscribe(eve)
    pair.there.call(ann, 1, "t.missing")
    assert counts(pair.news(eve)) == (0, 1, 1, 1)


def test_a_report_that_may_have_been_lost_is_made_once_more(pair: Pair) -> None:
    """WATCH-3: what came twice counts once."""
    pair.there.host("host", "t")
    eve = pair.watch()
    pair.there.call(pair.there.seat("ann"), 1)
    assert counts(pair.news(eve)) == (1, 1, 0, 0)
    reports = len(pair.reports)
    pair.there.feeds.calls.report_anew("elsewhere")
    pair.there.clock.advance(FLUSH_S)
    assert len(pair.reports) == reports
    pair.there.feeds.calls.report_anew("here")
    pair.there.clock.advance(FLUSH_S)
    pair.here.clock.advance(FLUSH_S)
    assert len(pair.reports) == reports + 1
    assert port_of(eve).sent == []


def test_calls_that_ended_while_nobody_reported_them_have_ended(pair: Pair) -> None:
    """WATCH-2: as where the other node has left the room, with its last report lost."""
    host, ann = pair.there.host("host", "t"), pair.there.seat("ann")
    eve = pair.watch()
    for number in range(2):
        pair.there.call(ann, number)
    assert counts(pair.news(eve)) == (2, 2, 0, 0)
    pair.there.feeds.calls.report_no_more("here")
    pair.there.answer(host)
    pair.there.feeds.calls.report_to("here", eve.member.watches, pair._send)
    assert counts(pair.news(eve)) == (1, 0, 1, 1)


def test_the_calls_of_a_node_that_ends_have_ended(pair: Pair) -> None:
    """WATCH-2: also where its watchers hear of nothing else."""
    pair.there.host("host", "t")
    ann = pair.there.seat("ann")
    eve = pair.watch()
    for number in range(2):
        pair.there.call(ann, number)
    assert counts(pair.news(eve)) == (2, 2, 0, 0)
    pair.here.feeds.calls.forget_node("there")
    assert counts(pair.here.news(eve)) == (0, 0, 2, 2)


def test_a_node_that_leaves_a_room_reports_how_its_calls_ended(pair: Pair) -> None:
    pair.there.host("host", "t")
    ann = pair.there.seat("ann")
    eve = pair.watch()
    pair.there.call(ann, 1)
    assert counts(pair.news(eve)) == (1, 1, 0, 0)
    pair.there.leave(ann)
    pair.there.feeds.calls.end_reports()
    assert pair.there.room.watch is None
    news = pair.here.news(eve)
    assert counts(news) == (0, 0, 1, 1)
    assert news["calls"][0][5:7] == ["cancelled", "maybe"]


def test_participants_of_other_nodes_are_not_counted_for_them(table: Watched) -> None:
    """A call that comes from another node is told by that one, also to who comes in mid-call."""
    table.host("host", "t")
    ann = table.seat("ann")
    ann.member.is_far = True
    table.call(ann, 1)
    eve = table.watcher()
    assert counts(table.news(eve)) == (0, 0, 0, 0)
