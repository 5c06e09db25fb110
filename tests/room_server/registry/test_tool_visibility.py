"""What a participant may see of a toolkit: computed once for equal grants, in bounded memory."""

from __future__ import annotations

import gc
from random import Random
from typing import Any

import pytest

from support.parts.models import definition, participant, scope
from toolbus.auth.grants import SeenTools
from toolbus.wire.body_steps import run_steps
from toolbus_server.registry import tool_visibility
from toolbus_server.registry.models import RegisteredToolkit
from toolbus_server.registry.room_state import RoomState
from toolbus_server.registry.tool_visibility import ToolVisibility

TOOLS = [f"tool_{number}" for number in range(100)]
SOME = scope(use_tools=True, allow=["t.*_1*1", "t.tool_5"])


def room_with_toolkit() -> tuple[RoomState, RegisteredToolkit]:
    state, host = RoomState("lab", Random(1)), participant("host")
    state.join(host)
    return state, state.register(host, definition("t", *TOOLS), public=True).toolkit


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the names of tools that are compared with patterns."""
    names: list[str] = []
    covers = SeenTools.covers

    def counted(seen: SeenTools, tool: str) -> bool:
        names.append(tool)
        return covers(seen, tool)

    monkeypatch.setattr(SeenTools, "covers", counted)
    return names


def test_participants_with_the_same_grants_share_a_result(compared: list[str]) -> None:
    state, toolkit = room_with_toolkit()
    for name in ("ann", "bob"):
        tools = run_steps(state.visibility.listed_tools(toolkit, participant(name, api=SOME)))
        assert tools is not None
        assert [tool.name for tool in tools] == ["tool_5", "tool_11"]
    assert compared == TOOLS


@pytest.mark.parametrize(
    ("agents", "seen"),
    [
        ({"use_tools": True}, 100),
        ({"use_tools": True, "deny": ["other.*a*b"]}, 100),
        ({"use_tools": True, "allow": ["other", "other2.x*y"]}, None),
        ({"use_tools": True, "deny": ["t*"]}, None),
        ({"call": True}, None),
    ],
)
def test_grants_that_decide_on_the_whole_toolkit_compare_no_tool(
    agents: dict[str, Any], seen: int | None, compared: list[str]
) -> None:
    state, toolkit = room_with_toolkit()
    reader = participant("ann", api=scope(**agents))
    tools = run_steps(state.visibility.listed_tools(toolkit, reader))
    assert (None if tools is None else len(tools)) == seen
    assert compared == []


def test_a_result_is_that_of_the_definition_and_grants_at_its_end() -> None:
    state, toolkit = room_with_toolkit()
    reader = participant("ann", api=scope(use_tools=True, allow=["t.*_1*x", "t.*a*b"]))
    steps = state.visibility.listed_tools(toolkit, reader)
    next(steps)
    reader.apply_token(participant("ann", api=SOME))
    state.register(toolkit.serving.hosts[0], definition("t", "tool_5", "other"), public=True)
    tools = run_steps(steps)
    assert tools is not None
    assert [tool.name for tool in tools] == ["tool_5"]


@pytest.mark.parametrize(
    ("newer", "tool", "reserve"), [("*.*_1*1", "tool_11", 1), ("t.o*", "other", 0)]
)
def test_a_reserve_is_that_of_the_grants_at_its_end(newer: str, tool: str, reserve: int) -> None:
    state, toolkit = room_with_toolkit()
    state.register(
        participant("host", "2"), definition("t", "tool_11", "other", version="2"), public=True
    )
    reader = participant("ann", api=scope(use_tools=True, allow=["t.*_1*1", "t.*a*b", "t.*c*d"]))
    steps = state.visibility.listing(toolkit, reader)
    reserve_steps = state.visibility.listed_reserve(toolkit, reader)
    next(steps)
    next(reserve_steps)
    reader.apply_token(participant("ann", api=scope(use_tools=True, allow=[newer])))
    listing = run_steps(steps)
    assert listing is not None
    assert [each.name for each in listing.tools] == [tool]
    assert len(listing.reserve) == len(run_steps(reserve_steps)) == reserve


def test_kept_results_are_bounded_and_end_with_their_definition(
    monkeypatch: pytest.MonkeyPatch, compared: list[str]
) -> None:
    monkeypatch.setattr(tool_visibility, "MAX_CACHED_TOOLS", 5)
    visibility, reader = ToolVisibility(), participant("ann", api=SOME)
    state, host = RoomState("lab", Random(1), visibility), participant("host")
    for version in "123":
        toolkit = state.register(
            host, definition("t", *TOOLS, version=version), public=True
        ).toolkit
        run_steps(visibility.listed_tools(toolkit, reader))
        run_steps(visibility.listed_tools(toolkit, reader))
        gc.collect()
        assert [len(cached) for cached in visibility._cached.values()] == [1]
    assert len(compared) == 3 * len(TOOLS)
