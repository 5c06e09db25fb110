"""A room as it stands: who is there, what a name means to whom, who serves a toolkit.

This is what every call asks, so it stands in one place; what changes a room is in `room_state`.
Pure: it knows nothing of sockets, tasks, Redis or time. What a participant may not see is, in every
answer, what is not there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from random import Random
from typing import Any, NamedTuple

from toolbus.errors import DefinitionChanged, NoHost, NotFound, PermissionDenied
from toolbus.grants import AgentsGrant, ApiScope, ToolRights
from toolbus.wire import ParticipantId, ToolManifest, pack_body
from toolbus_server.definition import Definition
from toolbus_server.request_options import bad_option

__all__ = [
    "Generation",
    "Identity",
    "Member",
    "Reservation",
    "RoomView",
    "Toolkit",
    "affinity_of",
    "check_pin",
    "check_principal",
    "words_of",
]

_MAX_REMEMBERED_RIGHTS = 4_096
_NO_HOST_RETRY_S = 0.2
_MAX_AFFINITY_CHARS = 128


class Identity(NamedTuple):
    """Who a token speaks of: the issuer and the name, as in its `iss` and `sub`."""

    issuer: str
    name: str


@lru_cache(maxsize=1024)
def _rights_of(agents: AgentsGrant) -> ToolRights:
    """Compile rights once for all who have the same."""
    return ToolRights(agents)


@dataclass(slots=True, eq=False)
class Member:
    """One participant: a connection with an identity, a role and compiled rights."""

    id: ParticipantId
    identity: Identity
    role: str
    instance: str
    epoch: int
    scope: ApiScope
    rooms: tuple[str, ...] = ()
    """The rooms, or patterns of rooms, that its token names."""
    jti: str = ""
    """Its token's own id, where it has one."""
    issued_at: float = 0.0
    """When its token was issued: seconds since the epoch."""
    rights: ToolRights = field(init=False)
    card: bytes = field(init=False)
    """What others are told of it, packed: id, name, role, issuer."""
    inflight: int = 0
    """Calls it runs as a host, by the server's count."""
    toolkits: list[Toolkit] = field(default_factory=list)
    """What it hosts."""
    is_there: bool = False
    """Whether it sits in its room."""
    is_draining: bool = False
    """Whether it takes no more calls, and only finishes those that it runs."""
    listens: bool = False
    """Whether it takes messages."""
    is_far: bool = False
    """Whether it is connected to another node."""
    node: str = ""
    """The name of that node."""
    watches: int = 0
    """Which watch of the room's calls it is told of, by its node's number for that; 0 for none."""
    is_parting: bool = False
    """Whether its node is told to stop, so that it may be at another node too by now."""
    keeps_names: bool = True
    """Whether names that only it served are kept for its identity when it has gone."""
    since: int = 0
    """When it came, as Unix time in ms."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """What it says of itself; replaced as a whole, never changed."""
    offers: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    """The toolkits that it builds on request, by their packed form."""
    _may_call: dict[tuple[str, str], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.revise(self)

    def revise(self, newer: Member) -> None:
        """Take over what a newer token of the same identity says."""
        self.role, self.scope = newer.role, newer.scope
        self.rooms, self.jti, self.issued_at = newer.rooms, newer.jti, newer.issued_at
        self._may_call.clear()
        self.rights = _rights_of(self.scope.agents)
        self.card = pack_body([self.id, self.identity.name, self.role, self.identity.issuer])

    def may_call(self, toolkit: str, tool: str) -> bool:
        """Whether its grants cover a tool that exists; the answer is remembered."""
        known = self._may_call.get((toolkit, tool))
        if known is None:
            if len(self._may_call) >= _MAX_REMEMBERED_RIGHTS:
                self._may_call.clear()
            known = self._may_call[toolkit, tool] = self.rights.may_call(toolkit, tool)
        return known

    def may_read(self, toolkit: str, tool: str) -> bool:
        """Whether it may read a tool's description: who may call it may, and who may list it."""
        return self.rights.may_see(toolkit, tool) or self.rights.may_call(toolkit, tool)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Generation:
    """The hosts of one definition of a toolkit. The highest generation that has hosts serves."""

    number: int
    definition: Definition
    hosts: list[Member] = field(default_factory=list)
    shared_with: frozenset[str] = frozenset()
    """Who else sees it while it serves, where it is private."""


@dataclass(slots=True, eq=False)
class Reservation:
    """A name that is kept for its owner for a while although nobody serves it."""

    toolkit: Toolkit
    ended: bool = False
    """Whether somebody serves the toolkit again, or the name is free."""


