"""Reports which definition of a toolkit serves: notices to its hosts, and lines in the log.

Each node notifies the hosts that are connected to it. The node at which a host registers logs what
that changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toolbus.bounded_logging import bounded_logger
from toolbus.wire import Notice, encode
from toolbus_server.calls.router import RoutedRoom
from toolbus_server.registry.models import Generation, Participant, RegisteredToolkit
from toolbus_server.registry.room_state import RegistrationResult, ToolkitChange
from toolbus_server.rooms.fair_scheduler import FairScheduler

__all__ = ["ServingNotices", "definition_summary", "log_registration"]

_logger = bounded_logger(__name__)


def definition_summary(generation: Generation) -> dict[str, Any]:
    """Describe a definition to those that may know of it."""
    definition = generation.definition
    return {"version": definition.version, "digest": definition.digest}


class ServingNotices:
    """Notifies the hosts of one room that are connected to this node.

    Each gets the state at the moment at which its notice is sent, so that no notice is outdated.

    Args:
        room: The room.
        scheduler: Runs the sending, in turn with the events of its subscribers.
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
    """Log a registration that supersedes another definition, or that joins the reserve.

    Args:
        room: The room's name.
        participant: The host that registered.
        done: What came of it.
        is_new: Whether it is not the return of a host that had registered before.
    """
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
