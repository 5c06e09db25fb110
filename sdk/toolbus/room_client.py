"""A participant: a room that owns its connection, hosts toolkits and hears what happens.

After a lost connection it comes back by itself: what was hosted is registered again, and who
listens is told that something may have been missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self

from toolbus.calls import Caller, CallTable
from toolbus.errors import NotFound, RoomException, Unavailable
from toolbus.hosted_toolkit import HostedToolkit, OfferMistake
from toolbus.link import Link, LinkOwner
from toolbus.room import Core, Room
from toolbus.room_events import EventQueue, RoomEvent
from toolbus.runner import Runner
from toolbus.settings import RoomSettings, Token
from toolbus.telemetry import Tracing
from toolbus.toolkit import Toolkit
from toolbus.wire import (
    Cancel,
    Dispatch,
    Event,
    Failed,
    Register,
    Result,
    Subscribe,
    Unregister,
    Welcome,
    pack_body,
)

__all__ = ["RoomClient"]

_logger = logging.getLogger(__name__)
_ANSWER_S = 10.0


@dataclass(slots=True, eq=False)
class _Hosting:
    """A toolkit that is registered, and is registered again after every reconnect."""

    hosted: HostedToolkit
    manifest: bytes
    shared_with: list[str]
    generation: int | None = None


@dataclass(slots=True, eq=False)
class _Parts:
    """What a client has while it is connected."""

    core: Core
    link: Link
    table: CallTable
    runner: Runner
    welcome: Welcome | None = None
    hostings: list[_Hosting] = field(default_factory=list)
    withdrawn: set[tuple[str, bool]] = field(default_factory=set)
    """What was taken back, by name and whether public, and may still stand at the server."""
    readers: set[EventQueue] = field(default_factory=set)
    subscribing: asyncio.Lock = field(default_factory=asyncio.Lock)
    subscribed: bool = False


class RoomClient(Room):
    """A participant in a room: `async with RoomClient(url, room="lab", token=token) as room:`.

    Arguments win over `TOOLBUS_*` variables, these over the settings file. A lost connection comes
    back by itself, and what was hosted is registered again.

    Args:
        url: The server, as `ws://HOST:PORT`.
        room: The room's name; "main" unless said anywhere.
        token: The token, the path of a file that holds it, or an async function that brings one.
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
        self._choices = {
            "url": url,
            "room": room,
            "token": token,
            "name": name,
            "instance": instance,
        }
        self._tracing = tracing
        self._parts: _Parts | None = None
        self._settings: RoomSettings | None = None
        self._parent = None
        self._deadline_at = None

    async def __aenter__(self) -> Self:
        if self._parts is not None:
            raise RuntimeError("this room is entered already")
        self._settings = RoomSettings.resolve(**self._choices)  # type: ignore[arg-type]  # each by its own name
        parts = self._parts = self._make_parts(self._settings)
        self._core = parts.core
        try:
            await parts.link.start()
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
                await parts.runner.stop()
            finally:
                await self._leave(parts)

    async def _leave(self, parts: _Parts) -> None:
        try:
            await parts.link.stop()
        finally:
            parts.table.close()
            parts.runner.cancel_all()
            parts.table.lose_all()
            self._tell(parts, None)

    def _make_parts(self, settings: RoomSettings) -> _Parts:
        loop = asyncio.get_running_loop()
        tracing = self._tracing or Tracing()
        table = CallTable(loop)
        handlers: dict[type[Any], Callable[[Any], None]] = {
            Result: table.settle,
            Failed: table.settle,
            Event: self._on_event,
        }
        link = Link(settings, LinkOwner(handlers, on_up=self._on_up, on_down=self._on_down))
        core = Core(loop, Caller(link, table, tracing))
        runner = Runner(
            send=link.send,
            room_of=partial(Room, core),
            room_name=settings.room,
            tracing=tracing,
        )
        handlers[Dispatch] = runner.dispatch
        handlers[Cancel] = runner.cancel
        return _Parts(core, link, table, runner)

    @property
    def _joined(self) -> _Parts:
        if self._parts is None:
            raise Unavailable("the room is not entered", executed="no", retryable=False)
        return self._parts

    @property
    def name(self) -> str:
        """The room's name."""
        welcome = self._joined.welcome
        return welcome.room if welcome is not None else ""

    @property
    def identity(self) -> str:
        """My own name, as my token says it."""
        welcome = self._joined.welcome
        return str(welcome.facts.get("name", "")) if welcome is not None else ""

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
        is_public = getattr(toolkit, "public", True) if public is None else public
        shares = getattr(toolkit, "shared_with", ()) if shared_with is None else shared_with
        if not isinstance(is_public, bool):
            raise OfferMistake(f"toolkit {toolkit.name!r}: public is True or False")
        if not _are_texts(shares):
            raise OfferMistake(f"toolkit {toolkit.name!r}: shared_with is a list of texts")
        if is_public and shares:
            raise OfferMistake(f"toolkit {toolkit.name!r} is public: sharing is for private ones")
        manifest = pack_body(toolkit.manifest().model_dump(mode="json", exclude_defaults=True))
        hosting = _Hosting(
            parts.runner.host(toolkit, public=is_public),
            manifest,
            [str.__str__(share) for share in shares],
        )
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(parts.runner.withdraw, hosting.hosted)
            for tool in toolkit.tools:
                await tool.start(self)
                stack.push_async_callback(_stop_tool, tool)
            # Also where it fails: the server may have done it, and its answer may be lost.
            stack.push_async_callback(self._withdraw, parts, hosting)
            await self._register(parts, hosting)
            parts.hostings.append(hosting)
            yield toolkit

    async def _register(self, parts: _Parts, hosting: _Hosting) -> None:
        options = _offer_of(hosting)
        body = await parts.core.caller.request(Register, hosting.manifest, options)
        parts.withdrawn.discard(hosting.hosted.key)
        hosting.generation = body["generation"]

    async def _withdraw(self, parts: _Parts, hosting: _Hosting) -> None:
        if hosting in parts.hostings:
            parts.hostings.remove(hosting)
        if parts.link.is_ready:
            await self._unregister(parts, hosting.hosted.key)
        else:
            parts.withdrawn.add(hosting.hosted.key)
        await parts.runner.drained(hosting.hosted)

    async def _unregister(self, parts: _Parts, key: tuple[str, bool]) -> bool:
        """Take a toolkit back, or leave that for the next connection if this one fails."""
        parts.withdrawn.add(key)
        deadline_at = parts.core.loop.time() + _ANSWER_S
        try:
            await parts.core.caller.ask(Unregister, *key, deadline_at=deadline_at)
        except NotFound:
            pass  # it is hosted here no more
        except RoomException:
            return False
        parts.withdrawn.discard(key)
        return True

    # Listening

    async def events(self) -> AsyncGenerator[RoomEvent, None]:
        """Go through what happens to the toolkits you can see, from now on, until the room ends."""
        parts = self._joined
        reader = EventQueue()
        parts.readers.add(reader)
        try:
            async with parts.subscribing:
                if not parts.subscribed:
                    await parts.core.caller.request(Subscribe, ["toolkits"])
                    parts.subscribed = True
            while (event := await reader.get()) is not None:
                yield event
        finally:
            parts.readers.discard(reader)
            if not parts.readers and parts.link.is_ready:
                parts.subscribed = False
                deadline_at = parts.core.loop.time() + _ANSWER_S
                with contextlib.suppress(RoomException):
                    await parts.core.caller.ask(Subscribe, [], deadline_at=deadline_at)

    def _tell(self, parts: _Parts, event: RoomEvent | None) -> None:
        for reader in parts.readers:
            reader.put(event)

    # What the link says

    def _on_event(self, event: Event) -> None:
        news = RoomEvent.from_wire(event)
        if self._parts is not None and news is not None:
            self._tell(self._parts, news)

    async def _on_up(self, welcome: Welcome) -> None:
        parts = self._joined
        is_return = parts.welcome is not None
        parts.welcome = welcome
        if not is_return:
            return
        parts.subscribed = False
        deadline_at = parts.core.loop.time() + _ANSWER_S
        for hosting in list(parts.hostings):
            if hosting in parts.hostings:  # it may be withdrawn while others are registered
                await self._register_again(parts, hosting, deadline_at)
        if parts.readers:
            with contextlib.suppress(RoomException):
                await parts.core.caller.ask(Subscribe, ["toolkits"], deadline_at=deadline_at)
                parts.subscribed = True
            self._tell(parts, RoomEvent("reconnected"))
        # The server gives a new connection all that the one before it hosted.
        for key in list(parts.withdrawn):
            await self._unregister(parts, key)

    async def _register_again(self, parts: _Parts, hosting: _Hosting, deadline_at: float) -> None:
        options = _offer_of(hosting)
        try:
            body = await parts.core.caller.ask(
                Register, hosting.manifest, options, deadline_at=deadline_at
            )
            hosting.generation = body["generation"]
        except RoomException as error:
            _logger.error("toolkit %s is hosted no more: %s", hosting.hosted.toolkit.name, error)

    def _on_down(self) -> None:
        parts = self._parts
        if parts is not None:
            parts.runner.cancel_all()
            parts.table.lose_all()


def _are_texts(values: Any) -> bool:
    is_list = isinstance(values, Collection) and not isinstance(values, str | bytes)
    return is_list and all(isinstance(value, str) for value in values)


def _offer_of(hosting: _Hosting) -> dict[str, Any]:
    options: dict[str, Any] = {"public": hosting.hosted.public}
    if hosting.shared_with:
        options["shared_with"] = hosting.shared_with
    if hosting.generation is not None:
        options["generation"] = hosting.generation
    return options


async def _stop_tool(tool: Any) -> None:
    """End a tool; one that fails to end keeps nothing else from ending."""
    try:
        await tool.stop()
    except Exception:
        _logger.exception("tool %s raised while it was stopped", tool.name)