@dataclass(slots=True, eq=False)
class Toolkit:
    """A name that an identity serves, in one definition or, while hosts change, in several."""

    name: str
    owner: Identity
    public: bool
    generations: list[Generation] = field(default_factory=list)
    """Those that have hosts, the newest last; only `settle` changes it."""
    serving: Generation = field(init=False)
    """The generation that answers calls now, or that did last."""
    reservation: Reservation | None = None
    """Set while the name is kept although nobody serves it."""
    draining: list[Member] = field(default_factory=list)
    """Hosts that take no more calls: they serve no more, and keep the name until they leave."""

    def settle(self, generations: list[Generation]) -> None:
        """Keep the generations that have hosts, and let the newest of them serve."""
        self.generations = [each for each in generations if each.hosts]
        if self.generations:
            self.serving = self.generations[-1]

    @property
    def is_there(self) -> bool:
        """Whether the name is taken: somebody serves it, or it is kept."""
        return bool(self.generations or self.draining) or self.reservation is not None

    @property
    def order(self) -> tuple[str, bool, str, str]:
        """Where it stands in lists: by name, public first, then by owner."""
        return (self.name, not self.public, self.owner.name, self.owner.issuer)

    def is_visible_to(self, member: Member) -> bool:
        """Whether the toolkit exists at all, as far as this participant can tell."""
        if self.public or self.owner == member.identity:
            return True
        shared = self.serving.shared_with
        return bool(shared) and (
            "*" in shared
            or f"name:{member.identity.name}" in shared
            or f"role:{member.role}" in shared
        )

    def tools_seen_by(self, member: Member) -> list[ToolManifest]:
        """Choose the tools that a list shows to this participant."""
        tools = self.serving.definition.manifest.tools
        return [tool for tool in tools if member.rights.may_see(self.name, tool.name)]

    def is_listed_for(self, member: Member) -> bool:
        """Whether a list or an event may name it to this participant."""
        if not self.is_visible_to(member):
            return False
        tools = self.serving.definition.manifest.tools
        return not tools or any(member.rights.may_see(self.name, tool.name) for tool in tools)


def affinity_of(tool: ToolManifest, caller: Member, given: str | None) -> str | None:
    """Find the text that keeps a call with others at one host; None where any host will do.

    Args:
        tool: Says whether calls of one caller, or with one value of an argument, stay together.
        caller: Who calls.
        given: What the caller made of that argument: the server reads none.

    Raises:
        InvalidArguments: It is missing or too long; `details.argument` names the argument.
    """
    if tool.affinity == "none":
        return None
    if tool.affinity == "caller":
        return "\0".join(caller.identity)
    if given is None or not 0 < len(given) <= _MAX_AFFINITY_CHARS:
        message = f"is 1 to {_MAX_AFFINITY_CHARS} characters, made of the argument {tool.affinity}"
        raise bad_option("affinity", message, argument=tool.affinity)
    return given


def check_principal(principal: Member, toolkit: Toolkit, tool: str) -> None:
    """On another's behalf only what that other may do, so that no host can be used as a deputy.

    Raises PermissionDenied.
    """
    if not principal.may_call(toolkit.name, tool):
        raise PermissionDenied(f"{principal.identity.name} has no grant for {toolkit.name}.{tool}")


def check_pin(toolkit: Toolkit, pin: str) -> None:
    """Let a call go to the definition that it names alone. Raises DefinitionChanged."""
    digest = toolkit.serving.definition.digest
    if pin != digest:
        raise DefinitionChanged(
            f"toolkit {toolkit.name} is not the one you pinned", details={"digest": digest}
        )


def _weight(affinity: str, instance: str) -> bytes:
    """Rank a host for a text: the highest of all hosts' weights wins.

    Only what was led to a host that is gone is led elsewhere (rendezvous hashing, Thaler and
    Ravishankar 1998).
    """
    return blake2b(f"{instance}\0{affinity}".encode(), digest_size=8).digest()


