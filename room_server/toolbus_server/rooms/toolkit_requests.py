"""Handles requests about toolkits: register, unregister, drain, list, describe, subscribe.

Each method takes a request and returns the body of its reply, or raises the error of the reply;
those whose work grows with the room do so in steps. The
state is in `room_state`; here are the grants, the limits and the shape of the replies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any
from weakref import ref

from msgspec import Raw

from toolbus.auth.grants import TOPIC_GRANTS, ToolRights, covers_topic
from toolbus.bounded_logging import bounded_logger
from toolbus.errors import (
    DefinitionConflict,
    NotFound,
    PermissionDenied,
    QuotaExceeded,
    Unavailable,
)
from toolbus.wire import Describe, ListToolkits, Register, Subscribe, ToolManifest, Unregister
from toolbus_server import identity_usage
from toolbus_server.calls.call_state import Offer
from toolbus_server.calls.delegation import callers_behind, readers_of, resolve_for
from toolbus_server.calls.router import Connection, RoutedRoom
from toolbus_server.identity_usage import IdentityUsage, IdentityUsages
from toolbus_server.limits import Limits
from toolbus_server.registry.call_checks import (
    MAX_PAGE_BYTES,
    bad_option,
    cursor_text,
    need_grant,
    no_host_error,
    page_limit,
    read_cursor,
    read_option,
)
from toolbus_server.registry.generations import Claim
from toolbus_server.registry.issuers import Issuers
from toolbus_server.registry.models import Generation, Identity, Participant, RegisteredToolkit
from toolbus_server.registry.packed_manifest import toolkit_name_of
from toolbus_server.registry.tool_visibility import Listing, Steps
from toolbus_server.registry.toolkit_definition import (
    Definition,
    definition_steps,
    read_definition,
    searchable_texts,
)
from toolbus_server.rooms.event_feed import EventFeeds, toolkit_summary
from toolbus_server.rooms.room_changes import definition_summary, log_registration
from toolbus_server.rooms.scheduling import Walk, pack_once

__all__ = ["MAX_PARTICIPANT_BYTES", "ManifestQuota", "ToolkitRequests"]

SMALL_MANIFEST_BYTES = 4 * 1024
"""A manifest of at most so many bytes is read in one step, of 3 ms at most: most of them take
effect before the next request of their host is decoded."""
_logger = bounded_logger(__name__)
_MAX_SHARES = 256
"""Each is looked up at a registration, and held by all servers of a bus (PROTOCOL.md, REG-7)."""
# A host chooses the number that it repeats. Redis counts exactly up to 2**53: at that number no
# further generation of the toolkit could follow.
_MAX_GENERATION = 2**48
# How many texts one page of a search compares, each 256 characters counting as one.
_MAX_EFFORT = 6_000
_SHARE_PREFIXES = ("name:", "role:")
# The types of a toolkit's sort key: its name, whether it is private, its owner's name and issuer.
_POSITION = (str, bool, str, str)


@dataclass(eq=False)
class ToolkitRequests:
    """Handles the requests of one room; publishes changes to the room's feeds."""

    _room: RoutedRoom
    _limits: Limits
    _feeds: EventFeeds
    _manifests: ManifestQuota
    denied: int = 0
    """Registrations that were refused for a missing grant."""

    def register(self, connection: Connection, request: Register) -> Walk:
        """Register a toolkit; where nodes share the room, return the claim of its name to await."""
        public, shared_with = _read_visibility(request.options)
        claim, must_be_only = _read_claim(request.options)
        participant, packed = connection.participant, request.manifest
        read_share = self._room.state.issuers.read_share
        shared_with = frozenset(read_share(entry, participant.identity) for entry in shared_with)
        # Before the manifest is read, so that a refused registration costs next to nothing; again
        # after it (`_check_still`), as the reading has let others run.
        self._check_participant(participant, toolkit_name_of(packed), public)
        if len(packed) <= SMALL_MANIFEST_BYTES:
            definition = read_definition(packed)
        else:
            definition = yield from definition_steps(packed)
        offer = Offer(definition.manifest.name, public, shared_with, definition)
        self._check_still(participant, offer)
        if must_be_only:
            self._check_conflict(participant, offer)
        if self._room.replication is not None:
            return self._register_with_claim(participant, offer, claim, must_be_only)
        return self._accept(participant, offer, claim, is_new=claim.number is None)

    def _check_participant(self, participant: Participant, name: str, public: bool) -> None:
        """Check who registers. Raises Unavailable or PermissionDenied."""
        if not participant.is_present:
            raise Unavailable("the connection has ended", executed="no")
        if participant.is_draining:
            raise Unavailable("this connection is draining: register on another", executed="no")
        kind = "public" if public else "private"
        grant = f"agents.register_{kind}_toolkit"
        has_grant = getattr(participant.scope.agents, f"register_{kind}_toolkit")
        if has_grant and (not name or participant.rights.may_register(name, public)):
            return
        if has_grant:
            grant = f"agents.register={name}"
        self.denied += 1
        _logger.warning("%r may not register the %s toolkit %s", participant.full_name, kind, name)
        message = f"no grant to register the {kind} toolkit {name}".rstrip()
        text = f"{message} ({grant.partition('=')[0]})"
        raise PermissionDenied(text, details={"grant": grant})

    async def _register_with_claim(
        self, participant: Participant, offer: Offer, claim: Claim, must_be_only: bool
    ) -> dict[str, Any]:
        replication = self._room.replication
        assert replication is not None
        claimed = await replication.claim(
            participant, offer, self._reduced(participant, offer, claim)
        )
        if not participant.is_present:
            raise Unavailable("the connection has ended", executed="no")
        try:
            self._check_still(participant, offer)
            if must_be_only and claimed.number is not None:  # another node may have been first
                self._check_conflict(participant, offer, below=claimed.number)
            return self._accept(participant, offer, claimed, is_new=claim.number is None)
        finally:
            # Publishes the toolkit, or withdraws the claim.
            replication.participant_changed(participant)

    def _check_still(self, participant: Participant, offer: Offer) -> None:
        """Check what may have changed while the manifest was read or the name was claimed."""
        self._check_participant(participant, offer.name, offer.public)
        self._check_quotas(participant, offer.name, offer.public)
        existing = self._room.state.existing(participant.identity, offer.name, offer.public)
        self._manifests.check(participant, offer, existing)

    def _check_conflict(self, participant: Participant, offer: Offer, below: float = inf) -> None:
        """Refuse a definition beside another one. Raises DefinitionConflict."""
        state, public = self._room.state, offer.public
        other = state.conflict(participant, offer.definition, public=public, below=below)
        if other is not None:
            definition = other.definition
            raise DefinitionConflict(
                f"toolkit {offer.name} has hosts with another definition: {other}",
                details={"version": definition.version, "digest": definition.digest},
            )

    def _reduced(self, participant: Participant, offer: Offer, claim: Claim) -> Claim:
        """Drop the wish to supersede if that definition has superseded all others already."""
        # Otherwise each replica of one deployment would get a new generation number, and its hosts
        # a change of what serves.
        toolkit = self._room.state.own(participant.identity, offer.name, offer.public)
        if toolkit is None or not toolkit.generations or claim.number is not None:
            return claim
        serving = toolkit.serving
        is_done = serving.base == serving.number
        if is_done and serving.definition.digest == offer.definition.digest:
            return claim._replace(supersede=False)
        return claim

    def _accept(
        self, participant: Participant, offer: Offer, claim: Claim, *, is_new: bool
    ) -> dict[str, Any]:
        done = self._room.state.register(
            participant,
            offer.definition,
            public=offer.public,
            shared_with=offer.shared_with,
            claim=self._reduced(participant, offer, claim),
        )
        self._manifests.add(participant.identity, done.generation)
        self._feeds.publish(done.changes)
        serving, joined = done.toolkit.serving, done.generation
        reply: dict[str, Any] = {
            "digest": offer.definition.digest,
            "generation": joined.number,
            "base": joined.base,
            "serving": serving is joined,
        }
        log_registration(self._room.state.name, participant, done, is_new=is_new)
        if serving is not joined:
            reply["instead"] = definition_summary(serving)
        return reply

    def _check_quotas(self, participant: Participant, name: str, public: bool) -> None:
        """Refuse one toolkit too many. Raises QuotaExceeded or AlreadyExists."""
        state, limits = self._room.state, self._limits
        is_new = not any(t.name == name and t.public == public for t in participant.toolkits)
        if is_new and len(participant.toolkits) >= limits.max_toolkits:
            raise QuotaExceeded(f"one participant hosts at most {limits.max_toolkits}")
        identity, most = participant.identity, limits.max_identity_toolkits
        is_room_full = state.toolkit_count >= limits.max_room_toolkits
        is_identity_full = state.toolkit_count_of(identity) >= most
        if not is_new or not (is_room_full or is_identity_full):
            return
        # A further host of a toolkit that is there: replicas must not fail because a room is full.
        if state.existing(identity, name, public) is not None:
            return
        if is_identity_full:
            raise QuotaExceeded(
                f"one identity has at most {most} toolkits in a room: unregister some"
            )
        raise QuotaExceeded(f"one room has at most {limits.max_room_toolkits} toolkits")

    def unregister(self, connection: Connection, request: Unregister) -> Walk:
        """Remove a participant from the hosts of a toolkit. Raises NotFound if it is not one."""
        yield from ()  # a walk, so that it has its place after earlier registrations
        changes = self._room.state.unregister(
            connection.participant, request.toolkit, public=request.public
        )
        self._feeds.publish(changes)
        self._room.publish_change(connection.participant)
        return {}

    def drain(self, connection: Connection) -> Walk:
        """Send a participant no more calls; it finishes those that it runs."""
        yield from ()  # a walk, as `unregister`
        self._feeds.publish(self._room.state.drain(connection.participant))
        self._room.publish_change(connection.participant)
        return {}

    def list_toolkits(self, connection: Connection, request: ListToolkits) -> Walk:
        """Return one page of the toolkits that the participant can see."""
        participant, options = connection.participant, request.options
        _need_use_tools(connection)
        search = read_option(options, "search", str) or ""
        page = _ToolkitPage(page_limit(options), search, self._room.state.issuers)
        after = read_cursor(options, _POSITION)
        for toolkit in self._room.state.toolkits_after(after):
            listing = yield from self._room.state.visibility.listing(toolkit, participant)
            # Each step may be the first after a token has expired: a page must not show more than
            # the grants at its end.
            if not participant.is_present:
                raise Unavailable("the connection has ended", executed="no")
            _need_use_tools(connection)
            if listing is not None and not page.add(toolkit, listing):
                return page.body(page.end)
            yield
        return page.body(None)

    def describe(self, connection: Connection, request: Describe) -> Walk:
        """Return a toolkit's manifest, with the tools that the participant may call or list."""
        participant = connection.participant
        owner = read_option(request.options, "participant", str)
        known = read_option(request.options, "digest", str)
        # Read anew until nothing changed between its steps: a manifest of one generation with the
        # summary of another would name a digest that does not fit.
        while True:
            callers = callers_behind(connection, request.options)
            toolkit = resolve_for(self._room, participant, callers, request.toolkit, owner)
            readers = readers_of(toolkit, participant, callers)
            rights = [reader.rights for reader in readers]
            definition = toolkit.serving.definition
            yield from definition.read_steps()
            readable = yield from _readable_tools(toolkit, definition, rights)
            # The name of a private toolkit is a secret too: it is not found, as one that does not
            # exist.
            if definition.manifest.tools and not readable:
                if toolkit.public:
                    raise PermissionDenied(f"no grant to inspect {toolkit.name}")
                raise NotFound(f"toolkit {request.toolkit[:64]} not found")
            if definition.is_name_only:
                raise no_host_error(toolkit)
            answer: dict[str, Any] = {"unchanged": True}
            if known != definition.digest:
                answer = {"manifest": (yield from definition.describe_steps(readable))}
            reserve: tuple[Generation, ...] = tuple(toolkit.reserve)
            for reader in readers:
                seen = yield from self._room.state.visibility.listed_reserve(toolkit, reader)
                reserve = tuple(generation for generation in reserve if generation in seen)
            is_same = [reader.rights for reader in readers] == rights
            if toolkit.serving.definition is definition and is_same:
                break
        listed = tuple(tool for tool in readable if rights[0].may_see(toolkit.name, tool.name))
        summary = toolkit_summary(toolkit, Listing(listed, reserve), self._room.state.issuers)
        return {"toolkit": summary, **answer}

    def subscribe(self, connection: Connection, request: Subscribe) -> Walk:
        """Send a participant the events of some topics from now on, or of none."""
        participant, topics = connection.participant, request.topics
        for topic in topics:
            if type(topic) is not str or topic not in TOPIC_GRANTS:
                raise bad_option("topics", f"must be among {sorted(TOPIC_GRANTS)}")
            has_grant = covers_topic(participant.scope, topic)
            need_grant(has_grant, f"subscribe to {topic}", TOPIC_GRANTS[topic][0])
        if topics:
            yield from self._feeds.subscribe(connection, topics)
        else:
            self._feeds.remove(participant)
        participant.receives_messages = "messages" in topics
        self._room.publish_change(participant)
        return {"topics": list(topics)}


