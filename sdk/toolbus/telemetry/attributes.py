"""The names of all attributes that are recorded of a call, and how its outcome is recorded.

From the RPC conventions 1.44 (a release candidate), the GenAI conventions (in development), and
our own under `toolbus.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final, NamedTuple

from opentelemetry import trace

from toolbus.errors import ERRORS, Executed, RoomException, ToolFailed

SCOPE: Final = "toolbus"
"""Name of the tracer that all our spans come from."""
RPC_SYSTEM_NAME: Final = "rpc.system.name"
RPC_METHOD: Final = "rpc.method"
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_AGENT_NAME: Final = "gen_ai.agent.name"
GEN_AI_TOOL_NAME: Final = "gen_ai.tool.name"
GEN_AI_TOOL_TYPE: Final = "gen_ai.tool.type"
GEN_AI_TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
ERROR_TYPE: Final = "error.type"
"""The code of the error."""
SERVICE_NAME: Final = "service.name"
SERVICE_INSTANCE_ID: Final = "service.instance.id"
SERVICE_VERSION: Final = "service.version"

ROOM: Final = "toolbus.room"
CALLER: Final = "toolbus.caller"
ON_BEHALF_OF: Final = "toolbus.on_behalf_of"
HOST: Final = "toolbus.host"
NODE: Final = "toolbus.node"
"""In a cluster: the name of the server that recorded the span."""
CALLER_NODE: Final = "toolbus.caller_node"
"""The server that the caller is connected to, where it is another one."""
HOST_NODE: Final = "toolbus.host_node"
"""The server that the host is connected to, where it is another one."""
TOOLKIT: Final = "toolbus.toolkit"
"""The toolkit of a call within a turn, by its name there."""
MCP_SERVER: Final = "toolbus.mcp_server"
"""The MCP server that the tool of a call within a turn is of."""
EXECUTED: Final = "toolbus.executed"
"""Whether the tool's function ran: no, maybe, yes."""
CAUSE: Final = "toolbus.cause"
"""Class of the exception behind a `tool_failed`."""
ATTEMPT: Final = "toolbus.attempt"
"""Which attempt of a call it is, from 1, in the tree of `toolbus call --trace`."""
REFUSALS: Final = "toolbus.refusals"
"""How many attempts in a row a server refused with one code, in the same tree."""
OUTCOME: Final = "toolbus.outcome"
"""How a call ended: ok, closed, or the code of its error."""
PERMIT_BEHAVIOR: Final = "toolbus.permit.behavior"
"""What permissions said about a call: allow, ask, deny. After "ask" a person has decided."""
PERMIT_RULE: Final = "toolbus.permit.rule"
"""What decided so, in a few words: a rule with its place, or the mode."""
HOLD_ID: Final = "toolbus.hold.id"
"""The approval that a call waited for; none for an approver in the process of an agent."""
HOLD_KIND: Final = "toolbus.hold.kind"
"""What was asked for: approve, or answer."""
HOLD_OUTCOME: Final = "toolbus.hold.outcome"
"""How the wait ended: approved, changed, denied, answered, expired, cancelled, or the code of an
error."""
HOLD_BY: Final = "toolbus.hold.by"
"""Who decided."""

SYSTEM: Final = "toolbus"
"""Value of `rpc.system.name`."""
EXECUTE_TOOL: Final = "execute_tool"
"""Value of `gen_ai.operation.name`, and the start of the inner span's name."""
INVOKE_AGENT: Final = "invoke_agent"
"""Value of `gen_ai.operation.name` for a turn, and the start of its span's name."""
CHAT: Final = "chat"
"""Value of `gen_ai.operation.name` for a request to a model, and the start of its span's name."""
HOLD: Final = "hold"
"""The name of the span of a wait for a person."""
FUNCTION: Final = "function"
"""Value of `gen_ai.tool.type`."""
OTHER: Final = "_OTHER"
"""Replaces a name that is not registered, so that untrusted callers add no names to our data."""

EXECUTE_TOOL_DURATION: Final = "gen_ai.execute_tool.duration"
TOOL_CALLS: Final = "toolbus.tool.calls"
TOOL_CALLS_ACTIVE: Final = "toolbus.tool.calls.active"

MAX_NAME_CHARS = 256
"""Others choose names, and spans with them wait in memory for the collector."""
_MAX_MESSAGE_CHARS = 1_024
"""What a tool writes about its failure: each span with it waits in memory for the collector."""


class SharedAttributes(dict[str, str]):
    """Attributes that many spans share; never changed, so that their encoded form stays valid."""

    __slots__ = ("encoded",)

    encoded: bytes | None
    """The encoded form; None until an encoder has made it."""

    def __init__(self, attributes: Mapping[str, str]) -> None:
        super().__init__(attributes)
        self.encoded = None


@cache  # reading it takes milliseconds, and each participant of a process asks
def toolbus_version() -> str:
    """Return the installed release, for `service.version` and the tracer."""
    try:
        return version("toolbus")
    except PackageNotFoundError:
        return "0"


def recorded_method(method: str, *, registered: bool) -> str:
    """Return the name under which a call is recorded: `_OTHER` unless the tool exists."""
    return method if registered else OTHER


