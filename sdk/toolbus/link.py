"""The line to the server: one websocket at a time, and another when it is lost.

A `Link` owns the socket and its successors. It knows frames only as far as the welcome; what a
frame means is its owner's matter. After a loss it connects again by itself, with a growing epoch,
so that the server lets the new connection take the old one's place.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from toolbus.errors import PermissionDenied, RoomException, Unavailable
from toolbus.settings import RoomSettings
from toolbus.transport import (
    CLOSE_TIMEOUT_S,
    PING_INTERVAL_S,
    PING_TIMEOUT_S,
    WRITE_LIMIT_BYTES,
    ClientTransport,
)
from toolbus.transport_log import TransportLog
from toolbus.wire import (
    MAX_FRAME_BYTES,
    SUBPROTOCOL,
    BadFrame,
    Frame,
    Welcome,
    decode_from_server,
    encode,
)

__all__ = ["Link", "LinkOwner"]

_logger = logging.getLogger(__name__)
_OPEN_TIMEOUT_S = 10.0
_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 5.0
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
# What no further attempt changes, unless the token may be a better one next time.
_FINAL_STATUSES = {401: "token", 403: "room", 426: "protocol"}
_FINAL_CLOSES = {
    4401: "the token has expired, and a text cannot be renewed: give a file, keys or an async "
    "function in its place",
    4403: "the server refuses the room",
    4404: "the server refuses the place",
}
_ENDS = {
    4409: "a newer connection of this instance took its place",
    4440: "an administrator sent this participant away, or revoked its token",
}


@dataclass(frozen=True, slots=True)
class LinkOwner:
    """What a link tells its owner."""

    handlers: Mapping[type[Any], Callable[[Any], None]]
    """Who takes a frame of a type; others are ignored. None of them may raise."""
    on_up: Callable[[Welcome], Awaitable[None]]
    """A connection is there and welcomed:

    say again what the server must know, then calls may go.
    """
    on_down: Callable[[], None]
    """The connection is gone, with everything that was under way on it."""
    on_end: Callable[[], None] = lambda: None
    """The link has ended for good."""


class _Line:
    """One connection's reader."""

    def __init__(self, owner: LinkOwner, adopt: Callable[[ClientTransport], None]) -> None:
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            **owner.handlers,
            Welcome: self._on_welcome,
        }
        self._on_down = owner.on_down
        self._adopt = adopt
        self.welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()
        self.connection: ClientTransport | None = None

    def on_message(self, data: bytes) -> None:
        try:
            frame = decode_from_server(data)
        except BadFrame as error:
            _logger.error("the server sent a broken frame: %s", error.reason)
            if self.connection is not None:
                self.connection.close_with(error.close_code, error.reason)
            return
        handler = self._handlers.get(type(frame))
        if handler is not None:
            handler(frame)

    def _on_welcome(self, welcome: Welcome) -> None:
        if not self.welcome.done() and self.connection is not None:
            # At once: what comes right behind the welcome may have to be answered.
            self._adopt(self.connection)
            self.welcome.set_result(welcome)

    def on_close(self) -> None:
        self.closed.set()
        if self.welcome.done():
            self._on_down()
        else:
            self.welcome.set_exception(ConnectionError("the connection was lost"))
            self.welcome.exception()  # read, where nobody waits for it


