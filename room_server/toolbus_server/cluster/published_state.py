"""What this node published about its participants in a room, compared with their current state.

Pure. It computes the changes; its owner publishes them and handles the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from toolbus_server.cluster.replication_codec import (
    PackedChange,
    PublishedFacts,
    name_key,
    pack_hosted,
    pack_participant,
    slot_held_by,
    slot_of,
    up_change,
)
from toolbus_server.registry.generations import Claim
from toolbus_server.registry.models import Participant

__all__ = ["PublishedState"]


class PublishedState:
    """What other nodes know about this node's participants in a room.

    Args:
        reads_chunks: Returns whether a participant takes large files in pieces.
    """

    def __init__(self, reads_chunks: Callable[[Participant], bool]) -> None:
        self._reads_chunks = reads_chunks
        self._published: dict[bytes, PublishedFacts] = {}
        self._claimed: list[tuple[str, bytes]] = []
        """Names that were requested and are not registered here yet, with the participant."""

    def load(
        self, published: dict[bytes, PublishedFacts], present: Iterable[Participant]
    ) -> list[PackedChange]:
        """Take over the published state; return the changes for participants that have left."""
        # What Redis has counts, not what this node believes: a publication may have failed after
        # Redis applied it.
        self._published = published
        slots = set(map(slot_held_by, present))
        left = [slot for slot in published if slot not in slots]
        return [["out", slot, published.pop(slot).epoch, True] for slot in left]

    def changes_of(self, participant: Participant) -> list[PackedChange]:
        """Compare a participant with its published state; return the changes as published."""
        slot = slot_held_by(participant)
        published = self._published.get(slot)
        # A newer connection of the instance has the slot: Redis would refuse the change.
        if published is not None and published.epoch > participant.epoch:
            return []
        if not participant.is_present:
            # One that was never published, or whose slot another connection has, is not withdrawn:
            # that would remove the other one.
            if published is None or published.epoch != participant.epoch:
                return []
            del self._published[slot]
            return [["out", slot, participant.epoch, participant.reserves_names]]
        changes: list[PackedChange] = []
        if published is None or published.epoch != participant.epoch:
            published = self._published[slot] = PublishedFacts(participant.epoch)
        facts = self._pack(participant)
        if facts != published.facts:
            published.facts = facts
            changes.append(["in", slot, participant.epoch, facts])
        return changes + self._changes_of_toolkits(participant, slot, published)

    def _pack(self, participant: Participant) -> bytes:
        return pack_participant(participant, reads_chunks=self._reads_chunks(participant))

    def _changes_of_toolkits(
        self, participant: Participant, slot: bytes, published: PublishedFacts
    ) -> list[PackedChange]:
        # It gets no new calls but keeps its names until it leaves: withdrawn now, a name could be
        # free before its next host has registered.
        if participant.is_draining:
            return []
        changes: list[PackedChange] = []
        current: dict[bytes, bytes] = {}
        for toolkit in participant.toolkits:
            key = name_key(participant.identity, toolkit.name, toolkit.public)
            generation = next(
                generation for generation in toolkit.generations if participant in generation.hosts
            )
            facts = current[key] = pack_hosted(toolkit, generation)
            if published.hosted.get(key) != facts:
                claim = Claim(generation.number, generation.base)
                digest = generation.definition.digest
                changes.append(up_change(participant, key, digest, claim, facts))
        # A name that is being claimed is in Redis before the participant has the toolkit here. A
        # change published meanwhile must not take it for one that was unregistered.
        for claimant, key in self._claimed:
            if claimant == participant.id and key in published.hosted:
                current.setdefault(key, published.hosted[key])
        removed = [key for key in published.hosted if key not in current]
        published.hosted = current
        return changes + [["down", slot, participant.epoch, key, False] for key in removed]

    @contextmanager
    def claiming(self, participant: Participant, key: bytes) -> Iterator[None]:
        """Keep a name published while the block runs, which requests it."""
        claim = (participant.id, key)
        self._claimed.append(claim)
        try:
            yield
        finally:
            self._claimed.remove(claim)

    def mark_claimed(self, participant: Participant, key: bytes, facts: bytes) -> None:
        """Mark a toolkit as published before it is registered here."""
        published = self._find(slot_held_by(participant), participant.epoch)
        if published is not None:
            published.hosted[key] = facts

    def mark_lost(self, slot: bytes, epoch: int, key: bytes) -> bool:
        """Mark a name as owned by another; return whether its host is published."""
        published = self._find(slot, epoch)
        if published is not None:
            published.hosted.pop(key, None)
        return published is not None

    def _find(self, slot: bytes, epoch: int) -> PublishedFacts | None:
        """Return the published state of the connection that has, or had, a slot."""
        # By epoch too: the answer to an old connection may arrive after a newer one took the slot.
        published = self._published.get(slot)
        return published if published is not None and published.epoch == epoch else None

    def release_slot(self, participant: Participant) -> list[PackedChange]:
        """Return the change that a participant on a draining node frees its instance's slot."""
        slot = slot_of(participant.identity, participant.instance)
        published = self._find(slot, participant.epoch)
        if published is None:
            return []
        own_slot = slot_held_by(participant)
        self._published[own_slot] = self._published.pop(slot)
        published.facts = self._pack(participant)
        return [["aside", slot, participant.epoch, published.facts, own_slot]]

    def mark_unpublished(self, slot: bytes) -> None:
        """Forget what was published of a slot, so that all of it is published again."""
        self._published.pop(slot, None)
