"""toolbus: host toolkits as services, call them from anywhere, see every call."""

from toolbus.chunks import (
    Chunk,
    EmptyChunk,
    FileChunk,
    JsonChunk,
    LinkChunk,
    TextChunk,
)
from toolbus.context import (
    Participant,
    ToolContext,
)
from toolbus.errors import (
    AlreadyExists,
    ApprovalDenied,
    ApprovalExpired,
    Cancelled,
    ConnectionLost,
    DeadlineExceeded,
    DefinitionChanged,
    DuplicateCallId,
    Executed,
    HostLost,
    Internal,
    InvalidArguments,
    InvalidResult,
    LoopDetected,
    NoHost,
    NotFound,
    Overloaded,
    PermissionDenied,
    QuotaExceeded,
    RoomException,
    StreamBroken,
    StreamStalled,
    TooLarge,
    ToolFailed,
    ToolInactive,
    Unavailable,
)
from toolbus.grants import (
    AgentsGrant,
    ApiScope,
)
from toolbus.keys import (
    Key,
    KeyRing,
)
from toolbus.remote_toolkit import (
    RemoteToolkit,
)
from toolbus.room import Room
from toolbus.room_client import RoomClient
from toolbus.room_events import (
    RoomEvent,
)
from toolbus.tokens import (
    ParticipantToken,
    TokenRefused,
)
from toolbus.tool import (
    FunctionTool,
    Tool,
    tool,
)
from toolbus.toolkit import (
    Toolkit,
)
from toolbus.toolkit_proxy import (
    ToolkitInfo,
    ToolkitProxy,
)

__all__ = [
    "AgentsGrant",
    "AlreadyExists",
    "ApiScope",
    "ApprovalDenied",
    "ApprovalExpired",
    "Cancelled",
    "Chunk",
    "ConnectionLost",
    "DeadlineExceeded",
    "DefinitionChanged",
    "DuplicateCallId",
    "EmptyChunk",
    "Executed",
    "FileChunk",
    "FunctionTool",
    "HostLost",
    "Internal",
    "InvalidArguments",
    "InvalidResult",
    "JsonChunk",
    "Key",
    "KeyRing",
    "LinkChunk",
    "LoopDetected",
    "NoHost",
    "NotFound",
    "Overloaded",
    "Participant",
    "ParticipantToken",
    "PermissionDenied",
    "QuotaExceeded",
    "RemoteToolkit",
    "Room",
    "RoomClient",
    "RoomEvent",
    "RoomException",
    "StreamBroken",
    "StreamStalled",
    "TextChunk",
    "TokenRefused",
    "TooLarge",
    "Tool",
    "ToolContext",
    "ToolFailed",
    "ToolInactive",
    "Toolkit",
    "ToolkitInfo",
    "ToolkitProxy",
    "Unavailable",
    "tool",
]
