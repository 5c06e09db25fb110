"""The table of what is promised when somebody fails: one in two places, each row with tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from toolbus.errors import ERRORS

ROOT = Path(__file__).parents[2]
HEAD = "| what fails |"
# Each row's tests: what a call, a stream and what is hosted come to there.
TESTS = {
    "caller dies": [
        "scenarios/test_call_rows.py::test_a_caller_that_goes_takes_its_calls_with_it",
        "scenarios/test_cycles.py::test_thousands_who_come_and_go_leave_nothing_behind",
        "scenarios/test_calls_in_pieces.py::test_leaving_a_stream_cancels_it_at_its_host",
    ],
    "caller's line breaks": [
        "sdk/test_caller.py::test_a_call_made_while_the_link_is_down_waits_for_it",
        "sdk/test_caller.py::"
        "test_a_call_on_a_lost_connection_goes_again_only_if_the_tool_is_idempotent",
        "sdk/test_stream_calls.py::test_nothing_is_tried_again_once_a_chunk_has_come",
        "sdk/test_stream_calls.py::test_call_is_not_tried_again_once_something_was_taken",
    ],
    "caller leaves": [
        "scenarios/test_leaving.py::test_whoever_leaves_ends_all_that_waits_for_the_room",
        "scenarios/test_leaving.py::test_a_toolkit_that_is_stopped_and_started_again_fails_no_call",
    ],
    "host dies": [
        "scenarios/test_call_rows.py::test_a_killed_host_leaves_maybe_and_a_tool_that_ran_once",
        "scenarios/test_call_rows.py::"
        "test_a_killed_host_of_an_idempotent_tool_is_followed_by_another",
        "sdk/test_caller.py::test_nobody_is_waited_for_longer_than_a_second",
    ],
    "host stands still": [
        "scenarios/test_line_faults.py::"
        "test_a_host_that_stood_still_is_taken_for_dead_and_comes_back_by_itself",
        "scenarios/test_call_rows.py::test_a_host_that_never_answers_is_given_up_at_the_deadline",
    ],
    "host drains": [
        "scenarios/test_host_drain.py::"
        "test_replica_that_is_told_to_end_fails_no_call_and_runs_each_once",
        "scenarios/test_host_drain.py::"
        "test_host_that_is_alone_leaves_its_name_to_the_next_of_its_identity",
        "scenarios/test_host_drain.py::test_calls_that_outlive_the_time_to_drain_are_given_up",
    ],
    "host's line breaks": [
        "scenarios/test_line_faults.py::"
        "test_a_host_whose_line_is_cut_without_a_word_is_gone_within_the_ping_time_out",
        "scenarios/test_leaving.py::test_a_host_that_lost_its_connection_serves_again_and_says_so",
    ],
    "server is killed": [
        "scenarios/test_restart.py::"
        "test_server_that_is_killed_and_started_anew_fails_only_what_may_have_run",
        "scenarios/test_homecoming.py::"
        "test_a_call_in_flight_at_a_restart_runs_again_only_if_that_does_no_harm",
    ],
    "server drains": [
        "scenarios/test_restart.py::test_server_that_is_stopped_and_started_anew_fails_no_call",
        "scenarios/test_moving.py::test_no_call_fails_while_all_move_to_another_server",
        "scenarios/test_protocol_leaving.py::"
        "test_call_that_outlives_a_leaving_server_ends_by_phase",
    ],
    "token ends": [
        "scenarios/test_token_ends.py::"
        "test_nothing_new_begins_after_the_end_and_what_is_in_flight_may_still_end",
        "scenarios/test_token_ends.py::"
        "test_what_is_in_flight_at_the_end_does_not_keep_anybody_for_long",
    ],
    "token is revoked": [
        "scenarios/test_token_ends.py::"
        "test_a_revoked_host_is_gone_within_a_second_with_what_it_hosts",
        "scenarios/test_token_ends.py::"
        "test_the_calls_of_a_revoked_caller_are_given_up_where_they_run",
    ],
    "host's server is killed, one of many": [
        "scenarios/test_node_losses.py::"
        "test_a_killed_node_is_as_many_lost_hosts_to_callers_at_the_others",
    ],
    "Redis is away, between many servers": [
        "scenarios/test_node_losses.py::"
        "test_calls_between_nodes_end_when_redis_is_lost_and_others_go_on",
        "scenarios/test_node_faults.py::"
        "test_while_redis_is_away_a_node_goes_on_by_itself_and_comes_back",
    ],
    "slow reader": [
        "scenarios/test_calls_in_pieces.py::test_slow_reader_slows_its_host_down",
        "scenarios/test_line_faults.py::"
        "test_a_caller_whose_window_is_closed_is_the_only_one_to_be_closed",
        "sdk/test_hosted_input.py::test_credit_is_given_as_the_tool_reads_and_not_as_chunks_come",
    ],
}


def table_of(document: str) -> list[str]:
    """Give the table's lines."""
    lines = (ROOT / document).read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(HEAD))
    return lines[first : lines.index("", first)]


TABLE = table_of("README.md")


def test_table_is_the_same_for_users_and_for_who_writes_a_client() -> None:
    assert table_of("sdk/toolbus/wire/PROTOCOL.md") == TABLE


def test_each_row_of_the_table_has_its_tests_and_a_cell_for_each_column() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE]
    assert [row[0] for row in rows[2:]] == [*TESTS]
    assert {len(row) for row in rows} == {10}
    assert all(cell for row in rows for cell in row)


def test_each_code_in_the_table_is_one() -> None:
    codes = set(re.findall(r"`([a-z_]+)`", "\n".join(TABLE)))
    assert codes - {"drain"} <= ERRORS.keys()


@pytest.mark.parametrize("name", [name for names in TESTS.values() for name in names])
def test_row_is_shown_by_a_test_that_is_there(name: str) -> None:
    path, _, function = name.partition("::")
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    assert function in [each.name for each in tree.body if isinstance(each, kinds)]
