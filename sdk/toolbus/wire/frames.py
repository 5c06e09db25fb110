"""The frames of protocol `toolbus.v1` as values: what each says and which fields it has.

Pure: no sockets, no clock. PROTOCOL.md beside this file states the rules; a kind is never used
again for something else, and fields are only ever added at the end. A frame travels as the array
of its kind and its fields, and is read, typed and within its ranges, in one pass of msgspec.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NewType, TypeAlias, cast, get_args

from msgspec import Meta, Struct

__all__ = [
    "FROM_CLIENT",
    "FROM_SERVER",
    "KINDS",
    "MAX_ATTRIBUTES_BYTES",
    "PROTOCOL_VERSION",
    "SUBPROTOCOL",
    "Admin",
    "Attributes",
    "Builders",
    "Call",
    "CallId",
    "Cancel",
    "Credit",
    "Describe",
    "Dispatch",
    "Drain",
    "Event",
    "Explain",
    "Failed",
    "Frame",
    "Input",
    "ListToolkits",
    "Notice",
    "ParticipantId",
    "Participants",
    "Progress",
    "Refresh",
    "Register",
    "RequestId",
    "Result",
    "Send",
    "StreamChunk",
    "Subscribe",
    "Unregister",
    "Welcome",
]

SUBPROTOCOL = "toolbus.v1"
"""What both sides name in `Sec-WebSocket-Protocol`."""
PROTOCOL_VERSION = 2
"""Said in `Welcome`; grows with what a client may want to know of before it uses it (GROW-2)."""

MAX_ATTRIBUTES_BYTES = 16 * 1024
"""What one participant says of itself, packed (PROTOCOL.md, PEOPLE-2)."""

RequestId = NewType("RequestId", int)
"""Chosen by whoever sends the request, per connection and direction."""
CallId = NewType("CallId", str)
"""128 random bits as 32 hex digits; the same for every attempt of one call, on every node."""
ParticipantId = NewType("ParticipantId", str)
"""Chosen by the server for each connection."""

Number: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
"""What every language can hold exactly, and no less than nothing (PROTOCOL.md, FRAME-3)."""

# Maps that come with every call. What they mostly hold is read in the same pass as the frame; a map
# with anything else in it is as good, and read the longer way.
if TYPE_CHECKING:
    Options: TypeAlias = dict[str, Any]
    Header: TypeAlias = dict[str, Any]
else:
    Options: TypeAlias = dict[str, str]
    Header: TypeAlias = dict[str, bytes]


class Welcome(Struct, tag=1, array_like=True, frozen=True, gc=False):
    """The server's first frame: who you are here and what you may do."""

    version: Number
    participant: str
    room: str
    session: str
    facts: dict[str, Any]


class Result(Struct, tag=2, array_like=True, frozen=True, gc=False):
    """The good end of a request; `body` is packed and read by the one who asked."""

    id: Number
    body: bytes


class Failed(Struct, tag=3, array_like=True, frozen=True, gc=False):
    """The bad end of a request, with whether the tool ran."""

    id: Number
    code: str
    executed: str
    retryable: bool
    message: str
    details: bytes | None
    retry_after_ms: Number | None


class Event(Struct, tag=4, array_like=True, frozen=True, gc=False):
    """News for a subscriber; numbers grow by one per connection."""

    number: Number
    name: str
    data: dict[str, Any]


class Notice(Struct, tag=5, array_like=True, frozen=True, gc=False):
    """Something that the participant should act on; one of an unknown name is ignored."""

    name: str
    data: dict[str, Any]


class Call(Struct, tag=16, array_like=True, frozen=True, gc=False):
    """A participant calls a tool. `arguments` is packed and read by the host alone."""

    id: Number
    call_id: str
    toolkit: str
    tool: str
    timeout_ms: Number | None
    arguments: bytes
    options: Options | None
    traceparent: str | None = None


class Dispatch(Struct, tag=17, array_like=True, frozen=True, gc=False):
    """The server hands a call to the host it chose; `id` is the server's."""

    id: Number
    call_id: str
    toolkit: str
    tool: str
    remaining_ms: Number | None
    arguments: bytes
    header: Header
    traceparent: str | None = None


class Cancel(Struct, tag=18, array_like=True, frozen=True, gc=False):
    """Give the call with this id up. It has no reply of its own: the call's one reply stands."""

    id: Number
    reason: str


class StreamChunk(Struct, tag=19, array_like=True, frozen=True, gc=False):
    """A chunk that comes before a call's end; `number` counts from 1, `body` is packed."""

    id: Number
    number: Number
    body: bytes