def sendable(text: str, max_chars: int = MAX_NAME_CHARS) -> str:
    """Cut a text, and replace lone surrogates: with one a span could not be sent."""
    return text[:max_chars].encode(errors="replace").decode()


def call_attributes(
    *, room: str, caller: str, on_behalf_of: str | None = None, host: str | None = None
) -> dict[str, str]:
    """Build the attributes that name a call's participants."""
    attributes = {ROOM: room, CALLER: caller}
    if on_behalf_of is not None:
        attributes[ON_BEHALF_OF] = on_behalf_of
    if host is not None:
        attributes[HOST] = host
    return attributes


def rpc_attributes(method: str) -> dict[str, str]:
    """Build the attributes that name the method, as every span of the call has them."""
    return {RPC_SYSTEM_NAME: SYSTEM, RPC_METHOD: method[:MAX_NAME_CHARS]}


def tool_attributes(method: str) -> dict[str, str]:
    """Build the attribute that names the tool."""
    tool = method.partition(".")[2] or method
    return {GEN_AI_TOOL_NAME: tool[:MAX_NAME_CHARS]}


def turn_attributes(agent: str, room: str, on_behalf_of: str | None) -> dict[str, str]:
    """Build the attributes of an agent's turn."""
    attributes = {
        GEN_AI_OPERATION_NAME: INVOKE_AGENT,
        GEN_AI_AGENT_NAME: agent[:MAX_NAME_CHARS],
    }
    if room:  # a turn may have none
        attributes[ROOM] = room
    if on_behalf_of is not None:
        attributes[ON_BEHALF_OF] = on_behalf_of
    return attributes


def turn_call_attributes(toolkit: str, tool: str, mcp_server: object = None) -> SharedAttributes:
    """Build the attributes that all calls of a tool within turns share."""
    attributes = {
        GEN_AI_OPERATION_NAME: EXECUTE_TOOL,
        GEN_AI_TOOL_NAME: tool[:MAX_NAME_CHARS],
        GEN_AI_TOOL_TYPE: FUNCTION,
        TOOLKIT: toolkit,
    }
    if isinstance(mcp_server, str):
        attributes[MCP_SERVER] = sendable(mcp_server[:MAX_NAME_CHARS])
    return SharedAttributes(attributes)


def decision_attributes(behavior: str, decided_by: str) -> dict[str, str]:
    """Build the attributes of a call that permissions have decided about."""
    return {PERMIT_BEHAVIOR: behavior, PERMIT_RULE: sendable(decided_by)}


def hold_attributes(kind: str) -> dict[str, str]:
    """Build the attributes of a wait for a person as it begins."""
    return {HOLD_KIND: kind}


def settlement_attributes(hold_id: str, outcome: str, by: str) -> dict[str, str]:
    """Build those of its end: the id of the hold, how it ended, and who decided, where known."""
    known = {HOLD_ID: hold_id, HOLD_OUTCOME: outcome, HOLD_BY: by}
    return {name: sendable(value) for name, value in known.items() if value}


class ToolDescription(NamedTuple):
    """The attributes that the spans of one tool's calls share."""

    name: str
    """The method, truncated to 256 characters."""
    client: SharedAttributes
    server: SharedAttributes
    run_name: str
    """The name of the span around the tool's run."""
    run: SharedAttributes

    @classmethod
    def of(cls, method: str) -> ToolDescription:
        """Build it for a method, written `toolkit.tool`."""
        rpc, tool = rpc_attributes(method), tool_attributes(method)
        operation = {GEN_AI_OPERATION_NAME: EXECUTE_TOOL}
        return cls(
            rpc[RPC_METHOD],
            SharedAttributes({**operation, **rpc, **tool}),
            SharedAttributes({**rpc, **tool}),
            f"{EXECUTE_TOOL} {tool[GEN_AI_TOOL_NAME]}",
            SharedAttributes({**operation, **tool}),
        )


_RAN = SharedAttributes({EXECUTED: "yes"})


def record_outcome(
    span: trace.Span, error: RoomException | None, executed: Executed | None
) -> None:
    """Record a call's outcome on its span.

    The status is ERROR for every error but `cancelled`. A message is recorded only if the tool
    chose it by raising `ToolFailed(message)`: other texts may quote arguments.
    """
    if error is None:
        span.set_attributes(_RAN if executed in (None, "yes") else {EXECUTED: executed})
        return
    span.set_attribute(EXECUTED, executed or error.executed)
    span.set_attribute(ERROR_TYPE, error.code if error.code in ERRORS else OTHER)
    details = error.details if isinstance(error.details, dict) else {}
    cause = details.get("cause")
    if isinstance(cause, str):
        span.set_attribute(CAUSE, cause[:MAX_NAME_CHARS])
    if error.code != "cancelled":
        is_of_tool = isinstance(error, ToolFailed) and cause is None and any(error.args)
        message = sendable(error.message, _MAX_MESSAGE_CHARS) if is_of_tool else ""
        span.set_status(trace.StatusCode.ERROR, message or None)
