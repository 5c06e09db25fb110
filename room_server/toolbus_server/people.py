"""Who is in a room, what they say of themselves and to each other, and what they build on request.

Each function takes a request and returns the body of its reply, or raises what the reply says
instead. The facts are in `room_state`; here are the grants, the limits and the shape of the
answers. What a message says is never read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from toolbus.errors import (
    InvalidArguments,
    NotFound,
    PermissionDenied,
    QuotaExceeded,
    TooLarge,
)
from toolbus.grants import ToolPatterns, is_toolkit_name
from toolbus.wire import (
    MAX_ATTRIBUTES_BYTES,
    MAX_DEPTH,
    MAX_FRAME_BYTES,
    Attributes,
    BadBody,
    Builders,
    Participants,
    Send,
    pack_body,
    unpack_body,
)
from toolbus_server.definition import check_schema
from toolbus_server.feed import Feeds, participant_summary
from toolbus_server.request_options import (
    MAX_PAGE_BYTES,
    bad_option,
    cursor_text,
    page_limit,
    read_cursor,
    read_option,
)
from toolbus_server.room_view import Member
from toolbus_server.routing import Room, Seat

__all__ = ["People"]

_MESSAGE_NAME = re.compile(r"\A[A-Za-z0-9_.-]{1,64}\Z")
_MAX_MESSAGE_BYTES = 256 * 1024
_MAX_ATTRIBUTES = 64
_MAX_ATTRIBUTE_CHARS = 64
# In a list of participants three levels are around them.
_MAX_ATTRIBUTES_DEPTH = MAX_DEPTH - 3
_MAX_OFFERS = 64
_MAX_OFFERS_BYTES = 32 * 1024


class People:
    """Answers for one room; the room's feeds are told what changes.

    Args:
        room: The room.
        feeds: The room's subscribers.
        now: The loop's clock.
    """

    def __init__(self, room: Room, feeds: Feeds, now: Callable[[], float]) -> None:
        self._room = room
        self._state = room.state
        self._feeds = feeds
        self._now = now

    def participants(self, seat: Seat, request: Participants) -> dict[str, Any]:
        """One page of who is there.

        Raises:
            PermissionDenied: The asker lacks the grant `presence`.
            InvalidArguments: An option is of another type, or the cursor none of ours.
        """
        if not seat.member.scope.presence:
            raise PermissionDenied("no grant to see who is there (presence)")
        count = page_limit(request.options)
        place = read_cursor(request.options, (str, str))
        page: list[dict[str, Any]] = []
        size = 0
        for member in self._state.people(None if place is None else (place[0], place[1])):
            if page and (len(page) == count or size > MAX_PAGE_BYTES):
                last = page[-1]
                return {"participants": page, "cursor": cursor_text((last["name"], last["id"]))}
            page.append(participant_summary(member))
            size += len(pack_body(page[-1]))
        return {"participants": page, "cursor": None}

    def attributes(self, seat: Seat, request: Attributes) -> dict[str, Any]:
        """Change what a participant says of itself.

        Raises:
            InvalidArguments: There would be too many, or one is too long, or no JSON value.
        """
        member = seat.member
        changed = {
            name: value
            for name, value in (member.attributes | request.attributes).items()
            if value is not None
        }
        if _checked_attributes(changed) != pack_body(member.attributes):
            member.attributes = changed
            self._feeds.announce(member, was_there=True)
            self._touch(member)
        return {}

    def _touch(self, member: Member) -> None:
        if self._room.share is not None:
            self._room.share.touch(member)

    # Messages

    def send(self, seat: Seat, request: Send) -> dict[str, Any]:
        """Hand a message to those it is for, as far as they listen and have room for it.

        Raises:
            PermissionDenied: The sender lacks the grant `messaging`.
            InvalidArguments: The message's name is none.
            TooLarge: Its body is over the limit.
            QuotaExceeded: The sender sends too many.
            NotFound: Nobody of that name is there.
        """
        self._check_message(seat, request)
        sender = seat.member
        message = {
            "from": sender.card,
            "name": request.name,
            "body": request.body,
            "direct": request.to is not None,
            "builders": list(sender.scope.agents.builders),
        }
        if request.to is None:
            delivered = self._feeds.deliver_to_others(message, sender)
            return {"delivered": delivered + self._say_elsewhere(None, message)}
        receivers = self._state.all_named(request.to)
        if not receivers:
            raise NotFound(f"nobody named {request.to[:128]!r} is here")
        delivered = self._feeds.deliver(message, receivers)
        return {"delivered": delivered + self._say_elsewhere(request.to, message)}

    def _say_elsewhere(self, to: str | None, message: dict[str, Any]) -> int:
        return 0 if self._room.share is None else self._room.share.say(to, message)

    def _check_message(self, seat: Seat, request: Send) -> None:
        if not seat.member.scope.messaging:
            raise PermissionDenied("no grant to send messages (messaging)")
        if _MESSAGE_NAME.fullmatch(request.name) is None:
            raise bad_option("name", "is 1 to 64 of A-Z, a-z, 0-9, '_', '-' and '.'")
        if len(request.body) > _MAX_MESSAGE_BYTES:
            raise TooLarge(f"a message has at most {_MAX_MESSAGE_BYTES} bytes", executed="no")
        now = self._now()
        if seat.messages.exceeded(now):
            raise QuotaExceeded("too many messages", retry_after_s=seat.messages.pause_s(now))

    # Builders

    def builders(self, seat: Seat, request: Builders) -> dict[str, Any]:
        """Take note of what a participant builds on request, or tell what another one does.

        Raises:
            InvalidArguments: An offer is malformed, or neither or both of the two is asked for.
            TooLarge: What that one offers does not fit one frame.
        """
        offer = read_option(request.options, "offer", list)
        participant = read_option(request.options, "participant", str)
        if (offer is None) == (participant is None):
            raise bad_option("offer", "or participant: one of the two")
        if offer is not None:
            seat.member.offers = _read_offers(offer)
            self._touch(seat.member)
            return {}
        patterns = ToolPatterns(seat.member.scope.agents.builders)
        named = self._state.all_named(str(participant))
        return {"builders": _fitting(_covered(named, patterns))}


def _checked_attributes(attributes: dict[str, Any]) -> bytes:
    """Pack what a participant would say of itself. Raises InvalidArguments."""
    if len(attributes) > _MAX_ATTRIBUTES:
        raise bad_option("attributes", f"are at most {_MAX_ATTRIBUTES}")
    if any(len(name) > _MAX_ATTRIBUTE_CHARS for name in attributes):
        raise bad_option("attributes", f"have names of at most {_MAX_ATTRIBUTE_CHARS} characters")
    packed = pack_body(attributes)
    if len(packed) > MAX_ATTRIBUTES_BYTES:
        raise bad_option("attributes", f"have at most {MAX_ATTRIBUTES_BYTES} bytes together")
    try:
        unpack_body(packed, max_depth=_MAX_ATTRIBUTES_DEPTH)
    except BadBody as error:
        raise bad_option(f"attributes{error.path}", error.reason) from error
    return packed


def _read_offers(offers: list[Any]) -> dict[bytes, dict[str, Any]]:
    """Read what a participant builds, by its packed form, without keys not known here."""
    if len(offers) > _MAX_OFFERS:
        raise bad_option("offer", f"names at most {_MAX_OFFERS} toolkits")
    read = [_read_offer(offer, f"offer/{index}") for index, offer in enumerate(offers)]
    if len({each["name"] for each in read}) != len(read):
        raise bad_option("offer", "names a toolkit twice")
    if len(pack_body(read)) > _MAX_OFFERS_BYTES:
        raise bad_option("offer", f"has at most {_MAX_OFFERS_BYTES} bytes")
    return {pack_body(each): each for each in read}


def _read_offer(offer: Any, path: str) -> dict[str, Any]:
    if type(offer) is not dict:
        raise bad_option(path, "is a map of name, description and schema")
    name, description, schema = (offer.get(key) for key in ("name", "description", "schema"))
    if not is_toolkit_name(name):
        raise bad_option(f"{path}/name", "is the name of a toolkit")
    if type(description) is not str:
        raise bad_option(f"{path}/description", "is text")
    if type(schema) is not dict:
        raise bad_option(f"{path}/schema", "is a JSON Schema")
    try:
        unpack_body(pack_body(schema))
        check_schema(schema, f"/{path}/schema")
    except BadBody as error:
        raise bad_option(f"{path}/schema{error.path}", error.reason) from error
    except InvalidArguments as error:
        raise bad_option(f"{path}/schema", error.details["message"]) from error
    return {"name": name, "description": description, "schema": schema}


def _covered(members: Iterable[Member], patterns: ToolPatterns) -> Iterable[dict[str, Any]]:
    """Go through what these build and the patterns cover; what replicas say alike comes once."""
    seen: set[bytes] = set()
    for member in members:
        for packed, offer in member.offers.items():
            if packed not in seen:
                seen.add(packed)
                if patterns.covers_toolkit(offer["name"]):
                    yield offer


def _fitting(offers: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Collect what goes into one answer. Raises TooLarge as soon as it is too much for a frame."""
    fitting: list[dict[str, Any]] = []
    size = 0
    for offer in offers:
        size += len(pack_body(offer))
        if size > MAX_FRAME_BYTES:
            raise TooLarge("the answer does not fit one frame", executed="no")
        fitting.append(offer)
    return fitting
