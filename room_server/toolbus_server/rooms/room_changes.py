"""The changes of one room: in batches for its subscribers, and as notices to its hosts.

A change costs the same whatever the number of subscribers: it is noted once. After some 20 ms the
changes become one batch, which all subscribers share; each reads it in a slice of its own.

Hosts are notified of which definition of a toolkit serves, each by the node that it is connected
to. The node at which a host registers logs what that changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

from toolbus.bounded_logging import bounded_logger
from toolbus.wire import Notice, encode
from toolbus_server.calls.router import RoutedRoom
from toolbus_server.registry.models import Generation, Identity, Participant, RegisteredToolkit
from toolbus_server.registry.room_state import RegistrationResult, ToolkitChange
from toolbus_server.rooms.scheduling import FairScheduler

__all__ = [
    "COALESCE_S",
    "ChangeBatch",
    "RoomChanges",
    "ServingNotices",
    "definition_summary",
    "log_registration",
]

COALESCE_S = 0.02
"""How long changes are collected at least before they are sent (PROTOCOL.md, EVENT-3)."""
_logger = bounded_logger(__name__)


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
    """Numbers the changes of a room, and collects them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, publish: Callable[[ChangeBatch], None]
    ) -> None:
        self._loop = loop
        self._publish = publish
        self._open = ChangeBatch(0)
        self._published: Callable[[], ChangeBatch | None] = lambda: None
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
        published = self._published()
        if published is not None and published.unread > 0:
            self._schedule()  # so that at most two batches exist, however slow it goes
            return
        batch, self._open = self._open, ChangeBatch(0)
        batch.end = self.latest
        self._published = ref(batch)  # its subscribers keep it until they have read it
        self._publish(batch)


def definition_summary(generation: Generation) -> dict[str, Any]:
    """Describe a definition to those that may know of it."""
    definition = generation.definition
    return {"version": definition.version, "digest": definition.digest}


class ServingNotices:
    """Notifies the hosts of one room that are connected to this node.

    Each gets the state at the moment at which its notice is sent, so that no notice is outdated.
    """

    def __init__(self, room: RoutedRoom, scheduler: FairScheduler) -> None:
        self._room = room
        self._scheduler = scheduler
        self._due: dict[tuple[RegisteredToolkit, Participant], Generation] = {}
        self._is_sending = False

    def add(self, change: ToolkitChange) -> None:
        """Notify the hosts whose definition serves from now on, or no longer serves."""
        if change.serving is None:
            return
        before, now, by = change.serving
        for generation in (before, now):
            for host in generation.hosts:
                if not host.is_remote and host is not by:
                    self._due[change.toolkit, host] = generation
        if self._due and not self._is_sending:
            self._is_sending = True
            self._scheduler.add(self._send_all())

    def _send_all(self) -> Iterator[None]:
        try:
            while self._due:
                toolkit, host = next(iter(self._due))
                generation = self._due.pop((toolkit, host))
                if host in generation.hosts:  # else it has left, or its registration was answered
                    data = encode(_notice(toolkit, generation))
                    self._room.connections[host.id].port.send_message(data)
                yield
        finally:
            self._is_sending = False


def _notice(toolkit: RegisteredToolkit, generation: Generation) -> Notice:
    serving = toolkit.serving
    data: dict[str, Any] = {
        "toolkit": toolkit.name,
        "public": toolkit.public,
        "serving": generation is serving,
        "generation": generation.number,
        "base": generation.base,
    }
    if generation is not serving:
        data["instead"] = definition_summary(serving)
    return Notice("serving", data)


def log_registration(
    room: str, participant: Participant, done: RegistrationResult, *, is_new: bool
) -> None:
    """Log a registration that supersedes another definition, or that joins the reserve."""
    toolkit, joined, [change] = done
    who = (participant.full_name, participant.instance)
    if change.serving is not None and change.serving.before.hosts:
        before = change.serving.before
        _logger.warning(
            "room %s: toolkit %s: %s of %r, instance %r, supersedes %s; hosts now in reserve: %d",
            *(room, toolkit.name, joined, *who, before, len(before.hosts)),
        )
    elif is_new and joined is not toolkit.serving:
        _logger.warning(
            "room %s: toolkit %s: %s of %r, instance %r, joins the reserve: %s serves; "
            "raise its version (PEP 440, such as 1.1), or host it with supersede=True "
            "(--supersede)",
            *(room, toolkit.name, joined, *who, toolkit.serving),
        )
