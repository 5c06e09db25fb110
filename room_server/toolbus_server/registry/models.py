"""The values that a room consists of: participants, toolkits and generations, reservations.

Pure: no sockets, tasks, Redis or time. `room_state` holds them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from random import Random
from typing import Any, NamedTuple

from toolbus.auth.grants import ApiScope, ToolRights
from toolbus.untrusted_text import one_line
from toolbus.wire import ParticipantId, pack_body
from toolbus_server.registry.toolkit_definition import Definition, LazyDefinition

__all__ = [
    "AFFINITY_SLOTS",
    "NO_ALIAS",
    "Generation",
    "HostChoice",
    "Identity",
    "Participant",
    "RegisteredToolkit",
    "Reservation",
    "Visibility",
    "name_between",
    "pack_builders",
    "read_name_between",
]

AFFINITY_SLOTS = 16_384
"""How many groups the affinity keys of one toolkit form; the keys of a group have one host."""
NO_ALIAS = "?"
"""Shown for an issuer that has no alias beside others; no request can name it."""
# Compiled once for all participants with the same grants.
_rights_of = lru_cache(maxsize=1024)(ToolRights)
_MAX_CACHED_RIGHTS = 4_096
"""Tools come and go under other names for as long as a participant is connected."""
_MAX_BUILDERS_BYTES = 16 * 1024
"""Bytes of `builders` in one dispatch. A token of 7 KiB has at most 5.25 KiB of patterns, so those
of three participants always fit; only connections of one identity with different tokens, and chains
of forwarding hosts, can have more."""


class Identity(NamedTuple):
    """The identity in a token: the issuer and the name, its `iss` and `sub`."""

    issuer: str
    name: str


def name_between(named: Identity, issuer: str) -> str:
    """Write an identity as nodes exchange and keep it, beside an issuer of the same record.

    A bare name is one of that issuer, so that nodes of an older version read the names of the only
    issuer. No issuer has a NUL.
    """
    return named.name if named.issuer == issuer else f"{named.issuer}\0{named.name}"


def read_name_between(text: str, issuer: str) -> Identity:
    """Read what `name_between` wrote."""
    other, nul, name = text.partition("\0")
    return Identity(other, name) if nul else Identity(issuer, text)


@lru_cache(maxsize=256)
def pack_builders(grants: tuple[tuple[str, ...], ...]) -> bytes:
    """Pack what participants may all ask a host to build, for the header of a dispatch.

    Args:
        grants: The grant `builders` of each.

    Returns:
        The packed list of lists; empty if one of them may ask for nothing, so that no builder is
        covered by all, or if together they are too large.
    """
    if not all(grants):
        return b""
    packed = pack_body([list(patterns) for patterns in grants])
    return packed if len(packed) <= _MAX_BUILDERS_BYTES else b""


@dataclass(slots=True, eq=False)
class Participant:
    """One participant: a connection with an identity, a role and compiled rights."""

    id: ParticipantId
    identity: Identity
    role: str
    instance: str
    epoch: int
    scope: ApiScope
    rooms: tuple[str, ...] = ()
    """The rooms, or patterns of rooms, in its token."""
    jti: str = ""
    """The id of its token, if the token has one."""
    issued_at: float = 0.0
    """When its token was issued: seconds since the epoch."""
    is_developer: bool = False
    """Whether its token was signed by a development key of this server."""
    rights: ToolRights = field(init=False)
    packed_info: bytes = field(init=False)
    """Its public identity, packed: id, name, role, issuer, and the alias if there is one."""
    call_header: dict[str, Any] = field(init=False)
    """The header of a dispatch of its own calls: itself, and what it may ask hosts to build."""
    alias: str = ""
    """The alias of its issuer, shown before its name; empty where the server has one issuer."""
    in_flight: int = 0
    """How many calls it runs as a host, by the server's count."""
    toolkits: list[RegisteredToolkit] = field(default_factory=list)
    """The toolkits that it hosts."""
    is_present: bool = False
    """Whether it is in its room."""
    assesses: bool = False
    """Whether it answers what its tools say about an input (PROTOCOL.md, ASSESS-1)."""
    is_draining: bool = False
    """Whether it accepts no more calls, and only finishes those that it runs."""
    receives_messages: bool = False
    """Whether it has subscribed to messages."""
    is_remote: bool = False
    """Whether it is connected to another node."""
    node: str = ""
    """The name of that node."""
    monitor_id: int = 0
    """The id of its node's call monitor if it observes calls, else 0."""
    node_is_draining: bool = False
    """Whether its node shuts down, so that it may already be connected to another node too."""
    reserves_names: bool = True
    """Whether names that only it served are reserved for its identity when it leaves."""
    since: int = 0
    """When it joined, as Unix time in ms."""
    has_expired: bool = False
    """Whether its token has expired, so that it has no grants left."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """Attributes that it published; replaced as a whole, never changed in place."""
    offers: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    """Offers of toolkits that it builds on request, by their packed form."""
    joined_at: int = 0
    """The number of its joining among the published changes of its room."""
    changed_at: int = 0
    """The number of its last published change."""
    _may_call: dict[tuple[str, str], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.apply_token(self)

    def apply_token(self, newer: Participant) -> None:
        """Take over the role, scope and rooms of a newer token of the same identity."""
        self.role, self.scope = newer.role, newer.scope
        self.rooms, self.jti, self.issued_at = newer.rooms, newer.jti, newer.issued_at
        self.has_expired, self.is_developer = newer.has_expired, newer.is_developer
        self._may_call.clear()
        self.rights = _rights_of(self.scope.agents)
        self._pack()

    def _pack(self) -> None:
        info: list[str] = [self.id, self.identity.name, self.role, self.identity.issuer]
        if self.alias:
            info.append(self.alias)
        self.packed_info = pack_body(info)
        # Made here, so that what most participants have no grant for costs their calls nothing. It
        # goes to every host: one that does not read it ignores it, and a flag of a tool or of a
        # connection would be one more fact for servers of all versions to keep.
        self.call_header = {"caller": self.packed_info}
        if builders := pack_builders((self.scope.agents.builders,)):
            self.call_header["builders"] = builders

    def set_alias(self, alias: str) -> None:
        """Show its name with another alias from now on."""
        if alias != self.alias:
            self.alias = alias
            self._pack()

    @property
    def full_name(self) -> str:
        """Its name as people see it: with the alias of its issuer, if there are several."""
        return f"{self.alias}/{self.identity.name}" if self.alias else self.identity.name

    def describe(self) -> dict[str, Any]:
        """Return its public identity, as lists, events and explanations show it."""
        info = {"id": self.id, "name": self.identity.name, "role": self.role}
        info["issuer"] = self.identity.issuer
        if self.alias:
            info["alias"] = self.alias
        return info

    def may_call(self, toolkit: str, tool: str) -> bool:
        """Whether its grants cover a tool that exists; the answer is cached."""
        known = self._may_call.get((toolkit, tool))
        if known is None:
            if len(self._may_call) >= _MAX_CACHED_RIGHTS:
                self._may_call.clear()
            known = self._may_call[toolkit, tool] = self.rights.may_call(toolkit, tool)
        return known


class HostChoice:
    """The choice among the hosts of one generation: by load, or the same for each affinity key.

    When the set changes, another one replaces it. The cost of a call does not grow with the number
    of hosts.

    Args:
        hosts: The hosts; at least one. Those at draining nodes are the last choice.
    """

    __slots__ = ("_by_slot", "_hosts", "_near")

    def __init__(self, hosts: Sequence[Participant]) -> None:
        self._hosts = [host for host in hosts if not host.node_is_draining] or list(hosts)
        self._near = [host for host in self._hosts if not host.is_remote] or self._hosts
        self._by_slot: dict[int, Participant] = {}

    def by_load(self, random: Random) -> Participant:
        """Choose, of two hosts drawn at random, the one with fewer calls; at this node if any."""
        near = self._near
        if len(near) == 1:
            return near[0]
        first, second = random.sample(near, 2)
        return first if first.in_flight <= second.in_flight else second

    def by_affinity(self, key: str) -> Participant:
        """Choose the host of an affinity key: the same one at every node, while the set lasts."""
        slot = int.from_bytes(blake2b(key.encode(), digest_size=2).digest()) % AFFINITY_SLOTS
        host = self._by_slot.get(slot)
        if host is None:
            host = max(self._hosts, key=lambda candidate: _weight(slot, candidate.instance))
            self._by_slot[slot] = host
        return host


def _weight(slot: int, instance: str) -> bytes:
    """Weigh a host for a slot: the host with the highest weight gets its calls.

    When a host leaves, only its own slots move (rendezvous hashing, Thaler and Ravishankar 1998).
    """
    return blake2b(f"{instance}\0{slot}".encode(), digest_size=8).digest()


@dataclass(slots=True, eq=False, weakref_slot=True)
class Generation:
    """The hosts of one definition of a toolkit. The highest generation that has hosts serves."""

    number: int
    """Its place in the order of arrival."""
    definition: Definition
    hosts: list[Participant] = field(default_factory=list)
    shared_with: frozenset[str] = frozenset()
    """Who else sees it while it serves, if it is private."""
    base: int = 0
    """It precedes all generations below this number; its own number if it superseded all others."""
    last_call_at: float | None = None
    """When a call last went to it, by the event loop's clock."""
    _choice: HostChoice | None = None

    @property
    def choice(self) -> HostChoice:
        """The choice among its hosts, of which there is at least one."""
        if self._choice is None:
            self._choice = HostChoice(self.hosts)
        return self._choice

    def hosts_changed(self) -> None:
        """Choose anew: a host was added, removed or replaced, or its node drains."""
        self._choice = None

    def without_manifest(self) -> Generation:
        """Return the same generation with the name, digest and version of its definition only."""
        known = self.definition
        definition = LazyDefinition(known.name, known.digest, known.version, b"")
        return Generation(self.number, definition, [], self.shared_with, self.base)

    def __str__(self) -> str:
        """Its version and digest, for logs and messages."""
        version = self.definition.version
        text = f"version {one_line(version)}" if version else "a definition without a version"
        return f"{text} (digest {self.definition.digest[:12]})"


