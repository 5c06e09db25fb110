"""The connection of a participant, from joining a room to leaving it: its parts and its calls.

All views of the room share the parts. After a reconnect they are the same; a client that is entered
again has new ones. It knows neither `Room` nor `RoomClient`.

Usually there is one websocket. While a server drains there are two, and each call ends on the one
on which it began, with all its nested calls. `reconnecting_connection` decides which one is used
for new calls.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from toolbus.bounded_logging import bounded_logger
from toolbus.chunks.result_parts import PARTS_VERSION
from toolbus.client.call_options import waiting_seconds
from toolbus.client.caller import REPLY_TIMEOUT_S, Caller
from toolbus.client.connection import Connection, Handlers
from toolbus.client.local_errors import check_loop, room_closed_error
from toolbus.client.pending_requests import PendingRequests
from toolbus.client.reconnecting_connection import (
    ReconnectingConnection,
    ReconnectingConnectionOwner,
)
from toolbus.concurrency.tasks import is_cancelled
from toolbus.errors import InvalidArguments, RoomException, Unavailable
from toolbus.hosting.runner import Runner
from toolbus.room.hosting import Hosting
from toolbus.room.registrations import PublishedAttributes, Registrations
from toolbus.room.subscriptions import Subscriptions
from toolbus.room.toolkit_proxy import KnownManifests
from toolbus.settings import DEFAULT_DRAIN_S, BadTokenSource, RoomSettings, is_loopback
from toolbus.telemetry.tracing import Tracing
from toolbus.tools.call_room import CallRoom
from toolbus.tools.tool_run import Participant
from toolbus.wire import (
    AssessDispatch,
    Cancel,
    Credit,
    Dispatch,
    Drain,
    Event,
    Failed,
    Held,
    Input,
    Notice,
    Progress,
    Refresh,
    Result,
    Resumed,
    StreamChunk,
    Welcome,
)

if TYPE_CHECKING:  # few programs have a lock file
    from toolbus.concurrency.pausable_clock import CallTime
    from toolbus.room.lock_file import LockFile

__all__ = ["RoomConnection", "TokenRenewal"]

_logger = bounded_logger(__name__)
_TOKEN_EXPIRES = "token_expires"
_FIRST_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 30.0
"""A source of tokens that fails would be asked twice a second by each client."""


class TokenRenewal:
    """Renews the token of the current connection before it expires.

    The server decides when, by its own clock, and sends a notice. The token source is the user's
    code and may fail: it is asked again with backoff while the old token is still valid. When that
    has expired the server closes the connection, and the next connection asks the source again.

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
                # What writes the file may do so at 80 % of a life too, as the kubelet does.
                _logger.log(
                    logging.WARNING if _ends_soon(token) else logging.INFO, text, source, room
                )
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


def _ends_soon(jwt: str) -> bool:
    """Whether less than 10 % of a token's life is left; also if that cannot be read."""
    from toolbus.auth.jws import read_unverified

    try:
        claims = read_unverified(jwt)
        left_s = claims["exp"] - time.time()
        return bool(left_s < 0.1 * (claims["exp"] - claims["iat"]))
    except (ValueError, LookupError, TypeError):
        return True


