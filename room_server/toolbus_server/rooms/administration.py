"""Administration of rooms: list them, kick participants, revoke tokens.

Every action needs the grant `admin`, and reaches the rooms that the administrator's own token
names; a revocation, which ends tokens wherever they are used, needs a token for all rooms.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Set
from functools import partial
from math import inf
from typing import Any, NamedTuple, Protocol, TypeAlias

from toolbus.auth.grants import matches_room
from toolbus.auth.participant_names import full_name
from toolbus.bounded_logging import bounded_logger
from toolbus.errors import PermissionDenied
from toolbus.wire import Admin
from toolbus_server.access.revocations import (
    Revocation,
    Revocations,
    is_issued_before,
    revoked_until,
)
from toolbus_server.access.state_writer import StateWriter
from toolbus_server.calls.call_state import Connection
from toolbus_server.registry.call_checks import (
    bad_option,
    cursor_text,
    need_grant,
    page_limit,
    read_cursor,
)
from toolbus_server.registry.models import Identity, Participant
from toolbus_server.rooms.hub import Hub, OpenRoom

__all__ = ["AdminActions", "Administration", "OtherNodes", "RoomsElsewhere"]

_logger = bounded_logger(__name__)
_MAX_CHARS = 640
"""All servers of a bus remember a revocation (PROTOCOL.md, ADMIN-1). The longest names are those of
an issuer with a key set, with its alias."""
_STORED_S = 5.0
"""The most that an administrator waits for a revocation to be stored."""
_MAX_ROOMS = 1_000
"""A page is made and packed in one step of the event loop (PROTOCOL.md, ADMIN-2)."""
_Reply: TypeAlias = dict[str, Any]
_Matches: TypeAlias = Callable[[str, Participant], bool]
"""Whether an action is about a participant in a room of that name."""


class RoomsElsewhere(NamedTuple):
    """Rooms that other nodes hold, including those that this node holds too."""

    rooms: dict[str, tuple[int, int]]
    """How many participants and toolkits each of them has; sorted by name."""
    is_all: bool
    """Whether there are no further rooms after these."""


class OtherNodes(Protocol):
    """Carries out administration at all other nodes."""

    def kick_elsewhere(self, options: dict[str, Any]) -> None:
        """Kick at all other nodes; returns at once."""

    async def rooms_elsewhere(self, after: str, limit: int) -> RoomsElsewhere:
        """List at most `limit` rooms with names after a name."""


class AdminActions:
    """The actions of administrators at one node: they evict its participants, and count them.

    Args:
        hub: The rooms.
        revocations: What is revoked.
        now: Returns the time in seconds since the epoch.
    """

    def __init__(self, hub: Hub, revocations: Revocations, now: Callable[[], float]) -> None:
        self._hub = hub
        self.revocations: Revocations = revocations
        """What is revoked."""
        self._now = now

    def kick(self, options: dict[str, Any]) -> int:
        """Evict a participant, by the checked options of the request."""
        return self._evict(_kicked(options))

    def revoke(self, revocation: Revocation) -> int:
        """Evict the holders of revoked tokens, and admit these no more."""
        if not self.revocations.add(revocation, self._now()):
            return 0
        return self._evict(_revoked(revocation))

    def _evict(self, matches: _Matches) -> int:
        for name, open_room in self._hub.rooms.items():
            open_room.hold_requests.away.remove(partial(matches, name))
        evicted = [
            session
            for name, open_room in self._hub.rooms.items()
            for session in open_room.sessions.values()
            if matches(name, session.connection.participant)
        ]
        for session in evicted:
            session.evict()
        return len(evicted)


class Administration:
    """Handles the requests of administrators.

    Args:
        hub: The rooms.
        actions: Carries actions out at this node.
        now: Returns the time in seconds since the epoch.
        other_nodes: Carries them out at the other nodes, if there are any.
        issuers: Returns the issuers whose tokens this node accepts.
    """

    def __init__(
        self,
        hub: Hub,
        actions: AdminActions,
        now: Callable[[], float],
        other_nodes: OtherNodes | None = None,
        *,
        issuers: Callable[[], Set[str]],
    ) -> None:
        self._issuers = issuers
        self.extends_tokens = False
        """Whether tokens with `until` get further lives here, so that revocations last longer."""
        self.writer: StateWriter | None = None
        """Stores revocations; None where they are not stored."""
        self._hub = hub
        self._local = actions
        self._now = now
        self._other_nodes = other_nodes
        self._actions: dict[
            str, Callable[[Participant, dict[str, Any]], _Reply | Awaitable[_Reply]]
        ] = {"rooms": self._rooms, "kick": self._kick, "revoke": self._revoke}

    def handle(self, admin: Participant, request: Admin) -> _Reply | Awaitable[_Reply]:
        """Carry out an administrator's request.

        Raises:
            PermissionDenied: It lacks the grant, or its token does not name the room.
            InvalidArguments: There is no such action, or an option is missing or malformed.
        """
        need_grant(admin.scope.admin, "administer rooms", "admin")
        action = self._actions.get(request.action)
        if action is None:
            raise bad_option("action", f"must be one of {', '.join(self._actions)}")
        return action(admin, request.options)

    def _rooms(self, admin: Participant, options: dict[str, Any]) -> _Reply | Awaitable[_Reply]:
        [after] = read_cursor(options, (str,)) or [""]
        count = page_limit(options, _MAX_ROOMS)
        if self._other_nodes is not None:
            elsewhere = self._other_nodes.rooms_elsewhere(after, count)
            return self._page_of_all(admin, after, count, elsewhere)
        return self._page(admin, after, count, RoomsElsewhere({}, is_all=True))

    async def _page_of_all(
        self, admin: Participant, after: str, count: int, elsewhere: Awaitable[RoomsElsewhere]
    ) -> _Reply:
        return self._page(admin, after, count, await elsewhere)

    def _page(
        self, admin: Participant, after: str, count: int, elsewhere: RoomsElsewhere
    ) -> _Reply:
        """Make one page of the rooms here and elsewhere, as far as both are known."""
        here, others = self._hub.rooms, elsewhere.rooms
        last = None if elsewhere.is_all else max(others)
        populated = {name for name, (participants, _) in others.items() if participants}
        visible = [
            name
            for name in sorted(populated.union(here))
            if name > after and (last is None or name <= last) and matches_room(admin.rooms, name)
        ]
        page = visible[:count]
        ends_at = page[-1] if len(visible) > count else last
        return {
            "rooms": [_summary(name, here.get(name), *others.get(name, (0, 0))) for name in page],
            "cursor": None if ends_at is None else cursor_text((ends_at,)),
        }

    def _kick(self, admin: Participant, options: dict[str, Any]) -> dict[str, Any]:
        name, participant = _text(options, "room"), _text(options, "participant")
        if not matches_room(admin.rooms, name):
            raise PermissionDenied(f"your token is not for room {name}")
        named = self._hub.issuers.identity_of(participant, admin.identity, "participant")
        options = {"room": name, "participant": participant, **named._asdict()}
        if self._other_nodes is not None:
            self._other_nodes.kick_elsewhere(options)
        return {"closed": self._count_elsewhere(_kicked(options)) + self._local.kick(options)}

    def _revoke(self, admin: Participant, options: dict[str, Any]) -> _Reply | Awaitable[_Reply]:
        if "*" not in admin.rooms:
            raise PermissionDenied(
                "revoking reaches every room, and your token is not for all of them: `toolbus token"
                " create --name NAME --grant admin --room '*'`"
            )
        target = self._target_of(admin, options)
        # With its time, a node that receives it later does not revoke tokens issued meanwhile.
        at = self._now()
        until = options.get("until") if isinstance(target, str) else None
        if until is not None and (type(until) not in (int, float) or not at < until < inf):
            raise bad_option("until", "must be a time to come, in seconds since the epoch")
        ends_at = revoked_until(at, until, extends=self.extends_tokens)
        revocation = Revocation(target, at, ends_at)
        elsewhere = self._count_elsewhere(_revoked(revocation))
        done: _Reply = {"closed": elsewhere + self._local.revoke(revocation)}
        _logger.warning("%s revoked %s", admin.full_name, self._described(target))
        if isinstance(target, Identity) and target.issuer not in self._issuers():
            done["unknown_issuer"] = True
        if self.writer is None:
            return done
        self.writer.add_revocation(revocation)
        return self._once_stored(done, self.writer)

    async def _once_stored(self, done: _Reply, writer: StateWriter) -> _Reply:
        return done if await writer.is_written(_STORED_S) else {**done, "stored": False}

    def _target_of(self, admin: Participant, options: dict[str, Any]) -> Identity | str:
        """Return whose tokens a revocation means: an identity's, or one by its id."""
        if "jti" in options:
            return _text(options, "jti")
        name, issuers = _text(options, "name"), self._hub.issuers
        if "issuer" in options:
            return issuers.identity_with(name, _text(options, "issuer"), "name")
        return issuers.identity_of(name, admin.identity, "name")

    def _described(self, target: Identity | str) -> str:
        if isinstance(target, str):
            return f"the token {target!r}"
        return f"all tokens of {full_name(target.name, self._hub.issuers.alias_before(target))}"

    def _count_elsewhere(self, matches: _Matches) -> int:
        """Count the participants of other nodes, in rooms that are held here."""
        return sum(
            connection.participant.is_remote and matches(name, connection.participant)
            for name, open_room in self._hub.rooms.items()
            for connection in open_room.routed.connections.values()
        )


