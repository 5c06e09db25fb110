"""A participant: a room with a connection of its own, which hosts toolkits and receives events.

It reconnects by itself. After a reconnect its toolkits are registered again, its attributes and
builders are published again, and readers of events get a mark that some may be missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from msgspec.structs import replace

from toolbus.auth.grants import ApiScope
from toolbus.bounded_logging import bounded_logger
from toolbus.client.call_options import is_time, waiting_seconds
from toolbus.client.caller import REPLY_TIMEOUT_S, Caller
from toolbus.client.connection import Connection
from toolbus.client.local_errors import NotEnteredProxy, check_loop, room_closed_error
from toolbus.client.pending_requests import PendingRequests
from toolbus.client.reconnecting_connection import (
    ReconnectingConnection,
    ReconnectingConnectionOwner,
)
from toolbus.client.retry import DEFAULT_WAIT_FOR_HOST_S
from toolbus.errors import InvalidArguments, Unavailable
from toolbus.hosting.hosted_call import HostedCall
from toolbus.hosting.runner import Runner
from toolbus.room.connection_calls import ConnectionCalls
from toolbus.room.events import EVENT_TOPICS, EventStream, RoomEvent
from toolbus.room.hosting import Hosting, find_hosting, packed_manifest
from toolbus.room.participants import BuilderInfo
from toolbus.room.published_attributes import PublishedAttributes
from toolbus.room.registrations import (
    Registration,
    Registrations,
    checked_offer,
    checked_supersede,
)
from toolbus.room.room import Core, Room
from toolbus.room.subscriptions import Subscriptions
from toolbus.room.token_renewal import TokenRenewal
from toolbus.room.waiting_start import join
from toolbus.settings import DEFAULT_DRAIN_S, RoomSettings, Token, check_url, is_loopback
from toolbus.telemetry.tracing import Tracing
from toolbus.tools.tool_run import Participant
from toolbus.tools.toolkit import Toolkit
from toolbus.wire import Admin, Event, Notice, Welcome

if TYPE_CHECKING:  # few programs watch calls or have a lock file
    from toolbus.room.call_monitor import CallReport
    from toolbus.room.lock_file import LockFile

__all__ = ["RoomClient"]

_MAX_SHOWN_CHARS = 128  # of a room or a name in `repr`
_logger = bounded_logger(__name__)
_UNENTERED: Any = NotEnteredProxy()


@dataclass(slots=True, eq=False)
class _Parts:
    """The parts of a client while it is connected."""

    core: Core
    connection: ReconnectingConnection
    renewal: TokenRenewal
    pending: PendingRequests
    runner: Runner
    calls: ConnectionCalls
    registrations: Registrations
    attributes: PublishedAttributes
    subscriptions: Subscriptions
    welcome: Welcome | None = None
    hostings: dict[tuple[str, bool], Hosting] = field(default_factory=dict)
    """What is hosted, by name and whether it is public."""


class RoomClient(Room):
    """A participant in a room: `async with RoomClient(url, room="lab", token=token) as room:`.

    Arguments override `TOOLBUS_*` variables, these the context in use, and that the settings file.
    After a lost connection it reconnects, and its toolkits are registered again. The token is
    renewed before it expires.

    Entering raises `ValueError` for a missing or malformed setting, `TypeError` for a token
    function that is not async or does not return text, `PermissionDenied` if the server refuses the
    token or the room, `Unavailable` if no server can be reached, and `RuntimeError` if the room is
    already entered.

    Where no block fits, as in a notebook, `room = await RoomClient(...).connect()` and
    `await room.aclose()` do the same. It belongs to the event loop that it is connected in: used
    from another one it raises `Unavailable` before anything is sent. `toolbus.sync.RoomClient` is
    for programs without an event loop, and for many threads.

    Args:
        url: The server, as `ws://HOST:PORT`.
        room: The room's name; "main" unless set elsewhere.
        token: The token, its file, or an async function that returns one. A file is a `Path`, or
            as text the path of an existing file or `"@PATH"`. A file or a function is read again
            before the token expires. A token itself cannot be renewed; the connection closes when
            it expires.
        name: The participant's name, if this process mints its own tokens.
        instance: Distinguishes replicas of one identity: printable text of at most 128 characters;
            random unless given.
        context: The name of a context of `toolbus context`; its settings override variables.
        tracing: Records spans; unless given, as OpenTelemetry is set up in this process.
        locked: A `LockFile` or the path of one: toolkits that are not in it, or differ from it, are
            refused with `DefinitionChanged`. False is no lock file, whatever the settings say.
        wait_for_host_s: Seconds that a call waits in all, within its deadline, if its toolkit has
            no host now; 0 does not wait. The option of that name sets it for one call.
        wait: Whether entering waits for a server that cannot be reached yet, or accepts nothing
            now: True without a limit, or for at most so many seconds. The log says so once.
    """

    __slots__ = (
        "_choices",
        "_full_name",
        "_is_entering",
        "_locked",
        "_parts",
        "_settings",
        "_tracing",
        "_wait",
        "_wait_for_host_s",
    )

    def __init__(  # noqa: PLR0913 - the promised signature
        self,
        url: str | None = None,
        *,
        room: str | None = None,
        token: Token | None = None,
        name: str | None = None,
        instance: str | None = None,
        context: str | None = None,
        tracing: Tracing | None = None,
        locked: LockFile | str | os.PathLike[str] | Literal[False] | None = None,
        wait_for_host_s: float = DEFAULT_WAIT_FOR_HOST_S,
        wait: bool | float = False,
    ) -> None:
        self._choices = {"url": url, "room": room, "token": token, "name": name}
        self._choices |= {"instance": instance, "context": context}
        self._tracing = tracing
        self._locked = locked
        self._wait_for_host_s = wait_for_host_s
        self._wait = wait
        self._is_entering = False
        self._parts: _Parts | None = None
        self._full_name = ""  # once joined; records of calls name it after the end, too
        self._settings: RoomSettings | None = None
        self._core: Core = _UNENTERED
        self._parent = None
        self._principal = None
        self._deadline_at = None
        self._is_forwarding = False

    async def __aenter__(self) -> Self:
        if self._parts is not None or self._is_entering:
            raise RuntimeError(
                "this room is already entered: one client has one connection; make another client,"
                " or leave the room first (`await room.aclose()`, or the end of its block)"
            )
        if not isinstance(self._wait, bool) and not is_time(self._wait):
            raise ValueError("wait must be True, False or a number of seconds, 0 or more")
        self._is_entering = True
        try:
            await join(self._enter, self, self._wait)
        finally:
            self._is_entering = False
        return self

    async def connect(self) -> Self:
        """Join the room as `async with` does, without a block; return this client.

            room = await RoomClient("ws://127.0.0.1:7717", token=token).connect()
            ...
            await room.aclose()

        Raises:
            RuntimeError: It is connected already.
            Exception: What entering raises, see the class.
        """
        return await self.__aenter__()

    async def aclose(self) -> None:
        """Leave the room, as the end of the block does.

        Called again, or before `connect`, it does nothing.

        Raises:
            Unavailable: The client was connected in another event loop, which still runs.
        """
        await self.__aexit__(None, None, None)

    async def _enter(self) -> None:
        self._settings = RoomSettings.resolve(**self._choices)  # type: ignore[arg-type]  # each by its own name
        parts = self._parts = self._make_parts(self._settings)
        try:
            await parts.connection.start()
            self._core = parts.core
        except BaseException:
            self._parts = None
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        parts = self._parts
        if parts is not None:
            if parts.core.loop.is_closed():  # and the connection with it
                self._parts = None
                return
            check_loop(parts.core.loop)
            self._parts = None
            try:
                await parts.calls.stop()
            finally:
                await self._leave(parts)

    async def _leave(self, parts: _Parts) -> None:
        parts.renewal.stop()
        parts.registrations.end()
        try:
            await parts.connection.stop()
        finally:
            parts.calls.close()
            parts.subscriptions.end(None)

    def _make_parts(self, settings: RoomSettings) -> _Parts:
        loop = asyncio.get_running_loop()
        tracing = self._tracing or Tracing()
        table = PendingRequests(loop)
        handlers: dict[type[Any], Callable[[Any], None]] = {}
        owner = ReconnectingConnectionOwner(
            handlers,
            on_connected=self._on_connected,
            on_connection_lost=lambda connection: _lose(connection, calls, renewal),
            on_ended=self._on_end,
            connection_handlers=lambda connection: calls.begin(connection),
            on_replaced=lambda connection: calls.finish(connection),
        )
        link = ReconnectingConnection(settings, owner)
        caller = _caller(self._locked, settings, link, table, tracing)
        core = Core(loop, caller, _checked_wait(self._wait_for_host_s), client=self)
        runner = Runner(
            room_of=partial(Room, core),
            room_name=settings.room,
            tracing=tracing,
            loop_is_ending=lambda: link.loop_is_ending,
            owner_of=lambda: self._full_name,
            wants_error_text=self._wants_error_text,
        )
        calls = ConnectionCalls(core, table, runner)
        registrations, attributes = (
            Registrations(core.caller, loop),
            PublishedAttributes(core.caller),
        )
        subscriptions = Subscriptions(core.caller, loop, lambda: link.is_ready)
        handlers[Event] = subscriptions.on_event
        renewal = TokenRenewal(settings, link, core.caller, self._on_facts)
        handlers[Notice] = lambda notice: _on_notice(notice, renewal, registrations)
        rest = registrations, attributes, subscriptions
        return _Parts(core, link, renewal, table, runner, calls, *rest)

    @property
    def _entered(self) -> _Parts:
        """The parts while it is connected, for reading from any thread."""
        if self._parts is None:
            _ = self._core.loop  # raises if the room was never entered
            raise room_closed_error()
        return self._parts

    @property
    def _joined(self) -> _Parts:
        """The parts while it is connected, for work in its event loop."""
        parts = self._entered
        check_loop(parts.core.loop)
        return parts

    @property
    def _welcome(self) -> Welcome:
        welcome = self._entered.welcome
        if welcome is None:
            raise Unavailable("the room is not joined", executed="no", retryable=False)
        return welcome

    def _wants_error_text(self) -> bool:
        """Whether the server asks hosts for the texts of exceptions; False after the room's end.

        Only a server on this machine may ask: another one would learn what authors of tools kept
        from it.
        """
        parts = self._parts
        settings = self._settings
        if parts is None or parts.welcome is None or settings is None:
            return False
        return parts.welcome.facts.get("errors") == "text" and is_loopback(settings.url)

    @property
    def room(self) -> str:
        """The room's name."""
        return self._welcome.room

    @property
    def me(self) -> Participant:
        """The participant as others see it; its id changes with each reconnect."""
        welcome = self._welcome
        facts = welcome.facts
        identity = (facts["name"], facts["role"], facts["issuer"], facts.get("alias", ""))
        return Participant(welcome.participant, *identity)

    @property
    def name(self) -> str:
        """The participant's name: the `sub` of its token."""
        return self.me.name

    @property
    def grants(self) -> ApiScope:
        """The grants of the token, as the server reported them; unknown ones are left out."""
        return ApiScope.known_of(self._welcome.facts["api"])

    @property
    def _state(self) -> str:
        parts = self._parts
        if parts is None or parts.welcome is None:
            if self._is_entering:
                return "connecting"
            return "not connected" if self._core is _UNENTERED else "closed"
        if parts.connection.error is not None:
            return "ended"
        return "connected" if parts.connection.is_ready else "reconnecting"

    def __repr__(self) -> str:
        """Show server, room, name and state; never the token, and no address that is malformed."""
        chosen = dict(self._choices)
        if self._settings is not None:
            chosen |= {"url": self._settings.url, "room": self._settings.room}
        chosen["name"] = self._full_name or chosen["name"]
        try:
            check_url(str(chosen["url"]))
        except ValueError:  # what is before an @ may be a password
            chosen["url"] = None
        facts = [str(chosen["url"])] if chosen["url"] else []
        for what in ("room", "name"):
            if chosen[what]:
                facts.append(f"{what} {str(chosen[what])[:_MAX_SHOWN_CHARS]!r}")
        return f"<{type(self).__name__} {', '.join([*facts, self._state])}>"

    async def closed(self) -> None:
        """Wait until this participant has left the room for good.

        Raises:
            RoomException: The reason, unless this side left.
        """
        link = self._joined.connection
        await link.finished()
        if link.error is not None:
            raise link.error

    # Hosting

    @contextlib.asynccontextmanager
    async def host(
        self,
        toolkit: Toolkit,
        *,
        public: bool | None = None,
        shared_with: Sequence[str] | None = None,
        supersede: bool | None = None,
    ) -> AsyncIterator[Toolkit]:
        """Host a toolkit for as long as the block runs.

        At its end the toolkit is unregistered, running calls may finish, and its tools are stopped.
        If other hosts of this identity serve another definition under the name, this one takes over
        from a lower `version`; else it is in reserve, with a warning in the log.

        Args:
            toolkit: The toolkit to host.
            public: Whether the whole room sees it; True unless the toolkit itself says otherwise.
            shared_with: Who else sees a private toolkit: `name:x` of your issuer,
                `name:alias/x` of another one, `role:x`, or `*`.
            supersede: True takes over from other definitions whatever their versions; False raises
                `DefinitionConflict` if there are any.

        Raises:
            ValueError: This connection already hosts a toolkit of this name, its definition has
                more than 1 MiB, a public toolkit is shared, or `public`, `shared_with` or
                `supersede` is invalid.
            TypeError: `toolkit` is not a toolkit.
            RoomException: The server refuses the registration.
            Exception: What the `start` of a tool raises.
        """
        parts = self._joined
        is_public, shares = checked_offer(toolkit, public, shared_with)
        must_supersede = checked_supersede(toolkit, supersede)
        manifest = packed_manifest(toolkit)
        hosted = parts.runner.host(toolkit, public=is_public)
        hosting = Hosting(
            self,
            parts.runner,
            parts.registrations,
            Registration(hosted, manifest, shares, must_supersede),
            is_ready=lambda: parts.connection.is_ready,
            is_closed=lambda: parts.connection.error is not None,
        )
        async with hosting.run():
            parts.hostings[hosting.key] = hosting
            place = self.room, self.me.full_name, parts.connection.url
            _logger.info("hosting toolkit %s in room %s as %s at %s", toolkit.name, *place)
            try:
                yield toolkit
            finally:
                del parts.hostings[hosting.key]

    async def replace(self, toolkit: Toolkit, *, supersede: bool | None = None) -> None:
        """Serve another definition of a toolkit that this participant hosts, in one step.

        The toolkit of the same name is registered again, with the same `public` and `shared_with`;
        its name is never without a host. Calls that the server has dispatched to the old definition
        end there, and later ones go to the new one. Tools that only the new one has are started
        before, and those that only the old one has are stopped after its last call.

        Alone under its name, this host needs no higher version. Beside other hosts of the old
        definition it is as any host: it takes over from a lower `version` or by `supersede`, else
        it is in reserve until all of them have replaced theirs.

        After an error the old definition is served.

        Args:
            toolkit: The new definition, for example `old.with_tools(...)`.
            supersede: As of `host`; unless given, that of the toolkit, else that of `host`.

        Raises:
            ValueError: This connection hosts no toolkit of this name, or `supersede` is invalid.
            TypeError: `toolkit` is not a toolkit.
            RoomException: The server refuses the registration.
            Exception: What the `start` of a new tool raises.
        """
        await find_hosting(self._joined.hostings, toolkit).replace(toolkit, supersede)

    async def drain(self, timeout_s: float | None = None) -> None:
        """Accept no more calls, and wait until the running ones have ended.

        The participant stays in the room until the end of its block. New calls go to other hosts,
        or get `no_host`. The names of the hosted toolkits are kept for 30 s after this participant
        has left, so that its next process can take over. Nested calls of running calls go on. From
        then on this participant cannot host.

        Args:
            timeout_s: Seconds that running calls may take to finish; then they are cancelled. 10
                unless `TOOLBUS_DRAIN` is set.

        Raises:
            ValueError: `timeout_s` is not a number of seconds, 0 or more; nothing has changed.
        """
        if timeout_s is not None and not is_time(timeout_s):
            raise ValueError("timeout_s must be a number of seconds, 0 or more, or None")
        self._joined.registrations.is_draining = True
        await self._joined.calls.drain(self._drain_s if timeout_s is None else timeout_s)

    @property
    def _drain_s(self) -> float:
        assert self._settings is not None
        drain_s = self._settings.drain_s
        return DEFAULT_DRAIN_S if drain_s is None else drain_s

    @property
    def _hosted_calls(self) -> Collection[HostedCall]:
        return self._entered.runner.running_calls

    # Tokens and administration

    async def refresh(self) -> None:
        """Read or mint a new token now; its grants and its expiry replace those of the old one.

        This happens by itself before the token expires, unless the token is a string.

        Readers of events get the events that are granted now; "missed" marks the change.

        Raises:
            PermissionDenied: It is invalid, or of another participant; the old token stays.
            TypeError: `token=` is not an async function that returns text.
        """
        await self._joined.renewal.refresh()

    async def _on_facts(self, facts: dict[str, Any]) -> None:
        parts = self._joined
        parts.welcome = replace(self._welcome, facts=facts)
        await parts.subscriptions.regrant(facts)

    async def admin(self, action: str, **options: Any) -> dict[str, Any]:
        """Administer rooms; needs the grant `admin`.

        Args:
            action: "rooms", "kick" or "revoke".
            options: "rooms" takes `limit` (at most 1,000) and `cursor`; "kick" takes `room` and
                `participant`; "revoke" takes `name`, also with `issuer`, or `jti`.

        Returns:
            For "rooms": `rooms`, and the `cursor` of the next page or None. Otherwise: `closed`,
            the number of closed connections.

        Raises:
            PermissionDenied: The grant is missing, or the token does not cover the room.
            InvalidArguments: There is no such action, or an option is missing.
        """
        return await self._joined.core.caller.request(Admin, action, options)

    # Attributes and builders

    async def set_attributes(self, /, **attributes: Any) -> None:
        """Change the attributes that others see: `set_attributes(status="busy")`; None removes one.

        Attributes are JSON values, at most 64 and 16 KiB in all. They are published again after a
        reconnect.

        Raises:
            InvalidArguments: They are invalid; nothing has changed.
        """
        await self._joined.attributes.set_attributes(attributes)

    async def offer_builders(self, builders: Iterable[BuilderInfo]) -> None:
        """Publish which toolkits this participant builds on request; replaces the previous list.

        Raises:
            InvalidArguments: One is not a `BuilderInfo`, a name or a JSON Schema is invalid, or
                there are too many.
        """
        await self._joined.attributes.offer_builders(builders)

    # Events

    def events(self, topics: Iterable[str] = EVENT_TOPICS) -> EventStream[RoomEvent]:
        """Return a stream of the events of the room from now on, as far as they are granted.

        `async with room.events() as events:` has subscribed once the block runs, and
        `async for event in events:` yields the events since then. Without the block it subscribes
        when the first event is asked for. The stream ends when this participant leaves the room. If
        its connection ends for good otherwise, reading raises the reason, as `closed` does.

        Events of toolkits need the grant `use_tools`, of participants `presence`, and messages
        `messaging`.

        Args:
            topics: Only these: "toolkits", "participants", "messages". A subscriber of messages is
                counted by `send` and `broadcast`.

        Entering or first reading the stream raises:
            PermissionDenied: None of the topics is granted.
            InvalidArguments: There is no such topic.
        """
        return EventStream(lambda: self._joined.subscriptions.events(topics))

    def watch_calls(self) -> EventStream[CallReport]:
        """Return a stream of reports about all calls in the room from now on.

        It is entered and read as `events()` is. The first report comes at once and has the number
        of calls in flight; at most ten follow per second. While there is a reader, each call costs
        the server a little more.

        Entering or first reading the stream raises:
            PermissionDenied: The grant `observe` is missing.
        """
        return EventStream(lambda: self._joined.subscriptions.calls())

    # From the connection

    def _on_end(self) -> None:
        if self._parts is not None:
            self._parts.registrations.end()
            self._parts.subscriptions.end(self._parts.connection.error)

    async def _on_connected(self, welcome: Welcome) -> None:
        parts = self._joined
        is_return = parts.welcome is not None
        parts.welcome = welcome
        self._full_name = self.me.full_name
        parts.subscriptions.facts = welcome.facts
        if not is_return:
            return
        deadline_at = parts.core.loop.time() + REPLY_TIMEOUT_S
        await parts.attributes.replay(deadline_at)
        await parts.registrations.replay(deadline_at, parts.runner.definitions)
        await parts.subscriptions.replay(deadline_at)
        await parts.registrations.retry_unregister()


def _caller(
    locked: LockFile | str | os.PathLike[str] | Literal[False] | None,
    settings: RoomSettings,
    link: ReconnectingConnection,
    table: PendingRequests,
    tracing: Tracing,
) -> Caller:
    """Make the caller of a client, with its lock file. Raises ValueError if that is not valid."""
    chosen = settings.lock if locked is None else locked
    if chosen is None or chosen is False:
        return Caller(link, table, tracing)
    from toolbus.room.lock_file import LockFile
    from toolbus.room.locked_caller import LockedCaller

    lock = chosen if isinstance(chosen, LockFile) else LockFile.load(chosen)
    return LockedCaller(link, table, tracing, lock)


def _checked_wait(seconds: Any) -> float:
    """Return how long calls wait for a host. Raises ValueError if it is not a time."""
    try:
        return waiting_seconds(seconds)
    except InvalidArguments as error:
        raise ValueError(error.message) from None


def _lose(connection: Connection, calls: ConnectionCalls, renewal: TokenRenewal) -> None:
    calls.lose(connection)
    renewal.stop_on(connection)


def _on_notice(notice: Notice, renewal: TokenRenewal, registrations: Registrations) -> None:
    renewal.on_notice(notice)
    registrations.on_notice(notice)
