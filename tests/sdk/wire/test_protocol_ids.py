"""PROTOCOL.md against the tests and the code: no rule without a test, no id without a rule.

A test names a rule by having its id anywhere in its file. Where a test that is not about the wire
shows a rule, `_SHOWN_ELSEWHERE` names that test.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_PROTOCOL = _ROOT / "sdk" / "toolbus" / "wire" / "PROTOCOL.md"
_RULE = re.compile(r"^- \*\*([A-Z]+-\d+)\*\* ", re.MULTILINE)
_ID = re.compile(r"(?<![\w-])[A-Z]{2,}-\d+(?![\w-]|\.\d)")
# What looks like the id of a rule and is none.
_OTHER_WORDS = frozenset({"UTF-8", "SHA-256", "ISO-8601", "ISO-8859"})
_NO_TEXT = frozenset({".msgpack", ".pyc", ".png", ".sqlite"})

_SHOWN_ELSEWHERE = {
    "TOKEN-1": [
        "sdk/test_hostile_tokens.py::test_other_algorithm_of_the_same_secret_is_refused",
        "sdk/test_hostile_tokens.py::test_kid_is_looked_up_in_memory_and_nowhere_else",
        "sdk/test_hostile_tokens.py::test_critical_header_is_refused",
    ],
    "TOKEN-2": [
        "sdk/test_tokens.py::test_minted_claims_are_the_promised_ones_and_no_more",
        "sdk/test_tokens.py::test_token_for_another_audience_is_refused",
        "sdk/test_tokens.py::test_name_and_role_are_printable_text",
        "sdk/test_hostile_tokens.py::test_long_token_is_refused_before_anything_of_it_is_decoded",
    ],
    "TOKEN-3": [
        "sdk/test_tokens.py::test_token_past_its_end_within_the_leeway_is_accepted",
        "sdk/test_tokens.py::test_token_of_more_than_a_day_is_refused",
    ],
    "TOKEN-4": [
        "sdk/test_tokens.py::test_rooms_are_a_list_of_patterns",
        "sdk/test_grants.py::test_room_pattern_matches_room",
    ],
    "TOKEN-5": [
        "sdk/test_tokens.py::test_grants_that_are_no_scope_are_refused",
        "sdk/test_grants.py::test_claims_hold_lists_and_only_what_is_not_default",
        "sdk/test_grants.py::test_pattern_covers_what_it_says",
    ],
    "ERR-4": [
        "scenarios/test_ledger.py::test_executed_is_never_wrong_and_nothing_is_left",
    ],
    "TRACE-1": [
        "sdk/test_trace_context.py::test_malformed_traceparent_is_an_absent_one",
        "sdk/test_trace_context.py::test_tracestate_that_is_too_long_or_not_printable_goes_no_further",
    ],
    "TRACE-2": [
        "sdk/test_telemetry.py::test_call_over_three_processes_is_one_tree",
        "sdk/test_telemetry.py::test_node_that_records_nothing_forwards_the_context_unchanged",
    ],
    "TRACE-3": [
        "sdk/test_telemetry.py::test_caller_without_the_trace_grant_gets_a_new_root_with_a_link",
        "sdk/test_telemetry.py::test_context_of_a_caller_without_the_grant_is_not_forwarded",
    ],
}


def _rules() -> list[str]:
    """Give the ids of the rules, as they occur."""
    return _RULE.findall(_PROTOCOL.read_text(encoding="utf-8"))


def _ids_in(folder: str, suffixes: frozenset[str] | None = None) -> dict[str, list[str]]:
    """Give each id that occurs below a folder, with the files it occurs in.

    A file that is no text and not known as such raises.
    """
    found: dict[str, list[str]] = {}
    for path in sorted((_ROOT / folder).rglob("*")):
        wanted = path.suffix in suffixes if suffixes else path.suffix not in _NO_TEXT
        if path.is_file() and wanted and path != Path(__file__):
            for rule in set(_ID.findall(path.read_text(encoding="utf-8"))) - _OTHER_WORDS:
                found.setdefault(rule, []).append(str(path.relative_to(_ROOT)))
    return found


def test_every_rule_has_one_id_and_the_ids_of_a_section_count_from_one() -> None:
    rules = _rules()
    assert len(rules) > 100
    assert len(set(rules)) == len(rules)
    numbers: dict[str, list[int]] = {}
    for rule in rules:
        section, _, number = rule.partition("-")
        numbers.setdefault(section, []).append(int(number))
    for section, found in numbers.items():
        assert found == list(range(1, len(found) + 1)), section


def test_every_rule_is_named_by_a_test() -> None:
    named = {
        rule
        for rule, files in _ids_in("tests", frozenset({".py"})).items()
        if any(Path(name).name.startswith("test_") for name in files)
    }
    assert sorted(set(_rules()) - named - _SHOWN_ELSEWHERE.keys()) == []


@pytest.mark.parametrize("folder", ["tests", "sdk", "room_server", "toolkits"])
def test_every_id_that_is_named_is_a_rule(folder: str) -> None:
    rules = set(_rules())
    unknown = {rule: files for rule, files in _ids_in(folder).items() if rule not in rules}
    assert unknown == {}


def test_rules_shown_elsewhere_name_tests_that_are_there() -> None:
    assert _SHOWN_ELSEWHERE.keys() <= set(_rules())
    for place in {place for places in _SHOWN_ELSEWHERE.values() for place in places}:
        file, _, name = place.partition("::")
        tree = ast.parse((_ROOT / "tests" / file).read_text(encoding="utf-8"))
        functions = ast.FunctionDef | ast.AsyncFunctionDef
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, functions)}, place
