"""One participant's connection: reads its frames and hands each to whom it concerns.

Nothing that a client sends raises out of here: a broken frame closes its connection with the code
that PROTOCOL.md gives it, an unknown kind is answered, and a bug of ours is logged, answered as
`internal`, and touches nobody else.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from inspect import isawaitable
from time import thread_time
from typing import Any, TypeAlias, get_args

from toolbus.errors import (
    Internal,
    InvalidArguments,
    PermissionDenied,
    QuotaExceeded,
    RoomException,
    TooLarge,
)
from toolbus.grants import ApiScope
from toolbus.transport import ServerTransport
from toolbus.wire import (
    PROTOCOL_VERSION,
    Admin,
    Attributes,
    BadFrame,
    Builders,
    Call,
    Describe,
    Drain,
    Explain,
    Frame,
    ListToolkits,
    Notice,
    Participants,
    Refresh,
    Register,
    Result,
    Send,
    Subscribe,
    Unknown,
    Unregister,
    Welcome,
    decode_from_client,
    encode,
    failed,
    pack_body,
)
from toolbus_server.administration import Administration
from toolbus_server.admission import Admission, Admitted
from toolbus_server.call_frames import CALL_FRAMES, Taker
from toolbus_server.expiry import Expiry
from toolbus_server.explanations import explain
from toolbus_server.feed import Feed
from toolbus_server.hub import Hub
from toolbus_server.limits import Meter
from toolbus_server.routing import Seat

__all__ = ["Desk", "Session"]

_Request: TypeAlias = (
    Register
    | Unregister
    | ListToolkits
    | Describe
    | Subscribe
    | Drain
    | Explain
    | Refresh
    | Admin
    | Attributes
    | Send
    | Participants
    | Builders
)
_CHANGES = frozenset({Register, Unregister, Drain, Attributes, Builders, Refresh})
"""Requests that change what others see, or cost as much: one participant makes only so many."""
_logger = logging.getLogger(__name__)
# A newer client may try a kind now and then; one that keeps at it is a flood (CONN-9).
_UNKNOWN_KINDS = 100
_UNKNOWN_WINDOW_S = 10.0


@dataclass(frozen=True, slots=True)
class Desk:
    """What all sessions of a server turn to."""

    admission: Admission
    administration: Administration
    loop: asyncio.AbstractEventLoop
    now: Callable[[], float]
    """Seconds since the epoch."""


class Session:
    """A participant in a room.

    Args:
        connection: Its connection, just opened.
        admitted: Who it is, as its token says.
        hub: Where its room is.
        desk: Who lets people in and looks after rooms.
    """

    def __init__(
        self,
        connection: ServerTransport,
        admitted: Admitted,
        hub: Hub,
        desk: Desk,
    ) -> None:
        self.seat = Seat(admitted.member, connection, reads_chunks=admitted.reads_chunks)
        self._connection = connection
        self._hub = hub
        self._router = hub.router
        self._desk = desk
        self._loop = desk.loop
        self._room_name = admitted.room
        self._later: set[asyncio.Task[None]] = set()
        self._unknown = Meter(_UNKNOWN_KINDS, _UNKNOWN_WINDOW_S)
        self._expiry = Expiry(self, desk.loop, desk.now)

    def open(self, admitted: Admitted) -> None:
        """Take a seat and say welcome; the session ends with its token."""
        self._connection.receiver = self
        self._connection.batches = True
        self._open_room = self._hub.join(self._room_name, self)
        self._expiry.begin(admitted)
        name, session = self._room_name, secrets.token_hex(8)
        participant = self.seat.member.id
        welcome = Welcome(PROTOCOL_VERSION, participant, name, session, self._facts())
        self._connection.send_message(encode(welcome))

    def _facts(self) -> dict[str, Any]:
        member = self.seat.member
        return {
            "name": member.identity.name,
            "issuer": member.identity.issuer,
            "role": member.role,
            "api": member.scope.to_claims(),
            "limits": self._hub.limits.to_wire(),
            "heartbeat_ms": int((self._connection.ping_interval or 0) * 1000),
        }

    def _refresh(self, request: Refresh) -> dict[str, Any]:
        """Let a newer token of the same identity count from now on."""
        renewed = self._desk.admission.renew(self.seat.member, self._room_name, request.token)
        if renewed is None or self._expiry.is_over:
            raise PermissionDenied("the token does not hold, or is another participant's")
        self._hub.revise(self._room_name, self, renewed.member)
        self._expiry.begin(renewed)
        return self._facts()

    # Ends

    def on_close(self) -> None:
        """Leave the room when the connection is gone."""
        self._expiry.stop()
        self._hub.leave(self._room_name, self)

    def replaced(self) -> None:
        """Make place for a newer connection of this instance."""
        self._expiry.stop()
        self._connection.close_with(4409, "replaced by a newer connection")

    def sent_away(self) -> None:
        """Leave at once; no name is kept for whoever is sent away."""
        self._leave_now(4440, "sent away, or the token was revoked", reserve=False)

    def token_ends_soon(self, left_ms: int) -> None:
        """Tell the participant to send a newer token."""
        self._send(Notice("token_expires", {"left_ms": left_ms}))

    def token_ended(self) -> None:
        """Let nothing new begin: without grants it can neither call nor host."""
        member = self.seat.member
        self._hub.revise(self._room_name, self, replace(member, scope=ApiScope(), rooms=()))

    def expire(self) -> None:
        """Leave at once; no name is kept for whoever does not renew its token."""
        self._leave_now(4401, "the token expired", reserve=False)

    def _leave_now(self, code: int, reason: str, *, reserve: bool = True) -> None:
        """Close, and take everything of this participant away without waiting for its socket."""
        self._expiry.stop()
        self._connection.close_with(code, reason)
        self._hub.leave(self._room_name, self, reserve=reserve)

    # Frames

    def on_message(self, data: bytes) -> None:
        """Read one frame and act on it."""
        try:
            frame = decode_from_client(data)
        except BadFrame as error:
            self._leave_now(error.close_code, error.reason)
            return
        try:
            # Two kinds are nearly all there is.
            if isinstance(frame, Call):
                self._router.call(self._open_room.room, self.seat, frame)
            elif isinstance(frame, Result):
                self._router.answer(self.seat, frame)
            else:
                _HANDLERS[type(frame)](self, frame)
        except Exception:
            _logger.exception("a frame of kind %s met a bug", type(frame).__name__)
            self._answer_bug(frame)

    def _answer_bug(self, frame: Frame | Unknown) -> None:
        if isinstance(frame, Call) and frame.id not in self.seat.calls:
            self._send(failed(frame.id, Internal("a bug of the server's, logged there")))

    def _send(self, frame: Frame) -> None:
        self._connection.send_message(encode(frame))

    def _on_request(self, request: _Request) -> None:
        """Answer what is no call."""
        began = thread_time()
        try:
            self._count(request)
            body = _ANSWERS[type(request)](self, request)
            if isawaitable(body):
                self._answer_later(request.id, body)
            else:
                self._send(self._result(request.id, body))
        except RoomException as error:
            self._send(failed(request.id, error))
        except Exception:
            _logger.exception("a request of kind %s met a bug", type(request).__name__)
            self._send(failed(request.id, Internal("a bug of the server's, logged there")))
        finally:
            # Of this thread alone: what else the machine does is not counted against anybody.
            self.seat.work.exceeded(self._loop.time(), thread_time() - began)

    def _answer_later(self, request_id: int, body: Awaitable[dict[str, Any]]) -> None:
        """Answer a request that other nodes have to be asked about."""

        async def answer() -> None:
            try:
                self._send(self._result(request_id, await body))
            except RoomException as error:
                self._send(failed(request_id, error))
            except Exception:
                _logger.exception("a request met a bug")
                self._send(failed(request_id, Internal("a bug of the server's, logged there")))

        task = self._loop.create_task(answer())
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def _count(self, request: _Request) -> None:
        now, changes, work = self._loop.time(), self.seat.changes, self.seat.work
        if type(request) in _CHANGES and changes.exceeded(now):
            raise QuotaExceeded("too many changes", retry_after_s=changes.pause_s(now))
        if work.exceeded(now, 0.0):
            raise QuotaExceeded("too much work for others to wait", retry_after_s=work.pause_s(now))

    def _result(self, request_id: int, body: dict[str, Any]) -> Result:
        packed = pack_body(body)
        if len(packed) > self._hub.limits.max_frame_bytes - 64:
            raise TooLarge("the answer does not fit one frame", executed="no")
        return Result(request_id, packed)

    def _on_unknown(self, unknown: Unknown) -> None:
        if self._unknown.exceeded(self._loop.time()):
            self._leave_now(4429, "too many frames of unknown kinds")
        elif unknown.id is not None:
            error = InvalidArguments(
                f"frame kind {unknown.kind_number} is not known here",
                details={"path": "/0", "message": "unknown kind"},
            )
            self._send(failed(unknown.id, error))


def _handed_by(take: Taker) -> Callable[[Session, Any], None]:
    return lambda session, frame: take(session._router, session.seat, frame)


# For all sessions at once: functions bound to each would be 5 KiB of every participant.
_HANDLERS: dict[type[Any], Callable[[Session, Any], None]] = {
    **{kind: _handed_by(take) for kind, take in CALL_FRAMES.items()},
    **dict.fromkeys(get_args(_Request), Session._on_request),
    Unknown: Session._on_unknown,
}
_ANSWERS: dict[type[Any], Callable[[Session, Any], Any]] = {
    Register: lambda self, r: self._open_room.registry.register(self.seat, r),
    Unregister: lambda self, r: self._open_room.registry.unregister(self.seat, r),
    ListToolkits: lambda self, r: self._open_room.registry.list_toolkits(self.seat, r),
    Describe: lambda self, r: self._open_room.registry.describe(self.seat, r),
    Subscribe: lambda self, r: self._open_room.registry.subscribe(
        self.seat, Feed(self.seat, self._loop, self._hub.rounds), r
    ),
    Drain: lambda self, _: self._open_room.registry.drain(self.seat),
    Explain: lambda self, r: explain(self._hub.router, self._open_room.room, self.seat, r),
    Refresh: Session._refresh,
    Admin: lambda self, r: self._desk.administration.act(self.seat.member, r),
    Attributes: lambda self, r: self._open_room.people.attributes(self.seat, r),
    Send: lambda self, r: self._open_room.people.send(self.seat, r),
    Participants: lambda self, r: self._open_room.people.participants(self.seat, r),
    Builders: lambda self, r: self._open_room.people.builders(self.seat, r),
}
"""Who answers a request; each gives the body of the answer or raises what it is."""
