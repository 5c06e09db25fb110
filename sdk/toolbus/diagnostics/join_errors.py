"""Explains why a room cannot be joined: settings, token, rooms.

Tokens are read here without a key, for error texts only; the server decides whether one is valid.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from toolbus.auth.grants import matches_room
from toolbus.auth.token_limits import LATEST_TIME, LEEWAY_S
from toolbus.diagnostics.exit_codes import UNAUTHORIZED, UsageError, with_step
from toolbus.diagnostics.spans import span_text
from toolbus.errors import PermissionDenied, RoomException, Unavailable
from toolbus.settings import (
    DEV_KEY_ORIGIN,
    DEV_KEYS_FILE,
    TOKEN_THREADS,
    RoomSettings,
    home_of,
    is_loopback,
    is_token,
)
from toolbus.untrusted_text import SHOWN_CHARS, one_line

__all__ = [
    "REFUSED_STEP",
    "TokenExpired",
    "expired_for_s",
    "expiry_text",
    "explain_refusal",
    "key_id_text",
    "last_life_left_s",
    "lifetime_text",
    "name_context",
    "read_claims",
    "read_token",
    "resolve_settings",
    "rooms_text",
    "token_rooms",
    "unchecked_claims",
]

_CREATE_TOKEN = "create one with `toolbus token create`"
REFUSED_STEP = (
    "the token was revoked, or its key or rule is not on the server: the log of the server has the "
    "reason, and `toolbus token inspect TOKEN --keys FILE` beside its key file shows what is wrong"
)
"""What to do about a token that the server refuses for a reason that is not known here."""


class TokenExpired(PermissionDenied):
    """The token has expired."""

    next_step = (
        "create a new token with `toolbus token create`; a token file is read at each connection"
    )

    def __init__(self, text: str, details: dict[str, Any]) -> None:
        super().__init__(f"the server refuses the token: {text}", details=details)
        self.text = text
        """Which of its ends has come, as a clause."""

    @classmethod
    def of(cls, claims: dict[str, Any], details: dict[str, Any]) -> TokenExpired | None:
        """Return the error for a token that was refused; None if servers still accept it."""
        ago_s = expired_for_s(claims)
        return None if ago_s is None else cls(expiry_text(claims, ago_s), details)


def resolve_settings(**choices: Any) -> RoomSettings:
    """Resolve the server, room and identity, as `RoomSettings.resolve` does.

    Raises:
        UsageError: A setting is missing or malformed; the message says how to correct it.
    """
    try:
        return RoomSettings.resolve(**choices)
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error


async def read_token(settings: RoomSettings) -> str:
    """Read or create the token, so that errors in it are reported before connecting.

    Raises:
        UsageError: The token is missing or malformed.
    """
    try:
        token = await settings.token()
    except (OSError, ValueError) as error:
        reason = str(error)
        if isinstance(error, OSError) and error.filename is not None and error.strerror:
            reason = f"{error.filename}: {error.strerror}"
        text = f"cannot read {settings.token_from}: {reason}"
        raise UsageError(text, details={"token_from": settings.token_from}) from error
    if not is_token(token):
        text = f"{settings.token_from} is not in the form of a signed token: {_CREATE_TOKEN}"
        raise UsageError(text, details={"token_from": settings.token_from})
    return token


def lifetime_text(expires_at: float, now: float) -> str:
    """Return how long servers still accept a token, as text; empty if they no longer do."""
    left_s = expires_at - now
    if left_s > 0:
        return f"{span_text(max(1, round(left_s)), 2)} left"
    if left_s <= -LEEWAY_S:
        return ""
    ago_s = round(-left_s)
    more_s = max(1, round(LEEWAY_S) - ago_s)
    return f"expired {ago_s} s ago; servers accept it for {more_s} s more"


def expiry_text(claims: dict[str, Any], ago_s: float) -> str:
    """Return, as a clause, why a token is refused that expired so many seconds ago."""
    left_s = last_life_left_s(claims)
    if left_s is None:
        return f"it expired {span_text(ago_s, 2)} ago"
    if left_s <= -LEEWAY_S:
        return f"its last life (`until`) ended {span_text(-left_s, 2)} ago"
    return (
        f"it expired {span_text(ago_s, 2)} ago, and got no further life: it was not used for one,"
        " its key is not trusted any more, or the server stores no state"
    )


def last_life_left_s(claims: dict[str, Any]) -> float | None:
    """Return the seconds until the last life of a token ends; None for one without `until`.

    One without rooms is of an identity provider, whose claim `until` has no effect.
    """
    until = claims.get("until")
    if "room" not in claims or isinstance(until, bool) or not isinstance(until, int | float):
        return None
    return until - time.time() if 0 < until <= LATEST_TIME else None


def expired_for_s(claims: dict[str, Any]) -> float | None:
    """Return the seconds since expiry by this machine's clock; None if servers still accept it."""
    at, now = claims.get("exp"), time.time()
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 < at <= now - LEEWAY_S:
        return None
    return now - at


def read_claims(jwt: str) -> dict[str, Any]:
    """Return the claims of a token without checking it. Raises UsageError if it is not a token."""
    from toolbus.auth.jws import read_unverified

    try:
        return read_unverified(jwt)
    except ValueError as error:
        raise UsageError(f"this is not a token: {_CREATE_TOKEN}") from error


