"""A newer token in time: asked for when the server says that the old one ends, shown without a gap.

Who is told to act is the server's decision, by its own clock. Where tokens come from is the user's
code, and may fail for a while: it is asked again, ever less often, and meanwhile the old one
serves. When that has ended the connection does too, and the next one asks the source as ever.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

from toolbus.calls import Caller
from toolbus.errors import RoomException
from toolbus.lines import Line
from toolbus.link import Link
from toolbus.settings import RoomSettings
from toolbus.wire import Notice, Refresh

__all__ = ["TokenRenewal"]

_logger = logging.getLogger(__name__)
_TOKEN_EXPIRES = "token_expires"
_FIRST_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 30.0


class TokenRenewal:
    """Renews the token of the connection that is there.

    Args:
        settings: Where tokens come from.
        link: The connection, and the token that it was made with.
        caller: Sends the newer one.
        on_facts: Learns what that grants.
    """

    def __init__(
        self,
        settings: RoomSettings,
        link: Link,
        caller: Caller,
        on_facts: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._link = link
        self._caller = caller
        self._on_facts = on_facts
        self._task: asyncio.Task[None] | None = None
        self._is_due = False

    def on_notice(self, notice: Notice) -> None:
        """Begin to renew, where the server says that the token ends."""
        if notice.name != _TOKEN_EXPIRES:
            return
        self._is_due = True  # also where the one before is hardly done
        if not self._settings.renewable:
            _logger.warning(
                "the token for room %s ends soon and is a text, which cannot be renewed: the "
                "connection ends with it; give a file, keys or an async function in its place",
                self._settings.room,
            )
        elif self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._renew())
            self._task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._task = None

    def stop(self) -> None:
        """Give up: the connection is gone, and the next one brings a token of its own."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    def stop_on(self, line: Line) -> None:
        """Give up if the connection that is gone is the one whose token this is about."""
        if self._link.connection in (None, line.connection):
            self.stop()

    async def refresh(self) -> None:
        """Ask the source and show what it gives, once.

        Raises:
            PermissionDenied: The server refuses it; the old one stays.
            Exception: Whatever the source raises.
        """
        await self._show(await self._settings.token())

    async def _show(self, token: str) -> None:
        facts = await self._caller.request(Refresh, token)
        self._link.token = token
        await self._on_facts(facts)

    async def _renew(self) -> None:
        while self._is_due:
            self._is_due = False
            backoff_s = _FIRST_BACKOFF_S
            while not await self._try():
                await asyncio.sleep(random.uniform(backoff_s / 2, backoff_s))
                backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)

    async def _try(self) -> bool:
        """Try once; whether the token is a newer one now."""
        source, room = self._settings.token_from, self._settings.room
        try:
            token = await self._settings.token()
            if token == self._link.token:
                _logger.info("%s for room %s ends soon: no newer one is there yet", source, room)
                return False
            await self._show(token)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            _logger.error("%s for room %s ends soon: its source was cancelled", source, room)
        except RoomException as error:
            _logger.warning("%s for room %s ends soon: not renewed: %s", source, room, error)
        except Exception:
            _logger.exception("%s for room %s ends soon: its source failed", source, room)
        else:
            _logger.info("%s for room %s was renewed", source, room)
            return True
        return False
