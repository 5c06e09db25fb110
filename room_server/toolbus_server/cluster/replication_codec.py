"""The packed form of participants and of the toolkits that they host, as nodes exchange them.

Pure. The facts of a participant contain all that other nodes need to answer for it: identity,
grants, attributes, offers. Published facts are compared by their bytes. Received bytes may come
from any writer to Redis, or from a node of another release: invalid ones raise `ValueError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import msgpack

from toolbus.auth.grants import ApiScope
from toolbus.errors import RoomException
from toolbus.wire import ParticipantId, pack_body, unpack_body
from toolbus_server.calls.call_state import Offer
from toolbus_server.registry.generations import Claim
from toolbus_server.registry.models import Generation, Identity, Participant, RegisteredToolkit
from toolbus_server.registry.tool_visibility import Steps
from toolbus_server.registry.toolkit_definition import LazyDefinition

__all__ = [
    "PackedChange",
    "PublishedFacts",
    "Snapshot",
    "name_key",
    "owner_key",
    "pack_hosted",
    "pack_offer",
    "pack_participant",
    "slot_held_by",
    "slot_of",
    "snapshot_of",
    "unpack_delta",
    "unpack_fact",
    "unpack_offer",
    "unpack_participant",
    "unpack_reserved",
    "up_change",
]

PackedChange: TypeAlias = list[Any]
"""A change as `publish_change.lua` takes it: kind, slot, epoch, and more."""
# One definition for all hosts that have the same.
_definition = lru_cache(maxsize=256)(LazyDefinition)
# A host of a thousand toolkits compares the facts of each whenever one of them changes.
_hosted: WeakKeyDictionary[Generation, tuple[frozenset[str], bytes]] = WeakKeyDictionary()


def slot_of(identity: Identity, instance: str) -> bytes:
    """Return the slot that a newer connection of the same instance takes over; 16 bytes."""
    return _digest(*identity, instance)


def slot_held_by(participant: Participant) -> bytes:
    """Return the slot of a participant; 16 bytes.

    On a draining node it has a slot of its own: the instance's slot is free for its next
    connection.
    """
    if participant.node_is_draining:
        return _digest(*participant.identity, participant.instance, str(participant.epoch))
    return slot_of(participant.identity, participant.instance)


def _digest(*parts: str) -> bytes:
    return blake2b("\0".join(parts).encode(), digest_size=16).digest()


def owner_key(identity: Identity) -> bytes:
    """Return the key of an identity; 16 bytes."""
    return _digest(*identity)


def name_key(owner: Identity, name: str, public: bool) -> bytes:
    """Return the key of a toolkit's name: of the name if public, else of owner and name."""
    if public:
        return b"+" + name.encode()
    return b"-" + owner_key(owner) + name.encode()


def pack_participant(participant: Participant, *, reads_chunks: bool) -> bytes:
    """Pack the facts of a participant by position; new ones go at the end."""
    return pack_body(
        [
            participant.id,
            participant.identity.issuer,
            participant.identity.name,
            participant.role,
            participant.instance,
            participant.epoch,
            participant.scope.to_claims(),
            participant.jti,
            participant.since,
            participant.is_draining,
            reads_chunks,
            participant.receives_messages,
            participant.attributes,
            list(participant.offers.values()),
            participant.node_is_draining,
            participant.monitor_id,
            participant.issued_at,
            participant.has_expired,
            participant.assesses,
            participant.is_developer,
        ]
    )


def unpack_delta(data: bytes) -> tuple[str, int, str, list[Any]]:
    """Unpack a delta of a room: room, version, writer, changes. Raises `ValueError`."""
    match _unpack(data):
        case [bytes() as room, int() as version, bytes() as writer, list() as changes] if all(
            map(_is_change, changes)
        ):
            return room.decode(), version, writer.decode(), changes
    raise ValueError("it is neither a batch of a node nor a delta of a room")


def _is_change(change: Any) -> bool:
    """Whether a change is one that `publish_change.lua` or `mend` in `one_room.lua` makes."""
    match change:
        case (
            [b"in", bytes(), int(), bytes(), *_]
            | [b"out", bytes(), int(), _, *_]
            | [b"aside", bytes(), int(), bytes(), bytes(), *_]
            | [b"up", bytes(), int(), bytes(), bytes(), _, int(), bytes(), int(), *_]
            | [b"down", bytes(), int(), bytes(), *_]
            | [b"reset"]
        ):
            return True
    return False


def unpack_fact(packed: bytes) -> Any:
    """Unpack a fact of Redis: a participant, toolkit or name; None for anything else."""
    try:
        return _unpack(packed)
    except ValueError:
        return None


def _unpack(data: bytes) -> Any:
    """Unpack what a script packed: all text in it is bytes. Raises `ValueError`."""
    try:
        return msgpack.unpackb(data, raw=True)
    except TypeError as error:  # a key that no map can have
        raise ValueError(str(error)) from error


@contextmanager
def _invalid_is_value_error() -> Iterator[None]:
    try:
        yield
    except (TypeError, LookupError, AttributeError, RoomException) as error:
        raise ValueError(f"it has another form than nodes write: {error}") from error


