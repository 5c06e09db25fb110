"""The state of one room: its participants, its toolkits and their hosts.

Pure: no sockets, tasks, Redis or time. An operation changes the state and returns what changed; the
caller publishes it. For a participant, what it may not see does not exist.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from math import inf
from random import Random
from typing import Literal, NamedTuple

from toolbus.errors import AlreadyExists, NotFound
from toolbus.wire import ParticipantId
from toolbus_server.registry.call_checks import no_host_error
from toolbus_server.registry.generations import NO_CLAIM, Claim, ServingChange, place, settle
from toolbus_server.registry.issuers import Issuers
from toolbus_server.registry.models import (
    Generation,
    Identity,
    Participant,
    RegisteredToolkit,
    Reservation,
)
from toolbus_server.registry.tool_visibility import ToolVisibility
from toolbus_server.registry.toolkit_definition import Definition

__all__ = ["MAX_RESERVED", "RegistrationResult", "RoomState", "ToolkitChange"]

MAX_RESERVED = 1_024
"""Reserved names of one identity; further ones are free as soon as their last host is lost."""
# A higher number that a host claims affects only its own toolkit: no host can use up the numbers.
_MAX_REMEMBERED_GENERATION = 2**40
_MAX_REMEMBERED_OWNERS = 65_536


class ToolkitChange(NamedTuple):
    """A change of a toolkit, to be published to those that can see it."""

    kind: Literal["toolkit_added", "toolkit_changed", "toolkit_removed"]
    toolkit: RegisteredToolkit
    serving: ServingChange | None = None
    """Set if another definition serves now."""


class RegistrationResult(NamedTuple):
    """The outcome of a registration."""

    toolkit: RegisteredToolkit
    generation: Generation
    changes: list[ToolkitChange]


class RoomState:
    """The state of one room, its operations, and what a participant sees of it.

    Args:
        name: The room's name.
        random: Draws the two hosts between which the one with fewer calls is chosen.
        visibility: What participants may see of toolkits; shared by all rooms of a server.
        issuers: Resolves the names of participants; shared by all rooms of a server.
    """

    def __init__(
        self,
        name: str,
        random: Random,
        visibility: ToolVisibility | None = None,
        issuers: Issuers | None = None,
    ) -> None:
        self.name = name
        self.issuers: Issuers = issuers or Issuers()
        """Resolves the names of participants."""
        self.visibility: ToolVisibility = visibility or ToolVisibility()
        """What each participant may see of its toolkits."""
        self._random = random
        self._participants: dict[ParticipantId, Participant] = {}
        self._by_identity: dict[Identity, dict[ParticipantId, Participant]] = {}
        self._sorted_participants: list[tuple[str, ParticipantId]] = []
        self.remote_count = 0
        """How many participants are connected to other nodes."""
        self.draining_node_participant_count = 0
        """How many are connected to nodes that are draining."""
        self._public: dict[str, RegisteredToolkit] = {}
        self._private: dict[tuple[Identity, str], RegisteredToolkit] = {}
        self._order: list[tuple[str, bool, str, str]] = []
        self._by_order: dict[tuple[str, bool, str, str], RegisteredToolkit] = {}
        self._counts: dict[Identity, int] = {}
        """How many toolkits each identity has."""
        self._last_generations: dict[Identity, int] = {}
        self._reserved: dict[Identity, set[RegisteredToolkit]] = {}
        self.reserved_count = 0
        """How many names are reserved."""

    # Participants

    def join(self, participant: Participant) -> None:
        """Add a participant that is not in the room yet; it hosts nothing."""
        self._participants[participant.id] = participant
        self._by_identity.setdefault(participant.identity, {})[participant.id] = participant
        insort(self._sorted_participants, (participant.identity.name, participant.id))
        participant.is_present = True
        self.remote_count += participant.is_remote
        self.draining_node_participant_count += participant.node_is_draining

    def mark_node_draining(self, participant: Participant) -> None:
        """Mark a participant as connected to a draining node."""
        self.draining_node_participant_count += (
            participant.is_present and not participant.node_is_draining
        )
        participant.node_is_draining = True
        for toolkit in participant.toolkits:
            for generation in toolkit.generations:
                generation.hosts_changed()

    def leave(self, participant: Participant, *, reserve: bool = False) -> list[ToolkitChange]:
        """Remove a participant, and the toolkits that only it served.

        With `reserve` the names of those toolkits stay reserved for its identity: each of them then
        has a `reservation`, which `release` ends.
        """
        if participant.is_present:
            self._forget(participant)
        return [
            change
            for toolkit in list(participant.toolkits)
            for change in self._drop(toolkit, participant, reserve=reserve)
        ]

    def _forget(self, participant: Participant) -> None:
        participant.is_present = False
        self.remote_count -= participant.is_remote
        self.draining_node_participant_count -= participant.node_is_draining
        identity = participant.identity
        del self._participants[participant.id]
        del self._by_identity[identity][participant.id]
        if not self._by_identity[identity]:
            del self._by_identity[identity]
        del self._sorted_participants[
            bisect_left(self._sorted_participants, (identity.name, participant.id))
        ]

    def _reserve(self, toolkit: RegisteredToolkit) -> None:
        toolkit.reservation = Reservation(toolkit)
        self._reserved.setdefault(toolkit.owner, set()).add(toolkit)
        self.reserved_count += 1

    def restore_reservation(
        self, owner: Identity, generation: Generation, *, public: bool, last_number: int = 0
    ) -> list[ToolkitChange]:
        """Restore a reservation that was made before this node held the room.

        `generation` is the last one that served, and has no hosts. `last_number` is the highest
        number of a generation that the owner had used.

        Returns:
            What changed: nothing if the name is taken, or its owner has too many reserved names.
            Else the toolkit has a `reservation`, which `release` ends.
        """
        name = generation.definition.name
        is_taken = name in self._public if public else (owner, name) in self._private
        if is_taken or len(self._reserved.get(owner, ())) >= MAX_RESERVED:
            return []
        if last_number:
            self._remember_number(owner, last_number, self.last_generation_of(owner))
        toolkit = RegisteredToolkit(name, owner, public)
        toolkit.serving = generation
        self._add(toolkit)
        self._reserve(toolkit)
        return [ToolkitChange("toolkit_added", toolkit)]

    def reservations(self) -> list[tuple[RegisteredToolkit, Reservation]]:
        """Return the toolkits whose names are reserved."""
        return [
            (toolkit, toolkit.reservation)
            for toolkits in self._reserved.values()
            for toolkit in toolkits
            if toolkit.reservation is not None
        ]

    def drop_reservations(self) -> None:
        """Free all reserved names and their manifests, in a room without participants."""
        for toolkit, reservation in self.reservations():
            self.release(reservation)
            toolkit.serving = toolkit.serving.without_manifest()

    def last_generation_of(self, owner: Identity) -> int:
        """Return the highest number of a generation that an identity has used, 0 if none."""
        return self._last_generations.get(owner, 0)

    def release_name(self, name: str, to: Identity) -> list[ToolkitChange]:
        """Free a public name that is reserved for another identity than the one that has it now."""
        toolkit = self._public.get(name)
        if toolkit is None or toolkit.reservation is None or toolkit.owner == to:
            return []
        return self.release(toolkit.reservation)

    def _end_reservation(self, toolkit: RegisteredToolkit) -> None:
        if toolkit.reservation is not None:
            toolkit.reservation.ended = True
            toolkit.reservation = None
            reserved = self._reserved[toolkit.owner]
            reserved.discard(toolkit)
            self.reserved_count -= 1
            if not reserved:
                del self._reserved[toolkit.owner]

    def release(self, reservation: Reservation) -> list[ToolkitChange]:
        """Free a name that its owner did not register again."""
        if reservation.ended:
            return []
        self._end_reservation(reservation.toolkit)
        self._remove(reservation.toolkit)
        return [ToolkitChange("toolkit_removed", reservation.toolkit)]

    def replace(self, old: Participant, new: Participant) -> list[ToolkitChange]:
        """Replace the older connection of an instance by a newer one, in one step.

        Toolkits of an older one that was draining have no host until they are registered again;
        their names stay reserved as after a loss.
        """
        self.join(new)
        new.attributes, new.offers = old.attributes, old.offers
        if old.is_draining:
            return self.leave(old, reserve=True)
        for toolkit in old.toolkits:
            for generation in toolkit.generations:
                if old in generation.hosts:
                    generation.hosts[generation.hosts.index(old)] = new
                    generation.hosts_changed()
        new.toolkits, old.toolkits = old.toolkits, []
        return self.leave(old) + self.drop_uncovered(new)

    def drop_uncovered(self, participant: Participant) -> list[ToolkitChange]:
        """Unregister the toolkits of a participant that its grants do not cover any more."""
        return [
            change
            for toolkit in list(participant.toolkits)
            if not participant.rights.may_register(toolkit.name, toolkit.public)
            for change in self._drop(toolkit, participant)
        ]

    # Toolkits

    def register(
        self,
        participant: Participant,
        definition: Definition,
        *,
        public: bool,
        shared_with: frozenset[str] = frozenset(),
        claim: Claim = NO_CLAIM,
    ) -> RegistrationResult:
        """Make a participant a host of a toolkit.

        `claim` is the place of its generation: one that an earlier registration returned, here or
        at a former server, or above all others; else a new definition gets a new one.

        Raises:
            AlreadyExists: The public name belongs to another identity.
        """
        name = definition.name
        existing = self.existing(participant.identity, name, public)
        toolkit = existing or RegisteredToolkit(name, participant.identity, public)
        joined, serving = self._join_generation(toolkit, participant, definition, claim)
        joined.shared_with = shared_with
        if participant.is_draining:  # at another node
            self._drain_host(toolkit, participant)
            serving = None  # the same generation serves as before
        self._end_reservation(toolkit)
        kind: Literal["toolkit_added", "toolkit_changed"] = "toolkit_changed"
        if existing is None:
            self._add(toolkit)
            kind = "toolkit_added"
        return RegistrationResult(toolkit, joined, [ToolkitChange(kind, toolkit, serving)])

    def existing(self, identity: Identity, name: str, public: bool) -> RegisteredToolkit | None:
        """Find the toolkit that a registration by this identity would join, if it exists.

        Raises:
            AlreadyExists: The public name belongs to another identity.
        """
        if public and name in self._public and self._public[name].owner != identity:
            raise AlreadyExists(f"toolkit {name} belongs to another participant")
        return self.own(identity, name, public)

    def own(self, identity: Identity, name: str, public: bool) -> RegisteredToolkit | None:
        """Find a toolkit that an identity owns."""
        toolkit = self._public.get(name) if public else self._private.get((identity, name))
        return toolkit if toolkit is not None and toolkit.owner == identity else None

    def conflict(
        self, participant: Participant, definition: Definition, *, public: bool, below: float = inf
    ) -> Generation | None:
        """Find the highest generation, below a number, of another definition with another host."""
        toolkit = self.own(participant.identity, definition.name, public)
        if toolkit is None:
            return None
        others = (
            generation
            for generation in reversed(toolkit.generations)
            if generation.definition.digest != definition.digest
            and generation.hosts != [participant]
            and generation.number < below
        )
        return next(others, None)

    def adopt_places(
        self, toolkit: RegisteredToolkit, places: Mapping[str, Claim]
    ) -> list[ToolkitChange]:
        """Raise the generations of a toolkit to the places, by digest, that other nodes know."""
        for generation in toolkit.generations:
            if claim := places.get(generation.definition.digest):
                known = (generation, claim, generation.number)
                generation.number, generation.base = place(toolkit.generations, *known)
        serving = settle(toolkit, toolkit.generations)
        return [] if serving is None else [ToolkitChange("toolkit_changed", toolkit, serving)]

    def _join_generation(
        self,
        toolkit: RegisteredToolkit,
        participant: Participant,
        definition: Definition,
        claim: Claim,
    ) -> tuple[Generation, ServingChange | None]:
        """Add a host to the generation of its definition, or to a new one."""
        generations = self._without(toolkit, participant)
        digest = definition.digest
        same = (known for known in generations if known.definition.digest == digest)
        generation = next(same, None)
        last = self._last_generations.pop(toolkit.owner, 0)
        number, base = place(generations, generation, claim, last)
        self._remember_number(toolkit.owner, number, last)
        if generation is None:
            generation = Generation(number, definition)
            generations.append(generation)
        generation.number, generation.base = number, base
        generation.hosts.append(participant)
        generation.hosts_changed()
        serving = settle(toolkit, generations, by=participant)
        if toolkit not in participant.toolkits:
            participant.toolkits.append(toolkit)
        return generation, serving

    def _remember_number(self, owner: Identity, number: int, last: int) -> None:
        """Remember the highest number of an owner; each has its own count, which is private."""
        if last < number < _MAX_REMEMBERED_GENERATION:
            last = number
        self._last_generations[owner] = last
        if len(self._last_generations) > _MAX_REMEMBERED_OWNERS:
            del self._last_generations[next(iter(self._last_generations))]

    def _without(self, toolkit: RegisteredToolkit, participant: Participant) -> list[Generation]:
        """Remove a host from the generations of a toolkit; some may be left without a host."""
        for generation in toolkit.generations:
            if participant in generation.hosts:
                generation.hosts.remove(participant)
                generation.hosts_changed()
        return list(toolkit.generations)

    def drain(self, participant: Participant) -> list[ToolkitChange]:
        """Send a participant no more calls; its toolkits keep their names until it leaves."""
        if participant.is_draining:
            return []
        participant.is_draining = True
        return [
            ToolkitChange("toolkit_changed", toolkit, self._drain_host(toolkit, participant))
            for toolkit in participant.toolkits
        ]

    def _drain_host(
        self, toolkit: RegisteredToolkit, participant: Participant
    ) -> ServingChange | None:
        serving = settle(toolkit, self._without(toolkit, participant))
        if participant not in toolkit.draining:
            toolkit.draining.append(participant)
        return serving

    def unregister(
        self, participant: Participant, name: str, *, public: bool
    ) -> list[ToolkitChange]:
        """Unregister a toolkit of a participant; without other hosts the name is free at once.

        Raises:
            NotFound: This participant serves no such toolkit.
        """
        for toolkit in participant.toolkits:
            if toolkit.name == name and toolkit.public == public:
                return self._drop(toolkit, participant)
        raise NotFound(f"you host no {'public' if public else 'private'} toolkit {name}")

    def _drop(
        self, toolkit: RegisteredToolkit, participant: Participant, *, reserve: bool = False
    ) -> list[ToolkitChange]:
        serving = settle(toolkit, self._without(toolkit, participant))
        participant.toolkits.remove(toolkit)
        if participant in toolkit.draining:
            toolkit.draining.remove(participant)
        if toolkit.generations or toolkit.draining:
            return [ToolkitChange("toolkit_changed", toolkit, serving)]
        if reserve and len(self._reserved.get(toolkit.owner, ())) < MAX_RESERVED:
            self._reserve(toolkit)
            return [ToolkitChange("toolkit_changed", toolkit)]
        # It keeps its last definition, so that its removal can be published to those that saw it.
        self._remove(toolkit)
        return [ToolkitChange("toolkit_removed", toolkit)]

    def _add(self, toolkit: RegisteredToolkit) -> None:
        if toolkit.public:
            self._public[toolkit.name] = toolkit
        else:
            self._private[toolkit.owner, toolkit.name] = toolkit
        self._by_order[toolkit.order] = toolkit
        insort(self._order, toolkit.order)
        self._counts[toolkit.owner] = self.toolkit_count_of(toolkit.owner) + 1

    def _remove(self, toolkit: RegisteredToolkit) -> None:
        if toolkit.public:
            del self._public[toolkit.name]
        else:
            del self._private[toolkit.owner, toolkit.name]
        del self._by_order[toolkit.order]
        del self._order[bisect_left(self._order, toolkit.order)]
        self._counts[toolkit.owner] -= 1
        if not self._counts[toolkit.owner]:
            del self._counts[toolkit.owner]

    # Queries

    @property
    def toolkit_count(self) -> int:
        """How many toolkits there are, including those without a host."""
        return len(self._order)

    def toolkit_count_of(self, owner: Identity) -> int:
        """How many of them belong to an identity."""
        return self._counts.get(owner, 0)

    @property
    def is_empty(self) -> bool:
        """Whether no participant is left."""
        return not self._participants

    def participants_of(self, identity: Identity) -> list[Participant]:
        """Find all participants of an identity."""
        return list(self._by_identity.get(identity, {}).values())

    def has_moved(self, participant: Participant) -> bool:
        """Whether its instance already has another connection that receives its messages."""
        return participant.node_is_draining and any(
            other.receives_messages
            and not other.node_is_draining
            and other.instance == participant.instance
            for other in self._by_identity.get(participant.identity, {}).values()
        )

    def participants(self, after: tuple[str, str] | None) -> Iterator[Participant]:
        """Iterate over the participants by name, then by id, starting after `after`."""
        start = 0 if after is None else bisect_right(self._sorted_participants, after)
        for _, participant_id in self._sorted_participants[start:]:
            yield self._participants[participant_id]

    # Resolving names

    def resolve(
        self, participant: Participant, name: str, owner: str | None = None
    ) -> RegisteredToolkit:
        """Find the toolkit that a name means for a participant.

        Args:
            participant: The participant that asks.
            name: The toolkit's name. Alone it means the private toolkit of this participant, else
                the public one.
            owner: Names an owner: then only that owner's toolkits count, private ones first.

        Raises:
            NotFound: There is none, or none that is visible to it.
            InvalidArguments: `owner` has an unknown alias.
        """
        if owner is None:
            own = self._private.get((participant.identity, name)) if self._private else None
            toolkit = own or self._public.get(name)
        else:
            toolkit = self._owned_by(participant, name, owner)
        if toolkit is None:
            text = f"toolkit {name[:64]} not found"
            # As an agent's: its toolkit has the name of its owner.
            is_bare = owner is None and "/" not in name
            if is_bare and self._owned_by(participant, name, name) is not None:
                text = (
                    f"{text}; there is a private one of {name}: invoke it with participant={name}"
                )
            raise NotFound(text)
        return toolkit

    def _owned_by(
        self, participant: Participant, name: str, owner: str
    ) -> RegisteredToolkit | None:
        identity = self.issuers.identity_of(owner, participant.identity, "participant")
        for public in (False, True):
            toolkit = self.own(identity, name, public)
            if toolkit is not None and toolkit.is_visible_to(participant):
                return toolkit
        return None

    def choose_host(self, toolkit: RegisteredToolkit, affinity: str | None = None) -> Participant:
        """Choose the host of the next call.

        Of two hosts drawn at random it is the one with fewer calls, of this node if it has any;
        with an affinity key, the same host for each call as long as it serves, here and at any
        other node. Hosts at draining nodes are the last choice.

        Raises:
            NoHost: The toolkit has no host now.
        """
        hosts = toolkit.serving.hosts
        if not hosts:
            raise no_host_error(toolkit)
        if len(hosts) == 1:
            return hosts[0]
        choice = toolkit.serving.choice
        if affinity is None:
            return choice.by_load(self._random)
        return choice.by_affinity(affinity)

    def toolkits_after(
        self, after: tuple[str, bool, str, str] | None
    ) -> Iterator[RegisteredToolkit]:
        """Iterate over all toolkits in order, after `after`; the room may change meanwhile."""
        while True:
            index = 0 if after is None else bisect_right(self._order, after)
            if index == len(self._order):
                return
            after = self._order[index]
            yield self._by_order[after]