def key_id_text(jwt: str) -> str:
    """Return the id (kid) of the key that a token names, in one line; "none" if it names none."""
    from toolbus.auth.jws import read_header

    try:
        key_id = read_header(jwt).get("kid")
    except (ValueError, LookupError):
        key_id = None
    return "none" if key_id is None else one_line(str(key_id), SHOWN_CHARS)


def unchecked_claims(jwt: str) -> dict[str, Any]:
    """Return the claims of a token without checking it; empty if it is not a token."""
    try:
        return read_claims(jwt)
    except UsageError:
        return {}


def token_rooms(claims: dict[str, Any]) -> list[str]:
    """Return the rooms, or room patterns, of a token."""
    rooms = claims.get("room")
    if not isinstance(rooms, list):
        return []
    return [str(room) for room in rooms]


def rooms_text(rooms: Sequence[str]) -> str:
    """Return the rooms of a token as text: "no room", "room a", "rooms a, b"."""
    if not rooms:
        return "no room"
    if len(rooms) == 1:
        return f"room {rooms[0]}"
    return f"rooms {', '.join(rooms)}"


@asynccontextmanager
async def explain_refusal(settings: RoomSettings) -> AsyncIterator[None]:
    """Replace the server's refusal of a token with a more precise error, where there is one.

    An error of joining names the context that the settings come from.

    Raises:
        PermissionDenied: The token has expired, is for other rooms, or of another key.
    """
    try:
        try:
            yield
        except PermissionDenied as refusal:
            precise = await _precise_refusal(settings, refusal.details)
            if precise is None:
                raise
            raise precise from refusal
    except (PermissionDenied, Unavailable, UsageError) as error:
        is_of_joining = not {"status", "close_code", "url", "token_from"}.isdisjoint(error.details)
        if is_of_joining:
            name_context(error, settings)
        raise


def name_context(error: BaseException, settings: RoomSettings) -> None:
    """Name the context that the settings come from in an error of joining, once.

    Other exceptions than those of toolbus stay as they are.
    """
    prefix = f"context {settings.context}: "
    if settings.context is None or not isinstance(error, RoomException):
        return
    if not error.message.startswith(prefix):
        error.message = prefix + error.message


async def _precise_refusal(
    settings: RoomSettings, details: dict[str, Any]
) -> PermissionDenied | None:
    if details.get("status") == 403 or details.get("close_code") == 4403:
        return _wrong_room(await _own_claims(settings), settings.room, details)
    if details.get("status") != UNAUTHORIZED:
        return None
    claims = await _own_claims(settings)
    expired = TokenExpired.of(claims, details)
    if expired is not None:
        return expired
    if settings.token_from != DEV_KEY_ORIGIN:
        wrong_key = await _wrong_development_key(settings, claims, details)
        if wrong_key is not None:
            return wrong_key
        error = PermissionDenied("the server refuses the token", details=details)
        return with_step(error, REFUSED_STEP)
    return with_step(
        PermissionDenied(
            "the server refuses the token: no token is set, so it was made with the development "
            "key of this machine",
            details=details,
        ),
        "set TOOLBUS_TOKEN_FILE or --token to a token that `toolbus token create --keys FILE` made "
        "with a key of this server; a server started with `toolbus serve --dev` needs the same "
        "TOOLBUS_HOME as here",
    )


async def _wrong_development_key(
    settings: RoomSettings, claims: dict[str, Any], details: dict[str, Any]
) -> PermissionDenied | None:
    """Compare the key of a token by a development key with that of this machine."""
    from toolbus.auth.jws import read_header
    from toolbus.auth.keys import KeyRing

    if not is_loopback(settings.url):
        return None
    try:
        ring = await TOKEN_THREADS.run(KeyRing.load, home_of(os.environ) / DEV_KEYS_FILE)
        key_id = read_header(await read_token(settings)).get("kid")
    except (OSError, ValueError, LookupError, UsageError):
        return None
    own = ring.signing_key
    if own is None or not isinstance(key_id, str) or key_id == own.kid:
        return None
    if claims.get("iss") != own.iss and not key_id.startswith("dev-"):
        return None
    return with_step(
        PermissionDenied(
            f"the server refuses the token: its key is {key_id[:SHOWN_CHARS]!r}, and the "
            f"development key of this machine is {own.kid!r}",
            details=details,
        ),
        "the token was revoked, or its key is not on this server: create one with a key of the "
        "server by `toolbus token create --keys FILE`, or with the development key, for "
        "`toolbus serve --dev`, by `toolbus token create`",
    )


def _wrong_room(
    claims: dict[str, Any], room: str, details: dict[str, Any]
) -> PermissionDenied | None:
    rooms = token_rooms(claims)
    if not rooms or matches_room(rooms, room):
        return None
    text = f"the token is for {rooms_text(rooms)}, not for room {room}"
    return with_step(
        PermissionDenied(f"the server refuses the room: {text}", details=details),
        "join a room of the token with --room (TOOLBUS_ROOM), or create a token for this room "
        f"with `toolbus token create --room {room}`",
    )


async def _own_claims(settings: RoomSettings) -> dict[str, Any]:
    try:
        return read_claims(await read_token(settings))
    except UsageError:
        return {}