class Input(Struct, tag=20, array_like=True, frozen=True, gc=False):
    """A chunk of what a call takes in; `last` says that no other follows, and may come alone."""

    id: Number
    number: Number
    body: bytes | None
    last: bool


class Credit(Struct, tag=21, array_like=True, frozen=True, gc=False):
    """How far a sender may go: totals since the call began, of its chunks or of its input."""

    id: Number
    of_input: bool
    chunks: Number
    bytes: Number


class Progress(Struct, tag=22, array_like=True, frozen=True, gc=False):
    """How far a running call is, as a packed chunk; may be lost."""

    id: Number
    body: bytes


class Register(Struct, tag=32, array_like=True, frozen=True, gc=False):
    """Offer a toolkit from this connection; `manifest` is a packed toolkit manifest."""

    id: Number
    manifest: bytes
    options: dict[str, Any]


class Unregister(Struct, tag=33, array_like=True, frozen=True, gc=False):
    """Take a toolkit of this connection back: no new calls come, running ones finish."""

    id: Number
    toolkit: str
    public: bool


class ListToolkits(Struct, tag=34, array_like=True, frozen=True, gc=False):
    """Ask for a page of the toolkits I can see."""

    id: Number
    options: dict[str, Any]


class Describe(Struct, tag=35, array_like=True, frozen=True, gc=False):
    """Ask for one toolkit's manifest, unless I know its digest."""

    id: Number
    toolkit: str
    options: dict[str, Any]


class Subscribe(Struct, tag=36, array_like=True, frozen=True, gc=False):
    """Ask to be told of changes from now on; an empty list of topics ends it."""

    id: Number
    topics: list[Any]


class Drain(Struct, tag=37, array_like=True, frozen=True, gc=False):
    """Give this connection no more calls; what it runs may finish, and what it hosts is kept."""

    id: Number
    options: dict[str, Any]


class Refresh(Struct, tag=38, array_like=True, frozen=True, gc=False):
    """A new token of the same identity, for this connection."""

    id: Number
    token: str


class Explain(Struct, tag=39, array_like=True, frozen=True, gc=False):
    """Ask which host would run a call, or what would stop it; runs nothing."""

    id: Number
    toolkit: str
    tool: str
    options: dict[str, Any]


class Attributes(Struct, tag=48, array_like=True, frozen=True, gc=False):
    """Change what others see of me: values by name, nil takes one away."""

    id: Number
    attributes: dict[str, Any]


class Send(Struct, tag=49, array_like=True, frozen=True, gc=False):
    """A message to the participants of a name, or to all; `body` is packed."""

    id: Number
    to: str | None
    name: str
    body: bytes


class Participants(Struct, tag=50, array_like=True, frozen=True, gc=False):
    """Ask for a page of those who are in the room."""

    id: Number
    options: dict[str, Any]


class Builders(Struct, tag=51, array_like=True, frozen=True, gc=False):
    """Say which toolkits I build on request, or ask which ones another does."""

    id: Number
    options: dict[str, Any]


class Admin(Struct, tag=52, array_like=True, frozen=True, gc=False):
    """Look after rooms: list them, send somebody away, revoke tokens."""

    id: Number
    action: str
    options: dict[str, Any]


Frame: TypeAlias = (
    Welcome
    | Result
    | Failed
    | Event
    | Notice
    | Call
    | Dispatch
    | Cancel
    | StreamChunk
    | Input
    | Credit
    | Progress
    | Register
    | Unregister
    | ListToolkits
    | Describe
    | Subscribe
    | Drain
    | Refresh
    | Explain
    | Attributes
    | Send
    | Participants
    | Builders
    | Admin
)

KINDS: dict[type[Frame], int] = {
    frame: cast(int, frame.__struct_config__.tag) for frame in get_args(Frame)
}
"""The first element of each frame's array."""

FROM_CLIENT: tuple[type[Frame], ...] = (
    Result,
    Failed,
    Call,
    Cancel,
    StreamChunk,
    Input,
    Credit,
    Progress,
    Register,
    Unregister,
    ListToolkits,
    Describe,
    Subscribe,
    Drain,
    Refresh,
    Explain,
    Attributes,
    Send,
    Participants,
    Builders,
    Admin,
)
"""What a server reads."""
FROM_SERVER: tuple[type[Frame], ...] = (
    Welcome,
    Result,
    Failed,
    Event,
    Notice,
    Dispatch,
    Cancel,
    StreamChunk,
    Input,
    Credit,
    Progress,
)
"""What a participant reads."""
