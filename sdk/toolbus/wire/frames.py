"""The frames of protocol `toolbus.v1` as values.

Pure: no sockets, no clock. PROTOCOL.md states the rules; a kind is never reused for another
purpose, and fields are only added at the end. A frame is encoded as the array of its kind and its
fields; msgspec decodes it, and checks types and ranges, in one pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NewType, TypeAlias, cast

from msgspec import Meta, Struct

SUBPROTOCOL = "toolbus.v1"
"""The name that both sides send in `Sec-WebSocket-Protocol`."""
LIMIT_HEADER = "Toolbus-Limit"
"""The header of a 429 that names the limit: address, identity or room (CONN-5)."""
PROTOCOL_HEADER = "Toolbus-Protocol"
"""The header by which a refusal is known as one of a toolbus server (CONN-17)."""
PROTOCOL_VERSION = 6
"""Sent in `Welcome`; increases when a client may need to know of an addition (GROW-2)."""
FORWARD_VERSION = 4
"""From this version on a server has the option `forward` (CALL-29); a lower one ignores it."""
ASSESS_VERSION = 5
"""From this version on a server reads `Assess` (ASSESS-1); a lower one refuses it."""
HOLDS_VERSION = 6
"""From this version on a call can wait for a person (HOLD-1); a lower one refuses `Hold`."""

MAX_ATTRIBUTES_BYTES = 16 * 1024
"""The attributes of one participant, packed (PROTOCOL.md, PEOPLE-2)."""
MAX_HOLD_BYTES = 256 * 1024
"""What a person is shown about one call; nobody approves what was not shown (HOLD-4). What a person
gives has as much: other arguments, and answers (HOLD-15)."""
MAX_PURPOSE_CHARS = 500
"""What a call is for: a person reads it before an answer (HOLD-4)."""
MAX_REASON_CHARS = 2_000
"""Why a person refuses a call: a model reads it (HOLD-3)."""
DEFAULT_APPROVAL_MS = 300_000
"""How long a call waits for a person unless somebody chose another time (HOLD-5)."""
NO_APPROVAL_LIMIT_MS = 2**53
"""Stands for a wait without limit, and for any that is longer (HOLD-5)."""

RequestId = NewType("RequestId", int)
"""Chosen by the sender of the request, per connection and direction."""
CallId = NewType("CallId", str)
"""128 random bits as 32 hex digits; the same for every attempt of one call, on every node."""
ParticipantId = NewType("ParticipantId", str)
"""Chosen by the server for each connection."""

Number: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
"""A number of 0 or more that every language can hold exactly (PROTOCOL.md, FRAME-3)."""

# The maps of every call. The usual types of their values are decoded in the same pass as the frame;
# a map with values of other types is equally valid, and takes the slow path.
if TYPE_CHECKING:
    Options: TypeAlias = dict[str, Any]
    Header: TypeAlias = dict[str, Any]
else:
    Options: TypeAlias = dict[str, str]
    Header: TypeAlias = dict[str, bytes]


# Their subclasses inherit `array_like` and `gc`; type checkers require that each repeats `frozen`.
class Frame(Struct, array_like=True, frozen=True, gc=False):
    """A frame of either side. Those of a kind have a tag, which is the kind."""


class ClientFrame(Frame, frozen=True):
    """A frame that a participant sends and a server reads."""


class ServerFrame(Frame, frozen=True):
    """A frame that a server sends and a participant reads."""


class RequestFrame(ClientFrame, frozen=True):
    """A request other than a call; `Result` or `Failed` with its id is the reply."""

    id: Number


class Welcome(ServerFrame, tag=1, frozen=True):
    """The server's first frame: the participant's identity, grants and limits."""

    version: Number
    participant: str
    room: str
    session: str
    facts: dict[str, Any]


class Result(ClientFrame, ServerFrame, tag=2, frozen=True):
    """The successful reply to a request; `body` is packed and read by the requester."""

    id: Number
    body: bytes


class Failed(ClientFrame, ServerFrame, tag=3, frozen=True):
    """The error reply to a request, with whether the tool ran."""

    id: Number
    code: str
    executed: str
    retryable: bool
    message: str
    details: bytes | None
    retry_after_ms: Number | None


class Event(ServerFrame, tag=4, frozen=True):
    """An event for a subscriber; numbers increase by one per connection."""

    number: Number
    name: str
    data: dict[str, Any]


class Notice(ServerFrame, tag=5, frozen=True):
    """A notice on which the participant should act; one of an unknown name is ignored."""

    name: str
    data: dict[str, Any]


class Call(ClientFrame, tag=16, frozen=True):
    """A participant calls a tool. `arguments` is packed and read only by the host."""

    id: Number
    call_id: str
    toolkit: str
    tool: str
    timeout_ms: Number | None
    arguments: bytes
    options: Options | None
    traceparent: str | None = None


class Dispatch(ServerFrame, tag=17, frozen=True):
    """The server sends a call to the host it chose; the server chooses `id`."""

    id: Number
    call_id: str
    toolkit: str
    tool: str
    remaining_ms: Number | None
    arguments: bytes
    header: Header
    traceparent: str | None = None


class Cancel(ClientFrame, ServerFrame, tag=18, frozen=True):
    """Cancel the call with this id. It has no reply of its own: the call has one reply."""

    id: Number
    reason: str


class StreamChunk(ClientFrame, ServerFrame, tag=19, frozen=True):
    """A chunk sent before a call's end; `number` counts from 1, `body` is packed."""

    id: Number
    number: Number
    body: bytes