class RoomView:
    """The facts of one room, and what they mean to a participant.

    Args:
        name: The room's name.
        random: Draws the two hosts between which the one with fewer calls is chosen.
    """

    def __init__(self, name: str, random: Random) -> None:
        self.name = name
        self._random = random
        self._members: dict[ParticipantId, Member] = {}
        self._by_name: dict[str, dict[ParticipantId, Member]] = {}
        self._people: list[tuple[str, ParticipantId]] = []
        self.far_members = 0
        """How many participants are connected to other nodes."""
        self.parting_members = 0
        """How many are at nodes that are told to stop."""
        self._public: dict[str, Toolkit] = {}
        self._private: dict[tuple[Identity, str], Toolkit] = {}
        self._owned: dict[tuple[str, str], list[Toolkit]] = {}
        self._order: list[tuple[str, bool, str, str]] = []
        self._by_order: dict[tuple[str, bool, str, str], Toolkit] = {}

    @property
    def toolkit_count(self) -> int:
        """How many toolkits are there, those without a host among them."""
        return len(self._order)

    @property
    def is_empty(self) -> bool:
        """Whether nobody is left, so that the room may go."""
        return not self._members

    def named(self, name: str) -> Member | None:
        """Find a participant by the name in its token; of several instances, the first.

        None also where two identities have that name: nobody can tell which of them is meant.
        """
        members = self._by_name.get(name, {}).values()
        first = next(iter(members), None)
        is_one = all(first.identity == each.identity for each in members) if first else False
        return first if is_one else None

    def all_named(self, name: str) -> list[Member]:
        """Find all participants of a name, of whatever issuer."""
        return list(self._by_name.get(name, {}).values())

    def is_told_elsewhere(self, member: Member) -> bool:
        """Whether messages for it go to the connection that it has at another node by now."""
        return member.is_parting and any(
            each.listens and not each.is_parting and each.instance == member.instance
            for each in self._by_name.get(member.identity.name, {}).values()
            if each.identity == member.identity
        )

    def people(self, after: tuple[str, str] | None) -> Iterator[Member]:
        """Go through the participants, by name, then by id, from behind `after`."""
        start = 0 if after is None else bisect_right(self._people, after)
        for _, member_id in self._people[start:]:
            yield self._members[member_id]

    # What a name means

    def resolve(self, member: Member, name: str, participant: str | None = None) -> Toolkit:
        """Find the toolkit that a name means to this participant.

        Args:
            member: Who asks.
            name: The toolkit's name. Alone it means the asker's own private toolkit, else the
                public one.
            participant: An owner's name: then only that owner's toolkits count, private ones first.

        Raises:
            NotFound: There is none, or none that the asker may know of.
        """
        if participant is None:
            own = self._private.get((member.identity, name)) if self._private else None
            toolkit = own or self._public.get(name)
        else:
            toolkit = self._owned_by(member, name, participant)
        if toolkit is None:
            raise NotFound(f"toolkit {name[:64]} not found")
        return toolkit

    def _owned_by(self, member: Member, name: str, participant: str) -> Toolkit | None:
        owned = self._owned.get((participant, name), ())
        seen = (toolkit for toolkit in owned if toolkit.is_visible_to(member))
        return min(seen, key=lambda toolkit: toolkit.public, default=None)

    def tool(self, member: Member, toolkit: Toolkit, name: str) -> ToolManifest:
        """Find a tool that this participant may call.

        Raises:
            NotFound: The toolkit has no such tool.
            PermissionDenied: It has, and the participant's grants do not cover it.
        """
        tool = toolkit.serving.definition.tools.get(name)
        if tool is None:
            raise NotFound(f"tool {toolkit.name}.{name[:64]} not found")
        if not member.may_call(toolkit.name, name):
            raise PermissionDenied(f"no grant to call {toolkit.name}.{name}")
        return tool

    def choose_host(self, toolkit: Toolkit, affinity: str | None = None) -> Member:
        """Choose who runs the next call.

        Of two hosts drawn at random it is the one with fewer calls, of this node where it has any;
        with an affinity, the one that this text leads to for as long as it serves, here and at any
        other server. Those whose node is told to stop come last.

        Raises:
            NoHost: Nobody serves the toolkit now.
        """
        hosts = toolkit.serving.hosts
        if not hosts:
            raise NoHost(f"nobody serves {toolkit.name} now", retry_after_s=_NO_HOST_RETRY_S)
        if len(hosts) == 1:
            return hosts[0]
        if self.parting_members:
            hosts = [host for host in hosts if not host.is_parting] or hosts
        if affinity is not None:
            return max(hosts, key=lambda host: _weight(affinity, host.instance))
        if self.far_members:
            hosts = [host for host in hosts if not host.is_far] or hosts
        if len(hosts) == 1:
            return hosts[0]
        first, second = self._random.sample(hosts, 2)
        return first if first.inflight <= second.inflight else second

    def listing(
        self, member: Member, *, after: tuple[str, bool, str, str] | None
    ) -> Iterator[Toolkit]:
        """Go through the toolkits a participant can see, in order, from behind `after`."""
        start = 0 if after is None else bisect_right(self._order, after)
        for order in self._order[start:]:
            toolkit = self._by_order[order]
            if toolkit.is_listed_for(member):
                yield toolkit


def words_of(toolkit: Toolkit, member: Member) -> list[str]:
    """Give what a search looks at: names, titles and descriptions, as far as it may be seen."""
    manifest = toolkit.serving.definition.manifest
    words = [manifest.name, manifest.title, manifest.description]
    for tool in toolkit.tools_seen_by(member):
        words += (tool.name, tool.title, tool.description)
    return words
