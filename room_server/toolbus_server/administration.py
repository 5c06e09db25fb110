"""Looking after rooms: which there are, sending somebody away, revoking tokens.

Every action needs the grant `admin`, and reaches the rooms that the asker's own token names; a
revocation, which ends tokens wherever they are shown, needs a token for all rooms.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from toolbus.errors import PermissionDenied
from toolbus.grants import matches_room
from toolbus.wire import Admin
from toolbus_server.flights import Seat
from toolbus_server.hub import Hub, Occupant, OpenRoom
from toolbus_server.request_options import bad_option, cursor_text, page_limit, read_cursor
from toolbus_server.revocations import Revocations
from toolbus_server.room_view import Identity, Member

__all__ = ["Administration", "RoomsElsewhere"]

_MAX_CHARS = 256
_MAX_ROOMS = 1_000
_Answer: TypeAlias = dict[str, Any]


class RoomsElsewhere(NamedTuple):
    """Rooms that other nodes hold, this one's among them."""

    rooms: dict[str, tuple[int, int]]
    """How many participants and toolkits there are in each, in the order of their names."""
    is_all: bool
    """Whether there are no more behind them."""


class Administration:
    """Answers the requests of administrators of one server.

    Args:
        hub: The rooms.
        revocations: Which tokens count no more.
        now: Seconds since the epoch.
    """

    def __init__(self, hub: Hub, revocations: Revocations, now: Callable[[], float]) -> None:
        self.elsewhere: Callable[[str, dict[str, Any]], None] | None = None
        """Has the same done at all other nodes, where there are any."""
        self.rooms_elsewhere: Callable[[str, int], Awaitable[RoomsElsewhere]] | None = None
        """Gives the rooms behind a name, so many at most, where there are other nodes."""
        self._hub = hub
        self._revocations = revocations
        self._now = now
        self._actions: dict[
            str, Callable[[Member, dict[str, Any]], _Answer | Awaitable[_Answer]]
        ] = {
            "rooms": self._rooms,
            "kick": self._kick,
            "revoke": self._revoke,
        }

    def act(self, asker: Member, request: Admin) -> _Answer | Awaitable[_Answer]:
        """Do what an administrator asks for.

        Raises:
            PermissionDenied: It lacks the grant, or its token does not name the room.
            InvalidArguments: There is no such action, or an option is missing or malformed.
        """
        if not asker.scope.admin:
            raise PermissionDenied("no grant to look after rooms (admin)")
        action = self._actions.get(request.action)
        if action is None:
            raise bad_option("action", f"is one of {', '.join(self._actions)}")
        return action(asker, request.options)

    def _rooms(self, asker: Member, options: dict[str, Any]) -> _Answer | Awaitable[_Answer]:
        place = read_cursor(options, (str,))
        after = "" if place is None else str(place[0])
        count = page_limit(options, _MAX_ROOMS)
        if self.rooms_elsewhere is not None:
            return self._page_of_all(asker, after, count, self.rooms_elsewhere(after, count))
        return self._page(asker, after, count, RoomsElsewhere({}, is_all=True))

    async def _page_of_all(
        self, asker: Member, after: str, count: int, elsewhere: Awaitable[RoomsElsewhere]
    ) -> _Answer:
        return self._page(asker, after, count, await elsewhere)

    def _page(self, asker: Member, after: str, count: int, elsewhere: RoomsElsewhere) -> _Answer:
        """Make one page of the rooms here and elsewhere, as far as both are known."""
        here, there = self._hub.rooms, elsewhere.rooms
        last = None if elsewhere.is_all else max(there)
        peopled = {name for name, (participants, _) in there.items() if participants}
        seen = [
            name
            for name in sorted(peopled.union(here))
            if name > after and (last is None or name <= last) and matches_room(asker.rooms, name)
        ]
        page = seen[:count]
        ends_at = page[-1] if len(seen) > count else last
        return {
            "rooms": [
                _facts_of(here[name]) if name in here else _far_facts(name, *there[name])
                for name in page
            ],
            "cursor": None if ends_at is None else cursor_text((ends_at,)),
        }

    def _kick(self, asker: Member, options: dict[str, Any]) -> dict[str, Any]:
        name, wanted = _text(options, "room"), _text(options, "participant")
        if not matches_room(asker.rooms, name):
            raise PermissionDenied(f"your token is not for room {name}")
        return self._do_everywhere("kick", {"room": name, "participant": wanted})

    def _revoke(self, asker: Member, options: dict[str, Any]) -> dict[str, Any]:
        if "*" not in asker.rooms:
            raise PermissionDenied("revoking reaches every room: your token is not for all of them")
        named = ("jti",) if "jti" in options else ("issuer", "name")
        meant: dict[str, Any] = {each: _text(options, each) for each in named}
        # A node that hears of it later does not end what was minted meanwhile.
        return self._do_everywhere("revoke", meant | {"at": self._now()})

    def _do_everywhere(self, action: str, options: dict[str, Any]) -> dict[str, Any]:
        """Do it here and at all other nodes; of those there, count who is in a room of this one."""
        is_meant = _meaning(action, options)
        far = sum(
            seat.member.is_far and is_meant(name, seat.member)
            for name, open_room in self._hub.rooms.items()
            for seat in open_room.room.seats.values()
        )
        if self.elsewhere is not None:
            self.elsewhere(action, options)
        return {"closed": self.carry_out(action, options) + far}

    def carry_out(self, action: str, options: dict[str, Any]) -> int:
        """Send away who is meant, of those at this node; return how many that are.

        Args:
            action: "kick", or "revoke", which is remembered.
            options: As an administrator gave them, checked; of a revocation with `at`, its time in
                seconds since the epoch.
        """
        if action == "revoke" and "jti" in options:
            self._revocations.revoke_token(options["jti"], options["at"])
        elif action == "revoke":
            identity = Identity(options["issuer"], options["name"])
            self._revocations.revoke_identity(identity, options["at"])
        return _send_away(self._everybody(_meaning(action, options)))

    def _everybody(self, is_meant: Callable[[str, Member], bool]) -> list[Occupant]:
        return [
            occupant
            for name, open_room in self._hub.rooms.items()
            for occupant in open_room.occupants.values()
            if is_meant(name, occupant.seat.member)
        ]


