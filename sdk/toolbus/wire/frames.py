"""The frames of protocol `toolbus.v1` as values: what each says and which fields it has.

Pure: no sockets, no clock. PROTOCOL.md beside this file states the rules; a kind is never used
again for something else, and fields are only ever added at the end.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NewType, TypeAlias

__all__ = [
    "FROM_CLIENT",
    "FROM_SERVER",
    "KINDS",
    "PROTOCOL_VERSION",
    "RESERVED",
    "SUBPROTOCOL",
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
    "Unregister",
    "Welcome",
]

SUBPROTOCOL = "toolbus.v1"
"""What both sides name in `Sec-WebSocket-Protocol`."""
PROTOCOL_VERSION = 1
"""Said in `Welcome`; grows when a rule changes that an old client could stumble over."""

RequestId = NewType("RequestId", int)
"""Chosen by whoever sends the request, per connection and direction."""
CallId = NewType("CallId", str)
"""128 random bits as 32 hex digits; the same for every attempt of one call, on every node."""
ParticipantId = NewType("ParticipantId", str)
"""Chosen by the server for each connection."""


class Welcome(NamedTuple):
    """The server's first frame: who you are here and what you may do."""

    version: int
    participant: str
    room: str
    session: str
    facts: dict[str, Any]


class Result(NamedTuple):
    """The good end of a request; `body` is packed and read by the one who asked."""

    id: int
    body: bytes


class Failed(NamedTuple):
    """The bad end of a request, with whether the tool ran."""

    id: int
    code: str
    executed: str
    retryable: bool
    message: str
    details: bytes | None
    retry_after_ms: int | None


class Event(NamedTuple):
    """News for a subscriber; numbers grow by one per connection."""

    number: int
    name: str
    data: dict[str, Any]


class Call(NamedTuple):
    """A participant calls a tool. `arguments` is packed and read by the host alone."""

    id: int
    call_id: str
    toolkit: str
    tool: str
    timeout_ms: int | None
    arguments: bytes
    options: dict[str, Any] | None


class Dispatch(NamedTuple):
    """The server hands a call to the host it chose; `id` is the server's."""

    id: int
    call_id: str
    toolkit: str
    tool: str
    remaining_ms: int | None
    arguments: bytes
    header: dict[str, Any]


class Cancel(NamedTuple):
    """Give the call with this id up. It has no reply of its own: the call's one reply stands."""

    id: int
    reason: str


class Register(NamedTuple):
    """Offer a toolkit from this connection; `manifest` is a packed toolkit manifest."""

    id: int
    manifest: bytes
    options: dict[str, Any]


class Unregister(NamedTuple):
    """Take a toolkit of this connection back: no new calls come, running ones finish."""

    id: int
    toolkit: str
    public: bool


class ListToolkits(NamedTuple):
    """Ask for a page of the toolkits I can see."""

    id: int
    options: dict[str, Any]


class Describe(NamedTuple):
    """Ask for one toolkit's manifest, unless I know its digest."""

    id: int
    toolkit: str
    options: dict[str, Any]


class Subscribe(NamedTuple):
    """Ask to be told of changes from now on; an empty list of topics ends it."""

    id: int
    topics: list[Any]


Frame: TypeAlias = (
    Welcome
    | Result
    | Failed
    | Event
    | Call
    | Dispatch
    | Cancel
    | Register
    | Unregister
    | ListToolkits
    | Describe
    | Subscribe
)

KINDS: dict[type[Frame], int] = {
    Welcome: 1,
    Result: 2,
    Failed: 3,
    Event: 4,
    Call: 16,
    Dispatch: 17,
    Cancel: 18,
    Register: 32,
    Unregister: 33,
    ListToolkits: 34,
    Describe: 35,
    Subscribe: 36,
}
"""The first element of each frame's array."""

FROM_CLIENT: tuple[type[Frame], ...] = (
    Result,
    Failed,
    Call,
    Cancel,
    Register,
    Unregister,
    ListToolkits,
    Describe,
    Subscribe,
)
"""What a server reads."""
FROM_SERVER: tuple[type[Frame], ...] = (Welcome, Result, Failed, Event, Dispatch, Cancel)
"""What a participant reads."""

RESERVED: dict[int, str] = {
    5: "notice",
    19: "chunk",
    20: "input",
    21: "credit",
    22: "progress",
    37: "drain",
    38: "refresh",
    39: "explain",
    48: "attributes",
    49: "send",
}
"""Kinds whose meaning is settled and whose frames are not built yet: unknown ones until then."""
