"""Limits how many bytes of manifests the participants and identities keep at a server.

Equal definitions of several hosts in a room are kept once, and count once for their identity.
"""

from __future__ import annotations

from weakref import ref

from toolbus.errors import QuotaExceeded
from toolbus_server import identity_usage
from toolbus_server.calls.call_state import Offer
from toolbus_server.identity_usage import IdentityUsage, IdentityUsages
from toolbus_server.registry.models import Generation, Identity, Participant, RegisteredToolkit

__all__ = ["MAX_PARTICIPANT_BYTES", "ManifestQuota"]

MAX_PARTICIPANT_BYTES = 16 * 1024 * 1024
"""Bytes of the manifests that one participant hosts, and again of those it waits to register."""


class ManifestQuota:
    """Counts the manifests of all rooms.

    Args:
        usages: What each identity uses.
    """

    def __init__(self, usages: IdentityUsages) -> None:
        self._usages = usages
        self._counted: dict[ref[Generation], tuple[IdentityUsage, int]] = {}

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
        if any(
            generation.definition.digest == offer.definition.digest for generation in generations
        ):
            return
        ending = (generation for generation in generations if generation.hosts == [participant])
        freed = sum(len(generation.definition.packed) for generation in ending)
        limit = identity_usage.MAX_MANIFEST_BYTES
        if self._usages.of(participant.identity).manifest_bytes + size - freed > limit:
            message = f"the manifests of one identity have at most {limit} bytes: unregister some"
            raise QuotaExceeded(message)

    def add(self, identity: Identity, generation: Generation) -> None:
        """Count a generation for as long as its room keeps it."""
        key = ref(generation, self._remove)
        if key not in self._counted:
            size, usage = len(generation.definition.packed), self._usages.of(identity)
            self._counted[key] = usage, size
            usage.manifest_bytes += size

    def _remove(self, key: ref[Generation]) -> None:
        usage, size = self._counted.pop(key)
        usage.manifest_bytes -= size


def _size_of(toolkit: RegisteredToolkit) -> int:
    """Return the size of the largest definition that a toolkit has now."""
    return max((len(generation.definition.packed) for generation in toolkit.generations), default=0)
