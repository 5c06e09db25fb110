"""The public names, and how a package imports one when it is first used (PEP 562).

The table is for all packages that have such names. `toolbus` has all of them, and a package below
it those of its own modules. What type checkers read stands in the `__init__` of each package.
"""

import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["RENAMED_PARTS", "PublicNames", "missing"]

_MODULES = {
    "toolbus.turns.agent_state": "AgentState",
    "toolbus.turns.builders": "ToolkitBuilder ToolkitConfig builder_of make_toolkits",
    "toolbus.permissions.granted_rules": "GrantedRule",
    "toolbus.turns.model_tools": "ModelTool",
    "toolbus.turns.approvals": "ApprovalDecision ApprovalRequest",
    "toolbus.turns.tool_groups": (
        "ScriptResult SkillEntry SkillListing SkillRunner SkillText ToolGroup skill_viewer"
    ),
    "toolbus.turns.terminal_approvals": "approve_in_terminal",
    "toolbus.turns.parking": "ParkedUse",
    "toolbus.turns.terminal_questions": "answer_in_terminal",
    "toolbus.turns.tool_use": "ToolResult ToolUse",
    "toolbus.turns.turn": "Turn TurnTool",
    "toolbus.turns.turn_permissions": "TurnPermissions",
    "toolbus.turns.turn_toolkits": "LocalToolkit RequiredToolkit",
    "toolbus.auth.grants": "AgentsGrant ApiScope",
    "toolbus.auth.keys": "Key KeyRing",
    "toolbus.auth.tokens": "ParticipantToken TokenRefused",
    "toolbus.chunks.chunk_types": (
        "Chunk EmptyChunk FileChunk JsonChunk LinkChunk MixedChunk TextChunk"
    ),
    "toolbus.client.held_calls": "HeldCall",
    "toolbus.client.streaming_call": "ChunkStream",
    "toolbus.agents.agent": "Agent RunResult",
    "toolbus.agents.agent_events": "AgentEvent",
    "toolbus.agents.conversation": "ConversationUnavailable",
    "toolbus.agents.loop": "agent_loop",
    "toolbus.agents.model_requests": "RESTART RequestToModel ModelMiddleware CallNextModel",
    "toolbus.agents.model_middlewares": "ModelBudget ModelLog ModelRetries",
    "toolbus.agents.state_store": "SqliteStateStore StateStore StateStoreUnavailable",
    "toolbus.errors": (
        "AlreadyExists ApprovalDenied ApprovalExpired Cancelled ConnectionLost DeadlineExceeded "
        "DefinitionChanged DefinitionConflict DuplicateCallId Executed HostLost Internal "
        "InvalidArguments InvalidResult LoopDetected NoHost NotFound Overloaded "
        "PermissionDenied QuotaExceeded RoomException StreamBroken StreamStalled TooLarge "
        "ToolFailed ToolInactive Unavailable"
    ),
    "toolbus.factories.factory": "OperatorOnly",
    "toolbus.models.adapter": "Adapter Model",
    "toolbus.models.endings": "Ending",
    "toolbus.models.model_error": "ModelError",
    "toolbus.models.registry": "open_model",
    "toolbus.models.token_usage": "TokenUsage",
    "toolbus.permissions.assessment": "Assessment",
    "toolbus.permissions.permissions": "Permissions",
    "toolbus.permissions.decision": "PermissionDecision",
    "toolbus.permissions.rule": "Rule",
    "toolbus.permissions.rule_file": "RuleFileError",
    "toolbus.records.call_record": "CallRecord",
    "toolbus.records.recording": "Recording",
    "toolbus.records.records": "Records",
    "toolbus.records.sqlite_file": "RecordsUnavailable",
    "toolbus.room.calls": "CallExplanation CallReport EndedCall WaitingCall",
    "toolbus.room.events": "EventStream RoomEvent",
    "toolbus.room.holds": "GrantedHold HoldBody HoldInfo",
    "toolbus.room.lock_file": "LockFile LockedToolkit",
    "toolbus.room.participants": "BuilderInfo Message ParticipantInfo",
    "toolbus.room.room": "Room",
    "toolbus.room.room_client": "RoomClient",
    "toolbus.room.toolkit_proxy": "DefinitionInfo ToolkitInfo ToolkitProxy TypedToolkitProxy",
    "toolbus.service.remote_toolkit": "RemoteToolkit",
    "toolbus.tool_search.tool_search": "ToolSearch",
    "toolbus.tools.context": "ToolContext",
    "toolbus.tools.external_tool": "ExternalTool",
    "toolbus.tools.function_tool": "FunctionTool",
    "toolbus.tools.input_stream": "InputStream",
    "toolbus.tools.omission": "Omission",
    "toolbus.tools.middleware": "CallNext Middleware ToolCall",
    "toolbus.tools.options": "ToolOptions tool",
    "toolbus.tools.questions": "ToolQuestion",
    "toolbus.tools.tool": "Tool",
    "toolbus.tools.tool_info": "ToolInfo",
    "toolbus.tools.tool_run": "Participant",
    "toolbus.tools.toolkit": "Toolkit",
}
"""The public names of each module that defines some."""
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
_RENAMED = {
    "Answer": "ApprovalDecision",
    "Explanation": "CallExplanation",
    "LeftOut": "Omission",
    "ModelCall": "RequestToModel",
    "ModelRetry": "ModelRetries",
    "Next": "CallNext",
    "NextModel": "CallNextModel",
    "Permit": "PermissionDecision",
    "Question": "ApprovalRequest",
    "RoomTools": "ToolSearch",
    "SqliteStates": "SqliteStateStore",
    "StatesUnavailable": "StateStoreUnavailable",
    "answer": "agent_loop",
    "ask_in_terminal": "approve_in_terminal",
    "builder_infos": "turns.builders.builder_infos",
}
"""Names of before 0.1, and what they are now; an import of one says so until 0.2."""
RENAMED_PARTS = {
    "Agent(ask=)": "approve=",
    "Agent.answer": "run_stream_events",
    "Agent.ask": "run, whose result has the text",
    "ApprovalRequest.permit": "decision",
    "Turn(ask=)": "approve=",
    "toolbus_toolkits.shell.RunResult": "CommandResult",
}
"""The same for options, attributes, and names of other packages."""