@_invalid_is_value_error()
def unpack_participant(packed: bytes) -> tuple[Participant, bool]:
    """Unpack a participant of another node, and whether it takes large files in pieces.

    Raises `ValueError`.
    """
    fields: list[Any] = unpack_body(packed, binary=True)
    claims: dict[str, Any] = fields[6]
    participant = Participant(
        id=ParticipantId(fields[0]),
        identity=Identity(fields[1], fields[2]),
        role=fields[3],
        instance=fields[4],
        epoch=fields[5],
        scope=ApiScope.from_claims(claims),
        jti=fields[7],
    )
    participant.since, participant.is_draining = fields[8], fields[9]
    participant.receives_messages = fields[11]
    participant.attributes = fields[12]
    participant.offers = {pack_body(offer): offer for offer in fields[13]}
    participant.node_is_draining, participant.monitor_id, participant.issued_at = fields[14:17]
    # Absent from nodes of an older version: what is connected there is never asked to assess.
    participant.has_expired = fields[17:18] == [True]
    participant.assesses = fields[18:19] == [True]
    participant.is_developer = fields[19:20] == [True]
    return participant, fields[10]


def pack_hosted(toolkit: RegisteredToolkit, generation: Generation) -> bytes:
    """Pack a toolkit as one host registered it; cached while it does not change."""
    shared_with, facts = _hosted.get(generation, (None, b""))
    if shared_with != generation.shared_with:
        shared_with = generation.shared_with
        offer = Offer(toolkit.name, toolkit.public, shared_with, generation.definition)
        facts = pack_offer(toolkit.owner, offer)
        _hosted[generation] = shared_with, facts
    return facts


def pack_offer(owner: Identity, offer: Offer) -> bytes:
    """Pack a toolkit that a participant offers to host."""
    definition = offer.definition
    manifest = definition.packed
    shared = sorted(offer.shared_with)
    packed = [offer.name, offer.public, shared, definition.digest, manifest, *owner]
    return pack_body([*packed, definition.version])


@_invalid_is_value_error()
def unpack_offer(packed: bytes) -> Offer:
    """Unpack a toolkit of a host at another node. Raises `ValueError`."""
    fields: list[Any] = unpack_body(packed, binary=True)
    name, public, shared, digest, manifest, _, _, version = fields[:8]
    if type(version) is not str:
        raise TypeError("a version is text")
    definition = _definition(name, digest, version, manifest)
    return Offer(name, public, frozenset(shared), definition)


@_invalid_is_value_error()
def unpack_reserved(number: int, packed: bytes) -> tuple[Identity, bool, Generation]:
    """Unpack a toolkit without hosts, whose name is reserved: owner, whether public, generation.

    Raises `ValueError`.
    """
    offer, fields = unpack_offer(packed), unpack_body(packed, binary=True)
    generation = Generation(number, offer.definition, shared_with=offer.shared_with)
    return Identity(*fields[5:7]), offer.public, generation


def up_change(
    participant: Participant, key: bytes, digest: str, claim: Claim, facts: bytes
) -> PackedChange:
    """Build the change that a participant hosts a toolkit; number 0 claims no generation."""
    slot, owner = slot_held_by(participant), owner_key(participant.identity)
    number, base = claim.number or 0, -1 if claim.base is None else claim.base
    return ["up", slot, participant.epoch, key, owner, digest, number, facts, base, claim.supersede]


@dataclass(slots=True)
class PublishedFacts:
    """What this node has published about one of its participants."""

    epoch: int
    facts: bytes = b""
    hosted: dict[bytes, bytes] = field(default_factory=dict)
    """Facts of toolkits, by the key of the name."""


class Snapshot(NamedTuple):
    """A room as stored in Redis."""

    own: dict[bytes, PublishedFacts]
    """What this node has published, by slot."""
    participants: dict[bytes, list[Any]]
    """Participants of other nodes: node, epoch and facts, by slot."""
    hosted: dict[tuple[bytes, bytes], list[Any]]
    """Their toolkits, by slot and name key; each ends with generation number and facts."""
    places: dict[bytes, dict[str, Claim]]
    """The places of the generations of each name, by name key and digest."""
    reserved: dict[bytes, list[Any]]
    """Names without hosts: reserved until when (Redis clock, ms), number and facts."""
    invalid: list[bytes]
    """Keys of facts that cannot be read."""


def snapshot_of(node_id: str, facts: dict[bytes, list[Any]]) -> Steps[Snapshot]:
    """Sort the facts of a room by kind, in steps; those of `node_id` are its own."""
    snapshot = Snapshot({}, {}, {}, {}, {}, [])
    own_node = node_id.encode()
    for key, fact in facts.items():
        slot, name = key[1:17], key[18:]
        match key[:1], fact:
            case b"n", _:
                snapshot.places[key[1:]] = _places_of(fact)
            case b"k", [int(), int(), bytes()]:
                snapshot.reserved[key[1:]] = fact
            case b"m", [bytes() as node, int(), bytes(), list()]:
                if node == own_node:
                    published = snapshot.own.setdefault(slot, PublishedFacts(fact[1]))
                    published.facts = fact[2]
                else:
                    snapshot.participants[slot] = fact
            case b"t", [bytes() as node, int(), bytes(), int(), bytes()]:
                if node == own_node:
                    published = snapshot.own.setdefault(slot, PublishedFacts(fact[1]))
                    published.hosted[name] = fact[4]
                else:
                    snapshot.hosted[slot, name] = fact
            case b"s", _:
                pass  # the seal
            case _:
                snapshot.invalid.append(key)
        yield
    return snapshot


def _places_of(record: Any) -> dict[str, Claim]:
    """Return the places in a record of `publish_change.lua`; a counter of an owner has none."""
    match record:
        case [bytes(), int(), list() as generations]:
            rows = zip(*[iter(generations)] * 4, strict=False)
            return {
                digest.decode(errors="replace"): Claim(number, base)
                for digest, number, _, base in rows
                if (type(digest), type(number), type(base)) == (bytes, int, int)
            }
    return {}
