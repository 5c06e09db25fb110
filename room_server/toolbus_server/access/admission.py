"""Decides which connections are admitted, between the HTTP request and the websocket.

A refusal is an HTTP response with a constant text, sent before the upgrade and before the room is
touched. A browser cannot read that response, so a client that offered the subprotocol
`bearer.<token>` is upgraded and closed with the matching code instead. Reasons appear only in the
counters and logs of this server; a token appears in neither.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from time import monotonic
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from websockets.datastructures import Headers

import toolbus.auth.jws  # noqa: F401 - loaded before the first handshake needs it
from toolbus.auth.grants import ApiScope, is_room_name
from toolbus.auth.jws import read_header
from toolbus.auth.token_limits import MAX_JWT_BYTES
from toolbus.auth.tokens import LEEWAY_S, KeyRing, ParticipantToken, TokenRefused, VerifiedToken
from toolbus.bounded_logging import bounded_logger
from toolbus.untrusted_text import SHOWN_CHARS
from toolbus.wire import SUBPROTOCOL, ParticipantId
from toolbus_server.access.connection_limits import ConnectionQuotas
from toolbus_server.access.extensions import (
    Extensions,
    StateUnavailable,
    TokenKey,
    extended_at,
    key_of,
    renewed_at,
)
from toolbus_server.access.revocations import Revocations
from toolbus_server.limits import RateLimiter
from toolbus_server.registry.models import Identity, Participant
from toolbus_server.settings import ServerSettings

__all__ = ["Admission", "Admitted", "Refusal", "RefusedConnections", "Unread"]

_logger = bounded_logger(__name__)
_BEARER = "bearer."
_MAX_INSTANCE_CHARS = 128
"""It is in memory with each participant, at all servers of a bus (PROTOCOL.md, CONN-4)."""
_MAX_EPOCH = 2**53
"""What Redis, and clients in JavaScript, count exactly (PROTOCOL.md, CONN-4)."""
_MAX_QUERY_FIELDS = 16
"""Anyone may send thousands in a request line, and they are parsed before the token is checked."""
_READ_S = 2.0
"""The most that a handshake waits for the state: a client without an answer gives up after 10 s."""
_WINDOW_S = 60.0
"""The window of the lines about refusals: anyone can cause these, and they must not fill a disk."""
_MAX_LINES = 20
"""So many in a window; those beyond are counted in one line."""


class Refusal(NamedTuple):
    """A refused connection: the HTTP response, and the close code for a browser."""

    status: int
    close_code: int | None
    text: str
    limit: str = ""
    """The limit that is reached, as `LIMIT_HEADER` names it."""


_BAD_TOKEN = Refusal(
    401, 4401, "The token is missing, malformed, expired or from an unknown key.\n"
)
_WRONG_ROOM = Refusal(403, 4403, "The token is not for this room.\n")
_NO_SUCH_ROOM = Refusal(404, 4404, "There is no such path: use /rooms/NAME.\n")
_BAD_QUERY = Refusal(400, 4404, "instance has to be text, epoch a whole number from 1 to 2^53.\n")
_REPLACED = Refusal(409, 4409, "This instance has a connection with this or a later epoch.\n")
_BAD_ORIGIN = Refusal(403, None, "Pages from this origin may not connect here.\n")
_ADDRESS_FULL = Refusal(429, 4429, "This address has too many connections.\n", "address")
_IDENTITY_FULL = Refusal(
    429, 4429, "The identity of the token has too many connections.\n", "identity"
)
_ROOM_FULL = Refusal(429, 4429, "The room has too many participants.\n", "room")
_WRONG_PROTOCOL = Refusal(426, None, f"Offer the websocket subprotocol {SUBPROTOCOL}.\n")
_NOT_ELSEWHERE = Refusal(
    503, None, "This is not another server, or it cannot reach the others: keep your connection.\n"
)
_STANDBY = Refusal(
    503, None, "This server waits until servers of another release have ended: connect to those.\n"
)
_NO_STATE = Refusal(503, None, "The state of tokens cannot be read: try again in a moment.\n")
_NO_KEY_SET = Refusal(
    503, None, "The keys of the token's issuer could not be fetched yet: try again.\n"
)
_DRAINING = Refusal(503, None, "This server is shutting down: connect again in a moment.\n")


@dataclass(frozen=True, slots=True)
class Admitted:
    """An admitted connection."""

    room: str
    participant: Participant
    expires_at: float
    """When its current life ends, with its leeway: seconds since the epoch."""
    renew_at: float
    """After 80 % of that life, when it gets another one, or the participant should renew it."""
    extends: str = ""
    """The token, if it may get another life; else empty."""
    until: float | None = None
    """When its last life ends, if it gets further ones."""
    reads_chunks: bool = False
    """Whether it accepts large files in chunks from calls that are not streams."""
    reads_parts: bool = False
    """Whether it also accepts any other large result in parts."""
    reads_holds: bool = False
    """Whether it is told that a call of it waits for a person."""


class Unread(NamedTuple):
    """A token whose last known life is over: the stored state has to be read first."""

    key: TokenKey


class _Unread(Exception):
    def __init__(self, key: TokenKey) -> None:
        super().__init__(key)
        self.key = key


class _Request(NamedTuple):
    room: str
    instance: str
    epoch: int
    token: str
    reads_chunks: bool
    reads_parts: bool
    assesses: bool
    reads_holds: bool
    elsewhere: bool
    """Whether it is refused where this instance has a connection already."""


class _Refused(Exception):
    def __init__(self, refusal: Refusal, reason: str, token: str | None = None) -> None:
        super().__init__(reason)
        self.refusal = refusal
        self.reason = reason
        self.token = token
        """The token, if it is the reason; empty if there was none."""


@lru_cache(maxsize=1024)
def _interned(scope: ApiScope) -> ApiScope:
    """Return one object for equal scopes: thousands of services share one."""
    return scope


class Admission:
    """Admits or refuses the connections to one server.

    Args:
        settings: The first keys, whether a token may be in the query, and the quotas.
        epoch_of: Returns the epoch of the connection that an instance already has in a room.
        remote_count: Counts the participants of a room at other nodes, without this instance.
        now: Returns the time in seconds since the epoch.
    """

    def __init__(
        self,
        settings: ServerSettings,
        epoch_of: Callable[[str, Identity, str], int | None],
        remote_count: Callable[[str, Identity, str], int],
        now: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._epoch_of = epoch_of
        self._remote_count = remote_count
        self._now = now
        self.keys: KeyRing = settings.keys
        """The keys whose tokens are accepted; replaced as a whole."""
        self.draining = False
        """Set when the server shuts down: from then on every connection is refused."""
        self.is_isolated = False
        """Whether this node has no Redis and others have: `elsewhere=1` is refused."""
        self.stands_by = False
        """Whether nodes of another release are live: every connection is refused."""
        self.quotas: ConnectionQuotas = ConnectionQuotas(
            settings.max_per_address, settings.max_per_identity, settings.max_per_room
        )
        """Counts connections by address, and participants by identity and room."""
        self.revocations: Revocations = Revocations()
        """The revoked tokens."""
        self.extensions: Extensions | None = None
        """The tokens that got another life; None where none does, since nothing stores it."""
        self._full_warnings = {
            limit: RateLimiter(1, _WINDOW_S) for limit in ("address", "identity", "room")
        }
        # Two budgets: what needs no token at all must not hide the refused tokens.
        self._refused_tokens = RefusedConnections(monotonic)
        self._refused_otherwise = RefusedConnections(monotonic, logging.INFO)
        self.refused: Counter[str] = Counter()
        """How many connections were refused, by reason: a closed set of labels."""

    def decide(
        self, path: str, headers: Headers, address: str = "", *, is_read: bool = False
    ) -> Admitted | Refusal | Unread:
        """Decide about one handshake from an address, as `quotas` counts it.

        Never raises, whatever the client sent.

        Args:
            path: The path and the query.
            headers: The headers of the request.
            address: Where it comes from.
            is_read: Whether the state of the token was read, which `Unread` asks for.
        """
        try:
            return self._admit(path, headers, address, is_read)
        except _Unread as unread:
            return Unread(unread.key)
        except _Refused as refused:
            self.refused[refused.reason] += 1
            if refused.token is None:
                self._refused_otherwise.refused(refused.reason, "", address)
            else:
                self._refused_tokens.refused(refused.reason, refused.token, address)
            return refused.refusal

    async def read_state(self, unread: Unread) -> Refusal | None:
        """Read what is stored of a token; return a refusal if that is not possible now."""
        assert self.extensions is not None
        try:
            async with asyncio.timeout(_READ_S):
                await self.extensions.read(unread.key, self._now())
        except (StateUnavailable, TimeoutError):
            self.refused["no_state"] += 1
            return _NO_STATE
        return None

    def log_left_out(self) -> None:
        """Log how many refusals have no line of their own, since the server stops."""
        for log in (self._refused_tokens, self._refused_otherwise):
            log.log_left_out()

    def _admit(self, path: str, headers: Headers, address: str, is_read: bool) -> Admitted:
        offered = _offered_protocols(headers)
        if SUBPROTOCOL not in offered:
            raise _Refused(_WRONG_PROTOCOL, "wrong_subprotocol")
        if self.draining:
            raise _Refused(_DRAINING, "draining")
        # Alone here, a host would be missing for all who are connected to those nodes.
        if self.stands_by:
            raise _Refused(_STANDBY, "standby")
        if self.quotas.is_over_limit(address):
            raise self._full(_ADDRESS_FULL, address)
        if not _is_from_trusted_page(headers, self._settings.trusted_origins):
            raise _Refused(_BAD_ORIGIN, "bad_origin")
        request = self._read(path, headers, offered)
        token = self._verify(request.token, is_read=is_read)
        if not token.allows_room(request.room):
            raise _Refused(_WRONG_ROOM, "wrong_room", request.token)
        identity = Identity(token.issuer, token.name)
        current = self._epoch_of(request.room, identity, request.instance)
        if request.elsewhere and (current is not None or self.is_isolated):
            raise _Refused(_NOT_ELSEWHERE, "not_elsewhere")
        if current is not None and request.epoch <= current:
            raise _Refused(_REPLACED, "old_epoch")
        if current is None:  # a newer connection of an instance replaces one that is counted
            self._check_quotas(identity, request)
        place = (request.room, request.instance, request.epoch)
        admitted = self._admitted(token, request.token, *place)
        admitted.participant.assesses = request.assesses
        return replace(
            admitted,
            reads_chunks=request.reads_chunks,
            reads_parts=request.reads_parts,
            reads_holds=request.reads_holds,
        )

    def _admitted(
        self, token: VerifiedToken, jwt: str, room: str, instance: str, epoch: int
    ) -> Admitted:
        participant = Participant(
            id=ParticipantId(secrets.token_hex(8)),
            identity=Identity(token.issuer, token.name),
            role=token.role,
            instance=instance,
            epoch=epoch,
            scope=_interned(token.api),
            rooms=tuple(token.room),
            jti=token.jti,
            issued_at=token.issued_at,
            # An issuer chooses the ids in its key set, also those of other keys.
            is_developer=token.key_id in self._settings.development_keys
            and token.issuer not in self.keys.issuers,
        )
        end = token.expires_at if self.extensions is None else self.extensions.end_of(token)
        is_extended = self.extensions is not None and token.until is not None and end < token.until
        return Admitted(
            room,
            participant,
            end + LEEWAY_S,
            extended_at(token, end) if is_extended else renewed_at(token, end),
            jwt if is_extended else "",
            token.until if self.extensions is not None else None,
        )

    def extend(
        self, participant: Participant, room: str, jwt: str, ends_at: float
    ) -> Admitted | None:
        """Note that a participant's token, which is in use, is good for another life.

        Returns:
            The same participant, with the end of that life; None if the token would not be
            accepted any more.
        """
        assert self.extensions is not None
        try:
            token = self._verify(jwt, is_read=True)
        except _Refused as refused:
            # Once for each connection; an operator may have removed a key too early.
            _logger.warning(
                "the token of %s gets no further life: %s (%sin room %s); this one ends in %d s",
                participant.full_name,
                refused.reason,
                _shown_key_id(jwt),
                room,
                ends_at - self._now(),
            )
            return None
        end = self.extensions.end_of(token)
        # Another connection with this token may have been faster.
        if end < (token.until or 0.0) and self._now() >= renewed_at(token, end):
            self.extensions.extend(token, self._now())
        return self._admitted(token, jwt, room, participant.instance, participant.epoch)

    def _check_quotas(self, identity: Identity, request: _Request) -> None:
        if self.quotas.is_full(identity):
            raise self._full(_IDENTITY_FULL, f"{identity.name} (issuer {identity.issuer})")
        remote = self._remote_count(request.room, identity, request.instance)
        if self.quotas.is_room_full(request.room, remote):
            raise self._full(_ROOM_FULL, request.room)

    def _full(self, refusal: Refusal, of: str) -> _Refused:
        """Make the refusal by a quota, and log that the address, identity or room `of` is at it.

        Each kind of quota is logged once a minute at most.
        """
        limit = refusal.limit
        if not self._full_warnings[limit].exceeded(monotonic()):
            text = "connections are refused (429): %s %s is at its limit of %d (--max-per-%s)"
            most = getattr(self._settings, f"max_per_{limit}")
            _logger.warning(text, limit, of, most, limit)
        return _Refused(refusal, f"{limit}_full")

    def renew(
        self, participant: Participant, room: str, jwt: str, *, is_read: bool = False
    ) -> Admitted | Unread | None:
        """Verify a token that is to replace a participant's current one; as `decide`.

        Returns:
            The participant with the new grants and their expiry; None if the token is invalid, or
            is not for the same identity and room.
        """
        try:
            token = self._verify(jwt, is_read=is_read)
        except _Unread as unread:
            return Unread(unread.key)
        except _Refused as refused:
            self.refused[refused.reason] += 1
            self._refused_tokens.refused(
                refused.reason, jwt, f"participant {participant.identity.name}"
            )
            return None
        if not _is_for(token, participant, room):
            return None
        return self._admitted(token, jwt, room, participant.instance, participant.epoch)

    def _read(self, path: str, headers: Headers, offered: list[str]) -> _Request:
        location, _, query_text = path.partition("?")
        parts = location.split("/")
        if len(parts) != 3 or parts[:2] != ["", "rooms"] or not is_room_name(parts[2]):
            raise _Refused(_NO_SUCH_ROOM, "bad_room_name")
        if query_text.count("&") >= _MAX_QUERY_FIELDS:
            raise _Refused(_BAD_QUERY, "bad_query")
        query = {name: values[0] for name, values in parse_qs(query_text).items()}
        token = _bearer_of(headers, offered)
        if token is None and self._settings.allow_query_token:
            token = query.get("token")
        if token is None:
            raise _Refused(_BAD_TOKEN, "no_token", "")
        instance = query.get("instance") or secrets.token_hex(8)
        if len(instance) > _MAX_INSTANCE_CHARS or not instance.isprintable():
            raise _Refused(_BAD_QUERY, "bad_instance")
        epoch = query.get("epoch", "1")
        is_number = epoch.isascii() and epoch.isdigit() and len(epoch) <= 16
        if not is_number or not 0 < int(epoch) <= _MAX_EPOCH:
            raise _Refused(_BAD_QUERY, "bad_epoch")
        reads_chunks = query.get("chunks") == "1"
        return _Request(
            room=parts[2],
            instance=instance,
            epoch=int(epoch),
            token=token,
            reads_chunks=reads_chunks,
            reads_parts=reads_chunks and query.get("parts") == "1",
            assesses=query.get("assess") == "1",
            reads_holds=query.get("holds") == "1",
            elsewhere=query.get("elsewhere") == "1",
        )

    def _verify(self, jwt: str, *, is_read: bool) -> VerifiedToken:
        """Return a valid token. Raises `_Refused`, and `_Unread` if its state is to be read."""
        now = self._now()
        try:
            token = ParticipantToken.from_jwt(
                jwt, self.keys, now=now, allow_extended=self.extensions is not None
            )
        except TokenRefused as error:
            # A client gives up for good on 401, and this token may be as good as any.
            refusal = _NO_KEY_SET if error.reason == "no_key_set" else _BAD_TOKEN
            raise _Refused(refusal, error.reason, jwt) from error
        if self.revocations.covers(token):
            raise _Refused(_BAD_TOKEN, "revoked", jwt)
        if self.extensions is not None and now >= self.extensions.end_of(token) + LEEWAY_S:
            if not is_read:
                raise _Unread(key_of(token))
            raise _Refused(_BAD_TOKEN, "unused", jwt)
        return token


def _is_for(token: VerifiedToken, participant: Participant, room: str) -> bool:
    identity = Identity(token.issuer, token.name)
    return identity == participant.identity and token.allows_room(room)


def _offered_protocols(headers: Headers) -> list[str]:
    values = headers.get_all("Sec-WebSocket-Protocol")
    return [name.strip() for value in values for name in value.split(",")]


def _bearer_of(headers: Headers, offered: list[str]) -> str | None:
    values = headers.get_all("Authorization")
    if values:
        scheme, _, token = values[0].partition(" ")
        return token.strip() if len(values) == 1 and scheme.lower() == "bearer" else ""
    return next((name.removeprefix(_BEARER) for name in offered if name.startswith(_BEARER)), None)


def offered_bearer(headers: Headers) -> bool:
    """Whether a client is a browser, which cannot read an HTTP refusal."""
    return any(name.startswith(_BEARER) for name in _offered_protocols(headers))


def _is_from_trusted_page(headers: Headers, trusted: tuple[str, ...]) -> bool:
    """Whether the request is not from a browser page of an untrusted origin."""
    origins = headers.get_all("Origin")
    if not origins or "*" in trusted:
        return True
    if len(origins) > 1:
        return False
    own = _host_of("//" + ",".join(headers.get_all("Host")))
    return origins[0].lower() in trusted or (own is not None and _host_of(origins[0]) == own)


def _host_of(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


class RefusedConnections:
    """Logs refused connections: why, with which key id, from where; never the token.

    Anyone who reaches the port can cause these lines. So each reason, key id and address has one a
    minute, all together have 20, and what is left out is counted in the first line after that
    minute, or when the server stops.
    """

    def __init__(self, now: Callable[[], float], level: int = logging.WARNING) -> None:
        self._now = now
        self._level = level
        self._window_ends = float("-inf")
        self._logged: set[tuple[str, str, str]] = set()
        self._left_out: Counter[str] = Counter()
        """By reason, which is one of a closed set."""

    def refused(self, reason: str, token: str, address: str) -> None:
        """Log one refusal, unless there were too many or the same already.

        Args:
            reason: Why, as `toolbus_connections_refused_total` names it.
            token: What was sent; empty for nothing, or if it is not the reason.
            address: From where, in the form in which connections are counted.
        """
        if self._now() >= self._window_ends:
            self._window_ends = self._now() + _WINDOW_S
            self._logged.clear()
            self.log_left_out()
        # The header is parsed for lines that are written, not for each token of a flood.
        if len(self._logged) < _MAX_LINES:
            key = reason, _shown_key_id(token), address[:SHOWN_CHARS]
            if key not in self._logged:
                self._logged.add(key)
                _logger.log(self._level, "connection refused: %s (%sfrom %s)", *key)
                return
        self._left_out[reason] += 1

    def log_left_out(self) -> None:
        """Log how many refusals were left out so far, if any were."""
        if self._left_out:
            counts = ", ".join(f"{reason} {count}" for reason, count in self._left_out.items())
            text = "further connections were refused, not logged one by one: %s"
            _logger.log(self._level, text, counts)
            self._left_out.clear()


def _shown_key_id(token: str) -> str:
    """Return the key id that a token names, for a line; it may be any text."""
    if not 0 < len(token) <= MAX_JWT_BYTES:
        return ""
    try:
        key_id = read_header(token).get("kid")
    except (ValueError, LookupError):
        return ""
    return f"kid {key_id[:SHOWN_CHARS]!r}, " if isinstance(key_id, str) else ""
