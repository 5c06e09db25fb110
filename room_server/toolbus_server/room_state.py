"""The facts of one room: who is there, which toolkits there are, who serves them.

Pure: it knows nothing of sockets, tasks, Redis or time. An operation changes the facts and returns
what changed; telling anybody is the caller's work. What a participant may not see is, in every
answer, what is not there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from random import Random
from typing import Literal, NamedTuple

from toolbus.errors import AlreadyExists, NotFound
from toolbus_server.definition import Definition
from toolbus_server.room_view import Generation, Identity, Member, Reservation, RoomView, Toolkit

__all__ = ["MAX_RESERVED", "Change", "Registration", "RoomState"]

MAX_RESERVED = 1_024
"""Names kept of one identity; those beyond it are free as soon as their last host is lost."""
# What a host claims beyond it counts for its own toolkit alone: no claim uses the numbers up.
_MAX_REMEMBERED_GENERATION = 2**40
_MAX_REMEMBERED_OWNERS = 65_536


class Change(NamedTuple):
    """What happened to a toolkit, for those who can see it."""

    what: Literal["toolkit_added", "toolkit_changed", "toolkit_removed"]
    toolkit: Toolkit


class Registration(NamedTuple):
    """What came of a registration."""

    toolkit: Toolkit
    generation: Generation
    changes: list[Change]


class RoomState(RoomView):
    """A room as it changes; see `RoomView` for the arguments."""

    def __init__(self, name: str, random: Random) -> None:
        super().__init__(name, random)
        self._last_generations: dict[Identity, int] = {}
        self._reserved: dict[Identity, set[Toolkit]] = {}

    # Who is there

    def join(self, member: Member) -> None:
        """Let a participant in."""
        self._members[member.id] = member
        self._by_name.setdefault(member.identity.name, {})[member.id] = member
        insort(self._people, (member.identity.name, member.id))
        member.is_there = True
        self.far_members += member.is_far
        self.parting_members += member.is_parting

    def part(self, member: Member) -> None:
        """Take note that the node of a participant is told to stop."""
        self.parting_members += member.is_there and not member.is_parting
        member.is_parting = True

    def leave(self, member: Member, *, reserve: bool = False) -> list[Change]:
        """Let a participant go, with the toolkits that only it served.

        Args:
            member: Who goes.
            reserve: Whether the names of those toolkits are kept for its identity: each of them
                then has a `reservation`, which `release` ends.
        """
        if member.is_there:
            self._forget(member)
        return [
            change
            for toolkit in list(member.toolkits)
            for change in self._drop(toolkit, member, reserve=reserve)
        ]

    def _forget(self, member: Member) -> None:
        member.is_there = False
        self.far_members -= member.is_far
        self.parting_members -= member.is_parting
        name = member.identity.name
        del self._members[member.id]
        del self._by_name[name][member.id]
        if not self._by_name[name]:
            del self._by_name[name]
        del self._people[bisect_left(self._people, (name, member.id))]

    def _reserve(self, toolkit: Toolkit) -> None:
        toolkit.reservation = Reservation(toolkit)
        self._reserved.setdefault(toolkit.owner, set()).add(toolkit)

    def keep(self, owner: Identity, generation: Generation, *, public: bool) -> list[Change]:
        """Take note of a name that is kept since before this room was known here.

        Args:
            owner: Who may take it up again.
            generation: What was served last; it has no hosts.
            public: Whether the whole room sees it.

        Returns:
            What changed: nothing where the name is there, or its owner has too many that are kept.
            Else the toolkit has a `reservation`, which `release` ends.
        """
        name = generation.definition.manifest.name
        is_there = name in self._public if public else (owner, name) in self._private
        if is_there or len(self._reserved.get(owner, ())) >= MAX_RESERVED:
            return []
        toolkit = Toolkit(name, owner, public)
        toolkit.serving = generation
        self._add(toolkit)
        self._reserve(toolkit)
        return [Change("toolkit_added", toolkit)]

    def yield_name(self, name: str, to: Identity) -> list[Change]:
        """Give a public name free that is kept for another than the one who has it now."""
        toolkit = self._public.get(name)
        if toolkit is None or toolkit.reservation is None or toolkit.owner == to:
            return []
        return self.release(toolkit.reservation)

    def _end_reservation(self, toolkit: Toolkit) -> None:
        if toolkit.reservation is not None:
            toolkit.reservation.ended = True
            toolkit.reservation = None
            reserved = self._reserved[toolkit.owner]
            reserved.discard(toolkit)
            if not reserved:
                del self._reserved[toolkit.owner]

    def release(self, reservation: Reservation) -> list[Change]:
        """Give a name free that its owner did not take up again."""
        if reservation.ended:
            return []
        self._end_reservation(reservation.toolkit)
        self._remove(reservation.toolkit)
        return [Change("toolkit_removed", reservation.toolkit)]

    def succeed(self, old: Member, new: Member) -> list[Change]:
        """Put a newer connection of one instance in the place of the older one, in one step.

        What an older one was draining nobody serves until it is registered again; its names are
        kept as after a loss.
        """
        self.join(new)
        new.attributes, new.offers = old.attributes, old.offers
        if old.is_draining:
            return self.leave(old, reserve=True)
        for toolkit in old.toolkits:
            for generation in toolkit.generations:
                if old in generation.hosts:
                    generation.hosts[generation.hosts.index(old)] = new
        new.toolkits, old.toolkits = old.toolkits, []
        return self.leave(old) + self.revise(new)

    def revise(self, member: Member) -> list[Change]:
        """Take back what a participant hosts and its grants do not cover any more."""
        return [
            change
            for toolkit in list(member.toolkits)
            if not member.rights.may_register(toolkit.name, toolkit.public)
            for change in self._drop(toolkit, member)
        ]

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
        name = definition.name
        existing = self.existing(member.identity, name, public)
        toolkit = existing or Toolkit(name, member.identity, public)
        joined = self._join_generation(toolkit, member, definition, generation)
        joined.shared_with = shared_with
        if member.is_draining:  # at another node
            self._rest(toolkit, member)
        self._end_reservation(toolkit)
        if existing is not None:
            return Registration(toolkit, joined, [Change("toolkit_changed", toolkit)])
        self._add(toolkit)
        return Registration(toolkit, joined, [Change("toolkit_added", toolkit)])

    def existing(self, identity: Identity, name: str, public: bool) -> Toolkit | None:
        """Find the toolkit that a registration by this identity would join, if it is there.

        Raises:
            AlreadyExists: The public name belongs to another identity.
        """
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
            # Of two that claim one number the same one serves everywhere, whichever came first.
            insort(generations, generation, key=lambda each: (each.number, each.definition.digest))
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

    def drain(self, member: Member) -> list[Change]:
        """Give a participant no more calls; its toolkits keep their names until it leaves."""
        if member.is_draining:
            return []
        member.is_draining = True
        for toolkit in member.toolkits:
            self._rest(toolkit, member)
        return [Change("toolkit_changed", toolkit) for toolkit in member.toolkits]

    def _rest(self, toolkit: Toolkit, member: Member) -> None:
        toolkit.settle(self._without(toolkit, member))
        if member not in toolkit.draining:
            toolkit.draining.append(member)

    def unregister(self, member: Member, name: str, *, public: bool) -> list[Change]:
        """Take back what a participant serves; the name is free at once when nobody else does.

        Raises:
            NotFound: This participant serves no such toolkit.
        """
        for toolkit in member.toolkits:
            if toolkit.name == name and toolkit.public == public:
                return self._drop(toolkit, member)
        raise NotFound(f"you host no {'public' if public else 'private'} toolkit {name}")

    def _drop(self, toolkit: Toolkit, member: Member, *, reserve: bool = False) -> list[Change]:
        toolkit.settle(self._without(toolkit, member))
        member.toolkits.remove(toolkit)
        if member in toolkit.draining:
            toolkit.draining.remove(member)
        if toolkit.generations or toolkit.draining:
            return [Change("toolkit_changed", toolkit)]
        if reserve and len(self._reserved.get(toolkit.owner, ())) < MAX_RESERVED:
            self._reserve(toolkit)
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
