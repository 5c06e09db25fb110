"""The protocol `toolbus.v1`: frames, their bytes, and what travels inside them.

Pure: nothing here knows of sockets, tasks, files or time, so that a client in another language can
    be written
from PROTOCOL.md and checked against the same vectors.
"""

from toolbus.wire.codec import (
    MAX_DEPTH,
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    BadBody,
    BadFrame,
    Unknown,
    decode_from_client,
    decode_from_server,
    encode,
    encode_fields,
    pack_body,
    unpack_body,
)
from toolbus.wire.failures import exception_of, failed
from toolbus.wire.frames import (
    KINDS,
    PROTOCOL_VERSION,
    SUBPROTOCOL,
    Call,
    CallId,
    Cancel,
    Describe,
    Dispatch,
    Event,
    Failed,
    Frame,
    ListToolkits,
    ParticipantId,
    Register,
    RequestId,
    Result,
    Subscribe,
    Unregister,
    Welcome,
)
from toolbus.wire.manifest import MAX_MANIFEST_BYTES, MAX_TOOLS, ToolkitManifest, ToolManifest

__all__ = [
    "KINDS",
    "MAX_DEPTH",
    "MAX_FRAME_BYTES",
    "MAX_HEADER_BYTES",
    "MAX_MANIFEST_BYTES",
    "MAX_TOOLS",
    "PROTOCOL_VERSION",
    "SUBPROTOCOL",
    "BadBody",
    "BadFrame",
    "Call",
    "CallId",
    "Cancel",
    "Describe",
    "Dispatch",
    "Event",
    "Failed",
    "Frame",
    "ListToolkits",
    "ParticipantId",
    "Register",
    "RequestId",
    "Result",
    "Subscribe",
    "ToolManifest",
    "ToolkitManifest",
    "Unknown",
    "Unregister",
    "Welcome",
    "decode_from_client",
    "decode_from_server",
    "encode",
    "encode_fields",
    "exception_of",
    "failed",
    "pack_body",
    "unpack_body",
]
