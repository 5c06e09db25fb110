"""From call events to rows and lines, without server, terminal or clock."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from toolbus import CallReport, EndedCall, RoomEvent, WaitingCall
from toolbus.cli.watch_display import RoomSnapshot, as_json, as_lines, as_screen, roster_lines
from toolbus.cli.watched_room import MAX_DURATIONS, MAX_ROWS, WINDOW_S, CallRates, Roster
from toolbus.room.participants import ParticipantInfo
from toolbus.room.toolkit_proxy import ToolkitInfo
from toolbus.wire import pack_body

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
CALL = EndedCall("c", "ann", "p1", "words", "count", "bob", "p2", None, "yes", 0.010, None)
LOST = replace(CALL, code="host_lost", executed="maybe", duration_s=1.0, trace_id=TRACE)

WAITING = WaitingCall("h", "c", "words", "count", "ann", "bob", "open", 2.0)


def report(*calls: EndedCall, in_flight: int = 0, **more: Any) -> CallReport:
    failed = sum(call.code is not None for call in calls)
    counts = {"started": len(calls), "ended": len(calls), "failed": failed, **more}
    return CallReport(in_flight, calls=calls, **counts)


def rates_of(*events: CallReport, at: float = 5.0) -> CallRates:
    rates = CallRates(0.0)
    for each in events:
        rates.add(each, at)
    return rates


# Events


def test_events_with_fields_of_a_newer_or_an_older_release_are_read() -> None:
    """WATCH-2."""
    good = ["c", ["p1", "ann"], "words", "count", ["p2", "bob"], None, "yes", 10_000, None, "p"]
    good += [4_000, "approved", "new"]
    bad = ["d", ["p1", "ann"], "x", "y", None, "not_found", "no", 0, TRACEPARENT]
    data = {"in_flight": 2, "started": 3, "ended": 2, "failed": 1, "calls": pack_body([good, bad])}
    wait = ["h", "c", "words", "count", "ann", "bob", "open", 2_000_000]
    holds = {"held": 1, "holds": pack_body([[*wait, "new"]])}
    assert CallReport.from_wire(data).waiting == ()
    read = CallReport.from_wire({**data, **holds, "later": 1})
    assert (read.held, read.waiting) == (1, (WAITING,))
    assert (read.in_flight, read.started, read.ended, read.failed) == (2, 3, 2, 1)
    refused = EndedCall("d", "ann", "p1", "x", "y", None, None, "not_found", "no", 0.0, TRACE)
    held = replace(CALL, parent_id="p", held_s=0.004, outcome="approved")
    assert read.calls == (held, refused)


@pytest.mark.parametrize("traceparent", ["", "00-x", f"00-{'0' * 32}-{'0' * 16}-01", "x" * 55])
def test_a_malformed_traceparent_has_no_trace_id(traceparent: str) -> None:
    fields = ["c", ["p", "ann"], "t", "u", None, None, "yes", 1, traceparent]
    assert EndedCall.from_wire(fields).trace_id is None


# Rates


def test_rates_cover_the_time_watched_then_the_window() -> None:
    rates = rates_of(report(CALL, CALL, LOST), at=5.0)
    (row,) = rates.rows(5.0)
    assert (row.toolkit, row.tool) == ("words", "count")
    assert (row.calls_per_s, row.failed_per_s) == (3 / 5, 1 / 5)
    assert rates.rows(14.9)[0].calls_per_s == 3 / WINDOW_S
    assert rates.total(14.9).failed_per_s == 1 / WINDOW_S
    assert rates.rows(15.0) == []
    assert rates.total(15.0).calls_per_s == 0


def test_percentiles_are_without_the_time_of_persons() -> None:
    held = replace(CALL, duration_s=60.01, held_s=60.0)
    (row,) = rates_of(report(held)).rows(5.0)
    assert row.p99_s == pytest.approx(0.01)


def test_percentiles_cover_calls_that_reached_a_host() -> None:
    took = [replace(CALL, duration_s=number / 1000) for number in range(1, 101)]
    refused = [replace(LOST, host=None, host_id=None, duration_s=0.0)] * 100
    (row,) = rates_of(report(*took), report(*refused)).rows(5.0)
    assert (row.p50_s, row.p99_s) == (0.050, 0.099)
    assert row.calls_per_s == 200 / 5
    (alone,) = rates_of(report(*refused)).rows(5.0)
    assert (alone.p50_s, alone.p99_s) == (None, None)


def test_counts_are_distributed_if_not_every_call_is_listed() -> None:
    other = replace(CALL, tool="sum")
    received = report(CALL, CALL, CALL, other, LOST, started=1_000, ended=1_000, failed=200)
    rows = {row.tool: row for row in rates_of(received).rows(5.0)}
    assert rows["sum"].calls_per_s == 200 / 5
    assert rows["count"].calls_per_s == (600 + 200) / 5
    assert rows["count"].failed_per_s == 200 / 5


def test_counts_without_listed_calls_count_as_others() -> None:
    rates = rates_of(report(LOST, started=50, ended=50, failed=1))
    rows = {row.tool: row.calls_per_s for row in rates.rows(5.0)}
    assert rows == {"count": 1 / 5, "": 49 / 5}
    assert rates.total(5.0).calls_per_s == 10


def test_rows_and_durations_are_bounded_and_others_counted_together() -> None:
    many = [replace(CALL, tool=f"t{number}") for number in range(MAX_ROWS + 50)]
    rates = CallRates(0.0)
    for number in range(0, len(many), 200):
        rates.add(report(*many[number : number + 200]), 1.0)
    rows = rates.rows(1.0)
    assert len(rows) == MAX_ROWS + 1
    assert {row.tool: row.calls_per_s for row in rows}[""] == 50
    for _ in range(20):
        rates.add(report(*[many[0]] * 200), 2.0)
    (busy, *_) = rates.rows(2.0)
    assert busy.calls_per_s == 4_001 / 2
    assert len(rates._rows["words", "t0"].durations) == MAX_DURATIONS
    assert len(rates._rows) == MAX_ROWS


def test_row_of_an_idle_tool_is_reused() -> None:
    rates = CallRates(0.0)
    rates.add(report(*[replace(CALL, tool=f"t{number}") for number in range(MAX_ROWS)]), 0.0)
    rates.add(report(replace(CALL, tool="late")), WINDOW_S + 1)
    assert [row.tool for row in rates.rows(WINDOW_S + 1)] == ["late"]


def test_frequent_counts_take_no_more_memory() -> None:
    rates = CallRates(0.0)
    for number in range(100_000):
        rates.add(report(CALL), number / 10_000)
    assert len(rates._all.counts) <= WINDOW_S / 0.1 + 1
    assert rates.total(10.0).calls_per_s == pytest.approx(10_000, rel=0.02)


def test_errors_are_kept_and_returned_once() -> None:
    rates = rates_of(report(CALL, LOST), report(*[LOST] * 300, in_flight=4))
    assert len(rates.errors) == len(rates.take_errors()) == 200
    assert rates.take_errors() == []
    assert rates.in_flight == 4
    assert rates.take_counts() == (302, 302, 301, False)
    rates.add(replace(report(), has_gap=True), 6.0)
    assert rates.take_counts() == (0, 0, 0, True)


# Roster


def participant(name: str, connection: str) -> ParticipantInfo:
    return ParticipantInfo(connection, name, "user", "acme", {}, 0.0)


def toolkit(name: str, hosts: int, owner: str = "bob") -> ToolkitInfo:
    return ToolkitInfo(name, "", "", "", "", True, owner, hosts, ())


def test_roster_is_the_list_with_later_events() -> None:
    roster = Roster()
    roster.apply(RoomEvent("participant_joined", participant=participant("eve", "p0")))
    assert (roster.participants(), roster.toolkits()) == (None, None)
    roster.set_participants([participant("bob", "p1"), participant("bob", "p2")])
    roster.set_toolkits([toolkit("words", 2)])
    for event in (
        RoomEvent("participant_left", participant=participant("bob", "p1")),
        RoomEvent("participant_left", participant=participant("bob", "p9")),
        RoomEvent("participant_joined", participant=participant("ann", "p3")),
        RoomEvent("participant_changed", participant=participant("ann", "p3")),
        RoomEvent("toolkit_changed", toolkit("words", 1)),
        RoomEvent("toolkit_added", toolkit("words", 1, "ann")),
        RoomEvent("toolkit_added", toolkit("sums", 1)),
        RoomEvent("toolkit_removed", toolkit("sums", 0)),
        RoomEvent("missed"),
    ):
        roster.apply(event)
    assert roster.participants() == [("ann", 1), ("bob", 1)]
    assert roster.toolkits() == [("words", "ann", 1), ("words", "bob", 1)]


# Rendering


def snapshot_of(rates: CallRates, now: float = 5.0, **more: Any) -> RoomSnapshot:
    started, ended, failed, has_gap = rates.take_counts()
    snapshot = RoomSnapshot(
        at=0.0,
        room="lab",
        connected=True,
        participants=[("ann", 1), ("bob", 2)],
        toolkits=[("words", "bob", 2)],
        in_flight=rates.in_flight,
        started=started,
        ended=ended,
        failed=failed,
        has_gap=has_gap,
        total=rates.total(now),
        rows=rates.rows(now),
        errors=[(error, now - error.at) for error in rates.errors],
        new_errors=rates.take_errors(),
        held=rates.held,
        waiting=[(wait, now - wait.at) for wait in rates.waiting],
        settled=rates.settled(now),
        new_settled=rates.take_settled(),
    )
    return replace(snapshot, **more)


def screen(snapshot: RoomSnapshot, width: int = 80, height: int = 24) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True)
    console.print(as_screen(snapshot, width=width, height=height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def text_after_clock(lines: Sequence[str]) -> list[str]:
    return [line.split(" ", 1)[1] for line in lines]


def test_lines_show_participants_and_calls() -> None:
    snapshot = snapshot_of(
        rates_of(report(CALL, CALL, LOST, in_flight=1)), has_gap=True, connected=False
    )
    assert text_after_clock([*roster_lines(snapshot), *as_lines(snapshot)]) == [
        "participants 3: ann, bob x2",
        "toolkits 1: words (2 hosts)",
        "some calls may be missing",
        "in flight 1  0.6 calls/s  0.2 errors/s  connection lost",
        "words.count  0.6 calls/s  0.2 errors/s  p50 10.0 ms  p99 1.0 s",
        f"error words.count  host_lost  executed maybe  ann to bob  trace {TRACE}",
    ]
    unknown = replace(snapshot, participants=None, toolkits=None)
    assert list(roster_lines(unknown)) == []


def test_json_has_the_same_values() -> None:
    value = json.loads(json.dumps(as_json(snapshot_of(rates_of(report(CALL, LOST, in_flight=1))))))
    assert (value["room"], value["connected"], value["in_flight"]) == ("lab", True, 1)
    assert (value["started"], value["ended"], value["failed"]) == (2, 2, 1)
    assert value["participants"] == [
        {"name": "ann", "connections": 1},
        {"name": "bob", "connections": 2},
    ]
    assert value["toolkits"] == [{"name": "words", "owner": "bob", "hosts": 2}]
    (tool,) = value["tools"]
    assert (tool["toolkit"], tool["tool"], tool["p50_s"], tool["p99_s"]) == (
        *("words", "count"),
        *(0.01, 1.0),
    )
    (error,) = value["errors"]
    assert (error["code"], error["executed"], error["trace_id"]) == ("host_lost", "maybe", TRACE)
    nothing = as_json(snapshot_of(CallRates(0.0), participants=None, toolkits=None))
    assert (nothing["participants"], nothing["toolkits"], nothing["in_flight"]) == (None,) * 3


def test_waits_for_persons_are_shown_with_their_time_and_then_with_their_outcome() -> None:
    denied = replace(WAITING, outcome="denied\n", held_s=3.0)
    own = replace(WAITING, caller="bob")
    rates = rates_of(report(held=9, waiting=(denied, WAITING, own)))
    snapshot = snapshot_of(rates, now=8.0)
    shown = [
        "in flight 0  waiting for a person 9  0.0 calls/s  0.0 errors/s",
        "words.count  waits for a person, 5.0 s now  ann to bob",
        "words.count  waits for a person, 5.0 s now  bob",
        "7 more wait for a person",
        r"words.count  denied\n after 3.0 s  ann to bob",
    ]
    assert text_after_clock(list(as_lines(snapshot))) == shown
    assert all(line in screen(snapshot) for line in shown)
    value = as_json(snapshot)
    assert (value["held"], [wait["held_s"] for wait in value["waiting"]]) == (9, [5.0, 5.0])
    assert [wait["outcome"] for wait in value["settled"]] == ["denied\n"]
    rates.add(report(), 9.0)
    later = snapshot_of(rates, now=9.0)
    assert text_after_clock(list(as_lines(later))) == ["in flight 0  0.0 calls/s  0.0 errors/s"]
    assert shown[-1] in screen(later)
    assert shown[-1] not in screen(snapshot_of(rates, now=15.0))


def test_screen_shows_rows_errors_and_the_complete_trace_id() -> None:
    shown = screen(snapshot_of(rates_of(report(CALL, LOST, in_flight=1)), now=8.0))
    for words in ("room lab  in flight 1", "words.count", "host_lost  executed maybe", "3 s ago"):
        assert words in shown
    assert f"trace {TRACE}" in shown
    assert "connection lost, reconnecting" in screen(snapshot_of(CallRates(0.0), connected=False))


@pytest.mark.parametrize("height", [8, 24, 60])
def test_screen_fits_the_terminal(height: int) -> None:
    many = [replace(LOST, tool=f"t{number}", trace_id=None) for number in range(150)]
    listed = [(f"p{number}", 1) for number in range(500)]
    shown = screen(snapshot_of(rates_of(report(*many)), participants=listed), height=height)
    # six lines of errors are never left out, nor the first three rows
    assert shown.count("\n") <= max(height, 14)
    assert "more" in shown


@pytest.mark.parametrize("width", [28, 40])
def test_narrow_screen_has_every_name_and_lines_in_place_of_the_table(width: int) -> None:
    call = replace(CALL, toolkit="warehouse_inventory", tool="count")
    snapshot = snapshot_of(rates_of(report(call, LOST)), participants=[("bob-the-builder", 1)])
    words = screen(snapshot, width=width).split()
    assert {"warehouse_inventory.count", "bob-the-builder", "words.count", "host_lost"} <= {*words}
    assert words.count("calls/s") == 3  # of the room, and of each tool
    assert "…" not in "".join(words)


NASTY = "a\x1b[31mb\n[red]c[/red]\r\u202e\t" + "z" * 100


def test_untrusted_text_controls_neither_the_terminal_nor_the_lines() -> None:
    call = replace(LOST, toolkit=NASTY, tool=NASTY, caller=NASTY, host=NASTY, code=NASTY)
    snapshot = snapshot_of(
        rates_of(report(call)), participants=[(NASTY, 1)], toolkits=[(NASTY, NASTY, 1)]
    )
    for line in (*roster_lines(snapshot), *as_lines(snapshot)):
        assert line.isprintable()
        assert len(line) < 1_100
    shown = screen(snapshot, width=300)
    for steering in ("\x1b[31mb", "\r", "\u202e", "\t"):
        assert steering not in shown
    assert "[red]c[/red]" in shown
    assert "\\x1b[31mb\\n" in shown
