"""A member: one token in one room, its connection, and the tools that it sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import chain

from toolbus.auth.grants import ToolRights
from toolbus.bounded_logging import bounded_logger
from toolbus.concurrency.tasks import retrieve_error
from toolbus.errors import DefinitionChanged, NoHost, NotFound, PermissionDenied, Unavailable
from toolbus.room.events import EventStream, RoomEvent
from toolbus.room.room import connection_of
from toolbus.room.room_client import RoomClient
from toolbus.room.toolkit_proxy import ToolkitInfo, ToolkitProxy
from toolbus.turns.builders import run_concurrently
from toolbus.turns.turn_toolkits import DESCRIBED_AT_A_TIME
from toolbus_gateway.definitions import Definitions
from toolbus_gateway.limits import MAX_GONE_TOOLS, TOOLS_TTL_S, WAIT_FOR_SERVER_S
from toolbus_gateway.listing import ListedTool, Listing, Target
from toolbus_gateway.results import UNREACHABLE
from toolbus_gateway.tool_definitions import ToolDefinition

__all__ = ["Member"]

_logger = bounded_logger(__name__)


class Member:
    """A participant on behalf of whoever has its token.

    Its listings are kept until the room says that a toolkit has changed: then the next one that is
    asked for is read again, of which only definitions that are new here are requested.

    Args:
        room: Its connection, entered.
        definitions: Those of all members.
    """

    def __init__(self, room: RoomClient, definitions: Definitions) -> None:
        self.room = room
        self._definitions = definitions
        self._listings: dict[Target, Listing] = {}
        self._readings: dict[Target, asyncio.Task[Listing]] = {}
        """Those that read what is listed now; one that began before a change is not here."""
        self._latest: dict[Target, Listing] = {}
        """Those that were read last, also where they are not what is listed now."""
        self._gone: dict[tuple[Target, str], ListedTool] = {}
        """Tools that were listed, by their names."""
        self.searched: frozenset[Target] = frozenset()
        """The paths where a search was listed in place of the tools."""
        self._is_absence_logged = False
        self._subscribing = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self._listeners: set[Callable[[], None]] = set()
        self._ends: set[Callable[[], None]] = set()

    async def aclose(self) -> None:
        """Leave the room."""
        await self.room.aclose()
        if self._following is not None:  # it ends with the room
            await asyncio.wait([self._following])

    @property
    def has_ended(self) -> bool:
        """Whether its connection has ended for good, as where its token was revoked."""
        return connection_of(self.room).link.error is not None

    @property
    def is_connected(self) -> bool:
        """Whether its connection can be used now; one that was lost is made again."""
        return connection_of(self.room).link.check_ready()

    @property
    def tools_ttl_s(self) -> float:
        """Seconds for which a client may use a list again."""
        return TOOLS_TTL_S

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call a function at each change of the tools; the result ends that."""
        self._listeners.add(listener)
        return partial(self._listeners.discard, listener)

    def on_end(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call a function when a connection that is followed ends; the result takes it back."""
        self._ends.add(listener)
        return partial(self._ends.discard, listener)

    def known_listing(self, target: Target) -> Listing | None:
        """Return the tools under a path, if they are known now and can be called."""
        found = self._listings.get(target)
        return None if found is None or not self.is_connected else found

    async def listing(self, target: Target) -> Listing:
        """Return the tools under a path; none while there is no such toolkit.

        While the connection is away it waits for that, so that no call is made on tools that may
        have gone. Raises `RoomException` if the room cannot be asked.
        """
        if not self.is_connected:
            await self._reconnected()
        found = self._listings.get(target)
        if found is not None:
            return found
        reading = self._readings.get(target)
        if reading is None:
            # All that ask meanwhile wait for one, also for its error.
            reading = asyncio.create_task(self._read_listing(target), name="toolbus-gateway-list")
            self._readings[target] = reading
            reading.add_done_callback(retrieve_error)
        return await asyncio.shield(reading)

    async def _reconnected(self) -> None:
        try:
            async with asyncio.timeout(WAIT_FOR_SERVER_S):
                await connection_of(self.room).link.ready()
        except TimeoutError:
            raise Unavailable(UNREACHABLE, executed="no") from None

    async def _read_listing(self, target: Target) -> Listing:
        reading = asyncio.current_task()
        try:
            await self.follow()
            try:
                listing = self._definitions.listing(await self._read(target), target)
            except NotFound as error:
                if not self._is_absence_logged:
                    self._is_absence_logged = True
                    _logger.info("no tools are listed until it comes: %s", error)
                listing = Listing((), target)
                if target not in self._latest:
                    return listing  # not kept: a client may ask for any number of names
            self._keep_gone(target, listing)
            if self._readings.get(target) is reading:
                self._listings[target] = listing
            return listing
        finally:
            if self._readings.get(target) is reading:
                del self._readings[target]

    def _keep_gone(self, target: Target, listing: Listing) -> None:
        """Keep what a call needs of the tools that were listed before and are not now."""
        latest = self._latest.get(target, listing)
        self._latest[target] = listing
        if listing.is_searched:
            self.searched |= {target}
        for name in latest.tools.keys() - listing.tools.keys():
            tool = latest.tools[name]
            # Its words would be memory that `Definitions` does not count.
            definition = replace(tool.definition, body={}, about="")
            self._gone[target, name] = replace(tool, definition=definition)
        while len(self._gone) > MAX_GONE_TOOLS:
            del self._gone[next(iter(self._gone))]

    async def unlisted(self, target: Target, name: str) -> ListedTool | None:
        """Return a tool that is not listed now, and may be called: the room waits for its host.

        That is one whose toolkit is known without a host, or that was listed before: a host that
        registers again after a restart of the server has no toolkit meanwhile.

        Raises `RoomException` if the room cannot be asked.
        """
        if (gone := self._gone.get((target, name))) is not None or target.toolkit is not None:
            return gone
        return Listing(await self._read_room(hosted=False), target).tools.get(name)

    async def follow(self) -> None:
        """Follow the toolkits of the room from now on. Raises `RoomException`."""
        async with self._subscribing:
            if self._following is not None and not self._following.done():
                return
            events: EventStream[RoomEvent] | None = None
            try:
                events = await self.room.events(["toolkits"]).__aenter__()
            except PermissionDenied:  # without the grant to use tools there are none
                if self.has_ended:
                    raise
            self._following = asyncio.create_task(
                self._read_events(events), name="toolbus-gateway-follow"
            )
            self._following.add_done_callback(self._end_following)

    async def _read_events(self, events: EventStream[RoomEvent] | None) -> None:
        if events is None:
            await self.room.closed()
        else:
            async for _ in events:
                self._change()

    def _end_following(self, task: asyncio.Task[None]) -> None:
        self._forget_listings()
        for listener in list(self._ends):
            listener()
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.info("the tools of a room are not followed any more: %s", error)

    def _change(self) -> None:
        self._forget_listings()
        for listener in list(self._listeners):
            listener()

    def _forget_listings(self) -> None:
        self._listings.clear()
        self._readings.clear()

    async def _read(self, target: Target) -> list[ToolDefinition]:
        if target.toolkit is None:
            return await self._read_room(hosted=True)
        try:
            proxy = await self._described(target)
        except NoHost:
            return []
        return await self._tools_of(proxy.info, ToolRights(self.room.grants.agents), proxy)

    async def _read_room(self, *, hosted: bool) -> list[ToolDefinition]:
        """Return the tools of all toolkits that have a host now, or of all that have none."""
        rights = ToolRights(self.room.grants.agents)  # a renewed token may have others
        me = self.room.me.name, self.room.me.issuer
        if not self.room.grants.agents.use_tools:
            return []
        listed = [info async for info in self.room.toolkits() if bool(info.hosts) is hosted]
        own = {info.name for info in listed if _is_own(info, me)}
        # A bare name is one's own private toolkit, else the public one.
        usable = [
            info for info in listed if _is_own(info, me) or (info.public and info.name not in own)
        ]
        limit = asyncio.Semaphore(DESCRIBED_AT_A_TIME)

        async def tools_of(info: ToolkitInfo) -> list[ToolDefinition]:
            async with limit:
                return await self._tools_of(info, rights)

        return [*chain(*await run_concurrently([tools_of(info) for info in usable]))]

    async def _tools_of(
        self, info: ToolkitInfo, rights: ToolRights, proxy: ToolkitProxy | None = None
    ) -> list[ToolDefinition]:
        """Return the tools of a toolkit that the member may call."""

        async def describe() -> ToolkitProxy | None:
            if proxy is not None:
                return proxy
            try:
                return await self._described(Target(info.name))
            except (NotFound, NoHost, PermissionDenied):  # it has gone meanwhile
                pass
            except DefinitionChanged as error:  # it is not that of the lock file
                _logger.warning("toolkit %s is not listed: %s", info.name, error)
            return None

        tools = await self._definitions.tools_of(info, describe)
        return [tool for tool in tools if rights.may_call(tool.toolkit, tool.tool)]

    async def _described(self, target: Target) -> ToolkitProxy:
        assert target.toolkit is not None, "the path of a room has no definition"
        key = target.toolkit, target.participant
        proxy: ToolkitProxy = await self.room.toolkit(*key)
        # It is kept once for all members, not with each of them.
        connection_of(self.room).manifests.forget(key)
        return proxy


def _is_own(info: ToolkitInfo, me: tuple[str, str]) -> bool:
    return not info.public and (info.owner, info.issuer) == me
