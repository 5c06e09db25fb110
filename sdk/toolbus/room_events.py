"""News of a room, as a participant reads them.

Holds what has not been read yet, and no more than that; who subscribes, and how, is not known here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar

from toolbus.people import Message, ParticipantInfo
from toolbus.toolkit_proxy import ToolkitInfo
from toolbus.wire import BadBody, Event

__all__ = ["EventQueue", "EventStream", "RoomEvent", "granted_topics", "topic_of"]

T = TypeVar("T")
_logger = logging.getLogger(__name__)
_MAX_UNREAD = 1_024
_TOOLKIT_EVENTS = frozenset({"toolkit_added", "toolkit_changed", "toolkit_removed"})
_PARTICIPANT_EVENTS = frozenset({"participant_joined", "participant_changed", "participant_left"})
_MESSAGE = "message"


def granted_topics(facts: Mapping[str, Any]) -> list[str]:
    """Say what a participant may hear of, by the facts of its welcome."""
    api = facts.get("api", {})
    grants = {
        "toolkits": api.get("agents", {}).get("use_tools"),
        "participants": api.get("presence"),
        "messages": api.get("messaging"),
    }
    return [topic for topic, is_granted in grants.items() if is_granted]


@dataclass(frozen=True, slots=True)
class RoomEvent:
    """Something that happened in the room."""

    name: str
    """"toolkit_added", "toolkit_changed", "toolkit_removed"; "participant_joined",
    "participant_changed", "participant_left"; "message". "reconnected" and "missed" say that
    others may have been missed, so that a list is worth asking for again."""
    toolkit: ToolkitInfo | None = None
    """The toolkit it is about; one that is removed has no more than its name and its owner."""
    participant: ParticipantInfo | None = None
    """The participant it is about; one that has left has no attributes."""
    message: Message | None = None
    """The message, where it is one."""

    @classmethod
    def from_wire(cls, event: Event) -> RoomEvent | None:
        """Read an event; None for one that this release does not know, or cannot read."""
        if event.name in _TOOLKIT_EVENTS:
            return cls(event.name, ToolkitInfo.from_wire(event.data["toolkit"]))
        if event.name in _PARTICIPANT_EVENTS:
            info = ParticipantInfo.from_wire(event.data["participant"])
            return cls(event.name, participant=info)
        if event.name != _MESSAGE:
            return None
        try:
            return cls(event.name, message=Message.from_wire(event.data))
        except BadBody as error:
            # Its body is another participant's, and the server has not looked at it.
            _logger.warning("a message named %s cannot be read: %s", event.data["name"], error)
            return None


def topic_of(event: RoomEvent) -> str:
    """Say which topic an event belongs to that the server sent."""
    if event.message is not None:
        return "messages"
    return "toolkits" if event.participant is None else "participants"


class EventQueue(Generic[T]):
    """One reader's unread events; a reader that is too far behind loses them, and is told so.

    Args:
        topics: What its reader wants to hear of.
        missed: Makes of the newest event what the reader is told in the place of all.
        at_end: Raises what the reader is told where it did not end the reading itself.
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
        """Called by the reader once it was told of the end."""
        self._missed = missed
        self._unread: asyncio.Queue[T | None] = asyncio.Queue()

    def put(self, event: T | None) -> None:
        """Add an event; None ends the reading."""
        if event is not None and self._unread.qsize() >= _MAX_UNREAD:
            while not self._unread.empty():
                self._unread.get_nowait()
            event = self._missed(event)
        self._unread.put_nowait(event)

    async def get(self) -> T | None:
        """Wait for the next event; None when there will be none."""
        return await self._unread.get()


_Opening: TypeAlias = Callable[[], AbstractAsyncContextManager[EventQueue[T]]]


class EventStream(AsyncIterator[T]):
    """News as they come, from `async with room.events() as events:` or from `async for` alone.

    Entering it subscribes: once the block runs, whatever happens is told. Without `async with` it
    subscribes when it is first asked for news, and nobody knows when that is done. It ends with the
    block, with `aclose`, when nobody refers to it any more, and with the room. Giving up waiting
    for the next news loses none of them.

    Args:
        opening: Subscribes for as long as its block runs.
    """

    def __init__(self, opening: _Opening[T]) -> None:
        # The event loop closes a generator that nobody refers to any more.
        self._held = _held(opening)
        self._changing = asyncio.Lock()
        self._queue: EventQueue[T] | None = None
        self._has_ended = False

    async def __aenter__(self) -> Self:
        """Subscribe.

        Raises:
            RoomException: What keeps it from that.
            RuntimeError: It has ended.
        """
        if self._has_ended:
            raise RuntimeError("these news have ended: ask for others")
        await self._subscribed()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def __anext__(self) -> T:
        if self._has_ended:
            raise StopAsyncIteration
        queue = self._queue or await self._subscribed()
        news = await queue.get()
        if news is not None:
            return news
        is_closed_here = self._has_ended
        await self.aclose()
        if not is_closed_here:
            queue.at_end()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the reading, also of who waits for news now; what is not read yet is dropped."""
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
