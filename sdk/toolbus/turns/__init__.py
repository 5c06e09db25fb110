"""Turns: the tools of an agent for one question, built for it, and its calls of them."""

from typing import TYPE_CHECKING, Any

from toolbus.public_names import PublicNames

if TYPE_CHECKING:  # what type checkers read; `as` makes a name public for them
    from toolbus.turns.agent_state import AgentState as AgentState
    from toolbus.turns.approvals import ApprovalDecision as ApprovalDecision
    from toolbus.turns.approvals import ApprovalRequest as ApprovalRequest
    from toolbus.turns.builders import ToolkitBuilder as ToolkitBuilder
    from toolbus.turns.builders import ToolkitConfig as ToolkitConfig
    from toolbus.turns.builders import builder_of as builder_of
    from toolbus.turns.builders import make_toolkits as make_toolkits
    from toolbus.turns.model_tools import ModelTool as ModelTool
    from toolbus.turns.parking import ParkedUse as ParkedUse
    from toolbus.turns.terminal_approvals import approve_in_terminal as approve_in_terminal
    from toolbus.turns.terminal_questions import answer_in_terminal as answer_in_terminal
    from toolbus.turns.tool_groups import ScriptResult as ScriptResult
    from toolbus.turns.tool_groups import SkillEntry as SkillEntry
    from toolbus.turns.tool_groups import SkillListing as SkillListing
    from toolbus.turns.tool_groups import SkillRunner as SkillRunner
    from toolbus.turns.tool_groups import SkillText as SkillText
    from toolbus.turns.tool_groups import ToolGroup as ToolGroup
    from toolbus.turns.tool_groups import skill_viewer as skill_viewer
    from toolbus.turns.tool_use import ToolResult as ToolResult
    from toolbus.turns.tool_use import ToolUse as ToolUse
    from toolbus.turns.turn import Turn as Turn
    from toolbus.turns.turn import TurnTool as TurnTool
    from toolbus.turns.turn_permissions import TurnPermissions as TurnPermissions
    from toolbus.turns.turn_toolkits import LocalToolkit as LocalToolkit
    from toolbus.turns.turn_toolkits import RequiredToolkit as RequiredToolkit

_names = PublicNames(__name__)

__all__ = list(_names)


def __getattr__(name: str) -> Any:
    return _names.load(name)


def __dir__() -> list[str]:
    return _names.listed()
