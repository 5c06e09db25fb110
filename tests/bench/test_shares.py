"""Where the microseconds of a call go: how samples are sorted, and how they are shown."""

from __future__ import annotations

import pytest

from bench.legs import ROLES
from bench.report import render
from bench.shares import OTHER, Shares, kind_of
from bench.verdict import Results


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("toolbus/transport.py MessageConnection.send_message", "sockets, event loop, tasks"),
        ("python3.11/_weakrefset.py WeakSet.add", "sockets, event loop, tasks"),
        ("toolbus/message_frames.py FrameCutter.cut", "websocket frames"),
        ("wire/codec.py pack_body", "the protocol's frames, packing"),
        ("toolbus_server/routing.py Router.call", "routing"),
        ("toolbus/calls.py Caller.call", "the caller's side"),
        ("toolbus/runner.py Runner.dispatch", "the host's side"),
        ("toolbus/tool.py FunctionTool.execute", "the host's side"),
        ("toolbus/root_sampling.py RootSampling.unsampled", "tracing, unsampled"),
        ("bench/toolbus_leg.py add", "the bench and its tool"),
        ("somewhere/else.py f", OTHER),
    ],
)
def test_each_place_does_one_kind_of_work(place: str, kind: str) -> None:
    assert kind_of(place) == kind


def test_report_tells_for_each_process_what_its_time_went_to() -> None:
    kinds = {role: {"routing": 3.0, OTHER: 1.5} for role in ROLES}
    functions = {role: {"a.py f": 1.5, "toolbus_server/routing.py g": 3.0} for role in ROLES}
    text = render(Results(shares={"uvloop": Shares(kinds, functions)}), ["uvloop"], {})
    assert "| routing | 3.0 | 3.0 | 3.0 |" in text
    assert "| all | **4.5** | **4.5** | **4.5** |" in text
    assert "- host: `toolbus_server/routing.py g` 3.0, `a.py f` 1.5" in text


def test_report_says_nothing_of_what_was_not_sampled() -> None:
    assert "| routing |" not in render(Results(), ["uvloop"], {})