@dataclass(slots=True, eq=False)
class Reservation:
    """A name without hosts that stays reserved for its owner for a while."""

    toolkit: RegisteredToolkit
    ended: bool = False
    """Whether the toolkit has a host again, or the name is free."""
    ends_at: float = 0.0
    """When the name is to be freed, by the clock of the room's owner."""


@dataclass(slots=True, eq=False)
class RegisteredToolkit:
    """A name that an identity serves, in one definition or, while hosts change, in several."""

    name: str
    owner: Identity
    public: bool
    generations: list[Generation] = field(default_factory=list)
    """Those that have hosts, the one that serves last; only `settle` changes it."""
    serving: Generation = field(init=False)
    """The generation that answers calls now, or that did last."""
    reservation: Reservation | None = None
    """Set while the name is reserved without a host."""
    draining: list[Participant] = field(default_factory=list)
    """Hosts that accept no more calls, and keep the name until they leave."""
    changed_at: int = 0
    """The number of its last published change among those of its room."""
    was_shared: bool = False
    """Whether others than its owner may have seen it, if it is private."""

    @property
    def is_present(self) -> bool:
        """Whether the name is taken: it has hosts or is reserved."""
        return bool(self.generations or self.draining) or self.reservation is not None

    @property
    def order(self) -> tuple[str, bool, str, str]:
        """Its sort key in lists: by name, public first, then by owner."""
        return (self.name, not self.public, self.owner.name, self.owner.issuer)

    @property
    def reserve(self) -> list[Generation]:
        """The generations in reserve, the next to serve first."""
        return self.generations[-2::-1]

    def is_visible_to(self, participant: Participant, at: Generation | None = None) -> bool:
        """Whether this participant may know that the toolkit, or a generation of it, exists."""
        if self.public or self.owner == participant.identity:
            return True
        return _is_shared((at or self.serving).shared_with, self.owner, participant)

    @property
    def visibility(self) -> Visibility:
        """Who may know of it now."""
        return Visibility(self.public, self.owner, self.serving.shared_with)


class Visibility(NamedTuple):
    """Who may know of a toolkit, apart from the toolkit: its definition may have megabytes."""

    public: bool
    owner: Identity
    shared_with: frozenset[str]

    def is_visible_to(self, participant: Participant) -> bool:
        """Whether this participant may know that the toolkit exists, or did."""
        if self.public or self.owner == participant.identity:
            return True
        return _is_shared(self.shared_with, self.owner, participant)


def _is_shared(shared: frozenset[str], owner: Identity, participant: Participant) -> bool:
    if not shared:
        return False
    name = name_between(participant.identity, owner.issuer)
    return "*" in shared or f"name:{name}" in shared or f"role:{participant.role}" in shared
