"""What the log and the metrics say of the times without Redis."""

from __future__ import annotations

import logging

import pytest

from toolbus_server.cluster.isolation import RedisOutage


def test_each_outage_is_logged_once_and_lasts_from_its_first_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A lost connection is a failure, as is each attempt to connect again."""
    caplog.set_level(logging.WARNING, "toolbus_server.cluster.isolation")
    now_s = 100.0
    outage = RedisOutage(lambda: now_s)
    outage.ended()  # the first connection ends no outage
    assert outage.lasts_s == 0
    for reason, began_s, ended_s in (("refused", 110.0, 140.0), ("closed", 200.0, 205.0)):
        now_s = began_s
        outage.failed(reason)
        now_s = ended_s
        outage.failed("timeout")
        assert outage.lasts_s == ended_s - began_s
        outage.ended()
        outage.ended()
        now_s += 10
        assert outage.lasts_s == 0
    assert [record.getMessage() for record in caplog.records] == [
        "Redis is unavailable: refused",
        "Redis is available again, after 30.0 s",
        "Redis is unavailable: closed",
        "Redis is available again, after 5.0 s",
    ]