def _readable_tools(
    toolkit: RegisteredToolkit, definition: Definition, rights: Iterable[ToolRights]
) -> Steps[list[ToolManifest]]:
    """Choose the tools that may be called or listed with each of these rights."""
    readable = []
    for tool in definition.manifest.tools:
        if all(reader.may_read(toolkit.name, tool.name) for reader in rights):
            readable.append(tool)
        yield
    return readable


class _ToolkitPage:
    """One page of a list of toolkits, with as much of a search as one page may cost."""

    def __init__(self, limit: int, search: str, issuers: Issuers) -> None:
        self._limit = limit
        self._issuers = issuers
        self._wanted = search.casefold()
        self._packed: list[Raw] = []
        self._bytes = self._effort = 0
        self.end: RegisteredToolkit | None = None
        """The last toolkit that it has examined."""

    def add(self, toolkit: RegisteredToolkit, listing: Listing) -> bool:
        """Examine a toolkit that the participant may see; return False if the page is full."""
        # Checked before it is added: a page has at least one toolkit examined, else a search
        # without a match would return the same cursor for ever.
        is_full = len(self._packed) == self._limit or self._bytes > MAX_PAGE_BYTES
        if self.end is not None and (is_full or self._effort > _MAX_EFFORT):
            return False
        self.end = toolkit
        if self._matches(toolkit, listing.tools):
            packed = pack_once(toolkit_summary(toolkit, listing, self._issuers))
            self._packed.append(packed)
            self._bytes += len(memoryview(packed))
        return True

    def _matches(self, toolkit: RegisteredToolkit, tools: Sequence[ToolManifest]) -> bool:
        if not self._wanted:
            return True
        definition = toolkit.serving.definition
        self._effort += 1 + len(definition.search_text) // 256
        if self._wanted not in definition.search_text:
            return False
        texts = searchable_texts(definition.manifest, tools)
        self._effort += len(texts)
        return any(self._wanted in text.casefold() for text in texts)

    def body(self, end: RegisteredToolkit | None) -> dict[str, Any]:
        """Return the page as the body of a reply; the next one begins after `end`, if any."""
        return {"toolkits": self._packed, "cursor": None if end is None else cursor_text(end.order)}


