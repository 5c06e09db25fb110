"""What can be told before a room is joined, and of why it could not be: settings, token, rooms.

A token is read here without a key, for words only: whether it holds is the server's to say.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from toolbus.errors import PermissionDenied
from toolbus.exit_codes import UsageMistake
from toolbus.grants import matches_room
from toolbus.settings import RoomSettings
from toolbus.tokens import LEEWAY_S

__all__ = [
    "expired_s",
    "explaining",
    "life_words",
    "read_claims",
    "read_token",
    "rooms_of",
    "settle",
]

_JWT = re.compile(r"[A-Za-z0-9_.=-]+")
_NOT_LET_IN = 401
_NO_TOKEN = "this is no token: `toolbus token create` makes one"


class WrongRoom(PermissionDenied):
    """The token is for other rooms.

    Args:
        rooms: The patterns that it has, for people.
        room: Where it was shown.
        details: Those of the refusal.
    """

    def __init__(self, rooms: str, room: str, details: dict[str, Any]) -> None:
        super().__init__(
            f"the server refuses the room: the token is for {rooms}, not for {room}",
            details=details,
        )
        self.next_step: str = (
            "join a room that it is for with --room (TOOLBUS_ROOM), or make a token for this one "
            f"with `toolbus token create --room {room}`"
        )


class TokenExpired(PermissionDenied):
    """The token says that its time is over.

    Args:
        ago_s: How long ago it expired.
        details: Those of the refusal.
    """

    next_step = "`toolbus token create` makes another; one in a file is read at each connection"

    def __init__(self, ago_s: float, details: dict[str, Any]) -> None:
        super().__init__(
            f"the server refuses the token: it expired {round(ago_s)} s ago", details=details
        )


def settle(**choices: Any) -> RoomSettings:
    """Settle where to connect and as whom, as `RoomSettings.resolve` does.

    Raises:
        UsageMistake: A setting is missing or malformed; the text says what to do.
    """
    try:
        return RoomSettings.resolve(**choices)
    except (ValueError, OSError) as error:
        raise UsageMistake(str(error)) from error


async def read_token(settings: RoomSettings) -> str:
    """Read or mint the token, to say what is wrong with it before a connection is tried.

    Raises:
        UsageMistake: There is none where it should be, or what is there is none.
    """
    try:
        token = await settings.token()
    except (OSError, ValueError) as error:
        raise UsageMistake(f"cannot read {settings.token_from}: {_why(error)}") from error
    if _JWT.fullmatch(token) is None or token.count(".") != 2:
        raise UsageMistake(_NO_TOKEN)
    return token


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def life_words(expires_at: float, now: float) -> str:
    """Say how long servers still take a token; empty where they no longer do."""
    left_s = expires_at - now
    if left_s > 0:
        return f"{max(1, round(left_s))} s left"
    if left_s <= -LEEWAY_S:
        return ""
    ago_s = round(-left_s)
    return f"expired {ago_s} s ago; servers take it for {max(1, round(LEEWAY_S) - ago_s)} s more"


def expired_s(claims: dict[str, Any]) -> float | None:
    """Return how long ago a token expired by this machine's clock; None if servers take it."""
    at, now = claims.get("exp"), time.time()
    if isinstance(at, bool) or not isinstance(at, int | float):
        return None
    return now - at if 0 < at <= now - LEEWAY_S else None


def read_claims(jwt: str) -> dict[str, Any]:
    """Return what a token says, whether it holds or not. Raises UsageMistake for what is none."""
    from toolbus.signatures import read_unchecked

    try:
        return read_unchecked(jwt)
    except ValueError as error:
        raise UsageMistake(_NO_TOKEN) from error


def rooms_of(claims: dict[str, Any]) -> list[str]:
    """Return the rooms, or patterns of them, that a token names."""
    rooms = claims.get("room")
    return [str(each) for each in rooms] if isinstance(rooms, list) else []


@asynccontextmanager
async def explaining(settings: RoomSettings) -> AsyncIterator[None]:
    """Say of a token that the server refuses what can be read in it: it is old, or for other rooms.

    Raises:
        TokenExpired: In place of that refusal.
        WrongRoom: In place of that refusal.
    """
    try:
        yield
    except PermissionDenied as refusal:
        details = refusal.details
        known: PermissionDenied | None = None
        if details.get("status") == _NOT_LET_IN:
            known = _expired(await _own_claims(settings), details)
        elif details.get("status") == 403 or details.get("close_code") == 4403:
            known = _wrong_room(await _own_claims(settings), settings.room, details)
        if known is None:
            raise
        raise known from refusal


def _expired(claims: dict[str, Any], details: dict[str, Any]) -> TokenExpired | None:
    ago_s = expired_s(claims)
    return None if ago_s is None else TokenExpired(ago_s, details)


def _wrong_room(claims: dict[str, Any], room: str, details: dict[str, Any]) -> WrongRoom | None:
    rooms = rooms_of(claims)
    if not rooms or matches_room(rooms, room):
        return None
    words = f"room {rooms[0]}" if len(rooms) == 1 else f"rooms {', '.join(rooms)}"
    return WrongRoom(words, room, details)


async def _own_claims(settings: RoomSettings) -> dict[str, Any]:
    try:
        return read_claims(await read_token(settings))
    except UsageMistake:
        return {}
