"""What nodes tell each other of participants and the toolkits that they host, as bytes.

Pure. A participant's fact says everything that other nodes need to answer for it: identity, grants,
attributes, offers. What is told is compared by its bytes. What comes may be from anybody who writes
to Redis, or from a node of another release: what cannot be read raises `ValueError`.
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

from toolbus.errors import RoomException
from toolbus.grants import ApiScope
from toolbus.wire import ParticipantId, pack_body, unpack_body
from toolbus_server.definition import Definition, KnownDefinition
from toolbus_server.flights import Offer
from toolbus_server.room_view import Generation, Identity, Member, Toolkit

__all__ = [
    "Change",
    "Snapshot",
    "Told",
    "hosted_facts",
    "member_facts",
    "name_key",
    "offer_facts",
    "owner_key",
    "place_held_by",
    "place_of",
    "read_fact",
    "read_hosted",
    "read_kept",
    "read_member",
    "read_news",
    "up_change",
]

Change: TypeAlias = list[Any]
"""As `tell.lua` takes it: what, which place, which epoch, and more."""
# Who hosts a thousand toolkits says something of each whenever one of them changes.
_hosted: WeakKeyDictionary[Generation, tuple[frozenset[str], bytes]] = WeakKeyDictionary()


def place_of(identity: Identity, instance: str) -> bytes:
    """Name what a newer connection of the same instance takes over; 16 bytes."""
    return _digest(*identity, instance)


def place_held_by(member: Member) -> bytes:
    """Name the place of a participant; 16 bytes.

    Where its node is told to stop it stands aside: the place is free for its next connection.
    """
    if member.is_parting:
        return _digest(*member.identity, member.instance, str(member.epoch))
    return place_of(member.identity, member.instance)


def _digest(*parts: str) -> bytes:
    return blake2b("\0".join(parts).encode(), digest_size=16).digest()


def owner_key(identity: Identity) -> bytes:
    """Name an identity; 16 bytes."""
    return _digest(*identity)


def name_key(owner: Identity, name: str, public: bool) -> bytes:
    """Name what a toolkit's hosts have together: one for each public name, or owner and name."""
    return b"+" + name.encode() if public else b"-" + owner_key(owner) + name.encode()


def member_facts(member: Member, *, reads_chunks: bool) -> bytes:
    """Pack what others are to know of a participant."""
    return pack_body(
        [
            member.id,
            member.identity.issuer,
            member.identity.name,
            member.role,
            member.instance,
            member.epoch,
            member.scope.to_claims(),
            member.jti,
            member.since,
            member.is_draining,
            reads_chunks,
            member.listens,
            member.attributes,
            list(member.offers.values()),
            member.is_parting,
            member.watches,
            member.issued_at,
        ]
    )


def read_news(data: bytes) -> tuple[str, int, str, list[Any]]:
    """Read news of a room: which, its version, who wrote it, the changes. Raises `ValueError`."""
    match _unpacked(data):
        case [bytes() as room, int() as version, bytes() as writer, list() as changes] if all(
            map(_is_change, changes)
        ):
            return room.decode(), version, writer.decode(), changes
    raise ValueError("it is neither a parcel nor news")


def _is_change(change: Any) -> bool:
    """Whether a change of a room is one of those that `tell.lua` makes."""
    match change:
        case (
            [b"in", bytes(), int(), bytes(), *_]
            | [b"out", bytes(), int(), _, *_]
            | [b"aside", bytes(), int(), bytes(), bytes(), *_]
            | [b"up", bytes(), int(), bytes(), bytes(), _, int(), bytes(), *_]
            | [b"down", bytes(), int(), bytes(), *_]
        ):
            return True
    return False


def read_fact(packed: bytes) -> Any:
    """Read what Redis has of a participant, a toolkit or a name; None where that is no fact."""
    try:
        return _unpacked(packed)
    except ValueError:
        return None


def _unpacked(data: bytes) -> Any:
    """Read what a script packed: all text in it is bytes. Raises `ValueError`."""
    try:
        return msgpack.unpackb(data, raw=True)
    except TypeError as error:  # a key that no map can have
        raise ValueError(str(error)) from error


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (TypeError, LookupError, AttributeError, RoomException) as error:
        raise ValueError(f"it is not what nodes tell: {error}") from error