def _meaning(action: str, options: dict[str, Any]) -> Callable[[str, Member], bool]:
    """Tell whom an action means: those of a name or the one with an id; a token's; an identity."""
    if action == "kick":
        room, wanted = options["room"], options["participant"]
        return lambda name, each: name == room and wanted in (each.id, each.identity.name)
    if "jti" in options:
        return lambda _, each: each.jti == options["jti"]
    identity, at = Identity(options["issuer"], options["name"]), options["at"]
    return lambda _, each: each.identity == identity and each.issued_at <= at


def _send_away(occupants: Iterable[Occupant]) -> int:
    leaving = list(occupants)
    for occupant in leaving:
        occupant.sent_away()
    return len(leaving)


def _facts_of(open_room: OpenRoom) -> dict[str, Any]:
    return {
        "name": open_room.room.state.name,
        "participants": len(open_room.room.seats),
        "toolkits": open_room.room.state.toolkit_count,
        "calls": sum(_calls_of(each.seat) for each in open_room.occupants.values()),
    }


def _calls_of(seat: Seat) -> int:
    """Count the calls that a participant makes, and those it runs for others at other nodes."""
    far = sum(flight.caller.member.is_far for flight in seat.dispatched.values())
    return len(seat.calls) + far


def _far_facts(name: str, participants: int, toolkits: int) -> dict[str, Any]:
    return {"name": name, "participants": participants, "toolkits": toolkits, "calls": 0}


def _text(options: dict[str, Any], name: str) -> str:
    value = options.get(name)
    if type(value) is not str or not 0 < len(value) <= _MAX_CHARS:
        raise bad_option(name, f"is text of 1 to {_MAX_CHARS} characters")
    return value
