"""Agents: toolkits that are built for one turn."""

from typing import TYPE_CHECKING, Any

from toolbus.public_names import PublicNames

if TYPE_CHECKING:  # what type checkers read; `as` makes a name public for them
    from toolbus.agents.agent_state import AgentState as AgentState
    from toolbus.agents.builders import ToolkitBuilder as ToolkitBuilder
    from toolbus.agents.builders import ToolkitConfig as ToolkitConfig
    from toolbus.agents.builders import builder_infos as builder_infos
    from toolbus.agents.builders import make_toolkits as make_toolkits
    from toolbus.agents.factory_builder import builder_of as builder_of
    from toolbus.agents.granted_rules import GrantedRule as GrantedRule
    from toolbus.agents.model_tools import ModelTool as ModelTool
    from toolbus.agents.questions import Answer as Answer
    from toolbus.agents.questions import Question as Question
    from toolbus.agents.skill_listing import SkillEntry as SkillEntry
    from toolbus.agents.skill_listing import SkillListing as SkillListing
    from toolbus.agents.skill_listing import SkillText as SkillText
    from toolbus.agents.skill_listing import skill_viewer as skill_viewer
    from toolbus.agents.terminal_questions import ask_in_terminal as ask_in_terminal
    from toolbus.agents.tool_groups import ToolGroup as ToolGroup
    from toolbus.agents.tool_use import ToolResult as ToolResult
    from toolbus.agents.tool_use import ToolUse as ToolUse
    from toolbus.agents.turn import Turn as Turn
    from toolbus.agents.turn import TurnTool as TurnTool
    from toolbus.agents.turn_permissions import TurnPermissions as TurnPermissions
    from toolbus.agents.turn_toolkits import LocalToolkit as LocalToolkit
    from toolbus.agents.turn_toolkits import RequiredToolkit as RequiredToolkit

_names = PublicNames(__name__)

__all__ = list(_names)


def __getattr__(name: str) -> Any:
    return _names.load(name)


def __dir__() -> list[str]:
    return _names.listed()
