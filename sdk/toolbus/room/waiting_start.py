"""Keeps trying to join a room, or to host there, while the cause of a failure may end by itself.

A server may start after its hosts and callers, restart, drain, or be cut off from the other nodes.
A refused token, room or name, and an address that is not that of a toolbus server, stay as they
are.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

from toolbus.bounded_logging import bounded_logger
from toolbus.concurrency.backoff import FailedAttempts
from toolbus.errors import ConnectionLost, RoomException, Unavailable
from toolbus.settings import RoomSettings

__all__ = ["join", "keep_trying", "may_end_by_itself"]

T = TypeVar("T")

_logger = bounded_logger(__name__)
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_BUSY_STATUSES = frozenset({408, 429})
_SERVER_ERRORS = 500
_NOT_YET = "cannot %s at %s yet, trying again %s (%s)"
_DONE = {"host": "hosting in room %s now", "join": "joined room %s now"}
_LASTING_CAUSES = frozenset({"token_from", "certificate"})


async def keep_trying(
    start: Callable[[], Awaitable[T]],
    settings_now: Callable[[], RoomSettings | None],
    wait: bool | None = None,
    *,
    doing: Literal["host", "join"] = "host",
    how_long: str = "until it succeeds",
) -> T:
    """Call a function until it succeeds, with pauses that grow as those of a reconnect do.

    The first failure is a warning with the server's address, and so is one a minute after it.

    Args:
        start: Joins the room and hosts there.
        settings_now: Returns the room's settings; None before they are known.
        wait: False makes one attempt; None does what the room's settings say.
        doing: What the function does, for the log.
        how_long: The limit of the caller, for the log.

    Raises:
        RoomException: An error of the function that does not end by itself, or is not waited for.
    """
    pause_s = _FIRST_PAUSE_S
    level = logging.WARNING
    failed = FailedAttempts(asyncio.get_running_loop().time)
    while True:
        try:
            started = await start()
        except RoomException as error:
            settings = settings_now()
            if settings is None or not may_end_by_itself(error):
                raise
            if not (settings.wait if wait is None else wait):
                raise
            if since := failed.add():
                _logger.warning("cannot %s at %s after %s (%s)", doing, settings.url, since, error)
            else:
                _logger.log(level, _NOT_YET, doing, settings.url, how_long, error)
        else:
            break
        await asyncio.sleep(random.uniform(0, pause_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        level = logging.INFO
    if level == logging.INFO and (settings := settings_now()) is not None:
        _logger.warning(_DONE[doing], settings.room)
    return started


async def join(
    start: Callable[[], Awaitable[None]],
    settings_now: Callable[[], RoomSettings | None],
    wait: bool | float,
) -> None:
    """Call a function that joins a room; keep trying if `wait` is True, or for so many seconds.

    Raises:
        RoomException: Its error that does not end by itself, or is not waited for. After a limit,
            `Unavailable` with the reason of the last one.
    """
    last: RoomException | None = None

    async def attempt() -> None:
        nonlocal last
        try:
            await start()
        except RoomException as error:
            last = error
            raise

    try:
        # The limit is one of the last attempt too, which may itself take 10 s.
        limit_s = wait if wait and not isinstance(wait, bool) else None
        async with asyncio.timeout(limit_s) as limit:
            how_long = "until it succeeds" if limit_s is None else f"for {limit_s:g} s"
            await keep_trying(attempt, settings_now, bool(wait), doing="join", how_long=how_long)
    except TimeoutError:
        if not limit.expired():  # that of the function
            raise
        reason = "the server did not answer" if last is None else last.message
        details = None if last is None else last.details
        text = f"{reason}; waited for {wait:g} s"
        raise Unavailable(text, executed="no", details=details) from None


def may_end_by_itself(error: RoomException) -> bool:
    """Whether joining or hosting may succeed later although nothing is changed here."""
    if isinstance(error, ConnectionLost):
        return True
    if not isinstance(error, Unavailable) or not error.retryable:
        return False
    status = error.details.get("status")
    if isinstance(status, int):
        return status in _BUSY_STATUSES or status >= _SERVER_ERRORS
    return _LASTING_CAUSES.isdisjoint(error.details)