def _need_use_tools(connection: Connection) -> None:
    has_grant = connection.participant.scope.agents.use_tools
    need_grant(has_grant, "list toolkits", "agents.use_tools")


def _read_visibility(options: dict[str, Any]) -> tuple[bool, frozenset[str]]:
    public = options.get("public", True)
    shared = options.get("shared_with", [])
    if type(public) is not bool:
        raise bad_option("public", "must be bool")
    if type(shared) is not list or len(shared) > _MAX_SHARES or not all(map(_is_share, shared)):
        raise bad_option("shared_with", "must be a list of name:x, role:x or *")
    if public and shared:
        raise bad_option("shared_with", "is for private toolkits: the whole room sees a public one")
    return public, frozenset(shared)


def _read_claim(options: dict[str, Any]) -> tuple[Claim, bool]:
    """Return the place that a registration asks for, and whether no other definition may be there.

    A host that returns with its generation was accepted before: nothing refuses it then.
    """
    number = read_option(options, "generation", int)
    if number is not None and not 0 < number < _MAX_GENERATION:
        raise bad_option("generation", "must be a number that an earlier registration returned")
    base = read_option(options, "base", int)
    if base is not None and not 0 <= base <= (number or 0):
        raise bad_option("base", "must be what an earlier registration returned with `generation`")
    supersede = read_option(options, "supersede", bool)
    return Claim(number, base, supersede is True), supersede is False and number is None


def _is_share(entry: Any) -> bool:
    if type(entry) is not str or len(entry) > 256 or "\0" in entry:
        return False
    return entry == "*" or (entry.startswith(_SHARE_PREFIXES) and len(entry) > 5)


MAX_PARTICIPANT_BYTES = 16 * 1024 * 1024
"""Bytes of the manifests that one participant hosts, and again of those it waits to register."""


class ManifestQuota:
    """Limits how many bytes of manifests the participants and identities keep at a server.

    Equal definitions of several hosts in a room are kept once, and count once for their identity.
    """

    def __init__(self, usages: IdentityUsages) -> None:
        self._usages = usages
        self._counted: dict[ref[Generation], tuple[IdentityUsage, int]] = {}

    def check(
        self, participant: Participant, offer: Offer, existing: RegisteredToolkit | None
    ) -> None:
        """Refuse a registration with which a quota would be exceeded. Raises QuotaExceeded."""
        size = len(offer.definition.packed)
        hosted = sum(
            _size_of(toolkit) for toolkit in participant.toolkits if toolkit is not existing
        )
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
