"""Errors to frames and back: a program gets all it needs, and hostile values are dropped."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbus import errors
from toolbus.errors import ERRORS, RoomException
from toolbus.wire import Failed, decode_from_client, encode, exception_of, failed, pack_body


def sent(error: RoomException) -> RoomException:
    """Send an error through bytes."""
    frame = decode_from_client(encode(failed(7, error)))
    assert isinstance(frame, Failed)
    return exception_of(frame)


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_every_error_survives_a_round_trip(error: type[RoomException]) -> None:
    for executed in ("no", "maybe", "yes"):
        for retryable in (False, True):
            there = error(
                "words",
                executed=executed,
                retryable=retryable,
                details={"path": "/a"},
                retry_after_s=0.25,
            )
            back = sent(there)

            assert type(back) is error
            assert vars(back) == vars(there)


def test_error_without_details_survives_a_round_trip() -> None:
    back = sent(errors.NotFound())

    assert (back.message, back.details, back.retry_after_s) == ("not found", {}, None)


def test_code_of_a_newer_release_is_kept() -> None:
    frame = Failed(7, "too_early", "no", True, "words", None, None)
    error = exception_of(frame)

    assert type(error).__base__ is RoomException
    assert (error.code, error.executed, error.retryable) == ("too_early", "no", True)
    assert failed(7, error).code == "too_early"


def test_invalid_value_of_executed_counts_as_maybe() -> None:
    for word in ("", "No", "never", "n" * 1_000):
        error = exception_of(Failed(7, "not_found", word, False, "", None, None))

        assert error.executed == "maybe"


def test_fields_of_a_wrong_type_are_replaced_by_values_that_can_be_sent() -> None:
    error: Any = errors.ToolFailed("words")
    error.code, error.executed, error.retryable = datetime(2026, 1, 1), "sure", "why not"

    frame = failed(7, error)

    assert decode_from_client(encode(frame)) == frame
    assert (frame.code, frame.executed, frame.retryable) == ("2026-01-01 00:00:00", "maybe", True)


def test_very_long_code_is_truncated() -> None:
    assert exception_of(Failed(7, "x" * 60_000, "no", False, "", None, None)).code == "x" * 64


@pytest.mark.parametrize(
    "details",
    [b"", b"\xc1", b"\x90", b"\xc0", b"\x81\x01\x01", b"\xdd\xff\xff\xff\xff", b"\x91" * 5_000],
)
def test_details_that_are_broken_read_as_none(details: bytes) -> None:
    """BODY-2."""
    assert exception_of(Failed(7, "tool_failed", "yes", False, "", details, None)).details == {}


def test_details_that_are_too_long_are_neither_read_nor_sent() -> None:
    details: dict[str, Any] = {"x": [[]] * 900_000}
    frame = Failed(7, "tool_failed", "yes", False, "", msgpack.packb(details), None)

    assert exception_of(frame).details == {}
    assert failed(7, RoomException("", details=details)).details is None


@pytest.mark.parametrize("details", [{"x": object()}, {"x": "\ud800"}, {"x": 2**70}])
def test_details_that_cannot_be_sent_are_left_out(details: dict[str, Any]) -> None:
    assert failed(7, RoomException("", details=details)).details is None


@pytest.mark.parametrize("pause_s", [float("inf"), 1e300, 2.0**53])
def test_pause_is_at_most_a_day(pause_s: float) -> None:
    assert failed(7, RoomException("", retry_after_s=pause_s)).retry_after_ms == 86_400_000


@pytest.mark.parametrize("pause_s", [float("nan"), -1.0])
def test_invalid_pause_is_not_sent(pause_s: float) -> None:
    assert failed(7, RoomException("", retry_after_s=pause_s)).retry_after_ms is None


@given(
    st.builds(
        Failed,
        st.integers(0, 2**53),
        st.text() | st.sampled_from([*ERRORS]),
        st.text() | st.sampled_from(["no", "maybe", "yes"]),
        st.booleans(),
        st.text(),
        st.none() | st.binary() | st.dictionaries(st.text(), st.text()).map(pack_body),
        st.none() | st.integers(0, 2**53),
    )
)
def test_any_refusal_of_a_host_can_be_passed_on(frame: Failed) -> None:
    """A caller can always read the failure that the server forwards for a host."""
    passed_on = failed(2**53, exception_of(frame))

    assert decode_from_client(encode(passed_on)) == passed_on
