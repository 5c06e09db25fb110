"""toolbus: host toolkits as services, call them from anywhere, see every call."""

from toolbus.builders import (
    ToolkitBuilder,
    ToolkitConfig,
    builder_infos,
    make_toolkits,
)
from toolbus.call_news import (
    CallNews,
    EndedCall,
)
from toolbus.chunk_stream import ChunkStream
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
from toolbus.explanation import Explanation
from toolbus.grants import (
    AgentsGrant,
    ApiScope,
)
from toolbus.input_stream import (
    InputStream,
)
from toolbus.keys import (
    Key,
    KeyRing,
)
from toolbus.people import (
    BuilderInfo,
    Message,
    ParticipantInfo,
)
from toolbus.remote_toolkit import (
    RemoteToolkit,
)
from toolbus.required_toolkit import (
    RequiredToolkit,
)
from toolbus.room import Room
from toolbus.room_client import RoomClient
from toolbus.room_events import (
    EventStream,
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
from toolbus.turn import Turn
from toolbus.turn_tool import TurnTool

__all__ = [
    "AgentsGrant",
    "AlreadyExists",
    "ApiScope",
    "ApprovalDenied",
    "ApprovalExpired",
    "BuilderInfo",
    "CallNews",
    "Cancelled",
    "Chunk",
    "ChunkStream",
    "ConnectionLost",
    "DeadlineExceeded",
    "DefinitionChanged",
    "DuplicateCallId",
    "EmptyChunk",
    "EndedCall",
    "EventStream",
    "Executed",
    "Explanation",
    "FileChunk",
    "FunctionTool",
    "HostLost",
    "InputStream",
    "Internal",
    "InvalidArguments",
    "InvalidResult",
    "JsonChunk",
    "Key",
    "KeyRing",
    "LinkChunk",
    "LoopDetected",
    "Message",
    "NoHost",
    "NotFound",
    "Overloaded",
    "Participant",
    "ParticipantInfo",
    "ParticipantToken",
    "PermissionDenied",
    "QuotaExceeded",
    "RemoteToolkit",
    "RequiredToolkit",
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
    "ToolkitBuilder",
    "ToolkitConfig",
    "ToolkitInfo",
    "ToolkitProxy",
    "Turn",
    "TurnTool",
    "Unavailable",
    "builder_infos",
    "make_toolkits",
    "tool",
]
