"""Limits how many bytes of manifests the participants and identities of one room keep at a server.

Equal definitions of several hosts are kept once, and count once for their identity.
"""

from __future__ import annotations

from weakref import ref

from toolbus.errors import QuotaExceeded
from toolbus_server.calls.call_state import Offer
from toolbus_server.registry.generations import Generation
from toolbus_server.registry.models import Identity, Participant, RegisteredToolkit

__all__ = ["MAX_IDENTITY_BYTES", "MAX_PARTICIPANT_BYTES", "ManifestQuota"]

MAX_PARTICIPANT_BYTES = 16 * 1024 * 1024
"""Bytes of the manifests that one participant hosts, and again of those it waits to register."""
MAX_IDENTITY_BYTES = 64 * 1024 * 1024
"""Bytes of the different manifests that one identity hosts in a room through one server."""


class ManifestQuota:
    """Counts the manifests of one room."""

    def __init__(self) -> None:
        self._kept: dict[ref[Generation], tuple[Identity, int]] = {}
        self._totals: dict[Identity, int] = {}

    def check(
        self, participant: Participant, offer: Offer, existing: RegisteredToolkit | None
    ) -> None:
        """Refuse a registration with which the quota would be exceeded.

        Args:
            participant: The host.
            offer: What it registers.
            existing: The toolkit that the registration joins.

        Raises:
            QuotaExceeded: The participant or its identity would have too many bytes.
        """
        size = len(offer.definition.packed)
        is_replaced = existing is not None and existing in participant.toolkits
        replaced = _size_of(existing) if existing is not None and is_replaced else 0
        hosted = sum(map(_size_of, participant.toolkits)) - replaced
        if hosted + size > MAX_PARTICIPANT_BYTES:
            raise QuotaExceeded(
                f"the manifests of one participant have at most {MAX_PARTICIPANT_BYTES} bytes"
            )
        generations = [] if existing is None else existing.generations
        if any(each.definition.digest == offer.definition.digest for each in generations):
            return
        ending = (each for each in generations if each.hosts == [participant])
        freed = sum(len(each.definition.packed) for each in ending)
        if self.bytes_of(participant.identity) + size - freed > MAX_IDENTITY_BYTES:
            raise QuotaExceeded(
                f"the manifests of one identity have at most {MAX_IDENTITY_BYTES} bytes in a room"
            )

    def bytes_of(self, identity: Identity) -> int:
        """Return the bytes of the different manifests that an identity has in this room."""
        return self._totals.get(identity, 0)

    def add(self, identity: Identity, generation: Generation) -> None:
        """Count a generation for as long as the room keeps it."""
        key = ref(generation, self._remove)
        if key not in self._kept:
            size = len(generation.definition.packed)
            self._kept[key] = identity, size
            self._totals[identity] = self.bytes_of(identity) + size

    def _remove(self, key: ref[Generation]) -> None:
        identity, size = self._kept.pop(key)
        self._totals[identity] -= size
        if not self._totals[identity]:
            del self._totals[identity]


def _size_of(toolkit: RegisteredToolkit) -> int:
    """Return the size of the largest definition that a toolkit has now."""
    return max((len(each.definition.packed) for each in toolkit.generations), default=0)
