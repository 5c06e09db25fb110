"""A connection to the server that is made again after it is lost.

`ReconnectingConnection` owns the current `Connection`; its owner handles the frames. After a loss
it connects again with a growing epoch, so that the server replaces the old connection by the new
one. When a server announces that it is leaving, it connects again at once, and the previous
connection stays open until its calls have ended. When a server asks to connect to another server,
the previous connection is used until that has succeeded.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from toolbus.bounded_logging import bounded_logger
from toolbus.client.connect_errors import check_token, connect_error, foreign_server_error
from toolbus.client.connection import Connection, Handlers
from toolbus.client.local_errors import room_closed_error
from toolbus.concurrency.backoff import FailedAttempts
from toolbus.concurrency.tasks import is_cancelled, wait_for_first
from toolbus.diagnostics.join_errors import TokenExpired, name_context
from toolbus.errors import PermissionDenied, RoomException, Unavailable
from toolbus.settings import BadTokenSource, RoomSettings, is_loopback
from toolbus.transport.opening import open_websocket
from toolbus.transport.websocket import (
    CLOSE_TIMEOUT_S,
    PING_INTERVAL_S,
    PING_TIMEOUT_S,
    WRITE_LIMIT_BYTES,
    ClientTransport,
    RedactingLogger,
)
from toolbus.wire import MAX_FRAME_BYTES, SUBPROTOCOL, Welcome

__all__ = ["ReconnectingConnection", "ReconnectingConnectionOwner"]

_logger = bounded_logger(__name__)
_OPEN_TIMEOUT_S = 10.0
_SILENT_WAIT_S = 3.0
"""Longer than a server on a busy machine takes, and than a person waits without a doubt."""
_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 5.0
"""After a restart of a server all its clients come back at once (PROTOCOL.md, LEAVE-4)."""
# After a connection that lasted this long, the backoff starts again at its minimum.
_STABLE_S = 5.0
# Limit of leaving connections with calls in flight; the oldest is dropped.
_MAX_LEAVING = 4
_FINAL_CLOSES = {
    4401: "the token has expired, and a token given as a string cannot be renewed: give a file, "
    "keys or an async function instead",
    4403: "the server refused the room",
    4404: "the server refused the path",
}
_END_REASONS = {
    4409: "a newer connection of this instance replaced this one",
    4440: "an administrator removed this participant or revoked its token",
}
_REMOVED = 4440


@dataclass(frozen=True, slots=True)
class ReconnectingConnectionOwner:
    """The callbacks for a connection's owner."""

    handlers: Callable[[Connection], Handlers]
    """Returns the handlers of a new connection's frames."""
    on_connected: Callable[[Welcome], Awaitable[None]]
    """Called after the welcome of a connection, to replay the participant's state; calls are sent
    after it returns."""
    on_connection_lost: Callable[[Connection], None]
    """Called when a connection is lost, with all its calls."""
    on_ended: Callable[[], None]
    """Called when no further connection will be made."""
    on_replaced: Callable[[Connection], Coroutine[Any, Any, None]]
    """Called when a new connection has replaced a draining one, to wait for the calls of the old
    connection, which is closed after that."""