class Link:
    """A connection that comes back.

    Args:
        settings: Where to, as whom.
        owner: Who is told.
    """

    def __init__(self, settings: RoomSettings, owner: LinkOwner) -> None:
        self._settings = settings
        self._owner = owner
        self._line: _Line | None = None
        self.connection: ClientTransport | None = None
        """The connection that is there now, welcomed or not."""
        self.returned_at: float = float("-inf")
        """When a connection was last made in the place of a lost one, by the loop's clock."""
        self.is_ready: bool = False
        """Whether calls can be sent now, unless the connection is closing."""
        self.token: str = ""
        """The one that the server was shown last, and took unless it says otherwise."""
        self._keeper: asyncio.Task[None] | None = None
        self._epoch = 0
        self._ready = asyncio.Event()
        self._finished = asyncio.Event()
        self.error: RoomException | None = None
        """Why the link ended for good, unless it was told to."""

    async def start(self) -> None:
        """Connect for the first time.

        Raises:
            PermissionDenied: The server refuses the token, the room or the protocol.
            Unavailable: There is no server, or it lets nobody in now.
        """
        try:
            await self._connect()
        except BaseException:
            self._finished.set()
            raise
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def stop(self) -> None:
        """Close the connection and never come back."""
        keeper, self._keeper = self._keeper, None
        try:
            if keeper is not None:
                keeper.cancel()
                await asyncio.wait([keeper])
            await self._hang_up()
        finally:
            if self.connection is not None:
                self.connection.transport.abort()
            self._down()
            self._finished.set()

    async def finished(self) -> None:
        """Wait until the link has ended for good."""
        await self._finished.wait()

    async def ready(self) -> None:
        """Wait until calls can be sent.

        Raises:
            Unavailable: The link has ended for good.
        """
        # A link that came up may be down again before who waits has run.
        while not self._finished.is_set() and not self._is_up():
            either = [asyncio.ensure_future(e.wait()) for e in (self._ready, self._finished)]
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for waiter in either:
                    waiter.cancel()
        if self._finished.is_set():
            raise Unavailable("the room is closed", executed="no", retryable=False)

    def _is_up(self) -> bool:
        """Tell whether calls can be sent; on a connection that is closing none can."""
        if self.is_ready and (self.connection is None or not self.connection.is_open):
            self.is_ready = False
            self._ready.clear()
        return self.is_ready

    def send(self, frame: Frame) -> None:
        """Send a frame that needs no ticket; without a connection it is dropped."""
        if self.connection is not None:
            self.connection.send_message(encode(frame))

    # Keeping the line

    async def _keep(self) -> None:
        try:
            while True:
                assert self._line is not None
                await self._line.closed.wait()
                code = self.connection.close_code if self.connection is not None else None
                self._down()
                self._raise_if_final(code)
                # A process that hosts says nothing else: without this it would look well.
                _logger.warning("lost the connection to %s: trying again", self._settings.url)
                await self._reconnect()
                self.returned_at = asyncio.get_running_loop().time()
                _logger.warning("connected to %s again", self._settings.url)
        except RoomException as error:
            _logger.error("the link to room %s has ended: %s", self._settings.room, error)
            self.error = error
        finally:
            self._finished.set()
            self._owner.on_end()

    def _raise_if_final(self, code: int | None) -> None:
        if code in _ENDS:
            raise PermissionDenied(_ENDS[code], details={"close_code": code})
        if code in _FINAL_CLOSES and not self._settings.renewable:
            raise PermissionDenied(_FINAL_CLOSES[code], details={"close_code": code})

    async def _reconnect(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            # Full jitter: a thousand participants that lost one server do not come back as one.
            await asyncio.sleep(random.uniform(0, backoff_s))
            try:
                await self._connect()
            except PermissionDenied:
                if not self._settings.renewable:
                    raise
            except Unavailable as error:
                _logger.info("no connection to %s yet: %s", self._settings.url, error)
            except asyncio.CancelledError:
                keeper = asyncio.current_task()
                if keeper is None or keeper.cancelling():
                    raise
                _logger.error(
                    "no connection to %s yet: a token's source was cancelled", self._settings.url
                )
            except Exception:
                # Where tokens come from is the user's code, and may fail for a while.
                _logger.exception("no connection to %s yet", self._settings.url)
            else:
                return
            backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)

    async def _connect(self) -> None:
        # Grows over restarts of this process too, where an operator fixes the instance.
        self._epoch = max(self._epoch + 1, time.time_ns() // 1_000_000)
        line = _Line(self._owner, self._adopt)
        self._adopt(await self._open(line))
        self._line = line
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                welcome = await line.welcome
                await self._owner.on_up(welcome)
            if line.closed.is_set():
                raise ConnectionError("the connection was lost")
        except (TimeoutError, ConnectionError, asyncio.CancelledError) as error:
            await self._fail_opening(line, error)
        self.is_ready = True
        self._ready.set()

    def _adopt(self, connection: ClientTransport) -> None:
        self.connection = connection

    async def _fail_opening(self, line: _Line, error: BaseException) -> None:
        """Give a connection up that ended, or stayed silent, before calls could go."""
        code = line.connection.close_code if line.connection is not None else None
        await self._hang_up()
        self._down()
        if isinstance(error, asyncio.CancelledError):
            raise error
        self._raise_if_final(code)
        raise Unavailable("the server did not say welcome", executed="no") from error

    async def _open(self, line: _Line) -> ClientTransport:
        settings = self._settings
        place = f"{settings.url}/rooms/{settings.room}"
        query = f"instance={quote(settings.instance, safe='')}&epoch={self._epoch}"
        try:
            token = self.token = await settings.token()
            connection = await connect(
                f"{place}?{query}",
                create_connection=lambda *args, **kwargs: _with_reader(line, *args, **kwargs),  # type: ignore[arg-type]  # a factory, as its documentation allows
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                additional_headers={"Authorization": f"Bearer {token}"},
                compression=None,
                max_size=MAX_FRAME_BYTES,
                proxy=None if urlsplit(settings.url).hostname in _LOOPBACK else True,
                open_timeout=_OPEN_TIMEOUT_S,
                ping_interval=PING_INTERVAL_S,
                ping_timeout=PING_TIMEOUT_S,
                close_timeout=CLOSE_TIMEOUT_S,
                write_limit=WRITE_LIMIT_BYTES,
                logger=TransportLog(logging.getLogger("websockets.client")),
            )
        except InvalidStatus as error:
            raise _refusal(error.response.status_code) from error
        except (OSError, TimeoutError, InvalidHandshake, WebSocketException) as error:
            raise Unavailable(
                f"cannot connect to {settings.url}: {_reason(error)}", executed="no"
            ) from error
        assert isinstance(connection, ClientTransport)
        return connection

    def _down(self) -> None:
        if self.connection is not None:
            self.is_ready = False
            self._ready.clear()
            self.connection = None
            self._owner.on_down()

    async def _hang_up(self) -> None:
        connection = self.connection
        if connection is not None:
            await connection.close()


def _with_reader(line: _Line, *args: Any, **kwargs: Any) -> ClientTransport:
    """Make a connection that can hand over a welcome which arrives with the handshake's answer."""
    connection = ClientTransport(*args, **kwargs)
    connection.receiver = line
    connection.batches = True
    line.connection = connection
    return connection


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _refusal(status: int) -> RoomException:
    if status == 404:
        words = "no room server of this release answers there (HTTP 404): is the URL right?"
        return PermissionDenied(words, details={"status": status})
    what = _FINAL_STATUSES.get(status)
    if what is not None:
        return PermissionDenied(f"the server refuses the {what}", details={"status": status})
    if status == 409:
        return Unavailable(
            "a newer connection of this instance is there", executed="no", details={"status": 409}
        )
    return Unavailable(
        f"the server lets nobody in now (HTTP {status})", executed="no", details={"status": status}
    )
