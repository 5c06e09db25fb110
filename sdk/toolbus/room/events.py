"""The events of a room as a participant reads them: values, a bounded queue, a stream.

Nothing here subscribes; see `subscriptions`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeAlias, TypeVar

from toolbus.auth.grants import TOPIC_GRANTS
from toolbus.room.holds import HoldInfo
from toolbus.room.participants import Message, ParticipantInfo
from toolbus.room.toolkit_proxy import DefinitionInfo, ToolkitInfo
from toolbus.wire import Event

__all__ = [
    "DEFAULT_TOPICS",
    "EVENT_TOPICS",
    "EventQueue",
    "EventStream",
    "RoomEvent",
    "granted_topics",
    "topic_of",
]

T = TypeVar("T")
EVENT_TOPICS: frozenset[str] = frozenset(TOPIC_GRANTS) - {"calls"}
"""The topics of room events. Calls are a topic of their own."""
DEFAULT_TOPICS: frozenset[str] = EVENT_TOPICS - {"holds"}
"""The topics of a reader that names none. Holds are for those who decide about them."""
_MAX_UNREAD = 1_024
"""A reader that is slower than the room, or has stopped, would fill the memory of its process."""
_TOOLKIT_EVENTS = frozenset({"toolkit_added", "toolkit_changed", "toolkit_removed"})
_SUPERSEDED = "toolkit_superseded"
_PARTICIPANT_EVENTS = frozenset({"participant_joined", "participant_changed", "participant_left"})
_HOLD_EVENTS = frozenset({"hold_added", "hold_settled"})
_MESSAGE = "message"


def granted_topics(facts: Mapping[str, Any]) -> list[str]:
    """Return the topics that the grants in a welcome allow."""
    api = facts.get("api", {})
    grants = {**api, "agents.use_tools": api.get("agents", {}).get("use_tools")}
    return [
        topic
        for topic in TOPIC_GRANTS
        if topic in EVENT_TOPICS and any(map(grants.get, TOPIC_GRANTS[topic]))
    ]


@dataclass(frozen=True, slots=True)
class RoomEvent:
    """Something that happened in the room."""

    name: str
    """"toolkit_added", "toolkit_changed", "toolkit_removed", "toolkit_superseded";
    "participant_joined", "participant_changed", "participant_left"; "message"; "hold_added",
    "hold_settled". After "reconnected"
    and "missed" other events may have been lost: list again what you need."""
    toolkit: ToolkitInfo | None = None
    """The toolkit of the event; a removed one has only its name and its owner."""
    participant: ParticipantInfo | None = None
    """The participant of the event; one that has left has no attributes."""
    message: Message | None = None
    """The message of a "message" event."""
    superseded: DefinitionInfo | None = None
    """The definition that was superseded; `toolkit` has the one that serves now."""
    hold: HoldInfo | None = None
    """The approval of "hold_added" or "hold_settled", without its body."""

    @classmethod
    def from_wire(cls, event: Event) -> RoomEvent | None:
        """Decode an event; None for one that is unknown to this release.

        Raises:
            BadBody: Another participant wrote a message that cannot be decoded; the server does
                not decode it.
        """
        if event.name in _TOOLKIT_EVENTS:
            return cls(event.name, ToolkitInfo.from_wire(event.data["toolkit"]))
        if event.name == _SUPERSEDED:
            return cls(
                event.name,
                ToolkitInfo.from_wire(event.data["toolkit"]),
                superseded=DefinitionInfo.from_wire(event.data["superseded"]),
            )
        if event.name in _PARTICIPANT_EVENTS:
            info = ParticipantInfo.from_wire(event.data["participant"])
            return cls(event.name, participant=info)
        if event.name in _HOLD_EVENTS:
            return cls(event.name, hold=HoldInfo.from_wire(event.data["hold"]))
        if event.name != _MESSAGE:
            return None
        return cls(event.name, message=Message.from_wire(event.data))


def topic_of(event: RoomEvent) -> str:
    """Return the topic of an event that the server sent."""
    if event.message is not None:
        return "messages"
    if event.hold is not None:
        return "holds"
    return "toolkits" if event.participant is None else "participants"


class EventQueue(Generic[T]):
    """The unread events of one reader: at most 1,024, then all are replaced by one "missed".

    Args:
        topics: The topics of its reader.
        missed: Makes the event that replaces the lost ones from the newest of them.
        at_end: Raises the error for a reader whose stream was ended by the other side.
    """

    def __init__(
        self,
        topics: Iterable[str],
        missed: Callable[[T], T],
        *,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.topics: frozenset[str] = frozenset(topics)
        self.at_end: Callable[[], None] = at_end
        """Called by the reader after the end of the queue."""
        self._missed = missed
        # An `asyncio.Queue` takes twice the memory, of each of a program's many connections.
        self._unread: deque[T | None] = deque()
        self._has_unread = asyncio.Event()

    def put(self, event: T | None) -> None:
        """Add an event; None ends the reading."""
        if event is not None and len(self._unread) >= _MAX_UNREAD:
            self._unread.clear()
            event = self._missed(event)
        self._unread.append(event)
        self._has_unread.set()

    async def get(self) -> T | None:
        """Wait for the next event; None at the end."""
        while not self._unread:
            self._has_unread.clear()
            await self._has_unread.wait()
        return self._unread.popleft()


_Opening: TypeAlias = Callable[[], AbstractAsyncContextManager[EventQueue[T]]]


class EventStream(AsyncIterator[T]):
    """A stream of events: `async with room.events() as events:`, or `async for` alone.

    Entering it subscribes: once the block runs, no event is missed. Without `async with` it
    subscribes when the first event is asked for, at a time that the program cannot know. It ends
    with the block, with `aclose`, when it is garbage-collected, and with the room. Cancelling the
    wait for an event loses no event.
    """

    def __init__(self, opening: _Opening[T]) -> None:
        """Made by the library.

        Args:
            opening: Subscribes for as long as its block runs.
        """
        # The event loop closes a generator that is garbage-collected.
        self._held = _held(opening)
        self._changing = asyncio.Lock()
        self._queue: EventQueue[T] | None = None
        self._has_ended = False

    async def __aenter__(self) -> Self:
        """Subscribe.

        Raises:
            RoomException: The server refuses the subscription.
            RuntimeError: The stream has ended.
        """
        if self._has_ended:
            raise RuntimeError("this stream has ended: open another one")
        await self._subscribed()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def __anext__(self) -> T:
        if self._has_ended:
            raise StopAsyncIteration
        queue = self._queue or await self._subscribed()
        event = await queue.get()
        if event is not None:
            return event
        is_closed_here = self._has_ended
        await self.aclose()
        if not is_closed_here:
            queue.at_end()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the stream, also for a task that waits for an event; unread events are dropped."""
        self._has_ended = True
        async with self._changing:
            if self._queue is not None:
                self._queue.put(None)
            await self._held.aclose()

    async def _subscribed(self) -> EventQueue[T]:
        async with self._changing:
            if self._queue is None:
                try:
                    self._queue = await anext(self._held)
                except BaseException:
                    self._has_ended = True
                    raise
            return self._queue


async def _held(opening: _Opening[T]) -> AsyncGenerator[EventQueue[T], None]:
    async with opening() as queue:
        yield queue
