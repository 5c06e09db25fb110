"""What one connection is told of its room, for all its readers together.

The server knows one subscription of a connection; here it is made of what the readers want, and
made again when the connection has come back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from toolbus.call_news import CallNews
from toolbus.calls import Caller
from toolbus.errors import InvalidArguments, PermissionDenied, RoomException
from toolbus.room_events import EventQueue, RoomEvent, granted_topics, topic_of
from toolbus.wire import Event, Subscribe

__all__ = ["EVENT_TOPICS", "Subscriptions"]

T = TypeVar("T")
_logger = logging.getLogger(__name__)
_ANSWER_S = 10.0
_CALLS = "calls"
EVENT_TOPICS: frozenset[str] = frozenset({"toolkits", "participants", "messages"})
"""What events are of; calls are read in another way."""


class Subscriptions:
    """The readers of one connection.

    Args:
        caller: Asks the server.
        loop: Its clock is used.
        is_ready: Whether the server can be asked now.
    """

    def __init__(
        self, caller: Caller, loop: asyncio.AbstractEventLoop, is_ready: Callable[[], bool]
    ) -> None:
        self._caller = caller
        self._loop = loop
        self._is_ready = is_ready
        self._readers: set[EventQueue[RoomEvent]] = set()
        self._watchers: set[EventQueue[CallNews]] = set()
        self._topics: list[str] | None = []
        """What the server tells now; None where it may have been told, and has not answered."""
        self._changing = asyncio.Lock()
        self._has_gap = False
        self.facts: Mapping[str, Any] = {}
        """Those of the last welcome: what may be heard of."""

    @asynccontextmanager
    async def events(self, topics: Collection[str]) -> AsyncIterator[EventQueue[RoomEvent]]:
        """Read what happens, as far as it may be heard of.

        Raises:
            InvalidArguments: There is no such topic.
            PermissionDenied: None of them may be heard of.
        """
        if isinstance(topics, str) or not EVENT_TOPICS.issuperset(topics) or not topics:
            raise InvalidArguments(f"topics are among {', '.join(sorted(EVENT_TOPICS))}")
        queue: EventQueue[RoomEvent] = EventQueue(topics, lambda _: RoomEvent("missed"))
        async with self._reading(self._readers, queue):
            yield queue

    @asynccontextmanager
    async def calls(self) -> AsyncIterator[EventQueue[CallNews]]:
        """Read what becomes of calls.

        Raises:
            PermissionDenied: The grant is missing; `at_end` raises it where that became so.
        """
        queue: EventQueue[CallNews] = EventQueue(
            [_CALLS], lambda news: replace(news, has_gap=True), at_end=self._check_calls
        )
        async with self._reading(self._watchers, queue):
            yield queue

    def _check_calls(self) -> None:
        """Raise PermissionDenied if a newer token does not let calls be observed any more."""
        if not self._may_watch():
            raise PermissionDenied("no grant to hear of calls (observe)")

    @asynccontextmanager
    async def _reading(
        self, group: set[EventQueue[T]], queue: EventQueue[T]
    ) -> AsyncIterator[None]:
        try:
            async with self._changing:
                group.add(queue)
                await self._tell_server(self._caller.request)
            yield
        finally:
            group.discard(queue)
            if self._is_ready() and self._has_surplus():
                await self._want_less()

    def _has_surplus(self) -> bool:
        """Whether the server tells, or may tell, what nobody reads; more is asked for by others."""
        return self._topics is None or not set(self._topics) <= set(self._wanted())

    async def _want_less(self) -> None:
        deadline_at = self._loop.time() + _ANSWER_S
        with suppress(RoomException):
            async with self._changing:
                await self._tell_server(self._caller.ask, deadline_at=deadline_at)

    async def _tell_server(self, ask: Callable[..., Any], **options: Any) -> None:
        """Ask for what is wanted now, if that is not what is told already."""
        topics = self._wanted()
        if topics == self._topics:
            return
        before = set(self._topics or ())
        readers = [each for each in self._readers if each.topics & before]
        try:
            await ask(Subscribe, topics, **options)
        except BaseException as error:
            if not isinstance(error, RoomException) or error.executed != "no":
                self._topics = None  # else nothing has changed
            raise
        self._topics = topics
        for each in readers:  # what the server held back for the subscription before is not told
            each.put(RoomEvent("missed"))

    def _wanted(self) -> list[str]:
        wanted: set[str] = set()
        for topics in self._asked_for():
            # Where a reader may hear of nothing the server is asked all the same, and says so.
            wanted |= topics & self._granted() or topics
        return sorted(wanted, reverse=True)

    def _asked_for(self) -> list[frozenset[str]]:
        readers = [queue.topics for queue in self._readers]
        return [*readers, *(queue.topics for queue in self._watchers)]

    def _granted(self) -> set[str]:
        return {*granted_topics(self.facts), _CALLS}

    def _may_watch(self) -> bool:
        return bool(self.facts.get("api", {}).get("observe"))

    # What the link says

    def on_event(self, event: Event) -> None:
        """Hand an event to its readers."""
        if event.name == _CALLS:
            self._on_calls(event)
            return
        news = RoomEvent.from_wire(event)
        if news is not None:
            told = news.toolkit
            if told is not None and told.digest:  # one that is removed has none
                self._caller.affinities.note_event(told.name, told.owner, told.digest)
            topic = topic_of(news)
            for reader in self._readers:
                if topic in reader.topics:
                    reader.put(news)

    def _on_calls(self, event: Event) -> None:
        try:
            news = CallNews.from_wire(event.data)
        except (LookupError, TypeError, ValueError) as error:
            _logger.error("news of calls cannot be read: %r", error)
            return
        if self._has_gap:
            self._has_gap, news = False, replace(news, has_gap=True)
        for watcher in self._watchers:
            watcher.put(news)

    async def regrant(self, facts: Mapping[str, Any]) -> None:
        """Hear of what a newer token covers, and no longer of anything else."""
        self.facts = facts
        if self._watchers and not self._may_watch():
            self._end(self._watchers)
        if self._readers or self._watchers:
            with suppress(RoomException):  # else the next connection will do it
                async with self._changing:
                    await self._tell_server(self._caller.request)

    async def say_again(self, deadline_at: float) -> None:
        """Subscribe on the connection that is there now, and tell readers that there was a gap."""
        self._topics = []
        if self._watchers and not self._may_watch():
            self._end(self._watchers)
        if not self._readers and not self._watchers:
            return
        self._has_gap = bool(self._watchers)
        # A reader that may hear of nothing any more takes nothing from the others.
        granted = set[str]().union(*self._asked_for()) & self._granted()
        topics = sorted(granted, reverse=True) or self._wanted()
        with suppress(RoomException):
            await self._caller.ask(Subscribe, topics, deadline_at=deadline_at)
            self._topics = topics
        for reader in self._readers:
            reader.put(RoomEvent("reconnected"))

    def end(self) -> None:
        """End all reading: the room is left."""
        self._end(self._readers)
        self._end(self._watchers)

    def _end(self, group: set[EventQueue[T]]) -> None:
        for queue in group:
            queue.put(None)
        group.clear()
