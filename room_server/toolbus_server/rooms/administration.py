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
from toolbus.errors import PermissionDenied
from toolbus.wire import Admin
from toolbus_server.access.revocations import (
    Revocation,
    Revocations,
    is_issued_before,
    revoked_until,
)
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

_MAX_CHARS = 256
"""All servers of a bus remember a revocation (PROTOCOL.md, ADMIN-1)."""
_MAX_ROOMS = 1_000
"""A page is made and packed in one step of the event loop (PROTOCOL.md, ADMIN-2)."""
_Reply: TypeAlias = dict[str, Any]


class RoomsElsewhere(NamedTuple):
    """Rooms that other nodes hold, including those that this node holds too."""

    rooms: dict[str, tuple[int, int]]
    """How many participants and toolkits each of them has; sorted by name."""
    is_all: bool
    """Whether there are no further rooms after these."""


class OtherNodes(Protocol):
    """Carries out administration at all other nodes."""

    def execute_elsewhere(self, action: str, options: dict[str, Any]) -> None:
        """Execute an action at all other nodes; returns at once."""

    async def rooms_elsewhere(self, after: str, limit: int) -> RoomsElsewhere:
        """List at most `limit` rooms with names after a name."""


class AdminActions:
    """The actions of administrators at one node."""

    def __init__(self, hub: Hub, revocations: Revocations) -> None:
        self._hub = hub
        self._revocations = revocations

    def execute(self, action: str, options: dict[str, Any]) -> int:
        """Evict the participants of this node that an action matches; return how many.

        Args:
            action: "kick", or "revoke", which is stored.
            options: The checked options of the request; for a revocation with `at`, its time in
                seconds since the epoch, and `ends_at`, when it may be forgotten.
        """
        if action == "revoke":
            target = options["jti"] if "jti" in options else _identity_of(options)
            self._revocations.revoke(Revocation(target, options["at"], options["ends_at"]))
        matches = _matcher(action, options)
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
        self.is_stored: Callable[[], Awaitable[bool]] | None = None
        """Waits until revocations are stored; None where they are not stored in a folder."""
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
        return self._execute_everywhere("kick", options)

    def _revoke(self, admin: Participant, options: dict[str, Any]) -> _Reply | Awaitable[_Reply]:
        if "*" not in admin.rooms:
            raise PermissionDenied(
                "revoking reaches every room, and your token is not for all of them: `toolbus token"
                " create --name NAME --grant admin --room '*'`"
            )
        target = self._revoked(admin, options)
        # With its time, a node that receives it later does not revoke tokens issued meanwhile.
        at = self._now()
        until = options.get("until") if "jti" in target else None
        if until is not None and (type(until) not in (int, float) or not at < until < inf):
            raise bad_option("until", "must be a time to come, in seconds since the epoch")
        ends_at = revoked_until(at, until, extends=self.extends_tokens)
        done = self._execute_everywhere("revoke", target | {"at": at, "ends_at": ends_at})
        if "issuer" in target and target["issuer"] not in self._issuers():
            done["unknown_issuer"] = True
        return done if self.is_stored is None else self._once_stored(done, self.is_stored())

    async def _once_stored(self, done: _Reply, is_stored: Awaitable[bool]) -> _Reply:
        return done if await is_stored else {**done, "stored": False}

    def _revoked(self, admin: Participant, options: dict[str, Any]) -> dict[str, Any]:
        """Return which tokens a revocation means: one by its id, or those of an identity."""
        if "jti" in options:
            return {"jti": _text(options, "jti")}
        name, issuers = _text(options, "name"), self._hub.issuers
        if "issuer" in options:
            named = issuers.identity_with(name, _text(options, "issuer"), "name")
        else:
            named = issuers.identity_of(name, admin.identity, "name")
        return named._asdict()

    def _execute_everywhere(self, action: str, options: dict[str, Any]) -> dict[str, Any]:
        """Execute an action at all nodes; of other nodes, count participants in rooms held here."""
        matches = _matcher(action, options)
        remote = sum(
            connection.participant.is_remote and matches(name, connection.participant)
            for name, open_room in self._hub.rooms.items()
            for connection in open_room.routed.connections.values()
        )
        if self._other_nodes is not None:
            self._other_nodes.execute_elsewhere(action, options)
        return {"closed": self._local.execute(action, options) + remote}


def _matcher(action: str, options: dict[str, Any]) -> Callable[[str, Participant], bool]:
    """Return a predicate for the participants of an action: by name or id, token, or identity."""
    if action == "kick":
        room, wanted = options["room"], options["participant"]
        if "issuer" not in options:  # from a node of an older version, which knows one issuer only
            return lambda name, participant: (
                name == room and wanted in (participant.id, participant.full_name)
            )
        kicked = _identity_of(options)
        return lambda name, participant: (
            name == room and (participant.id == wanted or participant.identity == kicked)
        )
    if "jti" in options:
        return lambda _, participant: participant.jti == options["jti"]
    identity, at = _identity_of(options), options["at"]
    return lambda _, participant: (
        participant.identity == identity and is_issued_before(participant.issued_at, at)
    )


def _identity_of(options: dict[str, Any]) -> Identity:
    return Identity(options["issuer"], options["name"])


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
