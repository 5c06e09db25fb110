"""Assessments and rules as plain maps, and what is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from toolbus.permissions.assessment import Assessment
from toolbus.permissions.plain import (
    MAX_ASSESSMENT_BYTES,
    MAX_MATCHES,
    MAX_PARTS,
    assessment_from_plain,
    assessment_to_plain,
    rule_from_plain,
    rule_to_plain,
)
from toolbus.permissions.rule import Rule
from toolbus.wire import pack_body, unpack_body

RULE = Rule(
    behavior="deny", tool="shell.run", match="rm:*", owner="ops", principal="ann", caller="bot"
)
FULL = Assessment(
    "ask",
    read_only=True,
    within_workdir=True,
    immune=True,
    message="reads a file",
    preview="-a\n+b",
    suggestions=(RULE, Rule(behavior="allow")),
    matches=("rm:*", "*.tmp"),
    parts=(("*.tmp", "rm:*"), ()),
    uncertain=("*.tmp",),
    hint="name one file",
    source="manifest",
    reaches="github.push",
    refusal="rule deny shell.run",
    asks="mode default",
)


def test_what_was_written_is_read_again_and_defaults_are_left_out() -> None:
    for assessment in (FULL, Assessment("pass"), Assessment("deny")):
        assert assessment_from_plain(assessment_to_plain(assessment)) == assessment
    assert assessment_to_plain(Assessment("pass")) == {"behavior": "pass"}
    assert rule_to_plain(Rule(behavior="allow", origin="rules.toml:4")) == {"behavior": "allow"}
    assert rule_from_plain(rule_to_plain(RULE)) == RULE


def test_the_largest_parts_fit_into_an_assessment() -> None:
    matches = tuple(f"{number:03}" + "x" * 252 for number in range(MAX_MATCHES))
    parts = tuple(matches for _ in range(MAX_PARTS))
    texts: Any = {"message": "é" * 2_000, "preview": "x" * 2**16}
    full = replace(FULL, **texts, matches=matches, parts=parts, uncertain=matches)
    packed = pack_body(assessment_to_plain(full))
    assert len(packed) < MAX_ASSESSMENT_BYTES / 2
    assert assessment_from_plain(unpack_body(packed)) == full
    # A pattern that is not among `matches` has no place: then the part has one less.
    assert assessment_to_plain(replace(FULL, matches=()))["parts"] == [[], []]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"behavior": "run"},
        {"behavior": ["ask"]},
        {"behavior": "pass", "read_only": 1},
        {"behavior": "pass", "source": "person"},
        {"behavior": "pass", "message": "x" * 2_001},
        {"behavior": "pass", "message": b"x"},
        {"behavior": "pass", "preview": "é" * 40_000},
        {"behavior": "pass", "preview": "x" * 2**20},
        {"behavior": "pass", "suggestions": [{"behavior": "allow"}] * 6},
        {"behavior": "pass", "suggestions": {}},
        {"behavior": "pass", "matches": ["a"] * 65},
        {"behavior": "pass", "matches": ["a" * 20_000]},
        {"behavior": "pass", "matches": [1]},
        {"behavior": "pass", "matches": "a"},
        {"behavior": "pass", "parts": {}},
        {"behavior": "pass", "parts": [[]] * 257},
        {"behavior": "pass", "parts": [0], "matches": ["a"]},
        {"behavior": "pass", "parts": [[0]]},
        {"behavior": "pass", "parts": [[], [-1]], "matches": ["a"]},
        {"behavior": "pass", "parts": [[0, 0]], "matches": ["a"]},
        {"behavior": "pass", "parts": [[False]], "matches": ["a"]},
        {"behavior": "pass", "parts": [["a"]], "matches": ["a"]},
        {"behavior": "pass", "uncertain": ["a"], "matches": ["a"]},
        {"behavior": "pass", "uncertain": [1], "matches": ["a"]},
        {"behavior": "pass", "hint": "x" * 2_001},
        {"behavior": "pass", "reaches": "a" * 130},
        {"behavior": "pass", "refusal": "x" * 2_001},
        {"behavior": "pass", "asks": "x" * 2_001},
    ],
)
def test_what_is_no_assessment_is_refused(value: Any) -> None:
    """ASSESS-6, ASSESS-8, ASSESS-9."""
    with pytest.raises(ValueError, match=r"."):
        assessment_from_plain(value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"tool": "a"},
        {"behavior": "run"},
        {"behavior": "allow", "match": None},
        {"behavior": "allow", "match": ""},
        {"behavior": "allow", "tool": "a.b.c"},
        {"behavior": "allow", "origin": "rules.toml:4"},
        {"behavior": "allow", "only_on": "Monday"},
        {"behavior": "allow", 7: "x"},
    ],
)
def test_what_is_no_rule_is_refused_and_as_a_suggestion_left_out(value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        rule_from_plain(value)
    plain = {"behavior": "pass", "newer": 1, "suggestions": [value, {"behavior": "allow"}]}
    assert assessment_from_plain(plain) == Assessment("pass", suggestions=(Rule(behavior="allow"),))
