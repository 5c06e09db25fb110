"""What participants ask about toolkits: register, unregister, list, describe, subscribe.

Each function takes a request and returns the body of its reply, or raises what the reply says
instead. The facts are in `room_state`; here are the grants, the limits and the shape of the
answers.
"""

from __future__ import annotations

import base64
import binascii
import logging
from typing import Any

from toolbus.errors import (
    InvalidArguments,
    NotFound,
    PermissionDenied,
    QuotaExceeded,
)
from toolbus.wire import (
    Describe,
    ListToolkits,
    Register,
    Subscribe,
    Unregister,
    pack_body,
    unpack_body,
)
from toolbus_server.definition import read_definition
from toolbus_server.feed import Feed, toolkit_summary
from toolbus_server.limits import Limits
from toolbus_server.room_state import Change, Member, Toolkit
from toolbus_server.routing import Room, Seat

__all__ = ["Registry"]

_logger = logging.getLogger(__name__)
_PAGE = 100
_PAGE_BYTES = 256 * 1024
_MAX_SHARES = 256
_MAX_GENERATION = 2**48
_TOPICS = frozenset({"toolkits"})
_SHARE_PREFIXES = ("name:", "role:")


class Registry:
    """Answers for one room; the room's feeds are told what changes.

    Args:
        room: The room.
        limits: How many toolkits one participant may host.
    """

    def __init__(self, room: Room, limits: Limits) -> None:
        self._room = room
        self._limits = limits
        self._feeds: dict[str, Feed] = {}
        self.denied = 0
        """Registrations for which a grant was missing."""

    def publish(self, changes: list[Change]) -> None:
        """Tell everyone who subscribed and can see it."""
        for change in changes:
            for feed in self._feeds.values():
                feed.tell(change)

    def forget(self, seat: Seat) -> None:
        """Drop the subscription of a participant that is gone."""
        feed = self._feeds.pop(seat.member.id, None)
        if feed is not None:
            feed.close()

    def register(self, seat: Seat, request: Register) -> dict[str, Any]:
        """Let a participant serve a toolkit."""
        public, shared_with = _offer_of(request.options)
        generation = _option(request.options, "generation", int)
        if generation is not None and not 0 < generation < _MAX_GENERATION:
            raise _bad("generation", "is what an earlier registration was told")
        member = seat.member
        grant = member.scope.agents
        if not (grant.register_public_toolkit if public else grant.register_private_toolkit):
            raise self._denied(member, public, "")
        definition = read_definition(request.manifest)
        name = definition.manifest.name
        if not member.rights.may_register(name, public):
            raise self._denied(member, public, name)
        is_new = not any(t.name == name and t.public == public for t in member.toolkits)
        if is_new and len(member.toolkits) >= self._limits.max_toolkits:
            raise QuotaExceeded(f"one participant hosts at most {self._limits.max_toolkits}")
        done = self._room.state.register(
            member,
            definition,
            public=public,
            shared_with=shared_with,
            generation=generation,
        )
        self.publish(done.changes)
        return {"digest": definition.digest, "generation": done.generation.number}

    def _denied(self, member: Member, public: bool, name: str) -> PermissionDenied:
        kind = "public" if public else "private"
        self.denied += 1
        _logger.warning("%r may not register the %s toolkit %s", member.identity.name, kind, name)
        return PermissionDenied(f"no grant to register the {kind} toolkit {name}".rstrip())

    def unregister(self, seat: Seat, request: Unregister) -> dict[str, Any]:
        """Take a toolkit back."""
        changes = self._room.state.unregister(seat.member, request.toolkit, public=request.public)
        self.publish(changes)
        return {}

    def list_toolkits(self, seat: Seat, request: ListToolkits) -> dict[str, Any]:
        """One page of what the participant can see."""
        _need_use_tools(seat)
        options = request.options
        search = _option(options, "search", str)
        limit = _option(options, "limit", int)
        after = _cursor(_option(options, "cursor", str))
        count = _PAGE if limit is None else max(1, min(limit, _PAGE))
        page: list[dict[str, Any]] = []
        last: Toolkit | None = None
        size = 0
        for toolkit in self._room.state.listing(seat.member, after=after, search=search):
            if last is not None and (len(page) == count or size > _PAGE_BYTES):
                return {"toolkits": page, "cursor": _cursor_text(last)}
            summary = toolkit_summary(toolkit, seat)
            size += len(pack_body(summary))
            page.append(summary)
            last = toolkit
        return {"toolkits": page, "cursor": None}

    def describe(self, seat: Seat, request: Describe) -> dict[str, Any]:
        """One toolkit's manifest, with the tools that the participant may call or list."""
        participant = _option(request.options, "participant", str)
        known = _option(request.options, "digest", str)
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
        if not all(type(topic) is str and topic in _TOPICS for topic in request.topics):
            raise _bad("topics", f"are among {sorted(_TOPICS)}")
        self.forget(seat)
        if request.topics:
            _need_use_tools(seat)
            feed.begin(list(self._room.state.listing(seat.member, after=None, search=None)))
            self._feeds[seat.member.id] = feed
        return {"topics": list(request.topics)}


def _bad(name: str, message: str) -> InvalidArguments:
    return InvalidArguments(f"{name} {message}", details={"path": f"/{name}", "message": message})


def _option(options: dict[str, Any], name: str, kind: type) -> Any:
    value = options.get(name)
    if value is not None and type(value) is not kind:
        raise _bad(name, f"is not {kind.__name__}")
    return value


def _need_use_tools(seat: Seat) -> None:
    if not seat.member.scope.agents.use_tools:
        raise PermissionDenied("no grant to list toolkits (agents.use_tools)")


def _offer_of(options: dict[str, Any]) -> tuple[bool, frozenset[str]]:
    public = options.get("public", True)
    shared = options.get("shared_with", [])
    if type(public) is not bool:
        raise _bad("public", "is not bool")
    if type(shared) is not list or len(shared) > _MAX_SHARES or not all(map(_is_share, shared)):
        raise _bad("shared_with", "is a list of name:x, role:x or *")
    if public and shared:
        raise _bad("shared_with", "is for private toolkits: a public one is everybody's")
    return public, frozenset(shared)


def _is_share(share: Any) -> bool:
    if type(share) is not str or len(share) > 256:
        return False
    return share == "*" or (share.startswith(_SHARE_PREFIXES) and len(share) > 5)


def _cursor_text(toolkit: Toolkit) -> str:
    return base64.urlsafe_b64encode(pack_body([*toolkit.order])).decode()


def _cursor(text: str | None) -> tuple[str, bool, str, str] | None:
    if text is None:
        return None
    try:
        order = unpack_body(base64.urlsafe_b64decode(text))
    except (binascii.Error, ValueError) as error:
        raise _bad("cursor", "is not one of ours") from error
    if type(order) is not list or [type(part) for part in order] != [str, bool, str, str]:
        raise _bad("cursor", "is not one of ours")
    return (order[0], order[1], order[2], order[3])
