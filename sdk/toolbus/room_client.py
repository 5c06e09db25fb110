"""A participant: a room that owns its connection, hosts toolkits and hears what happens.

After a lost connection it comes back by itself: what was hosted is registered again, what it said
of itself is said again, and who listens is told that something may have been missed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

from msgspec.structs import replace

from toolbus.call_ends import Unentered, is_closed
from toolbus.call_news import CallNews
from toolbus.call_table import CallTable
from toolbus.calls import Caller
from toolbus.context import Participant
from toolbus.errors import Unavailable
from toolbus.grants import ApiScope
from toolbus.hosted_call import HostedCall
from toolbus.lines import Line
from toolbus.link import Link, LinkOwner
from toolbus.local_toolkit import started_tools
from toolbus.people import BuilderInfo
from toolbus.presence import Presence
from toolbus.registrations import Registration, Registrations, settled_offer
from toolbus.room import Core, Room
from toolbus.room_events import EventStream, RoomEvent
from toolbus.runner import Runner
from toolbus.settings import RoomSettings, Token
from toolbus.subscriptions import EVENT_TOPICS, Subscriptions
from toolbus.telemetry import Tracing
from toolbus.token_renewal import TokenRenewal
from toolbus.toolkit import Toolkit
from toolbus.traffic import Traffic
from toolbus.wire import Admin, Event, Notice, Welcome, pack_body

__all__ = ["RoomClient"]

_ANSWER_S = 10.0
_UNENTERED: Any = Unentered()


@dataclass(slots=True, eq=False)
class _Parts:
    """What a client has while it is connected."""

    core: Core
    link: Link
    renewal: TokenRenewal
    table: CallTable
    runner: Runner
    traffic: Traffic
    registrations: Registrations
    presence: Presence
    subscriptions: Subscriptions
    welcome: Welcome | None = None


class RoomClient(Room):
    """A participant in a room: `async with RoomClient(url, room="lab", token=token) as room:`.

    Arguments win over `TOOLBUS_*` variables, these over the settings file. A lost connection comes
    back by itself, and what was hosted is registered again. The token is renewed before it ends.

    Args:
        url: The server, as `ws://HOST:PORT`.
        room: The room's name; "main" unless said anywhere.
        token: The token, the path of a file that holds it, or an async function that brings one;
            the last two are asked again in time, so that the connection outlives its first token.
        name: The participant's name, where this process mints its own tokens.
        instance: Tells replicas of one identity apart; random unless given.
        tracing: Where spans go; the process's own OpenTelemetry set-up unless given.
    """

    __slots__ = ("_choices", "_parts", "_settings", "_tracing")

    def __init__(
        self,
        url: str | None = None,
        *,
        room: str | None = None,
        token: Token | None = None,
        name: str | None = None,
        instance: str | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._choices = {"url": url, "room": room, "token": token, "name": name}
        self._choices["instance"] = instance
        self._tracing = tracing
        self._parts: _Parts | None = None
        self._settings: RoomSettings | None = None
        self._core: Core = _UNENTERED
        self._parent = None
        self._deadline_at = None

    async def __aenter__(self) -> Self:
        if self._parts is not None:
            raise RuntimeError("this room is entered already")
        self._settings = RoomSettings.resolve(**self._choices)  # type: ignore[arg-type]  # each by its own name
        parts = self._parts = self._make_parts(self._settings)
        try:
            await parts.link.start()
            self._core = parts.core
        except BaseException:
            self._parts = None
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        parts = self._parts
        if parts is not None:
            self._parts = None
            try:
                await parts.traffic.stop()
            finally:
                await self._leave(parts)

    async def _leave(self, parts: _Parts) -> None:
        parts.renewal.stop()
        parts.registrations.end()
        try:
            await parts.link.stop()
        finally:
            parts.traffic.close()
            parts.subscriptions.end()

    def _make_parts(self, settings: RoomSettings) -> _Parts:
        loop = asyncio.get_running_loop()
        tracing = self._tracing or Tracing()
        table = CallTable(loop)
        handlers: dict[type[Any], Callable[[Any], None]] = {}
        owner = LinkOwner(
            handlers,
            on_up=self._on_up,
            on_down=lambda line: _lose(line, traffic, renewal),
            on_end=self._on_end,
            on_line=lambda line: traffic.begin(line),
            on_moved=lambda line: traffic.finish(line),
        )
        link = Link(settings, owner)
        core = Core(loop, Caller(link, table, tracing))
        runner = Runner(room_of=partial(Room, core), room_name=settings.room, tracing=tracing)
        runner.is_cut = lambda: link.is_cut
        traffic = Traffic(core, table, runner)
        registrations, presence = Registrations(core.caller, loop), Presence(core.caller)
        subscriptions = Subscriptions(core.caller, loop, lambda: link.is_ready)
        handlers[Event] = subscriptions.on_event
        renewal = TokenRenewal(settings, link, core.caller, self._on_facts)
        handlers[Notice] = renewal.on_notice
        listening = registrations, presence, subscriptions
        return _Parts(core, link, renewal, table, runner, traffic, *listening)

    @property
    def _joined(self) -> _Parts:
        if self._parts is None:
            _ = self._core.loop  # of a room that was never entered this says so
            raise is_closed()
        return self._parts

    @property
    def _welcome(self) -> Welcome:
        welcome = self._joined.welcome
        if welcome is None:
            raise Unavailable("the room is not joined", executed="no", retryable=False)
        return welcome

    @property
    def name(self) -> str:
        """The room's name."""
        return self._welcome.room

    @property
    def me(self) -> Participant:
        """Who I am, as others are told; after a reconnect the id is another one."""
        welcome = self._welcome
        facts = welcome.facts
        return Participant(welcome.participant, facts["name"], facts["role"], facts["issuer"])

    @property
    def identity(self) -> str:
        """My own name, as my token says it."""
        return self.me.name

    @property
    def grants(self) -> ApiScope:
        """What my token grants, as the server said it and as far as this release knows of it."""
        return ApiScope.known_of(self._welcome.facts["api"])

    async def closed(self) -> None:
        """Wait until the room has ended for good.

        Raises:
            RoomException: Why, unless this side ended it.
        """
        link = self._joined.link
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
    ) -> AsyncIterator[Toolkit]:
        """Host a toolkit for as long as the block runs.

        At its end the toolkit is unregistered, calls that run may finish, and its tools are
        stopped.

        Args:
            toolkit: Any toolkit.
            public: Whether the whole room sees it; as a `RemoteToolkit` says, else True.
            shared_with: Who else sees a private one: `name:x`, `role:x`, or `*`.

        Raises:
            ValueError: This connection hosts one of this name already, a public one is shared, or
                `public` or `shared_with` are no such values.
            RoomException: The server refuses the registration.
        """
        parts = self._joined
        is_public, shares = settled_offer(toolkit, public, shared_with)
        manifest = pack_body(toolkit.manifest().model_dump(mode="json", exclude_defaults=True))
        hosted = parts.runner.host(toolkit, public=is_public)
        registration = Registration(hosted, manifest, shares)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(parts.runner.withdraw, hosted)
            await stack.enter_async_context(started_tools(toolkit.tools, self))
            # Also where it fails: the server may have done it, and its answer may be lost.
            stack.push_async_callback(_withdraw, parts, registration)
            await parts.registrations.add(registration)
            yield toolkit

    async def drain(self, timeout_s: float | None = None) -> None:
        """Take no more calls, and wait until those that run here have ended.

        You stay in the room, and leave it yourself then, with the end of its block.

        Callers are led to other hosts, or told that there is none now: what is hosted keeps its
        name, also for a while after you have left, so that your next process takes over. Calls
        within those that run go on. From then on nothing can be hosted here any more.

        Args:
            timeout_s: How long that may take; what then still runs is given up. 10 unless
                `TOOLBUS_DRAIN` says more or less.
        """
        self._joined.registrations.is_draining = True
        await self._joined.traffic.drain(self._drain_s if timeout_s is None else timeout_s)

    @property
    def _drain_s(self) -> float:
        assert self._settings is not None
        return self._settings.drain_s

    @property
    def _hosted_calls(self) -> Collection[HostedCall]:
        return self._joined.runner.alive

    # My token, and others'

    async def refresh(self) -> None:
        """Read or mint the token anew now, and let its grants and its life count from here on.

        Before it ends that is done by itself, unless the token is a text.

        Who listens to events hears of what is granted now; "missed" says that it is more.

        Raises:
            PermissionDenied: It does not hold, or is another participant's; the old one stays.
        """
        await self._joined.renewal.refresh()

    async def _on_facts(self, facts: dict[str, Any]) -> None:
        parts = self._joined
        parts.welcome = replace(self._welcome, facts=facts)
        await parts.subscriptions.regrant(facts)

    async def admin(self, action: str, **options: Any) -> dict[str, Any]:
        """Look after rooms; needs the grant `admin`.

        Args:
            action: "rooms", "kick" or "revoke".
            options: `limit` and `cursor` of "rooms", which gives 1,000 at most at a time; `room`
                and `participant` of "kick"; `issuer` and `name`, or `jti`, of "revoke".

        Returns:
            `rooms` of "rooms", with the next page's `cursor` or None; else `closed`, how many.

        Raises:
            PermissionDenied: The grant is missing, or my token does not name the room.
            InvalidArguments: There is no such action, or an option is missing.
        """
        return await self._joined.core.caller.request(Admin, action, options)

    # What I say of myself

    async def set_attributes(self, /, **attributes: Any) -> None:
        """Change what others see of me: `set_attributes(status="busy")`; None takes one away.

        They are JSON values, at most 64 of them and 16 KiB; said again after a reconnect.

        Raises:
            InvalidArguments: They are not; nothing has changed.
        """
        await self._joined.presence.set_attributes(attributes)

    async def offer_builders(self, builders: Sequence[BuilderInfo]) -> None:
        """Say which toolkits I build on request, instead of what I said before.

        Raises:
            InvalidArguments: One has no toolkit's name or no JSON Schema, or they are too many.
        """
        await self._joined.presence.offer_builders(builders)

    # Listening

    def events(self, topics: Collection[str] = EVENT_TOPICS) -> EventStream[RoomEvent]:
        """Go through what happens from now on, as far as you may hear of it.

        `async with room.events() as events:` has subscribed once the block runs, and
        `async for event in events:` goes through what happened since then; without the block it
        subscribes when the first event is asked for. It ends with the room: when you leave it, and
        when you were sent away, which `closed` tells.

        News of toolkits needs the grant `use_tools`, of participants `presence`, and messages
        `messaging`.

        Args:
            topics: Only of these: "toolkits", "participants", "messages". Who asks for messages
                counts among those who took them.

        Raises:
            PermissionDenied: You may hear of none of them.
            InvalidArguments: There is no such topic.
        """
        return EventStream(lambda: self._joined.subscriptions.events(topics))

    def watch_calls(self) -> EventStream[CallNews]:
        """Go through what becomes of all calls in the room from now on, until the room ends.

        To be entered, or read at once, as `events()` is.
        The first news comes within a moment and says how many are in flight, further ones ten times
        a second at most. It is no part of `events()`, which everybody reads who waits for anything:
        as long as somebody watches calls, each of them costs the server a little more.

        Raises:
            PermissionDenied: You lack the grant `observe`.
        """
        return EventStream(lambda: self._joined.subscriptions.calls())

    # What the link says

    def _on_end(self) -> None:
        if self._parts is not None:
            self._parts.registrations.end()
            self._parts.subscriptions.end()

    async def _on_up(self, welcome: Welcome) -> None:
        parts = self._joined
        is_return = parts.welcome is not None
        parts.welcome = welcome
        parts.subscriptions.facts = welcome.facts
        if not is_return:
            return
        deadline_at = parts.core.loop.time() + _ANSWER_S
        await parts.presence.say_again(deadline_at)
        await parts.registrations.register_again(deadline_at)
        await parts.subscriptions.say_again(deadline_at)
        await parts.registrations.withdraw_again()


def _lose(line: Line, traffic: Traffic, renewal: TokenRenewal) -> None:
    traffic.lose(line)
    renewal.stop_on(line)


async def _withdraw(parts: _Parts, registration: Registration) -> None:
    """Take a toolkit back and let its calls end, unless all drain, or the room has ended them."""
    await parts.registrations.withdraw(registration, is_ready=parts.link.is_ready)
    if not parts.registrations.is_draining and parts.link.error is None:
        await parts.runner.drained(registration.hosted)
