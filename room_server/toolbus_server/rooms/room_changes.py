"""The changes of one room, collected into batches for its subscribers.

A change costs the same whatever the number of subscribers: it is noted once. After some 20 ms the
changes become one batch, which all subscribers share; each reads it in a slice of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import ref

from toolbus_server.registry.models import Identity, Participant, RegisteredToolkit

__all__ = ["COALESCE_S", "ChangeBatch", "RoomChanges"]

COALESCE_S = 0.02
"""How long changes are collected at least before they are sent (PROTOCOL.md, EVENT-3)."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class ChangeBatch:
    """What changed in a room; each participant and toolkit appears once, as a key."""

    end: int
    """The number of the last change in it."""
    participants: dict[Participant, None] = field(default_factory=dict)
    toolkits: dict[RegisteredToolkit, None] = field(default_factory=dict)
    """Those that others than their owner may see, or may have seen."""
    private: dict[Identity, dict[RegisteredToolkit, None]] = field(default_factory=dict)
    """The other toolkits, by their owner."""
    unread: int = 0
    """How many subscribers have not read it."""

    def concerns(self, reader: Identity) -> bool:
        """Whether an identity may see, or may have seen, one of the toolkits."""
        return bool(self.toolkits) or reader in self.private

    def toolkits_for(self, reader: Identity) -> list[RegisteredToolkit]:
        """Return the toolkits that an identity may see, or may have seen."""
        return [*self.toolkits, *self.private.get(reader, ())]


class RoomChanges:
    """Numbers the changes of a room, and collects them.

    Args:
        loop: For the timer.
        publish: Called with each batch.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, publish: Callable[[ChangeBatch], None]
    ) -> None:
        self._loop = loop
        self._publish = publish
        self._open = ChangeBatch(0)
        self._published: ref[ChangeBatch] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.latest = 0
        """The number of the last change."""

    def note_toolkit(self, toolkit: RegisteredToolkit, *, collect: bool) -> None:
        """Give the change of a toolkit its number, and collect it if there are subscribers."""
        self.latest += 1
        toolkit.changed_at = self.latest
        toolkit.was_shared |= bool(toolkit.serving.shared_with)
        if not collect:
            return
        if toolkit.public or toolkit.was_shared:
            self._open.toolkits[toolkit] = None
        else:
            self._open.private.setdefault(toolkit.owner, {})[toolkit] = None
        self._schedule()

    def note_participant(
        self, participant: Participant, *, was_present: bool, collect: bool
    ) -> None:
        """Give the change of a participant its number, and collect it if there are subscribers."""
        self.latest += 1
        participant.changed_at = self.latest
        if not was_present:
            participant.joined_at = self.latest
        if collect:
            self._open.participants[participant] = None
            self._schedule()

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(COALESCE_S, self._end_batch)

    def _end_batch(self) -> None:
        self._timer = None
        published = None if self._published is None else self._published()
        if published is not None and published.unread > 0:
            self._schedule()  # so that at most two batches exist, however slow it goes
            return
        batch, self._open = self._open, ChangeBatch(0)
        batch.end = self.latest
        self._published = ref(batch)  # its subscribers keep it until they have read it
        self._publish(batch)
