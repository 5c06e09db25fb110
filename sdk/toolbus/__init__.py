"""toolbus: host toolkits as services, call them from anywhere, see every call.

A name is imported when it is first used (PEP 562), so that `import toolbus` costs nothing and a
program loads only what it needs.
"""

from typing import TYPE_CHECKING, Any

from toolbus.public_names import PublicNames

if TYPE_CHECKING:  # what type checkers read; `as` makes a name public for them
    from toolbus.agents.agent import Agent as Agent
    from toolbus.agents.agent import RunResult as RunResult
    from toolbus.agents.agent_events import AgentEvent as AgentEvent
    from toolbus.agents.conversation import (
        ConversationUnavailable as ConversationUnavailable,
    )
    from toolbus.agents.loop import agent_loop as agent_loop
    from toolbus.agents.model_middlewares import ModelBudget as ModelBudget
    from toolbus.agents.model_middlewares import ModelLog as ModelLog
    from toolbus.agents.model_middlewares import ModelRetries as ModelRetries
    from toolbus.agents.model_requests import RESTART as RESTART
    from toolbus.agents.model_requests import CallNextModel as CallNextModel
    from toolbus.agents.model_requests import ModelMiddleware as ModelMiddleware
    from toolbus.agents.model_requests import RequestToModel as RequestToModel
    from toolbus.agents.state_store import SqliteStateStore as SqliteStateStore
    from toolbus.agents.state_store import StateStore as StateStore
    from toolbus.agents.state_store import StateStoreUnavailable as StateStoreUnavailable
    from toolbus.auth.grants import AgentsGrant as AgentsGrant
    from toolbus.auth.grants import ApiScope as ApiScope
    from toolbus.auth.keys import Key as Key
    from toolbus.auth.keys import KeyRing as KeyRing
    from toolbus.auth.tokens import ParticipantToken as ParticipantToken
    from toolbus.auth.tokens import TokenRefused as TokenRefused
    from toolbus.chunks.chunk_types import Chunk as Chunk
    from toolbus.chunks.chunk_types import EmptyChunk as EmptyChunk
    from toolbus.chunks.chunk_types import FileChunk as FileChunk
    from toolbus.chunks.chunk_types import JsonChunk as JsonChunk
    from toolbus.chunks.chunk_types import LinkChunk as LinkChunk
    from toolbus.chunks.chunk_types import MixedChunk as MixedChunk
    from toolbus.chunks.chunk_types import TextChunk as TextChunk
    from toolbus.client.held_calls import HeldCall as HeldCall
    from toolbus.client.streaming_call import ChunkStream as ChunkStream
    from toolbus.errors import AlreadyExists as AlreadyExists
    from toolbus.errors import ApprovalDenied as ApprovalDenied
    from toolbus.errors import ApprovalExpired as ApprovalExpired
    from toolbus.errors import Cancelled as Cancelled
    from toolbus.errors import ConnectionLost as ConnectionLost
    from toolbus.errors import DeadlineExceeded as DeadlineExceeded
    from toolbus.errors import DefinitionChanged as DefinitionChanged
    from toolbus.errors import DefinitionConflict as DefinitionConflict
    from toolbus.errors import DuplicateCallId as DuplicateCallId
    from toolbus.errors import Executed as Executed
    from toolbus.errors import HostLost as HostLost
    from toolbus.errors import Internal as Internal
    from toolbus.errors import InvalidArguments as InvalidArguments
    from toolbus.errors import InvalidResult as InvalidResult
    from toolbus.errors import LoopDetected as LoopDetected
    from toolbus.errors import NoHost as NoHost
    from toolbus.errors import NotFound as NotFound
    from toolbus.errors import Overloaded as Overloaded
    from toolbus.errors import PermissionDenied as PermissionDenied
    from toolbus.errors import QuotaExceeded as QuotaExceeded
    from toolbus.errors import RoomException as RoomException
    from toolbus.errors import StreamBroken as StreamBroken
    from toolbus.errors import StreamStalled as StreamStalled
    from toolbus.errors import TooLarge as TooLarge
    from toolbus.errors import ToolFailed as ToolFailed
    from toolbus.errors import ToolInactive as ToolInactive
    from toolbus.errors import Unavailable as Unavailable
    from toolbus.factories.factory import OperatorOnly as OperatorOnly
    from toolbus.models.adapter import Adapter as Adapter
    from toolbus.models.adapter import Model as Model
    from toolbus.models.endings import Ending as Ending
    from toolbus.models.model_error import ModelError as ModelError
    from toolbus.models.registry import open_model as open_model
    from toolbus.models.token_usage import TokenUsage as TokenUsage
    from toolbus.permissions.assessment import Assessment as Assessment
    from toolbus.permissions.decision import PermissionDecision as PermissionDecision
    from toolbus.permissions.granted_rules import GrantedRule as GrantedRule
    from toolbus.permissions.permissions import Permissions as Permissions
    from toolbus.permissions.rule import Rule as Rule
    from toolbus.permissions.rule_file import RuleFileError as RuleFileError
    from toolbus.records.call_record import CallRecord as CallRecord
    from toolbus.records.recording import Recording as Recording
    from toolbus.records.records import Records as Records
    from toolbus.records.sqlite_file import RecordsUnavailable as RecordsUnavailable
    from toolbus.room.calls import CallExplanation as CallExplanation
    from toolbus.room.calls import CallReport as CallReport
    from toolbus.room.calls import EndedCall as EndedCall
    from toolbus.room.calls import WaitingCall as WaitingCall
    from toolbus.room.events import EventStream as EventStream
    from toolbus.room.events import RoomEvent as RoomEvent
    from toolbus.room.holds import GrantedHold as GrantedHold
    from toolbus.room.holds import HoldBody as HoldBody
    from toolbus.room.holds import HoldInfo as HoldInfo
    from toolbus.room.lock_file import LockedToolkit as LockedToolkit
    from toolbus.room.lock_file import LockFile as LockFile
    from toolbus.room.participants import BuilderInfo as BuilderInfo
    from toolbus.room.participants import Message as Message
    from toolbus.room.participants import ParticipantInfo as ParticipantInfo
    from toolbus.room.room import Room as Room
    from toolbus.room.room_client import RoomClient as RoomClient
    from toolbus.room.toolkit_proxy import DefinitionInfo as DefinitionInfo
    from toolbus.room.toolkit_proxy import ToolkitInfo as ToolkitInfo
    from toolbus.room.toolkit_proxy import ToolkitProxy as ToolkitProxy
    from toolbus.room.toolkit_proxy import TypedToolkitProxy as TypedToolkitProxy
    from toolbus.service.remote_toolkit import RemoteToolkit as RemoteToolkit
    from toolbus.tool_search.tool_search import ToolSearch as ToolSearch
    from toolbus.tools.context import ToolContext as ToolContext
    from toolbus.tools.external_tool import ExternalTool as ExternalTool
    from toolbus.tools.function_tool import FunctionTool as FunctionTool
    from toolbus.tools.input_stream import InputStream as InputStream
    from toolbus.tools.middleware import CallNext as CallNext
    from toolbus.tools.middleware import Middleware as Middleware
    from toolbus.tools.middleware import ToolCall as ToolCall
    from toolbus.tools.omission import Omission as Omission
    from toolbus.tools.options import ToolOptions as ToolOptions
    from toolbus.tools.options import tool as tool
    from toolbus.tools.questions import ToolQuestion as ToolQuestion
    from toolbus.tools.tool import Tool as Tool
    from toolbus.tools.tool_info import ToolInfo as ToolInfo
    from toolbus.tools.tool_run import Participant as Participant
    from toolbus.tools.toolkit import Toolkit as Toolkit
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
