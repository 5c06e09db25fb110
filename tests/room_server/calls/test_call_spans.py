"""The span of a call at the server ends before the span of its caller can end."""

from __future__ import annotations

from collections.abc import Callable
from time import time_ns

import pytest

from support.parts.manual_clock import RecordingPort
from support.parts.router_harness import RouterHarness, port_of
from support.telemetry.recording import SAMPLED, Process
from toolbus import AgentsGrant, ApiScope, ToolFailed
from toolbus.wire import Result, failed
from toolbus_server.calls.router import Connection


class TimingPort(RecordingPort):
    """A port that keeps when it got its last frame."""

    written_ns = 0

    def send_message(self, data: bytes, ticket: object = None) -> bool:
        self.written_ns = time_ns()
        return super().send_message(data)


def answer(harness: RouterHarness, host: Connection) -> None:
    harness.router.answer(host, Result(port_of(host).take_dispatch().id, b"\xc1"))


def fail(harness: RouterHarness, host: Connection) -> None:
    reply = failed(port_of(host).take_dispatch().id, ToolFailed("no clouds today"))
    harness.router.answer(host, reply)


@pytest.mark.parametrize(
    ("tool", "end"),
    [("t.run", answer), ("t.run", fail), ("t.run", RouterHarness.leave), ("t.other", None)],
    ids=["result", "failure", "lost host", "refused"],
)
def test_span_ends_before_the_reply_is_sent(
    tool: str, end: Callable[[RouterHarness, Connection], None] | None
) -> None:
    process = Process()
    harness = RouterHarness(tracing=process.tracing)
    host = harness.host("host", "t")
    alice = harness.connection("alice", api=ApiScope(trace=True, agents=AgentsGrant(call=True)))
    alice.port = port = TimingPort()
    harness.call(alice, 1, tool, traceparent=SAMPLED.traceparent)
    if end is not None:
        end(harness, host)
    (span,) = process.watcher.ended
    assert span.end_time is not None
    assert span.end_time <= port.written_ns
