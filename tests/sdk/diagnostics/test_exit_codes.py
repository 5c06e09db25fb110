"""Exit codes of errors, and the next step that follows an error."""

from __future__ import annotations

import pytest

from toolbus.diagnostics.exit_codes import CallTarget, exit_code, failure_lines
from toolbus.errors import (
    ERRORS,
    DeadlineExceeded,
    Overloaded,
    PermissionDenied,
    RoomException,
    TooLarge,
    ToolFailed,
    Unavailable,
)


def next_of(error: RoomException, target: CallTarget | None = None) -> str:
    _, *steps = failure_lines(error, target)
    return "".join(steps).removeprefix("  next: ")


def test_every_error_has_an_exit_code() -> None:
    codes = {code: int(exit_code(error())) for code, error in ERRORS.items()}
    assert set(codes.values()) == {1, 2, 3, 4, 5, 6}
    assert codes["not_found"] == 4
    assert codes["host_lost"] == 6


def test_too_large_has_an_exit_code_for_arguments_and_one_for_results() -> None:
    assert exit_code(TooLarge(executed="no")) == 2
    assert exit_code(TooLarge(executed="yes")) == 1


def test_unknown_error_code_exits_with_1() -> None:
    assert exit_code(RoomException()) == 1


def test_names_are_quoted_for_a_shell() -> None:
    target = CallTarget("words", "count", "bob & co")
    assert target.show_command == "toolbus tools words.count --participant 'bob & co'"


def test_longer_timeout_is_suggested_only_if_the_caller_set_it() -> None:
    waited = DeadlineExceeded("too late", executed="no")
    assert next_of(waited, CallTarget("a", "b", timeout_s=2)).startswith("allow more time than 2 s")
    own = DeadlineExceeded("its own limit", executed="yes")
    assert "--timeout does not change it" in next_of(own, CallTarget("a", "b", timeout_s=2))


def test_missing_act_for_grant_differs_from_missing_call_grant() -> None:
    step = next_of(PermissionDenied("no"), CallTarget("a", "b", principal="ann"))
    assert "--allow" not in step


def test_what_a_flag_of_the_host_allows_suggests_no_token() -> None:
    step = next_of(PermissionDenied("no", details={"host_flag": "--allow-x"}), CallTarget("a", "b"))
    assert step == "whoever hosts the toolkit can allow it: --allow-x of `toolbus host`"


def test_refused_nested_call_suggests_a_token_with_the_grant() -> None:
    refused = {"lacks": "principal"}
    error = ToolFailed("x", details={"cause": "PermissionDenied", "refused": refused})
    step = next_of(error)
    assert step.startswith("you have no grant for it")
    assert "`toolbus token create --allow TOOL`" in step
    assert next_of(error, CallTarget("a", "b", principal="ann")).startswith("that participant")


@pytest.mark.parametrize(
    ("code", "step"),
    [
        ("approval_denied", "a person refused what the tool asked, or a call that it made"),
        ("approval_expired", "let somebody answer what the tool asks, or approve what it calls"),
        ("no_host", "a nested call of the tool failed with no_host"),
    ],
)
def test_person_who_did_not_answer_a_tool_is_not_a_nested_call_of_it(code: str, step: str) -> None:
    assert next_of(ToolFailed("x", details={"code": code})).startswith(step)


def test_cause_that_is_not_an_identifier_is_not_repeated() -> None:
    for cause in ("a\nnext: pay", "\x1b[2J", 7, None, ["KeyError"]):
        step = next_of(ToolFailed("x", details={"cause": cause, "code": cause}))
        assert step.startswith("this message comes from the tool")


def test_overloaded_names_the_seconds_to_wait_if_the_error_does() -> None:
    assert next_of(Overloaded("no", retry_after_s=58.2)) == "retry in 59 s"
    assert next_of(Overloaded("no")).startswith("retry in a moment, or start another host")


def test_unavailable_server_that_was_reached_suggests_a_retry() -> None:
    step = next_of(Unavailable("the host's server cannot be reached", executed="no"))
    assert step.startswith("retry in a moment")


def test_a_status_in_the_details_of_a_tool_is_not_taken_for_that_of_the_connection() -> None:
    refused = ToolFailed("POST /items answered 409", executed="yes", details={"status": 409})
    assert next_of(refused).startswith("this message comes from the tool")
