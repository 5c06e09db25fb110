"""The facts of one room: who is there, which toolkits there are, who serves them.

Pure: it knows nothing of sockets, tasks, Redis or time. An operation changes the facts and returns
what changed; telling anybody is the caller's work. What a participant may not see is, in every
answer, what is not there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple

from toolbus.errors import AlreadyExists, NoHost, NotFound, PermissionDenied
from toolbus.grants import ApiScope, ToolRights
from toolbus.wire import ParticipantId, ToolManifest, pack_body
from toolbus_server.definition import Definition

__all__ = [
    "Change",
    "Generation",
    "Identity",
    "Member",
    "Registration",
    "RoomState",
    "Toolkit",
]

_MAX_REMEMBERED_RIGHTS = 4_096
# What a host claims beyond it counts for its own toolkit alone: no claim uses the numbers up.
_MAX_REMEMBERED_GENERATION = 2**40
_MAX_REMEMBERED_OWNERS = 65_536


class Identity(NamedTuple):
    """Who a token speaks of: the issuer and the name, as in its `iss` and `sub`."""

    issuer: str
    name: str


@dataclass(slots=True, eq=False)
class Member:
    """One participant: a connection with an identity, a role and compiled rights."""

    id: ParticipantId
    identity: Identity
    role: str
    instance: str
    epoch: int
    scope: ApiScope
    rights: ToolRights = field(init=False)
    card: bytes = field(init=False)
    """What others are told of it, packed: id, name, role, issuer."""
    inflight: int = 0
    """Calls it runs as a host, by the server's count."""
    toolkits: list[Toolkit] = field(default_factory=list)
    """What it hosts."""
    _may_call: dict[tuple[str, str], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rights = ToolRights(self.scope.agents)
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


@dataclass(slots=True, eq=False)
class Generation:
    """The hosts of one definition of a toolkit. The highest generation that has hosts serves."""

    number: int
    definition: Definition
    hosts: list[Member] = field(default_factory=list)
    shared_with: frozenset[str] = frozenset()
    """Who else sees it while it serves, where it is private."""


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

    def settle(self, generations: list[Generation]) -> None:
        """Keep the generations that have hosts, and let the newest of them serve."""
        self.generations = [each for each in generations if each.hosts]
        if self.generations:
            self.serving = self.generations[-1]

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


class Change(NamedTuple):
    """What happened to a toolkit, for those who can see it."""

    what: Literal["toolkit_added", "toolkit_changed", "toolkit_removed"]
    toolkit: Toolkit


class Registration(NamedTuple):
    """What came of a registration."""

    toolkit: Toolkit
    generation: Generation
    changes: list[Change]


class RoomState:
    """The facts of one room.

    Args:
        name: The room's name.
        random: Draws the two hosts between which the one with fewer calls is chosen.
    """

    def __init__(self, name: str, random: Random) -> None:
        self.name = name
        self._random = random
        self._members: dict[ParticipantId, Member] = {}
        self._public: dict[str, Toolkit] = {}
        self._private: dict[tuple[Identity, str], Toolkit] = {}
        self._owned: dict[tuple[str, str], list[Toolkit]] = {}
        self._order: list[tuple[str, bool, str, str]] = []
        self._by_order: dict[tuple[str, bool, str, str], Toolkit] = {}
        self._last_generations: dict[Identity, int] = {}

    # Who is there

    @property
    def is_empty(self) -> bool:
        """Whether nobody is left, so that the room may go."""
        return not self._members

    def join(self, member: Member) -> None:
        """Let a participant in."""
        self._members[member.id] = member

    def leave(self, member: Member) -> list[Change]:
        """Let a participant go, with the toolkits that only it served."""
        self._members.pop(member.id, None)
        return [
            change for toolkit in list(member.toolkits) for change in self._drop(toolkit, member)
        ]

    def succeed(self, old: Member, new: Member) -> list[Change]:
        """Put a newer connection of one instance in the place of the older one, in one step."""
        self.join(new)
        for toolkit in old.toolkits:
            for generation in toolkit.generations:
                if old in generation.hosts:
                    generation.hosts[generation.hosts.index(old)] = new
        new.toolkits, old.toolkits = old.toolkits, []
        changes = self.leave(old)
        for toolkit in list(new.toolkits):
            if not new.rights.may_register(toolkit.name, toolkit.public):
                changes += self._drop(toolkit, new)
        return changes

    def named(self, name: str) -> Member | None:
        """Find a participant by the name in its token; of several instances, the first."""
        return next((m for m in self._members.values() if m.identity.name == name), None)

    # Which toolkits there are

    def register(
        self,
        member: Member,
        definition: Definition,
        *,
        public: bool,
        shared_with: frozenset[str] = frozenset(),
        generation: int | None = None,
    ) -> Registration:
        """Let a participant serve a toolkit.

        Args:
            member: The host.
            definition: What it serves.
            public: Whether the whole room sees it.
            shared_with: Who else sees a private one.
            generation: What the host was told at an earlier registration of this definition, here
                or by a server that this one follows; else the definition gets a new one.

        Raises:
            AlreadyExists: The public name belongs to another identity.
        """
        name = definition.manifest.name
        existing = self._existing(member.identity, name, public)
        toolkit = existing or Toolkit(name, member.identity, public)
        joined = self._join_generation(toolkit, member, definition, generation)
        joined.shared_with = shared_with
        if existing is not None:
            return Registration(toolkit, joined, [Change("toolkit_changed", toolkit)])
        self._add(toolkit)
        return Registration(toolkit, joined, [Change("toolkit_added", toolkit)])

    def _existing(self, identity: Identity, name: str, public: bool) -> Toolkit | None:
        if not public:
            return self._private.get((identity, name))
        toolkit = self._public.get(name)
        if toolkit is not None and toolkit.owner != identity:
            raise AlreadyExists(f"toolkit {name} belongs to another participant")
        return toolkit

    def _join_generation(
        self, toolkit: Toolkit, member: Member, definition: Definition, number: int | None
    ) -> Generation:
        """Put a host where its definition is served, or open a generation for it."""
        generations = self._without(toolkit, member)
        for generation in generations:
            if generation.definition.digest == definition.digest:
                break
        else:
            number = self._number_of(toolkit.owner, number, generations)
            generation = Generation(number, definition)
            insort(generations, generation, key=lambda each: each.number)
        generation.hosts.append(member)
        toolkit.settle(generations)
        if toolkit not in member.toolkits:
            member.toolkits.append(toolkit)
        return generation

    def _number_of(self, owner: Identity, claimed: int | None, others: list[Generation]) -> int:
        """Choose a new generation's number; each owner has a count that tells of no other's."""
        last = self._last_generations.pop(owner, 0)
        number = claimed or max(last, others[-1].number if others else 0) + 1
        is_kept = last < number < _MAX_REMEMBERED_GENERATION
        self._last_generations[owner] = number if is_kept else last
        if len(self._last_generations) > _MAX_REMEMBERED_OWNERS:
            del self._last_generations[next(iter(self._last_generations))]
        return number

    def _without(self, toolkit: Toolkit, member: Member) -> list[Generation]:
        """Take a host out of the generations of a toolkit; some of them may be left without one."""
        for generation in toolkit.generations:
            if member in generation.hosts:
                generation.hosts.remove(member)
        return list(toolkit.generations)

    def unregister(self, member: Member, name: str, *, public: bool) -> list[Change]:
        """Take back what a participant serves; the name is free at once when nobody else does.

        Raises:
            NotFound: This participant serves no such toolkit.
        """
        for toolkit in member.toolkits:
            if toolkit.name == name and toolkit.public == public:
                return self._drop(toolkit, member)
        raise NotFound(f"you host no {'public' if public else 'private'} toolkit {name}")

    def _drop(self, toolkit: Toolkit, member: Member) -> list[Change]:
        toolkit.settle(self._without(toolkit, member))
        member.toolkits.remove(toolkit)
        if toolkit.generations:
            return [Change("toolkit_changed", toolkit)]
        # What is gone keeps its last definition, so that its end can be told to those who saw it.
        self._remove(toolkit)
        return [Change("toolkit_removed", toolkit)]

    def _add(self, toolkit: Toolkit) -> None:
        if toolkit.public:
            self._public[toolkit.name] = toolkit
        else:
            self._private[toolkit.owner, toolkit.name] = toolkit
        self._owned.setdefault((toolkit.owner.name, toolkit.name), []).append(toolkit)
        self._by_order[toolkit.order] = toolkit
        insort(self._order, toolkit.order)

    def _remove(self, toolkit: Toolkit) -> None:
        if toolkit.public:
            del self._public[toolkit.name]
        else:
            del self._private[toolkit.owner, toolkit.name]
        owned = self._owned[toolkit.owner.name, toolkit.name]
        owned.remove(toolkit)
        if not owned:
            del self._owned[toolkit.owner.name, toolkit.name]
        del self._by_order[toolkit.order]
        del self._order[bisect_left(self._order, toolkit.order)]

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
            toolkit = self._private.get((member.identity, name)) or self._public.get(name)
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

    def choose_host(self, toolkit: Toolkit) -> Member:
        """Choose who runs the next call: of two hosts drawn at random, the one with fewer calls.

        Raises:
            NoHost: Nobody serves the toolkit now.
        """
        hosts = toolkit.serving.hosts
        if len(hosts) > 1:
            first, second = self._random.sample(hosts, 2)
            return first if first.inflight <= second.inflight else second
        if not hosts:
            raise NoHost(f"nobody serves {toolkit.name} now", retry_after_s=0.2)
        return hosts[0]

    def listing(
        self, member: Member, *, after: tuple[str, bool, str, str] | None, search: str | None
    ) -> Iterator[Toolkit]:
        """Go through the toolkits a participant can see, in order, from behind `after`."""
        start = 0 if after is None else bisect_right(self._order, after)
        wanted = (search or "").casefold()
        for order in self._order[start:]:
            toolkit = self._by_order[order]
            if toolkit.is_listed_for(member) and (not wanted or _matches(toolkit, member, wanted)):
                yield toolkit


def _matches(toolkit: Toolkit, member: Member, wanted: str) -> bool:
    manifest = toolkit.serving.definition.manifest
    words = [manifest.name, manifest.title, manifest.description]
    for tool in toolkit.tools_seen_by(member):
        words += (tool.name, tool.title, tool.description)
    return any(wanted in word.casefold() for word in words)