class Input(ClientFrame, ServerFrame, tag=20, frozen=True):
    """A chunk of a call's input; `last` means that no other follows, and may have no body."""

    id: Number
    number: Number
    body: bytes | None
    last: bool


class Credit(ClientFrame, ServerFrame, tag=21, frozen=True):
    """How much a sender may send: totals since the call began, of its chunks or its input."""

    id: Number
    of_input: bool
    chunks: Number
    bytes: Number


class Progress(ClientFrame, ServerFrame, tag=22, frozen=True):
    """The progress of a running call, as a packed chunk; may be lost."""

    id: Number
    body: bytes


# Neither is a subclass of the frame of a call: whatever asks `isinstance(frame, Call)` runs tools.
class Assess(ClientFrame, tag=23, frozen=True):
    """A participant asks what a tool says about a call with this input; runs nothing.

    The fields are those of `Call`, but `patterns`: those of the rules that concern the call.
    """

    id: Number
    call_id: str
    toolkit: str
    tool: str
    timeout_ms: Number | None
    arguments: bytes
    options: Options | None
    patterns: list[Any]


class AssessDispatch(ServerFrame, tag=24, frozen=True):
    """The server asks the host that a call would go to; the server chooses `id`."""

    id: Number
    call_id: str
    toolkit: str
    tool: str
    remaining_ms: Number | None
    arguments: bytes
    header: Header
    patterns: list[Any]
    traceparent: ClassVar[None] = None
    """It is not a call, so that it is in no trace."""


class Hold(RequestFrame, tag=25, frozen=True):
    """A host asks a person about a call that it runs; the reply is the decision."""

    dispatch: Number | None
    kind: str
    digest: bytes
    body: bytes
    options: dict[str, Any]


class Held(ServerFrame, tag=26, frozen=True):
    """The call with this id waits for a person: its time stands still from now on."""

    id: Number
    data: dict[str, Any]


class Resumed(ServerFrame, tag=27, frozen=True):
    """One wait of the call has ended; its deadline is later by `waited_ms`."""

    id: Number
    waited_ms: Number
    data: dict[str, Any]


class Register(RequestFrame, tag=32, frozen=True):
    """Offer a toolkit from this connection; `manifest` is a packed toolkit manifest."""

    manifest: bytes
    options: dict[str, Any]


class Unregister(RequestFrame, tag=33, frozen=True):
    """Remove a toolkit of this connection: it gets no new calls, running ones finish."""

    toolkit: str
    public: bool


class ListToolkits(RequestFrame, tag=34, frozen=True):
    """Request a page of the toolkits that the sender can see."""

    options: dict[str, Any]


class Describe(RequestFrame, tag=35, frozen=True):
    """Request one toolkit's manifest, unless its digest is unchanged."""

    toolkit: str
    options: dict[str, Any]


class Subscribe(RequestFrame, tag=36, frozen=True):
    """Subscribe to events from now on; an empty list of topics ends the subscription."""

    topics: list[Any]


class Drain(RequestFrame, tag=37, frozen=True):
    """Stop new calls to this connection; running ones finish, and names it hosts are kept."""

    options: dict[str, Any]


class Refresh(RequestFrame, tag=38, frozen=True):
    """Replace the token of this connection by one of the same identity."""

    token: str


class Explain(RequestFrame, tag=39, frozen=True):
    """Ask which host would run a call, or with which error it would end; runs nothing."""

    toolkit: str
    tool: str
    options: dict[str, Any]


class Holds(RequestFrame, tag=40, frozen=True):
    """Request the holds that the sender may settle, or one of them with its body."""

    options: dict[str, Any]


class Settle(RequestFrame, tag=41, frozen=True):
    """Decide about a hold: approve, answer or deny what `digest` stands for."""

    hold: str
    decision: str
    digest: bytes
    options: dict[str, Any]


class Attributes(RequestFrame, tag=48, frozen=True):
    """Change the sender's attributes: values by name, nil removes one."""

    attributes: dict[str, Any]


class Send(RequestFrame, tag=49, frozen=True):
    """Send a message to the participants of a name, or to all; `body` is packed."""

    to: str | None
    name: str
    body: bytes


class Participants(RequestFrame, tag=50, frozen=True):
    """Request a page of the participants of the room."""

    options: dict[str, Any]


class Builders(RequestFrame, tag=51, frozen=True):
    """Publish which toolkits the sender builds on request, or request another's."""

    options: dict[str, Any]


class Admin(RequestFrame, tag=52, frozen=True):
    """Administer rooms: list them, remove participants, revoke tokens."""

    action: str
    options: dict[str, Any]


KINDS: dict[type[Frame], int] = {
    frame: cast(int, frame.__struct_config__.tag)
    for frame in list(globals().values())
    if isinstance(frame, type) and issubclass(frame, Frame) and frame.__struct_config__.tag
}
"""The first element of each frame's array."""
FROM_CLIENT: tuple[type[Frame], ...] = tuple(f for f in KINDS if issubclass(f, ClientFrame))
"""The frames that a server reads."""
FROM_SERVER: tuple[type[Frame], ...] = tuple(f for f in KINDS if issubclass(f, ServerFrame))
"""The frames that a participant reads."""
