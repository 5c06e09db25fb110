"""Handles requests about participants: list, attributes, messages, builders.

Each method takes a request and returns the body of its reply, or raises the error of the reply. The
state is in `room_state`; here are the grants, the limits and the shape of the replies. The bodies
of messages are never read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from toolbus.auth.grants import ToolPatterns, is_toolkit_name
from toolbus.errors import NotFound, TooLarge
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
from toolbus.wire.body_steps import ValueCount, run_steps, unpack_steps
from toolbus_server.calls.router import Connection, RoutedRoom
from toolbus_server.registry.call_checks import (
    MAX_PAGE_BYTES,
    bad_option,
    cursor_text,
    need_grant,
    page_limit,
    read_cursor,
    read_option,
)
from toolbus_server.registry.models import Identity, Participant
from toolbus_server.rooms.event_feed import EventFeeds, participant_summary
from toolbus_server.rooms.scheduling import Walk

__all__ = ["ParticipantRequests"]

_MESSAGE_NAME = re.compile(r"\A[A-Za-z0-9_.-]{1,64}\Z")
_MAX_MESSAGE_BYTES = 256 * 1024
"""It is sent to everybody in the room at once (PROTOCOL.md, SEND-1)."""
# Every list of the room and every server of a bus has the attributes (PROTOCOL.md, PEOPLE-2).
_MAX_ATTRIBUTES = 64
_MAX_ATTRIBUTE_CHARS = 64
# In a list of participants they are nested three levels deep.
_MAX_ATTRIBUTES_DEPTH = MAX_DEPTH - 3
_MAX_OFFERS = 64
_MAX_OFFERS_BYTES = 32 * 1024
# They are read at once, which takes 1 ms; without this limit it takes 8 ms for 32 KiB.
_MAX_OFFERS_VALUES = 4_096


class ParticipantRequests:
    """Handles the requests of one room; publishes changes to the room's feeds."""

    def __init__(self, room: RoutedRoom, feeds: EventFeeds, now: Callable[[], float]) -> None:
        self._room = room
        self._state = room.state
        self._feeds = feeds
        self._now = now

    def participants(self, connection: Connection, request: Participants) -> dict[str, Any]:
        """Return one page of the participants.

        Raises:
            PermissionDenied: The participant lacks the grant `presence`.
            InvalidArguments: An option has a wrong type, or the cursor is invalid.
        """
        need_grant(connection.participant.scope.presence, "list participants", "presence")
        count = page_limit(request.options)
        after = read_cursor(request.options, (str, str))
        page: list[dict[str, Any]] = []
        size = 0
        for participant in self._state.participants(after):
            if page and (len(page) == count or size > MAX_PAGE_BYTES):
                last = page[-1]
                return {"participants": page, "cursor": cursor_text((last["name"], last["id"]))}
            page.append(participant_summary(participant))
            size += len(pack_body(page[-1]))
        return {"participants": page, "cursor": None}

    def attributes(self, connection: Connection, request: Attributes) -> dict[str, Any]:
        """Change the attributes of a participant.

        Raises:
            InvalidArguments: There would be too many, or one is too long or no JSON value.
        """
        participant = connection.participant
        changed = {
            name: value
            for name, value in (participant.attributes | request.attributes).items()
            if value is not None
        }
        if _checked_attributes(changed) != pack_body(participant.attributes):
            participant.attributes = changed
            self._feeds.publish_participant(participant, was_present=True)
            self._room.publish_change(participant)
        return {}

    # Messages

    def send(self, connection: Connection, request: Send) -> Walk:
        """Send a message to its receivers, if they subscribe and their send queues are not full.

        Raises:
            PermissionDenied: The sender lacks the grant `messaging`.
            InvalidArguments: The message's name is invalid, or the receiver's alias is unknown.
            TooLarge: Its body is over the limit.
            QuotaExceeded: The sender sends too many messages.
            NotFound: No participant has that name.
        """
        sender = connection.participant
        need_grant(sender.scope.messaging, "send messages", "messaging")
        if _MESSAGE_NAME.fullmatch(request.name) is None:
            raise bad_option("name", "must be 1 to 64 of A-Z, a-z, 0-9, '_', '-' and '.'")
        if len(request.body) > _MAX_MESSAGE_BYTES:
            raise TooLarge(f"a message has at most {_MAX_MESSAGE_BYTES} bytes", executed="no")
        connection.messages.check(self._now(), "messages")
        to: Identity | None = None
        receivers: list[Participant] = []
        if request.to is not None:
            to = self._named(connection, request.to, "to")
            receivers = self._state.participants_of(to)
            if not receivers:
                raise NotFound(f"no participant named {request.to[:128]!r} is here")
        message = {
            "from": sender.packed_info,
            "name": request.name,
            "body": request.body,
            "direct": request.to is not None,
            "builders": list(sender.scope.agents.builders),
        }
        elsewhere = 0
        if self._room.replication is not None:
            elsewhere = self._room.replication.send_message(to, message, sender.identity)
        if to is None:
            here = yield from self._feeds.deliver_to_others(message, sender)
        else:
            here = yield from self._feeds.deliver(message, receivers)
        return {"delivered": here + elsewhere}

    def _named(self, connection: Connection, text: str, option: str) -> Identity:
        return self._state.issuers.identity_of(text, connection.participant.identity, option)

    # Builders

    def builders(self, connection: Connection, request: Builders) -> dict[str, Any]:
        """Store the builders that a participant offers, or return those of another one.

        Raises:
            InvalidArguments: An offer is malformed, not exactly one of the two is requested, or the
                participant's alias is unknown.
            TooLarge: The offers do not fit one frame.
        """
        offer = read_option(request.options, "offer", list)
        participant = read_option(request.options, "participant", str)
        if (offer is None) == (participant is None):
            raise bad_option("offer", "or participant: exactly one of the two is required")
        if offer is not None:
            connection.participant.offers = _read_offers(offer)
            self._room.publish_change(connection.participant)
            return {}
        patterns = ToolPatterns(connection.participant.scope.agents.builders)
        named = self._named(connection, str(participant), "participant")
        present = self._state.participants_of(named)
        return {"builders": _covered(present, patterns)}