def missing(owner: object, name: str, new: str | None = None) -> Exception:
    """Return the error for a name that an object or a module lacks; of an old one it says the new.

    `new` is what it is now, unless `RENAMED_PARTS` knows.
    """
    kind: type[AttributeError | ImportError] = AttributeError
    place = type(owner).__name__
    if isinstance(owner, ModuleType):
        kind = ImportError  # `from` imports drop the text of other errors
        place = owner.__name__
    new = new or RENAMED_PARTS.get(f"{place}.{name}")
    if new is None:
        return AttributeError(f"{place} has no attribute {name!r}", name=name, obj=owner)
    return kind(f"{place} has no {name!r}; it is now {new}", name=name)


class PublicNames:
    """The public names of one package, each with the module that defines it."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._homes = {
            name: module for name, module in _HOMES.items() if module.startswith(f"{package}.")
        }

    def __iter__(self) -> Iterator[str]:
        """Give the names in the order of `__all__`: values first, as linters sort it."""
        return iter(sorted(self._homes, key=lambda name: (not name.isupper(), name)))

    def home(self, name: str) -> str:
        """Return the module that defines a name."""
        return self._homes[name]

    def load(self, name: str) -> Any:
        """Import a name, and store it in the package.

        Raises:
            ImportError: The name is an old one; `from` imports drop the text of other errors.
            AttributeError: The package has no such name.
        """
        home = self._homes.get(name)
        if home is None:
            raise missing(sys.modules[self._package], name, self._new_name(name))
        value = getattr(import_module(home), name)
        setattr(sys.modules[self._package], name, value)
        return value

    def _new_name(self, name: str) -> str:
        """Return what an old name is now; "" for a name that never was one of the package."""
        new = _RENAMED.get(name, name)
        if new in self._homes:
            return f"{self._package}.{new}"
        if "." in new and self._package in ("toolbus", "toolbus.agents", "toolbus.turns"):
            return f"toolbus.{new}"
        if self._package == "toolbus.agents" and _HOMES.get(new, "").startswith("toolbus.turns."):
            return f"toolbus.turns.{new}"
        return ""

    def listed(self) -> list[str]:
        """Return what `dir` lists."""
        return sorted({*vars(sys.modules[self._package]), *self._homes})
