"""How a host records calls: by the end that their callers learn, and whether the tool ran."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from support.parts.isolated_host import HostStage, echo, hold, hold_thread
from toolbus import Toolkit, tool
from toolbus.records.records import Records
from toolbus.wire import CallId, Cancel, Dispatch, RequestId, pack_body

DAN = pack_body(["p2", "dan", "user", "main"])


def recording_kit(records: Records) -> Any:
    return partial(Toolkit, records=records)


def ends(records: Records) -> list[tuple[str, str, str]]:
    """Return tool, outcome and `executed` of the recorded calls, the oldest first."""
    return [(record.tool, record.outcome, record.executed) for record in reversed(records.calls())]


async def test_each_call_is_recorded_once_with_what_its_frame_says(host_stage: HostStage) -> None:
    @tool
    async def unknown() -> Any:
        return object()

    records = Records.memory(arguments=True)
    server = host_stage.server(echo, unknown, kit=recording_kit(records))
    server.dispatch(1, "echo", text="x", header={"on_behalf_of": DAN})
    server.dispatch(2, "echo", text=5)
    server.dispatch(3, "echo", packed=b"\xc1")
    server.dispatch(4, "unknown")
    server.dispatch(5, "fly")
    server.dispatch(6, "echo", text="x", header={"caller_context": b"\xc1"})
    for _ in range(6):
        await server.answer()
    await server.idle()
    found = {record.call_id: record for record in records.calls()}
    assert {key: (record.outcome, record.executed) for key, record in found.items()} == {
        "1": ("ok", "yes"),
        "2": ("invalid_arguments", "no"),
        "3": ("invalid_arguments", "no"),
        "4": ("invalid_result", "yes"),
        "5": ("not_found", "no"),
        "6": ("invalid_arguments", "no"),
    }
    first = found["1"]
    assert (first.tool, first.caller, first.issuer) == ("t.echo", "alice", "acme")
    assert (first.principal, first.principal_issuer) == ("dan", "main")
    assert first.arguments == '{"text": "x"}'
    assert (found["3"].arguments, found["3"].decided_by) == (None, "schema")


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("cancelled", "cancelled"),
        ("caller_gone", "cancelled"),
        ("deadline", "deadline_exceeded"),
        ("stalled", "stream_stalled"),
        ("broken", "stream_broken"),
        ("leaving", "unavailable"),
        ("of a later version", "cancelled"),
    ],
)
async def test_cancelled_call_is_recorded_by_the_reason(
    host_stage: HostStage, reason: str, outcome: str
) -> None:
    records = Records.memory()
    server = host_stage.server(hold(host_stage, max_concurrency=1), kit=recording_kit(records))
    server.dispatch(1, "hold")
    await host_stage.wait_entered()
    server.dispatch(2, "hold")
    for number in (2, 1):
        server.runner.cancel(Cancel(RequestId(number), reason))
    await server.idle()
    assert {record.call_id: (record.outcome, record.executed) for record in records.calls()} == {
        "1": (outcome, "yes"),
        "2": (outcome, "no"),  # it waited for a slot
    }
    assert {record.decision for record in records.calls()} == {"allowed"}


async def test_limits_of_tool_and_host_are_recorded(host_stage: HostStage) -> None:
    records = Records.memory()
    kit = recording_kit(records)
    server = host_stage.server(hold(host_stage, timeout_s=0.05), kit=kit, max_in_flight=1)
    server.dispatch(1, "hold")
    server.dispatch(2, "hold")
    codes = [(await server.error()).code for _ in range(2)]
    await server.idle()
    assert codes == ["overloaded", "deadline_exceeded"]
    late, refused = sorted(records.calls(), key=lambda record: record.call_id)
    assert (late.outcome, late.executed, late.decision) == ("deadline_exceeded", "yes", "allowed")
    assert (refused.outcome, refused.executed) == ("overloaded", "no")
    assert (refused.decision, refused.decided_by) == ("denied", "limit")


async def test_call_that_a_stopped_host_leaves_behind_is_recorded_as_lost(
    host_stage: HostStage,
) -> None:
    records = Records.memory()
    server = host_stage.server(hold_thread(host_stage), kit=recording_kit(records))
    server.dispatch(1, "hold_thread")
    await host_stage.wait_entered()
    await server.runner.stop()
    assert ends(records) == [("t.hold_thread", "host_lost", "maybe")]
    host_stage.gate.set()
    await server.idle()
    assert len(records.calls()) == 1


async def test_trace_of_a_call_is_recorded(host_stage: HostStage) -> None:
    records = Records.memory()
    server = host_stage.server(echo, kit=recording_kit(records))
    call_id = CallId("12" * 16)
    for traceparent in (f"00-{'ab' * 16}-{'cd' * 8}-00", "", "bad"):
        arguments = pack_body({"text": "x"})
        dispatch = Dispatch(1, call_id, "t", "echo", None, arguments, {"caller": DAN}, traceparent)
        server.runner.dispatch(dispatch)
        assert await server.answer() == "x"
    refused = {"caller": DAN, "caller_context": b"\xc1"}
    server.runner.dispatch(Dispatch(1, call_id, "t", "echo", None, b"", refused, ""))
    assert (await server.error()).code == "invalid_arguments"
    assert [record.trace_id for record in records.calls()] == [call_id, "", call_id, "ab" * 16]
