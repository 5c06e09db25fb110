"""When the log has a line about attempts that fail."""

from __future__ import annotations

from toolbus.concurrency.backoff import FailedAttempts


def test_line_is_due_once_a_minute_and_counts_since_the_beginning() -> None:
    now = 0.0
    failed = FailedAttempts(lambda: now)
    lines = []
    for _ in range(30):
        now += 5.0
        lines.append(failed.add())
    assert [line for line in lines if line] == ["12 attempts in 60 s", "24 attempts in 120 s"]
    assert [failed.is_first_of(level) for level in (30, 30, 40)] == [True, False, True]
    failed.begin()
    assert failed.is_first_of(30)
    now += 60.0
    assert failed.add() == "1 attempt in 60 s"