@_reading()
def read_member(packed: bytes) -> tuple[Member, bool]:
    """Read a participant of another node; with whether it takes files in pieces.

    Raises `ValueError`.
    """
    fields: list[Any] = unpack_body(packed, binary=True)
    claims: dict[str, Any] = fields[6]
    member = Member(
        id=ParticipantId(fields[0]),
        identity=Identity(fields[1], fields[2]),
        role=fields[3],
        instance=fields[4],
        epoch=fields[5],
        scope=ApiScope.from_claims(claims),
        jti=fields[7],
    )
    member.since, member.is_draining = fields[8], fields[9]
    member.listens = fields[11]
    member.attributes = fields[12]
    member.offers = {pack_body(each): each for each in fields[13]}
    member.is_parting, member.watches, member.issued_at = fields[14:17]
    return member, fields[10]


def hosted_facts(toolkit: Toolkit, generation: Generation) -> bytes:
    """Pack what one host says of a toolkit; once, as long as it is so."""
    shared_with, facts = _hosted.get(generation, (None, b""))
    if shared_with != generation.shared_with:
        shared_with = generation.shared_with
        offer = Offer(toolkit.name, toolkit.public, shared_with, generation.definition)
        facts = offer_facts(toolkit.owner, offer)
        _hosted[generation] = shared_with, facts
    return facts


def offer_facts(owner: Identity, offer: Offer) -> bytes:
    """Pack what a participant offers to host."""
    definition = offer.definition
    manifest = pack_body(definition.manifest.model_dump(mode="json", exclude_defaults=True))
    shared = sorted(offer.shared_with)
    return pack_body([offer.name, offer.public, shared, definition.digest, manifest, *owner])


@_reading()
def read_hosted(packed: bytes) -> Offer:
    """Read what a host at another node says of a toolkit. Raises `ValueError`."""
    fields: list[Any] = unpack_body(packed, binary=True)
    name, public, shared, digest, manifest = fields[:5]
    return Offer(name, public, frozenset(shared), _definition(name, digest, manifest))


@_reading()
def read_kept(number: int, packed: bytes) -> tuple[Identity, bool, Generation]:
    """Read what the last host said of a toolkit whose name is kept: owner, whether public, what.

    Raises `ValueError`.
    """
    offer, fields = read_hosted(packed), unpack_body(packed, binary=True)
    kept = Generation(number, offer.definition, shared_with=offer.shared_with)
    return Identity(*fields[5:7]), offer.public, kept


@lru_cache(maxsize=256)
def _definition(name: str, digest: str, manifest: bytes) -> Definition:
    """Keep a definition once for all hosts that have it."""
    return KnownDefinition(name, digest, manifest)


def up_change(
    member: Member, place: bytes, key: bytes, digest: str, number: int, facts: bytes
) -> Change:
    """Say that a participant hosts a toolkit; a number of 0 claims no generation."""
    return ["up", place, member.epoch, key, owner_key(member.identity), digest, number, facts]


@dataclass(slots=True)
class Told:
    """What the others know of a participant of this node."""

    epoch: int
    facts: bytes = b""
    hosted: dict[bytes, bytes] = field(default_factory=dict)
    """Facts of toolkits, by the key of the name."""


class Snapshot(NamedTuple):
    """A room as it stands in Redis."""

    own: dict[bytes, Told]
    """What this node has told, by place."""
    members: dict[bytes, list[Any]]
    """Of the others: node, epoch and facts, by place."""
    hosted: dict[tuple[bytes, bytes], list[Any]]
    """What those host, by place and name; with the generation's number and the facts at the end."""
    kept: dict[bytes, list[Any]]
    """Names that nobody serves: until when, by the clock of Redis in ms, number and facts."""
    unread: list[bytes]
    """What is no fact as nodes tell them, by its key."""

    @classmethod
    def of(cls, me: str, facts: dict[bytes, list[Any]]) -> Snapshot:
        """Sort the facts of a room, by their keys."""
        snapshot = cls({}, {}, {}, {}, [])
        for key, fact in facts.items():
            place, name = key[1:17], key[18:]
            match key[:1], fact:
                case b"k", [int(), int(), bytes()]:
                    snapshot.kept[key[1:]] = fact
                case b"m", [bytes() as node, int(), bytes(), list()]:
                    if node == me.encode():
                        told = snapshot.own.setdefault(place, Told(fact[1]))
                        told.facts = fact[2]
                    else:
                        snapshot.members[place] = fact
                case b"t", [bytes() as node, int(), bytes(), int(), bytes()]:
                    if node == me.encode():
                        told = snapshot.own.setdefault(place, Told(fact[1]))
                        told.hosted[name] = fact[4]
                    else:
                        snapshot.hosted[place, name] = fact
                case _:
                    snapshot.unread.append(key)
        return snapshot
