"""Trees from spans: order, gaps, cycles, and hostile text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolbus.telemetry.attributes import (
    ERROR_TYPE,
    EXECUTED,
    GEN_AI_USAGE_INPUT_TOKENS,
    GEN_AI_USAGE_OUTPUT_TOKENS,
    RPC_SYSTEM_NAME,
    settlement_attributes,
)
from toolbus.telemetry.viewer.trace_tree import (
    SpanKindName,
    SpanLink,
    SpanRecord,
    as_json,
    build_tree,
    render_lines,
)

TRACE = "a" * 32
CALL = {RPC_SYSTEM_NAME: "toolbus", EXECUTED: "yes"}


def span(
    span_id: str,
    parent_id: str | None = None,
    *,
    at_ms: tuple[float, float] = (0, 10),
    kind: SpanKindName = "INTERNAL",
    **facts: Any,
) -> SpanRecord:
    start_ns, end_ns = (round(at * 1e6) for at in at_ms)
    facts = {"name": f"span {span_id}", **facts}
    return SpanRecord(
        kind=kind,
        trace_id=TRACE,
        span_id=span_id,
        parent_id=parent_id,
        start_ns=start_ns,
        end_ns=end_ns,
        **facts,
    )


def shape(*spans: SpanRecord) -> list[tuple[str, int]]:
    return [(node.span.span_id, node.depth) for node in build_tree(spans).nodes]


def test_spans_are_read_parents_first_and_siblings_by_start() -> None:
    spans = [
        span("3", "1", at_ms=(5, 6)),
        span("4", "2", at_ms=(3, 4)),
        span("2", "1", at_ms=(2, 4)),
        span("1"),
    ]
    assert shape(*spans) == [("1", 0), ("2", 1), ("4", 2), ("3", 1)]


def test_no_spans_make_an_empty_tree() -> None:
    tree = build_tree([])
    assert (tree.nodes, tree.root, tree.whole, tree.duration_ms) == ((), None, False, 0)
    assert len(render_lines(tree)) == 1


def test_span_whose_parent_is_missing_is_shown_below_a_placeholder() -> None:
    lines = render_lines(build_tree([span("1", at_ms=(5, 10)), span("9", "8"), span("10", "9")]))
    assert [line.split("  ")[1] for line in lines[1:]] == [
        "span 1",
        "(parent not received)",
        "span 9",
        "└─ span 10",
    ]


def test_span_received_twice_is_shown_once() -> None:
    assert shape(span("1"), span("1")) == [("1", 0)]


def test_spans_that_run_in_a_circle_are_each_shown_once() -> None:
    spans = [
        span("1"),
        span("7", "7", at_ms=(1, 2)),
        span("8", "9", at_ms=(2, 3)),
        span("9", "8", at_ms=(3, 4)),
    ]
    assert shape(*spans) == [("1", 0), ("7", 0), ("8", 0), ("9", 1)]
    assert not build_tree(spans).whole
    assert render_lines(build_tree(spans)).count("  (parent not received)") == 2


def test_chain_deeper_than_the_stack_is_drawn_and_written_as_json() -> None:
    chain = [span(str(n), str(n - 1) if n else None) for n in range(5_000)]
    tree = build_tree(chain)
    assert tree.nodes[-1].depth == 4_999
    assert max(len(line) for line in render_lines(tree)) < 250
    assert json.loads(json.dumps(as_json(tree)))["spans"][-1]["depth"] == 4_999


@pytest.mark.parametrize(
    ("spans", "whole"),
    [
        ([span("1", kind="CLIENT", attributes=CALL)], False),
        ([span("1", kind="CLIENT", attributes={**CALL, EXECUTED: "no"})], True),
        ([span("1", kind="CLIENT")], True),
        ([span("1", kind="CLIENT", attributes=CALL), span("2", "1")], True),
        ([span("2", "1")], False),
        (
            [
                span("1", kind="CLIENT", attributes=CALL),
                span("2", "1", kind="SERVER", attributes=CALL),
            ],
            False,
        ),
    ],
)
def test_trace_looks_whole_when_each_hop_that_ran_has_something_below(
    spans: list[SpanRecord], whole: bool
) -> None:
    assert build_tree(spans).whole is whole


def test_line_has_service_duration_and_error() -> None:
    resource = {"service.name": "sql", "service.instance.id": "0123456789abcdef"}
    failed = {EXECUTED: "maybe", ERROR_TYPE: "host_lost"}
    root = span("1", kind="CLIENT", attributes=failed, resource=resource, status="ERROR")
    tokens = {GEN_AI_USAGE_INPUT_TOKENS: 310, GEN_AI_USAGE_OUTPUT_TOKENS: 24}
    linked = span("2", "1", attributes=tokens, at_ms=(5, 10), links=(SpanLink("b" * 32, "c" * 16),))
    title, first, second = render_lines(build_tree([root, linked]))
    assert title == f"trace {TRACE}  10.00 ms  2 spans"
    assert "CLIENT" in first
    assert "sql[01234567]" in first
    assert "10.00 ms" in first
    assert f"|{'━' * 20}|" in first
    assert first.endswith("executed=maybe  error=host_lost")
    assert f"|{' ' * 10}{'━' * 10}|" in second
    assert second.endswith("input=310  output=24  link=" + "b" * 32)


def test_line_of_a_wait_for_a_person_says_who_decided_what() -> None:
    decided = settlement_attributes("5485a47b", "denied", "an\nn")
    _, line = render_lines(build_tree([span("1", attributes=decided)]))
    assert line.endswith(r"outcome=denied  by=an\nn")


def test_span_that_ran_by_a_clock_of_its_own_stays_within_the_bar() -> None:
    lines = render_lines(build_tree([span("1", at_ms=(50, 60)), span("2", "1", at_ms=(70, 20))]))
    for line in lines[1:]:
        assert len(line.split("|")[1]) == 20


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[31mred\x1b[0m",
        "two\nlines\r",
        "\x00\x07\x08\x7f\x9b",
        "right\u202eto left\u2066",
        "\u2028\u2029\u200b\ufeff",
        "lone \ud800 surrogate",
        "x" * 1_000_000,
        "\n" * 1_000_000,
    ],
)
def test_hostile_text_becomes_one_short_printable_line(text: str) -> None:
    hostile = span(
        "1",
        name=text,
        status="ERROR",
        status_message=text,
        attributes={EXECUTED: text, ERROR_TYPE: text, text: text},
        resource={"service.name": text, "service.instance.id": text},
    )
    lines = render_lines(build_tree([hostile]))
    assert all(line.isprintable() and len(line) < 400 for line in lines)
    assert json.dumps(as_json(build_tree([hostile]))).isascii()


def test_json_has_no_values_that_json_lacks() -> None:
    odd = span("1", attributes={"a": float("nan"), "b": [float("inf"), b"\x01"], "c": {"d": None}})
    written = json.dumps(as_json(build_tree([odd])), allow_nan=False)
    attributes = json.loads(written)["spans"][0]["attributes"]
    assert attributes == {"a": "nan", "b": ["inf", "01"], "c": {"d": None}}