def _kicked(options: dict[str, Any]) -> _Matches:
    room, wanted = options["room"], options["participant"]
    if "issuer" not in options:  # from a node of an older version, which knows one issuer only
        return lambda name, participant: (
            name == room and wanted in (participant.id, participant.full_name)
        )
    kicked = Identity(options["issuer"], options["name"])
    return lambda name, participant: (
        name == room and (participant.id == wanted or participant.identity == kicked)
    )


def _revoked(revocation: Revocation) -> _Matches:
    target, at, _ = revocation
    if isinstance(target, str):
        return lambda _, participant: participant.jti == target
    return lambda _, participant: (
        participant.identity == target and is_issued_before(participant.issued_at, at)
    )


def _summary(name: str, here: OpenRoom | None, participants: int, toolkits: int) -> dict[str, Any]:
    """Describe a room by its state here, or by what Redis says of one that is elsewhere only."""
    calls = 0
    if here is not None:
        participants, toolkits = len(here.routed.connections), here.routed.state.toolkit_count
        calls = sum(_call_count(session.connection) for session in here.sessions.values())
    return {"name": name, "participants": participants, "toolkits": toolkits, "calls": calls}


def _call_count(connection: Connection) -> int:
    """Count the calls that a participant makes, and those it runs for callers at other nodes."""
    dispatched = connection.dispatched.values()
    remote = [call for call in dispatched if call.caller.participant.is_remote]
    return sum(call.patterns is None for call in (*connection.calls.values(), *remote))


def _text(options: dict[str, Any], name: str) -> str:
    value = options.get(name)
    if type(value) is not str or not 0 < len(value) <= _MAX_CHARS:
        raise bad_option(name, f"must be text of 1 to {_MAX_CHARS} characters")
    return value
