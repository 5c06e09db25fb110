"""The log of scripts that Redis refuses, on a clock of the test."""

from __future__ import annotations

import logging

import pytest

from support.parts.manual_clock import ManualClock
from toolbus_server.cluster.lease import REPEAT_S, RefusalLog


def test_refusal_is_logged_when_it_begins_and_ends_and_once_a_minute_with_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    clock = ManualClock()
    log = RefusalLog(clock.as_loop().time)

    def lines() -> list[str]:
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    log.accepted("enter", "a")
    log.refused("enter", "a", "WRONGTYPE")
    assert lines() == ["Redis refuses the script enter: WRONGTYPE"]
    for _ in range(59):
        log.refused("enter", "b", "WRONGTYPE")
        log.accepted("enter", "c")
        clock.advance(1.0)
    assert lines() == []
    clock.advance(REPEAT_S)
    log.refused("enter", "a", "BUSY")
    assert lines() == ["Redis still refuses the script enter, 61 times until now: BUSY"]
    log.refused("enter", "b", "BUSY")
    log.accepted("enter", "a")
    assert lines() == []
    log.accepted("enter", "b")
    assert lines() == ["Redis runs the script enter again, after 62 refusals"]
    for _ in range(3):  # it begins and ends many times within a minute
        log.refused("enter", "a", "WRONGTYPE")
        log.accepted("enter", "a")
    assert lines() == []
    clock.advance(REPEAT_S)
    log.refused("enter", "a", "WRONGTYPE")
    assert lines() == ["Redis refuses the script enter: WRONGTYPE"]
    log.refused("enter", "ended", "WRONGTYPE")
    clock.advance(REPEAT_S)
    log.accepted("enter", "c")
    assert lines() == ["Redis runs the script enter again, after 2 refusals"]
