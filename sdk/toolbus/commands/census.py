"""Who is in a room, and which toolkits, kept from one list and the events after it.

Pure: who asks for the list, and when it is worth asking again, is elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from toolbus.people import ParticipantInfo
from toolbus.room_events import RoomEvent
from toolbus.toolkit_proxy import ToolkitInfo

__all__ = ["Census"]


class Census:
    """Participants and toolkits, as far as one may hear of them."""

    def __init__(self) -> None:
        self._people: dict[str, str] | None = None
        """Names by the ids of connections; None where they may not be known."""
        self._toolkits: dict[tuple[str, str, bool], int] | None = None
        """Hosts by name, owner and whether it is public."""

    def list_people(self, people: Iterable[ParticipantInfo] | None) -> None:
        """Begin anew with a list of who is there; None where that may not be known."""
        self._people = None if people is None else {each.id: each.name for each in people}

    def list_toolkits(self, toolkits: Iterable[ToolkitInfo] | None) -> None:
        """Begin anew with a list of toolkits; None where that may not be known."""
        self._toolkits = None if toolkits is None else {_key(each): each.hosts for each in toolkits}

    def note(self, event: RoomEvent) -> None:
        """Take notice of somebody or something that came, changed or went."""
        person, toolkit = event.participant, event.toolkit
        if person is not None and self._people is not None:
            if event.name == "participant_left":
                self._people.pop(person.id, None)
            else:
                self._people[person.id] = person.name
        if toolkit is not None and self._toolkits is not None:
            if event.name == "toolkit_removed":
                self._toolkits.pop(_key(toolkit), None)
            else:
                self._toolkits[_key(toolkit)] = toolkit.hosts

    def people(self) -> list[tuple[str, int]] | None:
        """Give names with how many connections each has; None where that may not be known."""
        return None if self._people is None else sorted(Counter(self._people.values()).items())

    def toolkits(self) -> list[tuple[str, str, int]] | None:
        """Give toolkits' names with owner and hosts; None where that may not be known."""
        if self._toolkits is None:
            return None
        return sorted((name, owner, hosts) for (name, owner, _), hosts in self._toolkits.items())


def _key(toolkit: ToolkitInfo) -> tuple[str, str, bool]:
    return toolkit.name, toolkit.owner, toolkit.public
