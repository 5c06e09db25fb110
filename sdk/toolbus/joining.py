"""What can be told before a room is joined, and of why it could not be: settings, token, rooms.

A token is read here without a key, for words only: whether it holds is the server's to say.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from toolbus.errors import PermissionDenied
from toolbus.exit_codes import UsageMistake
from toolbus.grants import matches_room
from toolbus.settings import RoomSettings
from toolbus.tokens import LEEWAY_S

__all__ = ["explaining", "life_words", "read_claims", "read_token", "rooms_of", "settle"]

_JWT = re.compile(r"[A-Za-z0-9_.=-]+")
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
    """Say which room a token is for, where the server refuses it for the one that was named.

    Raises:
        WrongRoom: In place of that refusal.
    """
    try:
        yield
    except PermissionDenied as refusal:
        rooms = await _own_rooms(settings) if _is_for_the_room(refusal) else []
        if not rooms or matches_room(rooms, settings.room):
            raise
        words = f"room {rooms[0]}" if len(rooms) == 1 else f"rooms {', '.join(rooms)}"
        raise WrongRoom(words, settings.room, refusal.details) from refusal


def _is_for_the_room(refusal: PermissionDenied) -> bool:
    details = refusal.details
    return details.get("status") == 403 or details.get("close_code") == 4403


async def _own_rooms(settings: RoomSettings) -> list[str]:
    try:
        return rooms_of(read_claims(await read_token(settings)))
    except UsageMistake:
        return []