def _checked_attributes(attributes: dict[str, Any]) -> bytes:
    """Check and pack the attributes of a participant. Raises InvalidArguments."""
    if len(attributes) > _MAX_ATTRIBUTES:
        raise bad_option("attributes", f"must be at most {_MAX_ATTRIBUTES}")
    if any(len(name) > _MAX_ATTRIBUTE_CHARS for name in attributes):
        raise bad_option(
            "attributes", f"must have names of at most {_MAX_ATTRIBUTE_CHARS} characters"
        )
    packed = pack_body(attributes)
    if len(packed) > MAX_ATTRIBUTES_BYTES:
        raise bad_option("attributes", f"must have at most {MAX_ATTRIBUTES_BYTES} bytes together")
    try:
        unpack_body(packed, max_depth=_MAX_ATTRIBUTES_DEPTH)
    except BadBody as error:
        raise bad_option(f"attributes{error.path}", error.reason) from error
    return packed


def _read_offers(offers: list[Any]) -> dict[bytes, dict[str, Any]]:
    """Read offers, keyed by their packed form, without unknown keys. Raises InvalidArguments."""
    if len(offers) > _MAX_OFFERS:
        raise bad_option("offer", f"must name at most {_MAX_OFFERS} toolkits")
    read = [_read_offer(offer, f"offer/{index}") for index, offer in enumerate(offers)]
    if len({offer["name"] for offer in read}) != len(read):
        raise bad_option("offer", "names a toolkit twice")
    packed = pack_body(read)
    if len(packed) > _MAX_OFFERS_BYTES:
        raise bad_option("offer", f"must have at most {_MAX_OFFERS_BYTES} bytes")
    try:
        run_steps(unpack_steps(packed, count=ValueCount(_MAX_OFFERS_VALUES, "all offers")))
    except BadBody as error:
        raise bad_option(f"offer{error.path}", error.reason) from error
    return {pack_body(offer): offer for offer in read}


def _read_offer(offer: Any, path: str) -> dict[str, Any]:
    if type(offer) is not dict:
        raise bad_option(path, "must be a map of name, description and schema")
    name, description, schema = (offer.get(key) for key in ("name", "description", "schema"))
    if not is_toolkit_name(name):
        raise bad_option(f"{path}/name", "must be the name of a toolkit")
    if type(description) is not str:
        raise bad_option(f"{path}/description", "must be text")
    if type(schema) is not dict:
        raise bad_option(f"{path}/schema", "must be a JSON Schema")
    return {"name": name, "description": description, "schema": schema}


def _covered(participants: Iterable[Participant], patterns: ToolPatterns) -> list[dict[str, Any]]:
    """Collect the offers that the patterns cover; equal offers of replicas appear once.

    Raises TooLarge if they do not fit one frame.
    """
    covered: dict[bytes, dict[str, Any]] = {}
    size = 0
    for participant in participants:
        for packed, offer in participant.offers.items():
            if packed not in covered and patterns.covers_toolkit(offer["name"]):
                covered[packed] = offer
                size += len(packed)
                if size > MAX_FRAME_BYTES:
                    raise TooLarge("the reply does not fit one frame", executed="no")
    return list(covered.values())
