"""Reports which definition of a toolkit serves: notices to its hosts, and lines in the log.

Each node notifies the hosts that are connected to it. The node at which a host registers logs what
that changed.
"""

from __future__ import annotations

from typing import Any

from toolbus.bounded_logging import bounded_logger
from toolbus.wire import Notice, encode
from toolbus_server.calls.router import RoutedRoom
from toolbus_server.registry.generations import Generation
from toolbus_server.registry.models import Participant, RegisteredToolkit
from toolbus_server.registry.room_state import RegistrationResult, ToolkitChange

__all__ = ["definition_summary", "log_registration", "notify_hosts"]

_logger = bounded_logger(__name__)


def definition_summary(generation: Generation) -> dict[str, Any]:
    """Describe a definition to those that may know of it."""
    definition = generation.definition
    return {"version": definition.version, "digest": definition.digest}


def notify_hosts(room: RoutedRoom, change: ToolkitChange) -> None:
    """Notify the hosts of this node whose definition serves from now on, or no longer serves."""
    if change.serving is None:
        return
    before, now, by = change.serving
    for generation in (before, now):
        data = encode(_notice(change.toolkit, generation, now))
        for host in generation.hosts:
            if not host.is_remote and host is not by:
                room.connections[host.id].port.send_message(data)


def _notice(toolkit: RegisteredToolkit, generation: Generation, now: Generation) -> Notice:
    data: dict[str, Any] = {
        "toolkit": toolkit.name,
        "public": toolkit.public,
        "serving": generation is now,
        "generation": generation.number,
        "base": generation.base,
    }
    if generation is not now:
        data["instead"] = definition_summary(now)
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
    who = (participant.identity.name, participant.instance)
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
