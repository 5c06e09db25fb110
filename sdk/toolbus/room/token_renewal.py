"""Renews the token of a connection before it expires.

The server decides when, by its own clock, and sends a notice. The token source is the user's code
and may fail: it is asked again with backoff while the old token is still valid. When the old token
has expired the server closes the connection, and the next connection asks the source again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from toolbus.bounded_logging import bounded_logger
from toolbus.client.caller import Caller
from toolbus.client.connection import Connection
from toolbus.client.reconnecting_connection import ReconnectingConnection
from toolbus.concurrency.tasks import is_cancelled
from toolbus.errors import RoomException
from toolbus.settings import BadTokenSource, RoomSettings
from toolbus.wire import Notice, Refresh

__all__ = ["TokenRenewal"]

_logger = bounded_logger(__name__)
_TOKEN_EXPIRES = "token_expires"
_FIRST_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 30.0


class TokenRenewal:
    """Renews the token of the current connection.

    Args:
        settings: Contain the token source.
        connection: The connection, with the token that it was made with.
        caller: Sends the new token.
        on_facts: Receives the grants of the new token.
    """

    def __init__(
        self,
        settings: RoomSettings,
        connection: ReconnectingConnection,
        caller: Caller,
        on_facts: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._caller = caller
        self._on_facts = on_facts
        self._task: asyncio.Task[None] | None = None
        self._is_due = False

    def on_notice(self, notice: Notice) -> None:
        """Start the renewal when the server announces that the token expires."""
        if notice.name != _TOKEN_EXPIRES:
            return
        self._is_due = True  # also while a renewal is running
        if not self._settings.renewable:
            _logger.warning(
                "the token for room %s expires soon; a token given as a string cannot be renewed, "
                "so the connection closes when it expires; use a file, keys or an async function",
                self._settings.room,
            )
        elif self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._renew())

    def stop(self) -> None:
        """Stop the renewal: the connection is lost, and the next one gets its own token."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    def stop_on(self, connection: Connection) -> None:
        """Stop the renewal if the lost connection is the one whose token is renewed."""
        if self._connection.websocket in (None, connection.websocket):
            self.stop()

    async def refresh(self) -> None:
        """Get a token from the source and send it, once.

        Raises:
            PermissionDenied: The server refuses it; the old token stays.
            Exception: What the source raises.
        """
        await self._send(await self._settings.token())

    async def _send(self, token: str) -> None:
        facts = await self._caller.request(Refresh, token)
        self._connection.token = token
        await self._on_facts(facts)

    async def _renew(self) -> None:
        while self._is_due:
            self._is_due = False
            backoff_s = _FIRST_BACKOFF_S
            while not await self._try():
                await asyncio.sleep(random.uniform(backoff_s / 2, backoff_s))
                backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)

    async def _try(self) -> bool:
        """Try once; return whether the token was renewed."""
        source, room = self._settings.token_from, self._settings.room
        try:
            token = await self._settings.token()
            if token == self._connection.token:
                text = "%s for room %s expires soon: there is no newer one yet; renew it"
                _logger.warning(text, source, room)
                return False
            await self._send(token)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            _logger.error("%s for room %s expires soon: its source was cancelled", source, room)
        except (RoomException, BadTokenSource) as error:
            _logger.warning("%s for room %s expires soon: not renewed: %s", source, room, error)
        except Exception:
            _logger.exception("%s for room %s expires soon: its source failed", source, room)
        else:
            _logger.info("%s for room %s was renewed", source, room)
            return True
        return False
