"""The event subscription of one connection, shared by all its readers.

A connection has one subscription at the server: the union of the topics of its readers. It is sent
again after each reconnect.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from toolbus.bounded_logging import bounded_logger
from toolbus.client.caller import REPLY_TIMEOUT_S, Caller, holds_unknown_error
from toolbus.concurrency.tasks import raise_error
from toolbus.errors import InvalidArguments, InvalidResult, PermissionDenied, RoomException
from toolbus.room.events import EVENT_TOPICS, EventQueue, RoomEvent, granted_topics, topic_of
from toolbus.wire import BadBody, Event, Subscribe

if TYPE_CHECKING:  # few programs watch calls
    from toolbus.room.calls import CallReport

__all__ = ["Subscriptions"]

T = TypeVar("T")
_logger = bounded_logger(__name__)
_CALLS = "calls"
_HOLDS = "holds"
_MAX_SENDERS = 1_024
"""Each connection has another id: in a long process they would grow without end."""


class Subscriptions:
    """The readers of one connection."""

    def __init__(
        self, caller: Caller, loop: asyncio.AbstractEventLoop, is_ready: Callable[[], bool]
    ) -> None:
        self._caller = caller
        self._loop = loop
        self._is_ready = is_ready
        self._readers: set[EventQueue[RoomEvent]] = set()
        self._watchers: set[EventQueue[CallReport]] = set()
        self._topics: list[str] | None = []
        """The topics of the current subscription; None if a request had no reply."""
        self._changing = asyncio.Lock()
        self._has_gap = False
        self._unreadable_senders: set[bytes] = set()
        self.facts: Mapping[str, Any] = {}
        """The facts of the last welcome; its grants decide which topics are allowed."""

    @asynccontextmanager
    async def events(self, topics: Iterable[str]) -> AsyncIterator[EventQueue[RoomEvent]]:
        """Read events of these topics, as far as they are granted.

        Raises:
            InvalidArguments: There is no such topic.
            PermissionDenied: None of them is granted.
            Unavailable: The server is older, and knows nothing of holds.
        """
        chosen: list[str] = []
        if isinstance(topics, Iterable) and not isinstance(topics, str):
            chosen += topics
        if not chosen or not all(
            isinstance(topic, str) and topic in EVENT_TOPICS for topic in chosen
        ):
            raise InvalidArguments(f"topics must be among {', '.join(sorted(EVENT_TOPICS))}")
        if chosen == [_HOLDS] and not self._caller.can_hold:
            raise holds_unknown_error()
        queue: EventQueue[RoomEvent] = EventQueue(chosen, lambda _: RoomEvent("missed"))
        async with self._reading(self._readers, queue):
            yield queue

    @asynccontextmanager
    async def calls(self) -> AsyncIterator[EventQueue[CallReport]]:
        """Read reports about all calls of the room.

        Raises:
            PermissionDenied: The grant `observe` is missing. If it was lost later, `at_end` raises
                it.
        """
        queue: EventQueue[CallReport] = EventQueue(
            [_CALLS], lambda report: replace(report, has_gap=True), at_end=self._check_calls
        )
        async with self._reading(self._watchers, queue):
            yield queue

    def _check_calls(self) -> None:
        """Raise PermissionDenied if a newer token no longer grants `observe`."""
        if not self._may_observe():
            raise PermissionDenied(
                "no grant to observe calls (observe)", details={"grant": "observe"}
            )

    @asynccontextmanager
    async def _reading(
        self, group: set[EventQueue[T]], queue: EventQueue[T]
    ) -> AsyncIterator[None]:
        try:
            async with self._changing:
                group.add(queue)
                await self._subscribe(self._caller.request)
            yield
        finally:
            group.discard(queue)
            # A subscription without a reply may have topics without a reader, too.
            has_surplus = self._topics is None or not set(self._topics) <= set(self._wanted())
            if has_surplus and self._is_ready():
                deadline_at = self._loop.time() + REPLY_TIMEOUT_S
                with suppress(RoomException):
                    async with self._changing:
                        await self._subscribe(self._caller.ask, deadline_at=deadline_at)

    async def _subscribe(self, ask: Callable[..., Any], **options: Any) -> None:
        """Send the subscription if it differs from the current one."""
        topics = self._wanted()
        if topics == self._topics:
            return
        before = set(self._topics or ())
        readers = [reader for reader in self._readers if reader.topics & before]
        try:
            await ask(Subscribe, topics, **options)
        except BaseException as error:
            if not isinstance(error, RoomException) or error.executed != "no":
                self._topics = None  # the server may have changed it
            raise
        self._topics = topics
        for reader in readers:  # events that the server had not sent yet are lost
            reader.put(RoomEvent("missed"))

    def _wanted(self) -> list[str]:
        wanted: set[str] = set()
        for topics in self._asked_for():
            # For a reader without any grant the server refuses the request with the right error.
            wanted |= topics & self._granted() or topics
        return sorted(self._known(wanted), reverse=True)

    def _known(self, topics: set[str]) -> set[str]:
        """Leave out what the server does not know: it would refuse all topics because of one."""
        return topics if self._caller.can_hold else topics - {_HOLDS}

    def _asked_for(self) -> list[frozenset[str]]:
        readers = [queue.topics for queue in self._readers]
        return [*readers, *(queue.topics for queue in self._watchers)]

    def _granted(self) -> set[str]:
        return {*granted_topics(self.facts), _CALLS}

    def _may_observe(self) -> bool:
        return bool(self.facts.get("api", {}).get("observe"))

    # From the connection

    def on_event(self, event: Event) -> None:
        """Hand an event to its readers."""
        if event.name == _CALLS:
            self._on_calls(event)
            return
        try:
            room_event = RoomEvent.from_wire(event)
        except BadBody as error:
            self._log_unreadable(event, error)
            return
        except InvalidResult as error:
            _logger.warning("an event of the server cannot be read: %s", error)
            return
        if room_event is not None:
            kit = room_event.toolkit
            if kit is not None and kit.digest:  # a removed toolkit has none
                for owner in {kit.owner, kit.full_owner}:
                    self._caller.affinities.record_event(kit.name, owner, kit.digest)
            topic = topic_of(room_event)
            for reader in self._readers:
                if topic in reader.topics:
                    reader.put(room_event)

    def _log_unreadable(self, event: Event, error: BadBody) -> None:
        """Log the first message of a sender that cannot be decoded; it may send any number."""
        sender = event.data["from"]
        if sender in self._unreadable_senders:
            return
        if len(self._unreadable_senders) >= _MAX_SENDERS:
            self._unreadable_senders.clear()
        self._unreadable_senders.add(sender)
        _logger.warning(
            "a message named %s cannot be decoded: %s; further ones of its sender are not logged",
            *(event.data["name"], error),
        )

    def _on_calls(self, event: Event) -> None:
        from toolbus.room.calls import CallReport

        try:
            report = CallReport.from_wire(event.data)
        except (LookupError, TypeError, ValueError) as error:
            _logger.error("a report about calls cannot be read: %r", error)
            return
        if self._has_gap:
            self._has_gap, report = False, replace(report, has_gap=True)
        for watcher in self._watchers:
            watcher.put(report)

    async def regrant(self, facts: Mapping[str, Any]) -> None:
        """Subscribe to what a newer token grants."""
        self.facts = facts
        if self._watchers and not self._may_observe():
            self._end(self._watchers)
        if self._readers or self._watchers:
            with suppress(RoomException):  # the next connection will do it
                async with self._changing:
                    await self._subscribe(self._caller.request)

    async def replay(self, deadline_at: float) -> None:
        """Subscribe on the new connection, and notify the readers that events may be missing."""
        self._topics = []
        if self._watchers and not self._may_observe():
            self._end(self._watchers)
        if not self._readers and not self._watchers:
            return
        self._has_gap = bool(self._watchers)
        # A reader without any grant must not make the request of the others fail.
        granted = self._known(set[str]().union(*self._asked_for()) & self._granted())
        topics = sorted(granted, reverse=True) or self._wanted()
        with suppress(RoomException):
            await self._caller.ask(Subscribe, topics, deadline_at=deadline_at)
            self._topics = topics
        for reader in self._readers:
            reader.put(RoomEvent("reconnected"))

    def end(self, error: RoomException | None) -> None:
        """End all readers: the participant has left the room, or `error` ended its connection."""
        self._end(self._readers, error)
        self._end(self._watchers, error)

    def _end(self, group: set[EventQueue[T]], error: RoomException | None = None) -> None:
        for queue in group:
            if error is not None:
                queue.at_end = partial(raise_error, error)
            queue.put(None)
        group.clear()
