"""What participants ask about toolkits: register, unregister, drain, list, describe, subscribe.

Each function takes a request and returns the body of its reply, or raises what the reply says
instead. The facts are in `room_state`; here are the grants, the limits and the shape of the
answers.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any

from toolbus.errors import (
    NotFound,
    PermissionDenied,
    QuotaExceeded,
    Unavailable,
)
from toolbus.wire import (
    Describe,
    ListToolkits,
    Register,
    Subscribe,
    Unregister,
    pack_body,
)
from toolbus_server.definition import name_in, read_definition
from toolbus_server.feed import TOPIC_GRANTS, TOPICS, Feed, Feeds, toolkit_summary
from toolbus_server.flights import Offer, Share
from toolbus_server.limits import Limits
from toolbus_server.request_options import (
    MAX_PAGE_BYTES,
    bad_option,
    cursor_text,
    page_limit,
    read_cursor,
    read_option,
)
from toolbus_server.room_state import Change
from toolbus_server.room_view import Member, Toolkit, words_of
from toolbus_server.routing import Room, Seat

__all__ = ["Registry"]

_logger = logging.getLogger(__name__)
_MAX_SHARES = 256
_MAX_GENERATION = 2**48
# How much one page looks for a text: in so many names, titles and descriptions, or so many times
# 256 characters of them. It is some 10 ms that others wait.
_MAX_EFFORT = 6_000
_SHARE_PREFIXES = ("name:", "role:")
# Of a toolkit's place in lists: its name, whether it is private, its owner's name and issuer.
_PLACE = (str, bool, str, str)


class Registry:
    """Answers for one room; the room's feeds are told what changes.

    Args:
        room: The room.
        limits: How many toolkits one participant may host, and one room may have.
        feeds: The room's subscribers.
    """

    def __init__(self, room: Room, limits: Limits, feeds: Feeds) -> None:
        self._room = room
        self._limits = limits
        self._feeds = feeds
        self.denied = 0
        """Registrations for which a grant was missing."""

    def publish(self, changes: list[Change]) -> None:
        """Tell everyone who subscribed and can see it."""
        self._feeds.publish(changes)

    def forget(self, seat: Seat) -> None:
        """Drop the subscription of a participant that is gone."""
        self._feeds.forget(seat.member)

    def regrant(self, seat: Seat) -> None:
        """Tell a participant of what its new grants cover, and no longer of anything else."""
        listing = self._room.state.listing(seat.member, after=None)
        self._feeds.regrant(seat.member, listing)

    def register(self, seat: Seat, request: Register) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """Let a participant serve a toolkit; where nodes share the room, once all of them know."""
        public, shared_with = _offer_of(request.options)
        generation = read_option(request.options, "generation", int)
        if generation is not None and not 0 < generation < _MAX_GENERATION:
            raise bad_option("generation", "is what an earlier registration was told")
        member = seat.member
        if member.is_draining:
            raise Unavailable("this connection is draining: register on another", executed="no")
        grant = member.scope.agents
        if not (grant.register_public_toolkit if public else grant.register_private_toolkit):
            raise self._denied(member, public, name_in(request.manifest))
        definition = read_definition(request.manifest)
        name = definition.manifest.name
        if not member.rights.may_register(name, public):
            raise self._denied(member, public, name)
        self._check_room_for(member, name, public)
        offer = Offer(name, public, shared_with, definition)
        if self._room.share is not None:
            return self._register_with_all(self._room.share, member, offer, generation)
        return self._accept(member, offer, generation)

    async def _register_with_all(
        self, share: Share, member: Member, offer: Offer, generation: int | None
    ) -> dict[str, Any]:
        number = await share.claim(member, offer, generation)
        if not member.is_there:
            raise Unavailable("the connection has ended", executed="no")
        try:
            self._check_still(member, offer)
            return self._accept(member, offer, number)
        finally:
            share.touch(member)  # the others are told, or what they were told is taken back

    def _check_still(self, member: Member, offer: Offer) -> None:
        """Refuse what was granted, and had room, before the others were asked, and no more."""
        if member.is_draining:
            raise Unavailable("this connection is draining: register on another", executed="no")
        if not member.rights.may_register(offer.name, offer.public):
            raise self._denied(member, offer.public, offer.name)
        self._check_room_for(member, offer.name, offer.public)

    def _accept(self, member: Member, offer: Offer, generation: int | None) -> dict[str, Any]:
        done = self._room.state.register(
            member,
            offer.definition,
            public=offer.public,
            shared_with=offer.shared_with,
            generation=generation,
        )
        self.publish(done.changes)
        return {"digest": offer.definition.digest, "generation": done.generation.number}

    def _check_room_for(self, member: Member, name: str, public: bool) -> None:
        """Refuse what would be one too many. Raises QuotaExceeded or AlreadyExists."""
        state, limits = self._room.state, self._limits
        is_new = not any(t.name == name and t.public == public for t in member.toolkits)
        if is_new and len(member.toolkits) >= limits.max_toolkits:
            raise QuotaExceeded(f"one participant hosts at most {limits.max_toolkits}")
        if not is_new or state.toolkit_count < limits.max_room_toolkits:
            return
        if state.existing(member.identity, name, public) is None:
            raise QuotaExceeded(f"one room has at most {limits.max_room_toolkits} toolkits")

    def _denied(self, member: Member, public: bool, name: str) -> PermissionDenied:
        kind = "public" if public else "private"
        self.denied += 1
        _logger.warning("%r may not register the %s toolkit %s", member.identity.name, kind, name)
        words = f"no grant to register the {kind} toolkit {name}".rstrip()
        return PermissionDenied(f"{words} (agents.register_{kind}_toolkit)")

    def unregister(self, seat: Seat, request: Unregister) -> dict[str, Any]:
        """Take a toolkit back."""
        changes = self._room.state.unregister(seat.member, request.toolkit, public=request.public)
        self.publish(changes)
        self._touch(seat.member)
        return {}

    def drain(self, seat: Seat) -> dict[str, Any]:
        """Give a participant no more calls; it finishes those that it runs."""
        self.publish(self._room.state.drain(seat.member))
        self._touch(seat.member)
        return {}

    def _touch(self, member: Member) -> None:
        if self._room.share is not None:
            self._room.share.touch(member)

    def list_toolkits(self, seat: Seat, request: ListToolkits) -> dict[str, Any]:
        """One page of what the participant can see."""
        _need_use_tools(seat)
        options = request.options
        search = read_option(options, "search", str)
        count = page_limit(options)
        place = read_cursor(options, _PLACE)
        after = None if place is None else (place[0], place[1], place[2], place[3])
        wanted = (search or "").casefold()
        page: list[dict[str, Any]] = []
        last: Toolkit | None = None
        size = effort = 0
        for toolkit in self._room.state.listing(seat.member, after=after):
            is_full = len(page) == count or size > MAX_PAGE_BYTES or effort > _MAX_EFFORT
            if last is not None and is_full:
                return {"toolkits": page, "cursor": cursor_text(last.order)}
            last = toolkit
            if wanted:
                everything = toolkit.serving.definition.words
                effort += 1 + len(everything) // 256
                if wanted not in everything:
                    continue
                words = words_of(toolkit, seat.member)
                effort += len(words)
                if not any(wanted in word.casefold() for word in words):
                    continue
            page.append(toolkit_summary(toolkit, seat))
            size += len(pack_body(page[-1]))
        return {"toolkits": page, "cursor": None}

    def describe(self, seat: Seat, request: Describe) -> dict[str, Any]:
        """One toolkit's manifest, with the tools that the participant may call or list."""
        participant = read_option(request.options, "participant", str)
        known = read_option(request.options, "digest", str)
        toolkit = self._room.state.resolve(seat.member, request.toolkit, participant)
        manifest = toolkit.serving.definition.manifest
        readable = [t for t in manifest.tools if seat.member.may_read(toolkit.name, t.name)]
        if manifest.tools and not readable:
            if toolkit.public:
                raise PermissionDenied(f"no grant to inspect {toolkit.name}")
            raise NotFound(f"toolkit {request.toolkit[:64]} not found")
        summary = toolkit_summary(toolkit, seat)
        if known == summary["digest"]:
            return {"toolkit": summary, "unchanged": True}
        visible = manifest.model_copy(update={"tools": tuple(readable)})
        return {"toolkit": summary, "manifest": visible.model_dump(mode="json")}

    def subscribe(self, seat: Seat, feed: Feed, request: Subscribe) -> dict[str, Any]:
        """Tell a participant of changes from now on, or no longer."""
        for topic in request.topics:
            is_covered = TOPICS.get(topic) if type(topic) is str else None
            if is_covered is None:
                raise bad_option("topics", f"are among {sorted(TOPICS)}")
            if not is_covered(seat.member.scope):
                raise PermissionDenied(f"no grant to hear of {topic} ({TOPIC_GRANTS[topic]})")
        if request.topics:
            listing = self._room.state.listing(seat.member, after=None)
            feed.begin(request.topics, listing if "toolkits" in request.topics else ())
            self._feeds.add(seat.member, feed)
        else:
            self.forget(seat)
        seat.member.listens = "messages" in request.topics
        self._touch(seat.member)
        return {"topics": list(request.topics)}


def _need_use_tools(seat: Seat) -> None:
    if not seat.member.scope.agents.use_tools:
        raise PermissionDenied("no grant to list toolkits (agents.use_tools)")


def _offer_of(options: dict[str, Any]) -> tuple[bool, frozenset[str]]:
    public = options.get("public", True)
    shared = options.get("shared_with", [])
    if type(public) is not bool:
        raise bad_option("public", "is not bool")
    if type(shared) is not list or len(shared) > _MAX_SHARES or not all(map(_is_share, shared)):
        raise bad_option("shared_with", "is a list of name:x, role:x or *")
    if public and shared:
        raise bad_option("shared_with", "is for private toolkits: a public one is everybody's")
    return public, frozenset(shared)


def _is_share(share: Any) -> bool:
    if type(share) is not str or len(share) > 256:
        return False
    return share == "*" or (share.startswith(_SHARE_PREFIXES) and len(share) > 5)
