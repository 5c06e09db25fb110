"""The participants and toolkits of a room, kept current from one list and the events after it.

Pure: requesting the lists is done elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from toolbus.room.events import RoomEvent
from toolbus.room.participants import ParticipantInfo
from toolbus.room.toolkit_proxy import DefinitionInfo, ToolkitInfo

__all__ = ["Roster", "Superseded"]

_MAX_SUPERSEDED = 100
"""How many are kept between two snapshots: the first ones."""


class Superseded(NamedTuple):
    """A definition that took over from another one."""

    toolkit: ToolkitInfo
    before: DefinitionInfo


class Roster:
    """Participants and toolkits, as far as the token permits to see them."""

    def __init__(self) -> None:
        self._participants: dict[str, str] | None = None
        """Names by connection id; None without permission."""
        self._toolkits: dict[tuple[str, str, bool], int] | None = None
        """Number of hosts by name, owner and visibility; None without permission."""
        self._superseded: list[Superseded] = []

    def set_participants(self, listed: Iterable[ParticipantInfo] | None) -> None:
        """Replace all participants; None without permission."""
        self._participants = (
            None if listed is None else {info.id: info.full_name for info in listed}
        )

    def set_toolkits(self, listed: Iterable[ToolkitInfo] | None) -> None:
        """Replace all toolkits; None without permission."""
        self._toolkits = None if listed is None else {_key(info): info.hosts for info in listed}

    def apply(self, event: RoomEvent) -> None:
        """Apply an event: a participant or toolkit was added, changed or removed."""
        participant, toolkit = event.participant, event.toolkit
        if participant is not None and self._participants is not None:
            if event.name == "participant_left":
                self._participants.pop(participant.id, None)
            else:
                self._participants[participant.id] = participant.full_name
        if toolkit is not None and event.superseded is not None:
            if len(self._superseded) < _MAX_SUPERSEDED:
                self._superseded.append(Superseded(toolkit, event.superseded))
        if toolkit is not None and self._toolkits is not None:
            if event.name == "toolkit_removed":
                self._toolkits.pop(_key(toolkit), None)
            else:
                self._toolkits[_key(toolkit)] = toolkit.hosts

    def take_superseded(self) -> list[Superseded]:
        """Return the definitions that took over since the last time."""
        taken, self._superseded = self._superseded, []
        return taken

    def participants(self) -> list[tuple[str, int]] | None:
        """Return names with the number of their connections; None without permission."""
        return (
            None
            if self._participants is None
            else sorted(Counter(self._participants.values()).items())
        )

    def toolkits(self) -> list[tuple[str, str, int]] | None:
        """Return toolkits with owner and number of hosts; None without permission."""
        if self._toolkits is None:
            return None
        return sorted((name, owner, hosts) for (name, owner, _), hosts in self._toolkits.items())


def _key(toolkit: ToolkitInfo) -> tuple[str, str, bool]:
    return toolkit.name, toolkit.full_owner, toolkit.public
