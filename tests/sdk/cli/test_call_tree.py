"""The tree of a call: what each line is below of, and what is known of its time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from toolbus.cli.call_tree import CallFacts, call_tree, tree_as_json
from toolbus.records.call_record import CallRecord
from toolbus.room.calls import EndedCall
from toolbus.telemetry.viewer.trace_tree import draw_lines

OWN, TRACE = "c" * 32, "t" * 32
START_NS = 1_700_000_000_000_000_000
MS = 1_000_000
OF_PLAN = EndedCall(OWN, "ann", "p1", "trips", "plan", "bob", "p2", None, "yes", 0.0084, TRACE)


def facts(*calls: EndedCall, **more: Any) -> CallFacts:
    """A call that took 10 ms."""
    known: dict[str, Any] = {"ended_ns": START_NS + 10 * MS, "calls": list(calls), **more}
    return CallFacts(OWN, TRACE, "trips.plan", "ann", "main", START_NS, **known)


def nested(call_id: str, tool: str, *, of: EndedCall = OF_PLAN, **more: Any) -> EndedCall:
    """A call that the tool of another one made, run by eve."""
    assert of.host is not None
    assert of.host_id is not None
    made = EndedCall(
        call_id, of.host, of.host_id, "words", tool, "eve", "p3", None, "yes", 0.002, TRACE
    )
    return replace(made, **{"parent_id": of.call_id, **more})


def record(call: EndedCall, at_ms: float, took_ms: float, **more: Any) -> CallRecord:
    """What the host of a call has recorded."""
    made = CallRecord(
        f"{call.toolkit}.{call.tool}",
        START_NS / 1e9 + at_ms / 1e3,
        took_ms / 1e3,
        call.code or "ok",
        call.executed,
        caller=call.caller,
        call_id=call.call_id,
        owner=call.host or "",
    )
    return replace(made, **more)


def lines(known: CallFacts) -> list[tuple[Any, ...]]:
    """Depth, part, tool, who, duration, and what is said of it."""
    always = ("depth", "part", "tool", "who", "duration_ms")
    shown = ("attempt", "refusals", "code", "outcome", "note")
    return [
        (*(line[name] for name in always), *(line[name] for name in shown if line[name]))
        for line in tree_as_json(known, call_tree(known), [])["lines"]
    ]


def test_nested_calls_are_below_the_host_whose_tool_made_them() -> None:
    twice = [nested(f"n{number}", "count") for number in range(2)]
    deep = nested("d", "one", of=twice[1], caller="eve")
    assert lines(facts(deep, *twice, OF_PLAN)) == [
        (0, "caller", "trips.plan", "ann", 10.0),
        (1, "server", "trips.plan", "", 8.4),
        (2, "host", "trips.plan", "bob", None),
        (3, "server", "words.count", "", 2.0),
        (4, "host", "words.count", "eve", None),
        (3, "server", "words.count", "", 2.0),
        (4, "host", "words.count", "eve", None),
        (5, "server", "words.one", "", 2.0),
        (6, "host", "words.one", "eve", None),
    ]


def test_call_whose_parent_is_not_known_names_who_made_it() -> None:
    """As of a tool with a room of its own, or where an older server names no parents."""
    other = nested("n", "count", parent_id=None, host=None, host_id=None, code="no_host")
    assert lines(facts(other, OF_PLAN))[1:] == [
        (1, "server", "words.count", "", 2.0, "no_host", "made by bob"),
        (1, "server", "trips.plan", "", 8.4),
        (2, "host", "trips.plan", "bob", None),
    ]


def test_attempts_have_numbers_and_the_times_at_which_the_caller_saw_them_end() -> None:
    lost = replace(OF_PLAN, code="host_lost", executed="maybe", duration_s=0.001)
    refused = replace(OF_PLAN, code="no_host", host=None, host_id=None, duration_s=0.0)
    last = replace(OF_PLAN, host_id="p9", duration_s=0.002)
    failures = [(2, "host_lost"), (3, "unavailable"), (4, "no_host"), (5, "no_host")]
    known = facts(
        *(lost, refused, refused, last),
        failures=[(START_NS + at * MS, code) for at, code in failures],
    )
    assert lines(known)[1:] == [
        (1, "server", "trips.plan", "", 1.0, 1, "host_lost"),
        (2, "host", "trips.plan", "bob", None),
        (1, "caller", "trips.plan", "ann", 1.0, "unavailable"),
        (1, "server", "trips.plan", "", 1.0, 2, "no_host"),
        (1, "server", "trips.plan", "", 2.0, 2),
        (2, "host", "trips.plan", "bob", None),
    ]
    bars = [line.partition("|")[2].partition("|")[0] for line in draw_lines(call_tree(known))]
    assert [bar.find("━") for bar in bars] == [0, 2, -1, 4, 8, 16, -1]


def test_end_of_a_call_that_the_server_does_not_report_is_its_own_line_alone() -> None:
    end = START_NS + 10 * MS
    known = facts(code="unavailable", executed="no", failures=[(end, "unavailable")])
    assert lines(known) == [(0, "caller", "trips.plan", "ann", 10.0, "unavailable")]


def test_records_tell_the_times_of_hosts_and_place_the_server_around_them() -> None:
    count = nested("n", "count")
    known = facts(
        *(count, OF_PLAN),
        records=[
            record(count, 4, 1, decided_by="schema", decision="denied"),
            record(OF_PLAN, 2, 8),
        ],
    )
    assert lines(known)[2:] == [
        (2, "host", "trips.plan", "bob", 8.0),
        (3, "server", "words.count", "", 2.0),
        (4, "host", "words.count", "eve", 1.0, "denied by schema"),
    ]
    starts = [
        round((node.span.start_ns - START_NS) / MS, 1)
        for node in call_tree(known).nodes
        if node.span.known == "times"
    ]
    assert starts == [0, 1.6, 2, 3.5, 4]


def test_wait_for_a_person_is_below_the_host_that_asked() -> None:
    count = nested("n", "count")
    at = START_NS / 1e9
    waited = {
        "waited_s": 0.004,
        "settled": "approved",
        "settled_by": "eve",
        "settled_at": at + 7e-3,
    }
    known = facts(
        *(count, OF_PLAN),
        records=[record(OF_PLAN, 2, 8, **waited), record(count, 4, 1, waited_s=1e-3)],
    )
    assert lines(known)[2:] == [
        (2, "host", "trips.plan", "bob", 8.0),
        (3, "hold", "trips.plan", "eve", 4.0, "approved"),
        (3, "server", "words.count", "", 2.0),
        (4, "host", "words.count", "eve", 1.0),
        (5, "hold", "words.count", "", 1.0),
    ]
    drawn = draw_lines(call_tree(known))
    assert "outcome=approved" in drawn[3]
    assert "|" not in drawn[-1]  # cancelled: it is not known when
    held = replace(OF_PLAN, held_s=0.006, outcome="denied")
    assert lines(facts(held))[-1] == (3, "hold", "trips.plan", "", 6.0, "denied")


def test_server_is_around_its_host_where_the_caller_reads_the_result_late() -> None:
    nodes = call_tree(facts(OF_PLAN, records=[record(OF_PLAN, 0.5, 8)])).nodes
    assert 0 < nodes[1].span.start_ns - START_NS == nodes[2].span.start_ns - START_NS < MS


def test_records_of_an_agent_add_what_never_reached_the_server() -> None:
    count = nested("n", "count")
    turn = {"call_id": "of the turn", "caller": "bob"}
    local = record(count, 5, 1, **turn, tool="clock.now", owner="")
    denied = record(
        count, 6, 1, **turn, outcome="permission_denied", executed="no", decision="denied"
    )
    known = facts(count, OF_PLAN, records=[record(count, 3, 2, **turn), local, denied])
    assert lines(known)[3:] == [
        (3, "server", "words.count", "", 2.0),
        (4, "host", "words.count", "eve", None),
        (3, "local", "clock.now", "bob", 1.0),
        (3, "local", "words.count", "bob", 1.0, "permission_denied"),
    ]


def test_without_reports_records_alone_make_the_tree() -> None:
    count = nested("n", "count")
    known = facts(records=[record(count, 4, 1), record(OF_PLAN, 2, 8)])
    assert lines(known)[1:] == [
        (1, "host", "trips.plan", "bob", 8.0),
        (2, "host", "words.count", "eve", 1.0),
    ]


def test_what_is_not_known_has_no_bar_and_whole_milliseconds_are_marked() -> None:
    count = nested("n", "count", duration_s=0.0021)
    first, server, host, exact, _ = draw_lines(
        call_tree(facts(count, replace(OF_PLAN, duration_s=0.008)))
    )
    assert "10.00 ms  |" in first
    assert "~8 ms  |" in server
    assert host.endswith(" -")
    assert exact.endswith("2.10 ms                          executed=yes")


def test_names_of_others_are_escaped() -> None:
    evil = "\x1b[31m\nx"
    called = replace(OF_PLAN, host=evil, toolkit=evil, caller_id=evil)
    drawn = draw_lines(call_tree(facts(called, nested("n", evil, of=called))))
    assert len(drawn) == 5
    assert all(line.isprintable() for line in drawn)
