"""One participant's session: decodes its frames and passes each to its handler.

Nothing that a client sends raises an exception from here: an invalid frame closes the connection
with the code that PROTOCOL.md gives it, an unknown kind is answered, and an unexpected exception is
logged and answered as `internal`, without an effect on other participants.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from inspect import isawaitable
from math import ceil
from time import thread_time
from typing import Any

from toolbus.auth.grants import ApiScope
from toolbus.bounded_logging import bounded_logger
from toolbus.errors import (
    Internal,
    InvalidArguments,
    PermissionDenied,
    QuotaExceeded,
    RoomException,
    TooLarge,
    Unavailable,
)
from toolbus.transport.websocket import ServerTransport
from toolbus.wire import (
    PROTOCOL_VERSION,
    Admin,
    Assess,
    Attributes,
    BadFrame,
    Builders,
    Call,
    Describe,
    Drain,
    Explain,
    Frame,
    Hold,
    Holds,
    ListToolkits,
    Notice,
    Participants,
    Refresh,
    Register,
    RequestFrame,
    Result,
    Send,
    Settle,
    Subscribe,
    UnknownFrame,
    Unregister,
    Welcome,
    decode_from_client,
    encode,
    failed,
    pack_body,
)
from toolbus_server.access.admission import Admission, Admitted, Unread
from toolbus_server.calls.router import FRAME_HANDLERS, Connection, FrameHandler
from toolbus_server.clock import Clock, Timer
from toolbus_server.limits import RateLimiter
from toolbus_server.rooms.administration import Administration
from toolbus_server.rooms.hub import Hub
from toolbus_server.rooms.scheduling import MAX_WAITING_BYTES, Ended, Lane, Walk, pack_reply
from toolbus_server.rooms.toolkit_requests import MAX_PARTICIPANT_BYTES

__all__ = ["Session", "SessionServices"]

_GRACE_S = 1.0
"""How long calls in flight may take to finish after a token expired (PROTOCOL.md, CONN-12)."""
_POLL_S = 0.02
_CHANGES = frozenset({Register, Unregister, Drain, Attributes, Builders, Refresh, Settle})
"""Requests that change what others see, or cost as much; their rate is limited."""
_REGISTRATIONS = frozenset({Register, Unregister, Drain})
"""They take effect in the order in which they were sent, in a lane of their own: a list that was
asked for before does not delay them, and the other way round."""
_logger = bounded_logger(__name__)
# A newer client may try an unknown kind now and then; many of them are a flood (CONN-9).
_UNKNOWN_KINDS = 100
_UNKNOWN_WINDOW_S = 10.0
_WALKS_RETRY_S = 1.0
_UNEXPECTED = "unexpected error; the server's log has details"


@dataclass(slots=True, eq=False)
class TokenExpiry:
    """Tracks the expiry of one connection's token: notify in time, withdraw the grants, then close.

    It keeps one timer and decides when; the session acts.
    """

    _holder: Session
    _loop: asyncio.AbstractEventLoop
    _clock: Clock
    _timer: Timer | None = None
    _notified_of: float = 0.0
    _close_at: float = 0.0
    ends_at: float = 0.0
    """When the life of the token, with its leeway, ends: seconds since the epoch."""
    is_over: bool = False
    """Whether the token has expired, or the session has ended; it cannot be renewed any more."""

    def start(self, admitted: Admitted) -> None:
        """Track this token. A participant is notified once of each time of expiry."""
        self._disarm()
        self.ends_at = admitted.expires_at
        if admitted.extends:
            self._arm(admitted.renew_at, partial(self._extend, admitted.extends))
        elif self._notified_of == self.ends_at or admitted.renew_at >= self.ends_at:
            self._arm(self.ends_at, self._end)
        else:
            self._arm(admitted.renew_at, self._notify)

    def stop(self) -> None:
        """Neither notify nor close any more, as the session has ended; may be called twice."""
        self.is_over = True
        self._disarm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, at: float, act: Callable[[], None]) -> None:
        self._timer = self._clock.call_at(at, act)

    def _extend(self, jwt: str) -> None:
        """Give the token another life; where that is not possible, ask for a newer one."""
        extended = self._holder.extend(jwt)
        if extended is None:
            self._notify()
        else:
            self.start(extended)

    def _notify(self) -> None:
        self._notified_of = self.ends_at
        self._arm(self.ends_at, self._end)
        self._holder.notify_token_expiry(max(0, ceil((self.ends_at - self._clock.now()) * 1000)))

    def _end(self) -> None:
        self.is_over = True
        self._close_at = self._loop.time() + _GRACE_S
        self._holder.withdraw_grants()
        self._poll()

    def _poll(self) -> None:
        """Close as soon as no call is in flight; polling is enough for this short time."""
        connection = self._holder.connection
        if (connection.calls or connection.dispatched) and self._loop.time() < self._close_at:
            self._timer = self._loop.call_later(_POLL_S, self._poll)
        else:
            self._timer = None
            self._holder.expire()


@dataclass(frozen=True, slots=True)
class SessionServices:
    """What the sessions of a server share."""

    admission: Admission
    administration: Administration
    loop: asyncio.AbstractEventLoop
    clock: Clock
    """By which tokens end."""
    asks_for_error_text: bool
    """Whether hosts are asked to send the texts of exceptions."""


class Session:
    """A participant in a room."""

    def __init__(
        self, transport: ServerTransport, admitted: Admitted, hub: Hub, services: SessionServices
    ) -> None:
        self.connection = Connection(
            admitted.participant,
            transport,
            reads_chunks=admitted.reads_chunks,
            reads_parts=admitted.reads_parts,
            reads_holds=admitted.reads_holds,
            usage=hub.usages.of(admitted.participant.identity),
        )
        self._transport = transport
        self._hub = hub
        self._router = hub.router
        self._services = services
        self._loop = services.loop
        self._room_name = admitted.room
        self._pending_answers: set[asyncio.Task[None]] = set()
        self._lanes: dict[bool, Lane] = {}
        """The walks of registrations, by True, and of other requests."""
        self._unknown = RateLimiter(_UNKNOWN_KINDS, _UNKNOWN_WINDOW_S)
        self._expiry = TokenExpiry(self, services.loop, services.clock)

    def open(self, admitted: Admitted) -> None:
        """Join the room and send the welcome; the session ends with its token."""
        self._transport.receiver = self
        self._transport.batches = True
        self._open_room = self._hub.join(self._room_name, self)
        self._expiry.start(admitted)
        name, session = self._room_name, secrets.token_hex(8)
        participant = self.connection.participant.id
        welcome = Welcome(PROTOCOL_VERSION, participant, name, session, self._facts(admitted))
        self._transport.send_message(encode(welcome))

    def _facts(self, admitted: Admitted) -> dict[str, Any]:
        participant = self.connection.participant
        facts = {
            "name": participant.identity.name,
            "issuer": participant.identity.issuer,
            "role": participant.role,
            "api": participant.scope.to_claims(),
            "limits": self._hub.limits.to_wire(),
            "heartbeat_ms": int((self._transport.ping_interval or 0) * 1000),
        }
        if participant.alias:
            facts["alias"] = participant.alias
        if admitted.until is not None:
            facts["until"] = admitted.until
        if self._services.asks_for_error_text:
            facts["errors"] = "text"
        return facts

    def _refresh(self, request: Refresh) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """Replace the token by a newer one of the same identity."""
        admission, participant = self._services.admission, self.connection.participant
        renewed = admission.renew(participant, self._room_name, request.token)
        if isinstance(renewed, Unread):
            return self._refresh_later(request, renewed)
        return self._refreshed(renewed)

    async def _refresh_later(self, request: Refresh, unread: Unread) -> dict[str, Any]:
        admission, participant = self._services.admission, self.connection.participant
        if await admission.read_state(unread) is not None:
            raise Unavailable("the state of tokens cannot be read now", executed="no")
        renewed = admission.renew(participant, self._room_name, request.token, is_read=True)
        assert not isinstance(renewed, Unread)
        return self._refreshed(renewed)

    def _refreshed(self, renewed: Admitted | None) -> dict[str, Any]:
        if renewed is None or self._expiry.is_over:
            raise PermissionDenied("the token is not valid, or belongs to another participant")
        self._hub.renew(self._room_name, self, renewed.participant)
        self._expiry.start(renewed)
        return self._facts(renewed)

    def extend(self, jwt: str) -> Admitted | None:
        """Give the token another life; return its end, or None if it gets none."""
        admission, participant = self._services.admission, self.connection.participant
        return admission.extend(participant, self._room_name, jwt, self._expiry.ends_at)

    # Ends

    def on_close(self) -> None:
        """Leave the room when the connection closes."""
        self._expiry.stop()
        self._hub.leave(self._room_name, self)

    def replaced(self) -> None:
        """Close for a newer connection of this instance."""
        self._expiry.stop()
        self._transport.close_with(4409, "replaced by a newer connection")

    def evict(self) -> None:
        """Close at once, without keeping toolkit names; an administrator removed it."""
        self._leave_now(
            4440, "removed by an administrator, or the token was revoked", reserve=False
        )

    def notify_token_expiry(self, left_ms: int) -> None:
        """Ask the participant for a newer token."""
        self._send(Notice("token_expires", {"left_ms": left_ms}))

    def withdraw_grants(self) -> None:
        """Withdraw all grants, so that no new call starts and no toolkit is hosted."""
        participant = self.connection.participant
        expired = replace(participant, scope=ApiScope(), rooms=(), has_expired=True)
        self._hub.renew(self._room_name, self, expired)

    def expire(self) -> None:
        """Close at once, without keeping toolkit names: the token was not renewed."""
        self._leave_now(4401, "the token expired", reserve=False)

    def _leave_now(self, code: int, reason: str, *, reserve: bool = True) -> None:
        """Close, and remove the participant from its room without waiting for the socket."""
        self._expiry.stop()
        self._transport.close_with(code, reason)
        for lane in self._lanes.values():
            lane.drop_waiting()
        self._hub.leave(self._room_name, self, reserve=reserve)

    # Frames

    def on_message(self, data: bytes) -> None:
        """Decode one frame and process it."""
        try:
            frame = decode_from_client(data)
        except BadFrame as error:
            self._leave_now(error.close_code, error.reason)
            return
        try:
            # Nearly all frames are of these two kinds.
            if isinstance(frame, Call):
                self._router.call(self._open_room.routed, self.connection, frame)
            elif isinstance(frame, Result):
                self._router.answer(self.connection, frame)
            else:
                _HANDLERS[type(frame)](self, frame)
        except Exception:
            _logger.exception("unexpected error in a frame of kind %s", type(frame).__name__)
            if isinstance(frame, Call | Assess) and frame.id not in self.connection.calls:
                self._send(failed(frame.id, Internal(_UNEXPECTED)))

    def _send(self, frame: Frame) -> None:
        self._transport.send_message(encode(frame))

    def _on_request(self, request: RequestFrame) -> None:
        """Answer a request other than a call."""
        began = thread_time()
        try:
            if type(request) in _CHANGES:
                now = self._loop.time()
                self.connection.changes.check(now, "changes")
                self.connection.usage.changes.check(now, "changes")
            self.connection.usage.check_work()
            body = _REQUEST_HANDLERS[type(request)](self, request)
            if body is None:
                return  # it is answered later
            if isinstance(body, Generator):
                self._walk(request, body)
            elif isawaitable(body):
                self._answer_later(request.id, body)
            else:
                self._send(self._result(request.id, pack_body(body)))
        except Exception as error:
            self._refuse(request.id, error)
        finally:
            # Time of this thread alone, so that other load of the machine is not counted.
            self.connection.usage.charge(thread_time() - began)

    def _once_listed(self, request: Holds | Settle, handle: Callable[..., Any]) -> Any:
        """Handle a request about holds now, or once other nodes have sent theirs."""
        replication = self._open_room.routed.replication
        listing = None if replication is None else replication.listing_holds()
        if listing is None:
            return handle(self.connection, request)
        listing.add_done_callback(lambda _: self._on_listed(request))
        return None

    def _on_listed(self, request: Holds | Settle) -> None:
        if self.connection.participant.is_present:
            self._on_request(request)

    def _drain(self) -> Walk:
        """Send the participant no more calls; those that wait for a person are made elsewhere."""
        body = yield from self._open_room.toolkit_requests.drain(self.connection)
        self._router.end_holds_at(self.connection)
        return body

    def _refuse(self, request_id: int, error: Exception) -> None:
        """Answer a request with its error; only that of a `RoomException` is shown."""
        if not isinstance(error, RoomException):
            _logger.error("unexpected error in a request", exc_info=error)
            error = Internal(_UNEXPECTED)
        self._send(failed(request_id, error))

    def _walk(self, request: RequestFrame, walk: Walk) -> None:
        """Answer a request that may take several slices of the event loop."""
        registers = type(request) in _REGISTRATIONS
        lane = self._lanes.get(registers)
        if lane is None:
            max_bytes = MAX_PARTICIPANT_BYTES if registers else MAX_WAITING_BYTES
            identity = self.connection.participant.identity
            lane = Lane(self._hub.scheduler, identity, self.connection.usage, max_bytes)
            self._lanes[registers] = lane
        size = len(encode(request))
        if not lane.accepts(size):
            raise QuotaExceeded("too many requests are waiting", retry_after_s=_WALKS_RETRY_S)
        lane.run(walk, partial(self._answer_walk, request.id), size)

    def _answer_walk(self, request_id: int, ended: Ended) -> None:
        try:
            body = ended.result()
            if isawaitable(body):
                self._answer_later(request_id, body)
            else:
                self._send(self._result(request_id, pack_reply(body)))
        except Exception as error:
            self._refuse(request_id, error)

    def _answer_later(self, request_id: int, body: Awaitable[dict[str, Any]]) -> None:
        """Answer a request once other nodes have answered theirs."""

        async def answer() -> None:
            try:
                self._send(self._result(request_id, pack_body(await body)))
            except Exception as error:
                self._refuse(request_id, error)

        task = self._loop.create_task(answer())
        self._pending_answers.add(task)
        task.add_done_callback(self._pending_answers.discard)

    def _result(self, request_id: int, packed: bytes) -> Result:
        if len(packed) > self._hub.limits.max_frame_bytes - 64:
            raise TooLarge("the answer does not fit one frame", executed="no")
        return Result(request_id, packed)

    def _on_unknown(self, unknown: UnknownFrame) -> None:
        if self._unknown.exceeded(self._loop.time()):
            self._leave_now(4429, "too many frames of unknown kinds")
        elif unknown.id is not None:
            error = InvalidArguments(
                f"unknown frame kind {unknown.kind_number}",
                details={"path": "/0", "message": "unknown kind"},
            )
            self._send(failed(unknown.id, error))


def _with_router(handle: FrameHandler) -> Callable[[Session, Any], None]:
    return lambda session, frame: handle(session._router, session.connection, frame)


_REQUEST_HANDLERS: dict[type[Any], Callable[[Session, Any], Any]] = {
    Register: lambda self, r: self._open_room.toolkit_requests.register(self.connection, r),
    Unregister: lambda self, r: self._open_room.toolkit_requests.unregister(self.connection, r),
    ListToolkits: lambda self, r: self._open_room.toolkit_requests.list_toolkits(
        self.connection, r
    ),
    Describe: lambda self, r: self._open_room.toolkit_requests.describe(self.connection, r),
    Subscribe: lambda self, r: self._open_room.toolkit_requests.subscribe(self.connection, r),
    Drain: lambda self, _: self._drain(),
    Explain: lambda self, r: self._router.explain(self._open_room.routed, self.connection, r),
    Refresh: Session._refresh,
    Admin: lambda self, r: self._services.administration.handle(self.connection.participant, r),
    Hold: lambda self, r: self._open_room.hold_requests.hold(self.connection, r),
    Holds: lambda self, r: self._once_listed(r, self._open_room.hold_requests.holds),
    Settle: lambda self, r: self._once_listed(r, self._open_room.hold_requests.settle),
    Attributes: lambda self, r: self._open_room.participant_requests.attributes(self.connection, r),
    Send: lambda self, r: self._open_room.participant_requests.send(self.connection, r),
    Participants: lambda self, r: self._open_room.participant_requests.participants(
        self.connection, r
    ),
    Builders: lambda self, r: self._open_room.participant_requests.builders(self.connection, r),
}
"""The handler of each kind of request: it returns the answer's body, in steps or not, or raises."""
# One table for all sessions: bound methods would take 5 KiB for each participant.
_HANDLERS: dict[type[Any], Callable[[Session, Any], None]] = {
    **{kind: _with_router(handle) for kind, handle in FRAME_HANDLERS.items()},
    **dict.fromkeys(_REQUEST_HANDLERS, Session._on_request),
    Assess: lambda self, frame: self._router.assess(self._open_room.routed, self.connection, frame),
    UnknownFrame: Session._on_unknown,
}
