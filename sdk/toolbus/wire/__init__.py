"""The protocol `toolbus.v1`: frames, their encoding, and the values inside them.

Pure: no sockets, tasks, files or time. A client in another language can be written from PROTOCOL.md
and checked against the same vectors.
"""

# `as` makes a name public for type checkers; so each is named once, and no `__all__` repeats it.

from toolbus.wire.codec import MAX_DEPTH as MAX_DEPTH
from toolbus.wire.codec import MAX_FRAME_BYTES as MAX_FRAME_BYTES
from toolbus.wire.codec import MAX_HEADER_BYTES as MAX_HEADER_BYTES
from toolbus.wire.codec import BadBody as BadBody
from toolbus.wire.codec import BadFrame as BadFrame
from toolbus.wire.codec import UnknownFrame as UnknownFrame
from toolbus.wire.codec import decode_from_client as decode_from_client
from toolbus.wire.codec import decode_from_server as decode_from_server
from toolbus.wire.codec import encode as encode
from toolbus.wire.codec import pack_body as pack_body
from toolbus.wire.codec import unpack_body as unpack_body
from toolbus.wire.error_frames import exception_of as exception_of
from toolbus.wire.error_frames import failed as failed
from toolbus.wire.frames import ASSESS_VERSION as ASSESS_VERSION
from toolbus.wire.frames import FORWARD_VERSION as FORWARD_VERSION
from toolbus.wire.frames import HOLDS_VERSION as HOLDS_VERSION
from toolbus.wire.frames import KINDS as KINDS
from toolbus.wire.frames import LIMIT_HEADER as LIMIT_HEADER
from toolbus.wire.frames import MAX_ATTRIBUTES_BYTES as MAX_ATTRIBUTES_BYTES
from toolbus.wire.frames import PROTOCOL_HEADER as PROTOCOL_HEADER
from toolbus.wire.frames import PROTOCOL_VERSION as PROTOCOL_VERSION
from toolbus.wire.frames import SUBPROTOCOL as SUBPROTOCOL
from toolbus.wire.frames import Admin as Admin
from toolbus.wire.frames import Assess as Assess
from toolbus.wire.frames import AssessDispatch as AssessDispatch
from toolbus.wire.frames import Attributes as Attributes
from toolbus.wire.frames import Builders as Builders
from toolbus.wire.frames import Call as Call
from toolbus.wire.frames import CallId as CallId
from toolbus.wire.frames import Cancel as Cancel
from toolbus.wire.frames import Credit as Credit
from toolbus.wire.frames import Describe as Describe
from toolbus.wire.frames import Dispatch as Dispatch
from toolbus.wire.frames import Drain as Drain
from toolbus.wire.frames import Event as Event
from toolbus.wire.frames import Explain as Explain
from toolbus.wire.frames import Failed as Failed
from toolbus.wire.frames import Frame as Frame
from toolbus.wire.frames import Held as Held
from toolbus.wire.frames import Hold as Hold
from toolbus.wire.frames import Holds as Holds
from toolbus.wire.frames import Input as Input
from toolbus.wire.frames import ListToolkits as ListToolkits
from toolbus.wire.frames import Notice as Notice
from toolbus.wire.frames import ParticipantId as ParticipantId
from toolbus.wire.frames import Participants as Participants
from toolbus.wire.frames import Progress as Progress
from toolbus.wire.frames import Refresh as Refresh
from toolbus.wire.frames import Register as Register
from toolbus.wire.frames import RequestFrame as RequestFrame
from toolbus.wire.frames import RequestId as RequestId
from toolbus.wire.frames import Result as Result
from toolbus.wire.frames import Resumed as Resumed
from toolbus.wire.frames import Send as Send
from toolbus.wire.frames import Settle as Settle
from toolbus.wire.frames import StreamChunk as StreamChunk
from toolbus.wire.frames import Subscribe as Subscribe
from toolbus.wire.frames import Unregister as Unregister
from toolbus.wire.frames import Welcome as Welcome
from toolbus.wire.manifest import MAX_MANIFEST_BYTES as MAX_MANIFEST_BYTES
from toolbus.wire.manifest import MAX_MANIFEST_DEPTH as MAX_MANIFEST_DEPTH
from toolbus.wire.manifest import MAX_MANIFEST_VALUES as MAX_MANIFEST_VALUES
from toolbus.wire.manifest import MAX_TOOL_BYTES as MAX_TOOL_BYTES
from toolbus.wire.manifest import MAX_TOOL_VALUES as MAX_TOOL_VALUES
from toolbus.wire.manifest import MAX_TOOLS as MAX_TOOLS
from toolbus.wire.manifest import ToolkitManifest as ToolkitManifest
from toolbus.wire.manifest import ToolManifest as ToolManifest
from toolbus.wire.manifest import ToolParts as ToolParts
from toolbus.wire.manifest import read_tool as read_tool
from toolbus.wire.manifest import tool_refusal as tool_refusal
