"""The scene of the demo with an agent: from one message to the tools that answer it.

The agent is a participant of its own in this process. Its model is scripted, so that the demo needs
no provider; all else is what an agent with another model does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from toolbus import (
    Agent,
    AgentsGrant,
    ApiScope,
    ApprovalDecision,
    ApprovalRequest,
    Permissions,
    RoomClient,
    Toolkit,
    builder_of,
    open_model,
)
from toolbus.telemetry.viewer.trace_tree import SpanRecord, build_tree, render_lines
from toolbus_toolkits.clock import clock
from toolbus_toolkits.demo.processes import ROOM, DemoProcesses
from toolbus_toolkits.demo.scene_runner import Scene, SceneOutput, table
from toolbus_toolkits.demo.scenes import expect, expect_refusal

__all__ = ["agent_scene"]

_AGENT = "agent"
_SCOPE = ApiScope(
    agents=AgentsGrant(
        register_private_toolkit=True, use_tools=True, call=True, deny=("sql.describe",)
    ),
    trace=True,
)
"""The agent needs no right to call for others: it calls within the calls of its askers."""
_QUESTION = "How many packages are there, and what time is it in Oslo?"
_TOOLS = [{"name": "clock", "timezone": "Europe/Oslo"}]
_COUNT = {"sql": "SELECT count(*) AS packages FROM packages"}
_REPLIES: tuple[dict[str, Any], ...] = (
    {"uses": [{"name": "sql.query", "arguments": _COUNT}, {"name": "clock.now"}]},
    {"text": "I have counted them and looked at the clock."},
)
_EXPECTED_TOOLS = ["clock.convert", "clock.now", "sql.list_tables", "sql.query"]


def agent_scene(processes: DemoProcesses, output: SceneOutput) -> Scene:
    """Make the scene that asks an agent, answers its question, and prints the trace of both."""
    return Scene(
        "An agent with other tools for each message",
        "ask an agent with a scripted model, and give it a clock for this message; approve its "
        "call of sql, which is another's; then ask for its diary",
        "tools of sql but sql.describe, and the clock; one trace from the message to both calls; "
        "permission_denied for the diary",
        partial(_ask_agent, processes, output),
    )


async def _ask_agent(processes: DemoProcesses, output: SceneOutput) -> str:
    script = processes.folder / "replies.jsonl"
    script.write_text("".join(f"{json.dumps(reply)}\n" for reply in _REPLIES), encoding="utf-8")
    token = processes.token(_AGENT, _SCOPE)
    rows: list[tuple[str, str, str]] = []
    ended: dict[str, Any] = {}

    async def approve(request: ApprovalRequest) -> ApprovalDecision:
        rows.append(("approved", request.tool.name, request.decision.reason))
        return ApprovalDecision.allow()

    async with (
        RoomClient(processes.url, room=ROOM, token=token) as room,
        Agent(
            room,
            open_model(f"scripted:{script}"),
            name=_AGENT,
            required=["sql"],
            builders=[builder_of(clock), Toolkit("diary", description="The agent's own notes.")],
            permissions=Permissions(),
            approve=approve,
            available=False,
        ),
    ):
        agent = await processes.room.toolkit(_AGENT, participant=_AGENT)
        about = await agent.about(tools=_TOOLS)
        async with agent.ask(text=_QUESTION, tools=_TOOLS) as chunks:
            async for chunk in chunks:
                ended = chunk.value
                if ended["type"] != "text":  # the end has all of it
                    rows.append(_row(ended))
        diary = agent.about(tools=[{"name": "diary"}])
        refusal = await expect_refusal(diary, "permission_denied", "no")
    output.print_tables(table("the answer", ("event", "tool", "content"), rows, max_chars=60))
    names = sorted(tool["name"] for tool in about["tools"])
    expect(names == _EXPECTED_TOOLS, f"the agent has {names}")
    events = [(event, tool) for event, tool, _ in rows]
    expect(("approved", "sql.query") in events, f"no person was asked: {events}")
    results = sorted(tool for event, tool in events if event == "tool_result: ok")
    expect(results == ["clock.now", "sql.query"], f"of the calls {results} ended well")
    tree = build_tree(await processes.trace(partial(_is_whole, ended["trace"])))
    # Without the bars, which so deep a tree would push beyond the columns.
    output.verbatim(re.sub(r"^  |  \|.*\|", "", line) for line in render_lines(tree))
    return (
        f"{ended['reason']} after {ended['steps']} replies; for the diary {refusal.code}, "
        f"executed: {refusal.executed}: {refusal.message}"
    )


def _row(event: dict[str, Any]) -> tuple[str, str, str]:
    name = f"{event['type']}: {event['state']}" if "state" in event else event["type"]
    return name, event.get("tool", ""), str(event.get("arguments", event.get("text", "")))


def _is_whole(trace: str, spans: Sequence[SpanRecord]) -> bool:
    names = {span.name for span in spans}
    has_all = {"agent.ask", "execute_tool query", "execute_tool now"} <= names
    return has_all and spans[0].trace_id == trace and build_tree(spans).whole