class ReconnectingConnection:
    """A connection that is made again when it is lost."""

    def __init__(self, settings: RoomSettings, owner: ReconnectingConnectionOwner) -> None:
        self._settings = settings
        self._owner = owner
        self._current: Connection | None = None
        self._leaving: dict[Connection, None] = {}
        """Connections whose server is leaving, with calls in flight."""
        self._finishing: set[asyncio.Task[None]] = set()
        self.websocket: ClientTransport | None = None
        """The current websocket, from its welcome on."""
        self.returned_at: float = float("-inf")
        """When a lost connection was last replaced, by the loop's clock."""
        self.is_ready: bool = False
        """Whether calls can be sent now, unless the connection is closing."""
        self.token: str = ""
        """The token that was last sent to the server."""
        self._reconnect_task: asyncio.Task[None] | None = None
        self._epoch = 0
        self._backoff_s = _FIRST_BACKOFF_S
        """The first pause before the next connection; grows after connections that did not last."""
        self._ready = asyncio.Event()
        self._finished = asyncio.Event()
        self._failed = FailedAttempts(asyncio.get_running_loop().time)
        self.failure: str = ""
        """Why the latest attempt to connect again failed; empty after one that did not."""
        self._refused: TokenExpired | None = None
        """The server's latest refusal of the current token, which has expired."""
        self._refused_token = ""
        self._is_refused = asyncio.Event()
        self.error: RoomException | None = None
        """The error that ended the connection for good; None after `stop`."""

    async def start(self) -> None:
        """Connect for the first time. An error names the context that the settings come from.

        Raises:
            PermissionDenied: The server refused the token, the room or the protocol.
            Unavailable: The server does not answer, or accepts no connections now.
        """
        text = "%s has not answered yet; waiting up to %g s more"
        shown = text, self._settings.url, _OPEN_TIMEOUT_S - _SILENT_WAIT_S
        warning = asyncio.get_running_loop().call_later(_SILENT_WAIT_S, _logger.warning, *shown)
        try:
            await self._connect()
        except BaseException as error:
            self._finished.set()
            name_context(error, self._settings)
            raise
        finally:
            warning.cancel()
        self._reconnect_task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Close the connection and do not connect again."""
        task, self._reconnect_task = self._reconnect_task, None
        try:
            ending = [*self._finishing, *filter(None, [task])]
            for ending_task in ending:
                ending_task.cancel()
            if ending:
                await asyncio.wait(ending)
            await asyncio.gather(*(connection.close() for connection in self._connections()))
        finally:
            for connection in self._connections():
                connection.abort()
            self._set_not_ready()
            self.websocket = None
            self._finished.set()

    @property
    def url(self) -> str:
        """The address of the server."""
        return self._settings.url

    @property
    def version(self) -> int:
        """The version of the protocol of the server that calls go to; 0 before a welcome."""
        return 0 if self._current is None else self._current.version

    @property
    def loop_is_ending(self) -> bool:
        """Whether the event loop is cancelling all tasks, that of this connection among them."""
        return self._reconnect_task is not None and self._reconnect_task.cancelling() > 0

    def _connections(self) -> list[Connection]:
        return [*self._leaving, *filter(None, [self._current])]

    def _set_not_ready(self) -> None:
        self.is_ready = False
        self._ready.clear()

    async def finished(self) -> None:
        """Wait until no further connection will be made."""
        await self._finished.wait()

    async def ready(self) -> None:
        """Wait until calls can be sent.

        Raises:
            TokenExpired: The server has refused the token, which has expired, and its source has
                no other one yet: to wait until the deadline would only hide that.
            PermissionDenied: No further connection will be made, because of the token.
            Unavailable: No further connection will be made.
        """
        # The connection may be lost again before a waiting task runs.
        while not self._finished.is_set() and not self.check_ready():
            if self._refused is not None:
                raise TokenExpired(self._refused.text, dict(self._refused.details))
            events = (self._ready, self._finished, self._is_refused)
            await wait_for_first(*(event.wait() for event in events))
        if self._finished.is_set():
            raise room_closed_error(self.error)

    def check_ready(self) -> bool:
        """Return whether a call can be sent now; not on a connection that is closing."""
        if self.is_ready and (self.websocket is None or not self.websocket.is_open):
            self.is_ready = False
            self._ready.clear()
        return self.is_ready

    # Events of a connection

    def on_welcomed(self, connection: Connection) -> Handlers:
        """Return the handlers of a new connection's frames."""
        return self._owner.handlers(connection)

    def on_leaving(self, connection: Connection) -> None:
        """Send nothing new on a connection whose server is leaving."""
        _logger.warning("the server at %s is draining: reconnecting", self._settings.url)
        if connection is self._current:
            self._set_not_ready()

    def on_lost(self, connection: Connection) -> None:
        """Notify the owner of a lost connection."""
        self._leaving.pop(connection, None)
        if connection is self._current:
            self._set_not_ready()
            self.websocket = None
        self._owner.on_connection_lost(connection)

    # Reconnecting

    async def _run(self) -> None:
        try:
            while True:
                assert self._current is not None
                connection, since_s = self._current, asyncio.get_running_loop().time()
                has_moved = await self._until_replaced(connection)
                # The pauses grow for a server that accepts connections and closes them soon.
                self._backoff_s = min(self._backoff_s * 2, _MAX_BACKOFF_S)
                if asyncio.get_running_loop().time() - since_s >= _STABLE_S:
                    self._backoff_s = _FIRST_BACKOFF_S
                if not connection.closed.is_set():
                    self._leaving[connection] = None
                    if len(self._leaving) > _MAX_LEAVING:
                        next(iter(self._leaving)).abort()
                elif not has_moved:
                    self._raise_if_final(connection.close_code)
                    self._log_lost(connection)
                if not has_moved:
                    await self._reconnect(connection)
                if connection in self._leaving:
                    finishing = asyncio.create_task(self._finish(connection))
                    self._finishing.add(finishing)
                    finishing.add_done_callback(self._finishing.discard)
                self.returned_at = asyncio.get_running_loop().time()
                _logger.warning("reconnected to %s", self._settings.url)
        except RoomException as error:
            name_context(error, self._settings)
            _logger.error("the connection to room %s has ended: %s", self._settings.room, error)
            self.error = error
        finally:
            self._finished.set()
            self._owner.on_ended()

    async def _until_replaced(self, connection: Connection) -> bool:
        """Wait until another connection is needed (False), or has been made on request (True)."""
        while not connection.needs_replacement.is_set():
            await connection.attention.wait()
            connection.attention.clear()
            if connection.should_move and not connection.needs_replacement.is_set():
                connection.should_move = False
                if await self._move(connection):
                    return True
        return False

    async def _move(self, previous: Connection) -> bool:
        """Try once to connect to another server, and keep the previous connection if it fails."""
        has_moved = False
        try:
            has_moved = await self._try_connect(elsewhere=True)
        except PermissionDenied as error:
            _logger.info("no other server accepts this participant: %s", error)
        finally:
            if not has_moved:
                self._current = previous
                if not previous.closed.is_set():
                    self.websocket = previous.websocket
                    self._set_ready(previous)
        return has_moved

    def _log_lost(self, connection: Connection) -> None:
        # A hosting process logs nothing else: without this it would look healthy.
        closed = f" ({connection.close_text})" if connection.close_text else ""
        _logger.warning("lost the connection to %s%s: reconnecting", self._settings.url, closed)

    def _raise_if_final(self, code: int | None) -> None:
        if code in _END_REASONS:
            raise PermissionDenied(_END_REASONS[code], details={"close_code": code})
        if code in _FINAL_CLOSES and not self._settings.renewable:
            raise PermissionDenied(_FINAL_CLOSES[code], details={"close_code": code})

    async def _finish(self, connection: Connection) -> None:
        """Close a leaving connection after its calls have ended."""
        await self._owner.on_replaced(connection)
        await connection.close()

    async def _reconnect(self, previous: Connection) -> None:
        self._failed.begin()
        backoff_s, is_leaving = self._backoff_s, not previous.closed.is_set()
        while True:
            # Full jitter: a thousand participants that lost one server do not reconnect at once.
            pause_s = random.uniform(0, backoff_s)
            if not is_leaving:
                await asyncio.sleep(pause_s)
            elif await previous.closes_within(pause_s):
                # Another server may have started in place of the closed one: restart the backoff.
                if previous.close_code == _REMOVED:
                    self._raise_if_final(_REMOVED)
                self._log_lost(previous)
                backoff_s, is_leaving = self._backoff_s, False
                continue
            if await self._try_connect():
                return
            backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)

    async def _try_connect(self, *, elsewhere: bool = False) -> bool:
        """Try to connect again. Raises PermissionDenied if no further attempt can succeed."""
        try:
            await self._connect(elsewhere=elsewhere)
        except PermissionDenied as error:
            if not self._settings.renewable:
                raise
            self._log_refused(error)
        except Unavailable as error:
            if self.token != self._refused_token:
                self._forget_refusal()
            self._log_failed(str(error))
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            self._log_failed("the token source was cancelled", logging.ERROR)
        except BadTokenSource as error:
            self._log_failed(str(error), logging.ERROR)
        except Exception as error:
            # The token source is the user's code and may fail for a while.
            self._log_failed("the token source failed", logging.ERROR, error)
        else:
            return True
        return False

    def _log_failed(
        self, reason: str, level: int = logging.INFO, error: Exception | None = None
    ) -> None:
        """Log a failed attempt: the first of its level, and one a minute; others as information.

        That the server is away was said when the connection was lost: then the level is INFO.
        """
        self.failure = reason
        url = self._settings.url
        if since := self._failed.add():
            level = max(level, logging.WARNING)
            _logger.log(level, "no connection to %s after %s: %s", url, since, reason)
        elif self._failed.is_first_of(level):
            _logger.log(level, "no connection to %s yet: %s", url, reason, exc_info=error)
        else:
            _logger.info("no connection to %s yet: %s", url, reason)

    def _log_refused(self, error: PermissionDenied) -> None:
        self._forget_refusal()
        if isinstance(error, TokenExpired):
            self._refused = error
            self._refused_token = self.token
            self._is_refused.set()
        source = self._settings.token_from
        text = f"{error}; {source} is read again for each attempt: renew it"
        self._log_failed(text, logging.WARNING)

    def _forget_refusal(self) -> None:
        self._refused = None
        self._is_refused.clear()

    async def _connect(self, *, elsewhere: bool = False) -> None:
        # Also grows when this process restarts with an instance name that an operator chose.
        self._epoch = max(self._epoch + 1, time.time_ns() // 1_000_000)
        connection = await self._open(elsewhere=elsewhere)
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                welcome = await connection.welcome
                self._set_not_ready()  # a previous connection that still served has a successor
                self._current = connection
                self.websocket = connection.websocket
                await self._owner.on_connected(welcome)
            if connection.closed.is_set():
                raise ConnectionError("the connection was lost")
        except (TimeoutError, ConnectionError, asyncio.CancelledError) as error:
            # It has ended, or stayed silent, before calls could be sent.
            code = connection.close_code
            await connection.close()
            self.websocket = None
            if isinstance(error, asyncio.CancelledError):
                raise
            self._raise_if_final(code)
            text = "the server did not send a welcome"
            raise Unavailable(text, executed="no", details={"url": self._settings.url}) from error
        self._set_ready(connection)

    def _set_ready(self, connection: Connection) -> None:
        if not connection.needs_replacement.is_set():  # otherwise its server is already leaving
            self.is_ready = True
            self.failure = ""
            self._forget_refusal()
            self._ready.set()

    async def _open(self, *, elsewhere: bool) -> Connection:
        settings = self._settings
        address = f"{settings.url}/rooms/{settings.room}"
        instance = quote(settings.instance, safe="")
        query = f"instance={instance}&epoch={self._epoch}&chunks=1&parts=1&assess=1&holds=1"
        if elsewhere:
            query += "&elsewhere=1"
        try:
            token = self.token = await settings.token()
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            message = f"cannot read {settings.token_from}: {reason}"
            details = {"token_from": settings.token_from}
            raise Unavailable(message, executed="no", details=details) from error
        check_token(token)
        # One for each address that accepts, until one of them answers as a server does.
        made: list[Connection] = []

        def make_websocket(*args: Any, **kwargs: Any) -> ClientTransport:
            websocket = ClientTransport(*args, **kwargs)
            # Now, because a welcome may arrive together with the handshake.
            websocket.receiver = connection = Connection(self)
            websocket.batches = True
            connection.websocket = websocket
            made.append(connection)
            return websocket

        try:
            websocket = await open_websocket(
                f"{address}?{query}",
                timeout_s=_OPEN_TIMEOUT_S,
                may_use_proxy=not is_loopback(settings.url),
                create_connection=make_websocket,
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                additional_headers={**settings.headers, "Authorization": f"Bearer {token}"},
                compression=None,
                max_size=MAX_FRAME_BYTES,
                ping_interval=PING_INTERVAL_S,
                ping_timeout=PING_TIMEOUT_S,
                close_timeout=CLOSE_TIMEOUT_S,
                write_limit=WRITE_LIMIT_BYTES,
                logger=RedactingLogger("websockets.client"),
            )
        # websockets raises ValueError and LookupError for a redirect whose target is malformed.
        except (OSError, TimeoutError, WebSocketException, ValueError, LookupError) as error:
            is_first = self._current is None
            raise await connect_error(settings.url, error, token, is_first=is_first) from None
        if websocket.subprotocol != SUBPROTOCOL:
            await websocket.close()
            raise foreign_server_error(settings.url, "a websocket of another protocol")
        # They take 5 KiB of memory, and contain the token.
        for head in (websocket.request, websocket.response):
            if head is not None:
                head.headers.clear()
        return made[-1]