class RoomConnection:
    """The parts of one connection of a participant, and the calls in flight on it.

    Args:
        client: The participant's `RoomClient`, which views of the room find here.
        settings: The server, the room and the token.
        make_room: Makes the room for a call's tool, from this connection, the caller that its
            nested calls use, the dispatch's id and the time of the call.
        tracing: Records spans.
        locked: A lock file or its path; None is that of the settings, and False is none.
        wait_for_host_s: Seconds that calls wait for a host.

    Raises `ValueError` for a lock file or a time that is not valid.
    """

    __slots__ = (
        "_make_room",
        "_pending",
        "_runners",
        "attributes",
        "call_prefix",
        "caller",
        "client",
        "full_name",
        "has_left",
        "hostings",
        "link",
        "loop",
        "manifests",
        "registrations",
        "renewal",
        "runner",
        "settings",
        "subscriptions",
        "wait_for_host_s",
        "welcome",
    )

    def __init__(
        self,
        client: object,
        settings: RoomSettings,
        make_room: Callable[[RoomConnection, Caller, int, CallTime], CallRoom],
        *,
        tracing: Tracing,
        locked: LockFile | str | os.PathLike[str] | Literal[False] | None,
        wait_for_host_s: float,
    ) -> None:
        loop = asyncio.get_running_loop()
        owner = ReconnectingConnectionOwner(
            handlers=self._begin_calls,
            on_connected=self._on_connected,
            on_connection_lost=self._lose,
            on_ended=self._on_end,
            on_replaced=self._finish_calls,
        )
        link = ReconnectingConnection(settings, owner)
        pending = self._pending = PendingRequests(loop)
        caller = _caller(locked, settings, link, pending, tracing)
        self._make_room = make_room
        self._runners: dict[Connection, Runner] = {}
        self.client: object = client
        """The participant's `RoomClient`; an object here, as that is above: `client_of` has it."""
        self.settings: RoomSettings = settings
        self.loop: asyncio.AbstractEventLoop = loop
        self.link: ReconnectingConnection = link
        """The connection to the server, which is made again when it is lost."""
        self.caller: Caller = caller
        """Makes calls on the connection for new calls."""
        try:
            self.wait_for_host_s: float = waiting_seconds(wait_for_host_s)
            """Seconds that calls wait for a host, unless one has its own limit."""
        except InvalidArguments as error:
            raise ValueError(error.message) from None
        self.manifests: KnownManifests = KnownManifests()
        """The manifests that were read."""
        self.call_prefix: str = secrets.token_hex(8)
        """Half of the 128 random bits of a call's id, in hex; the other half is drawn for each
        call. A trace that begins with the call has the same id."""
        self.runner: Runner = Runner(
            room_of=partial(make_room, self, caller),
            room_name=settings.room,
            tracing=tracing,
            loop_is_ending=lambda: link.loop_is_ending,
            owner_of=lambda: self.full_name,
            wants_error_text=self.wants_error_text,
        )
        self.registrations: Registrations = Registrations(caller, loop)
        self.attributes: PublishedAttributes = PublishedAttributes(caller)
        self.subscriptions: Subscriptions = Subscriptions(caller, loop, lambda: link.is_ready)
        self.renewal: TokenRenewal = TokenRenewal(settings, link, caller, self._on_facts)
        self.hostings: dict[tuple[str, bool], Hosting] = {}
        """What is hosted, by name and whether it is public."""
        self.welcome: Welcome | None = None
        """The server's latest welcome, with the facts of the latest token; None before joining."""
        self.full_name: str = ""
        """The participant's name once it has joined; records of calls need it after the end too."""
        self.has_left: bool = False
        """Whether the participant leaves the room, or has left it."""

    async def stop(self) -> None:
        """Leave the room: end the calls that run here, and then the connection."""
        self.has_left = True
        try:
            await self._stop_calls()
        finally:
            self.renewal.stop()
            self.registrations.end()
            try:
                await self.link.stop()
            finally:
                for connection in list(self._runners):
                    self._lose(connection)
                self._pending.close()
                self.subscriptions.end(None)

    @property
    def checked_welcome(self) -> Welcome:
        """The server's latest welcome. Raises `Unavailable` before joining."""
        if self.welcome is None:
            raise Unavailable("the room is not joined", executed="no", retryable=False)
        return self.welcome

    @property
    def me(self) -> Participant:
        """The participant as others see it; its id changes with each reconnect."""
        welcome = self.checked_welcome
        facts = welcome.facts
        identity = (facts["name"], facts["role"], facts["issuer"], facts.get("alias", ""))
        return Participant(welcome.participant, *identity)

    @property
    def drain_s(self) -> float:
        """Seconds that running calls may take to finish, as the settings say."""
        drain_s = self.settings.drain_s
        return DEFAULT_DRAIN_S if drain_s is None else drain_s

    def wants_error_text(self) -> bool:
        """Whether the server asks hosts for the texts of exceptions; False after the room's end.

        Only a server on this machine may ask: another one would learn what authors of tools kept
        from it.
        """
        if self.has_left or self.welcome is None:
            return False
        return self.welcome.facts.get("errors") == "text" and is_loopback(self.settings.url)

    # From the connection

    async def _on_connected(self, welcome: Welcome) -> None:
        self._check_open()
        is_return = self.welcome is not None
        self.welcome = welcome
        self.full_name = self.me.full_name
        self.subscriptions.facts = welcome.facts
        if not is_return:
            return
        deadline_at = self.loop.time() + REPLY_TIMEOUT_S
        await self.attributes.replay(deadline_at)
        await self.registrations.replay(deadline_at, self.runner.definitions)
        await self.subscriptions.replay(deadline_at)
        await self.registrations.retry_unregister()

    def _on_end(self) -> None:
        if not self.has_left:
            self.registrations.end()
            self.subscriptions.end(self.link.error)

    def _on_notice(self, notice: Notice) -> None:
        self.renewal.on_notice(notice)
        self.registrations.on_notice(notice)

    # Calls, by connection

    def _begin_calls(self, connection: Connection) -> Handlers:
        """Serve a new connection; return the handlers of its frames."""
        caller = self.caller.bound_to(connection)
        runner = self.runner.for_connection(
            connection.websocket,
            partial(self._make_room, self, caller),
            sends_parts=connection.version >= PARTS_VERSION,
            ask_person=caller.ask_person,
        )
        self._runners[connection] = runner
        pending = self._pending

        def credit(frame: Credit) -> None:
            # Credit for input belongs to a call made here, credit for chunks to a call run here.
            (pending.receive if frame.of_input else runner.on_stream_frame)(frame)

        return {
            Result: pending.settle,
            Failed: pending.settle,
            StreamChunk: pending.receive,
            Progress: pending.receive,
            Held: pending.hold,
            Resumed: pending.resume,
            Dispatch: runner.dispatch,
            AssessDispatch: runner.dispatch,
            Cancel: runner.cancel,
            Input: runner.on_stream_frame,
            Credit: credit,
            Event: self.subscriptions.on_event,
            Notice: self._on_notice,
        }

    def _lose(self, connection: Connection) -> None:
        """End what belongs to a connection that is lost: its calls, the renewal of its token."""
        runner = self._runners.pop(connection, None)
        if runner is not None:
            runner.cancel_all()
        self._pending.lose(connection.websocket)
        self.renewal.stop_on(connection)

    async def _finish_calls(self, connection: Connection) -> None:
        """Accept no more calls on a connection, and wait until all on it have ended."""
        runner = self._runners.get(connection)
        connection.ignore(Event)  # the other connection receives the same events
        await self._request_drain(connection)
        if runner is not None:
            await runner.idle()
        await self._pending.settled(connection.websocket)
        await connection.flushed()

    async def drain(self, timeout_s: float | None) -> None:
        """Accept no more calls, and wait until running ones have ended.

        Args:
            timeout_s: Seconds that this may take; calls that still run then are cancelled. None
                means as the settings say.
        """
        self.registrations.is_draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(self.drain_s if timeout_s is None else timeout_s):
                for connection in list(self._runners):
                    await self._request_drain(connection)
                for connection, runner in list(self._runners.items()):
                    await runner.idle()
                    await connection.flushed()
        await self._stop_calls()

    async def _stop_calls(self) -> None:
        """Cancel every call that runs here, and wait for those that can be stopped."""
        for runner in self._runners.values():
            runner.cancel_all()
        await self.runner.stop()

    async def _request_drain(self, connection: Connection) -> None:
        deadline_at = self.loop.time() + REPLY_TIMEOUT_S
        with suppress(RoomException):  # it is lost, or its server is older
            caller = self.caller.bound_to(connection)
            await caller.ask(Drain, {}, deadline_at=deadline_at)

    async def _on_facts(self, facts: dict[str, Any]) -> None:
        self._check_open()
        self.welcome = replace(self.checked_welcome, facts=facts)
        await self.subscriptions.regrant(facts)

    def _check_open(self) -> None:
        """Raise `Unavailable` if the participant leaves, or outside of its event loop."""
        if self.has_left:
            raise room_closed_error()
        check_loop(self.loop)


def _caller(
    locked: LockFile | str | os.PathLike[str] | Literal[False] | None,
    settings: RoomSettings,
    link: ReconnectingConnection,
    pending: PendingRequests,
    tracing: Tracing,
) -> Caller:
    """Make the caller of a client, with its lock file. Raises ValueError if that is not valid."""
    chosen = settings.lock if locked is None else locked
    if chosen is None or chosen is False:
        return Caller(link, pending, tracing)
    from toolbus.room.lock_file import LockFile
    from toolbus.room.locked_caller import LockedCaller

    lock = chosen if isinstance(chosen, LockFile) else LockFile.load(chosen)
    return LockedCaller(link, pending, tracing, lock)
