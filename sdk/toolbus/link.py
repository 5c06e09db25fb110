"""The line to the server: one websocket at a time, and another when it is lost.

A `Link` owns the socket and its successors. What a frame means is its owner's matter. After a loss
it connects again by itself, with a growing epoch, so that the server lets the new connection take
the old one's place. When a server says that it leaves, the link connects again at once, and the old
line stays for the calls that are under way on it until they have ended.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from toolbus.call_ends import is_closed
from toolbus.errors import PermissionDenied, RoomException, Unavailable
from toolbus.lines import Handlers, Line
from toolbus.settings import RoomSettings
from toolbus.transport import (
    CLOSE_TIMEOUT_S,
    PING_INTERVAL_S,
    PING_TIMEOUT_S,
    WRITE_LIMIT_BYTES,
    ClientTransport,
)
from toolbus.transport_log import TransportLog
from toolbus.wire import MAX_FRAME_BYTES, SUBPROTOCOL, Welcome

__all__ = ["Link", "LinkOwner"]

_logger = logging.getLogger(__name__)
_OPEN_TIMEOUT_S = 10.0
_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 5.0
# A connection that lasted so long was a good one: after it the pauses begin anew.
_STEADY_S = 5.0
# Of old lines with calls under way so many are kept; the oldest goes.
_MAX_LEFT = 4
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
_SENT_AWAY = 4440


async def _nothing_to_finish(_: Line) -> None:
    """Stand for an owner that has nothing under way on any line."""


@dataclass(frozen=True, slots=True)
class LinkOwner:
    """What a link tells its owner."""

    handlers: Handlers
    """Who takes a frame, whichever line it comes by."""
    on_up: Callable[[Welcome], Awaitable[None]]
    """A connection is there and welcomed:

    say again what the server must know, then calls may go.
    """
    on_down: Callable[[Line], None]
    """A line is gone, with everything that was under way on it."""
    on_end: Callable[[], None] = lambda: None
    """The link has ended for good."""
    on_line: Callable[[Line], Handlers] = lambda _: {}
    """A line is there: say who takes those of its frames that belong to no other."""
    on_moved: Callable[[Line], Coroutine[Any, Any, None]] = _nothing_to_finish
    """Another line has taken the place of one whose server leaves:

    finish what is under way on it; then it is closed.
    """


class Link:
    """A connection that comes back.

    Args:
        settings: Where to, as whom.
        owner: Who is told.
    """

    def __init__(self, settings: RoomSettings, owner: LinkOwner) -> None:
        self._settings = settings
        self._owner = owner
        self._line: Line | None = None
        self._left: dict[Line, None] = {}
        """Lines whose server leaves, with calls under way on them."""
        self._finishing: set[asyncio.Task[None]] = set()
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
        self._backoff_s = _FIRST_BACKOFF_S
        """The first pause before the next connection; more after one that did not last."""
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
            ending = [*self._finishing, *([] if keeper is None else [keeper])]
            for each in ending:
                each.cancel()
            if ending:
                await asyncio.wait(ending)
            await asyncio.gather(*(line.hang_up() for line in self._lines()))
        finally:
            for line in self._lines():
                line.abort()
            self._pause()
            self.connection = None
            self._finished.set()

    @property
    def is_cut(self) -> bool:
        """Whether somebody other than `stop` ends the keeping of the line: its event loop's end."""
        return self._keeper is not None and self._keeper.cancelling() > 0

    def _lines(self) -> list[Line]:
        return [*self._left, *([] if self._line is None else [self._line])]

    def _pause(self) -> None:
        self.is_ready = False
        self._ready.clear()

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
            raise is_closed(self.error)

    def _is_up(self) -> bool:
        """Tell whether calls can be sent; on a connection that is closing none can."""
        if self.is_ready and (self.connection is None or not self.connection.is_open):
            self.is_ready = False
            self._ready.clear()
        return self.is_ready

    # What a line says

    def on_welcomed(self, line: Line) -> Handlers:
        """Say who takes the frames that come by a new line."""
        return {**self._owner.handlers, **self._owner.on_line(line)}

    def on_leaving(self, line: Line) -> None:
        """Send nothing new by a line whose server leaves."""
        _logger.warning("the server at %s leaves: connecting again", self._settings.url)
        if line is self._line:
            self._pause()

    def on_lost(self, line: Line) -> None:
        """Tell the owner that a line is gone."""
        self._left.pop(line, None)
        if line is self._line:
            self._pause()
            self.connection = None
        self._owner.on_down(line)

    # Keeping the line

    async def _keep(self) -> None:
        try:
            while True:
                assert self._line is not None
                line, since_s = self._line, asyncio.get_running_loop().time()
                await line.over.wait()
                self._settle_backoff(asyncio.get_running_loop().time() - since_s)
                if line.closed.is_set():
                    self._raise_if_final(line.close_code)
                    self._say_lost()
                else:
                    self._left[line] = None
                    if len(self._left) > _MAX_LEFT:
                        next(iter(self._left)).abort()
                await self._reconnect(line)
                if line in self._left:
                    finishing = asyncio.create_task(self._finish(line))
                    self._finishing.add(finishing)
                    finishing.add_done_callback(self._finishing.discard)
                self.returned_at = asyncio.get_running_loop().time()
                _logger.warning("connected to %s again", self._settings.url)
        except RoomException as error:
            _logger.error("the link to room %s has ended: %s", self._settings.room, error)
            self.error = error
        finally:
            self._finished.set()
            self._owner.on_end()

    def _settle_backoff(self, lasted_s: float) -> None:
        # A server that lets everybody in and sends them away again is not asked ever faster.
        is_steady = lasted_s >= _STEADY_S
        longer_s = min(self._backoff_s * 2, _MAX_BACKOFF_S)
        self._backoff_s = _FIRST_BACKOFF_S if is_steady else longer_s

    def _say_lost(self) -> None:
        # A process that hosts says nothing else: without this it would look well.
        _logger.warning("lost the connection to %s: trying again", self._settings.url)

    def _raise_if_final(self, code: int | None) -> None:
        if code in _ENDS:
            raise PermissionDenied(_ENDS[code], details={"close_code": code})
        if code in _FINAL_CLOSES and not self._settings.renewable:
            raise PermissionDenied(_FINAL_CLOSES[code], details={"close_code": code})

    async def _finish(self, line: Line) -> None:
        """Close a line well once nothing is under way on it any more."""
        await self._owner.on_moved(line)
        await line.hang_up()

    async def _reconnect(self, old: Line) -> None:
        backoff_s, is_left = self._backoff_s, not old.closed.is_set()
        while True:
            # Full jitter: a thousand participants that lost one server do not come back as one.
            pause_s = random.uniform(0, backoff_s)
            if not is_left:
                await asyncio.sleep(pause_s)
            elif await old.is_gone_within(pause_s):
                # The server that left may be followed by another at once: begin anew.
                self._raise_if_final(old.close_code if old.close_code == _SENT_AWAY else None)
                self._say_lost()
                backoff_s, is_left = self._backoff_s, False
                continue
            if await self._is_back():
                return
            backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)

    async def _is_back(self) -> bool:
        """Try to connect again. Raises PermissionDenied where no further attempt can succeed."""
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
            return True
        return False

    async def _connect(self) -> None:
        # Grows over restarts of this process too, where an operator fixes the instance.
        self._epoch = max(self._epoch + 1, time.time_ns() // 1_000_000)
        line = Line(self)
        self.connection = await self._open(line)
        self._line = line
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT_S):
                welcome = await line.welcome
                await self._owner.on_up(welcome)
            if line.closed.is_set():
                raise ConnectionError("the connection was lost")
        except (TimeoutError, ConnectionError, asyncio.CancelledError) as error:
            await self._fail_opening(line, error)
        if not line.over.is_set():  # else its server leaves already
            self.is_ready = True
            self._ready.set()

    async def _fail_opening(self, line: Line, error: BaseException) -> None:
        """Give a connection up that ended, or stayed silent, before calls could go."""
        code = line.close_code
        await line.hang_up()
        self.connection = None
        if isinstance(error, asyncio.CancelledError):
            raise error
        self._raise_if_final(code)
        raise self._away("the server did not say welcome") from error

    def _away(self, words: str) -> Unavailable:
        return Unavailable(words, executed="no", details={"url": self._settings.url})

    async def _open(self, line: Line) -> ClientTransport:
        settings = self._settings
        place = f"{settings.url}/rooms/{settings.room}"
        query = f"instance={quote(settings.instance, safe='')}&epoch={self._epoch}&chunks=1"
        try:
            token = self.token = await settings.token()
        except OSError as error:
            words = f"cannot read {settings.token_from}: {_reason(error)}"
            raise Unavailable(words, executed="no") from error
        try:
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
            raise _refusal(error.response.status_code, token) from error
        except (OSError, TimeoutError, InvalidHandshake, WebSocketException) as error:
            raise self._away(f"cannot connect to {settings.url}: {_reason(error)}") from error
        assert isinstance(connection, ClientTransport)
        return connection


def _with_reader(line: Line, *args: Any, **kwargs: Any) -> ClientTransport:
    """Make a connection that can hand over a welcome which arrives with the handshake's answer."""
    connection = ClientTransport(*args, **kwargs)
    connection.receiver = line
    connection.batches = True
    line.connection = connection
    return connection


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def _refusal(status: int, token: str) -> RoomException:
    if status == 404:
        words = "no room server of this release answers there (HTTP 404): is the URL right?"
        return PermissionDenied(words, details={"status": status})
    what = _FINAL_STATUSES.get(status)
    if what == "token" and token.count(".") != 2:
        what = "token: what was given is none"
    if what is not None:
        return PermissionDenied(f"the server refuses the {what}", details={"status": status})
    if status == 409:
        return Unavailable(
            "a newer connection of this instance is there", executed="no", details={"status": 409}
        )
    return Unavailable(
        f"the server lets nobody in now (HTTP {status})", executed="no", details={"status": status}
    )
