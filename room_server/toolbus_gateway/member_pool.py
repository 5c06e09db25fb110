"""One connection of each token in each room, for as long as requests come.

Tokens are kept by their connections alone; here are hashes of token and room. One task holds each
connection from its opening to its end.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from toolbus.auth.token_limits import MAX_JWT_BYTES
from toolbus.bounded_logging import bounded_logger
from toolbus.concurrency.tasks import retrieve_error
from toolbus.errors import PermissionDenied, RoomException, Unavailable
from toolbus.room.room_client import RoomClient
from toolbus.settings import is_token
from toolbus_gateway.definitions import Definitions
from toolbus_gateway.limits import MAX_MEMBERS, MAX_REFUSED, MEMBER_IDLE_S, REFUSED_S
from toolbus_gateway.member import Member
from toolbus_gateway.results import shown_error

__all__ = ["MemberPool", "PoolFull"]

_logger = bounded_logger(__name__)


class PoolFull(Exception):
    """There are as many connections as there may be, and each has a request."""


@dataclass(slots=True, eq=False)
class _Place:
    member: asyncio.Future[Member]
    """Its error is why the connection could not be opened."""
    leases: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether its connection has ended for good, as that of a token that is revoked."""
        member = self.member
        return member.done() and (member.exception() is not None or member.result().has_ended)


@dataclass(frozen=True, slots=True)
class _Refusal:
    since: float
    message: str
    details: dict[str, Any]

    def error(self) -> PermissionDenied:
        """Make the error: the first one has a traceback, whose frames have the token."""
        return PermissionDenied(self.message, details=self.details)


class MemberPool:
    """The connections to the room server.

    Args:
        url: The room server.
        definitions: Those of all members.
        max_members: Connections at a time: a further one takes the place of the longest idle.
        idle_s: Seconds without a request after which a connection is closed.
        refused_s: Seconds for which a refused token is not tried again.
    """

    def __init__(
        self,
        url: str,
        definitions: Definitions,
        *,
        max_members: int = MAX_MEMBERS,
        idle_s: float = MEMBER_IDLE_S,
        refused_s: float = REFUSED_S,
    ) -> None:
        self._url = url
        self._definitions = definitions
        self._max_members = max_members
        self._idle_s = idle_s
        self._refused_s = refused_s
        self._now = asyncio.get_running_loop().time
        self._places: dict[bytes, _Place] = {}
        self._idle: OrderedDict[bytes, float] = OrderedDict()
        """Since when each place without a request has none, the longest first."""
        self._refused: OrderedDict[bytes, _Refusal] = OrderedDict()
        """Why tokens were refused, the oldest first."""
        self._holding: dict[_Place, asyncio.Task[None]] = {}
        """The tasks of all connections, also of those that are being closed."""
        self._sweep: asyncio.TimerHandle | None = None
        self._is_unreachable = False

    def __len__(self) -> int:
        return len(self._places)

    @property
    def busy(self) -> int:
        """How many connections have a request."""
        return len(self._places) - len(self._idle)

    @asynccontextmanager
    async def lease(self, token: str, room: str, address: str) -> AsyncIterator[Member]:
        """Use the connection of a token in a room; one that is not there yet is opened.

        Args:
            token: The bearer token.
            room: The name of the room.
            address: Where the request comes from; that of the first is told to the room server.

        Raises:
            PermissionDenied: The room server refuses the token or the room.
            PoolFull: See the class.
            RoomException: The room server cannot be reached, or accepts nobody now.
        """
        key = sha256(f"{room}\0{token}".encode()).digest()
        place = self._places.get(key)
        if place is None or place.has_ended:
            self._check_refused(key)
            # The text of another one might be taken for a file's name.
            if len(token) > MAX_JWT_BYTES or not is_token(token):
                raise PermissionDenied("this is not a token", details={"status": 401})
            place = self._open(key, token, room, address)
        place.leases += 1
        self._idle.pop(key, None)
        try:
            yield await asyncio.shield(place.member)
        finally:
            place.leases -= 1
            if place.leases == 0 and self._places.get(key) is place:
                if place.member.done():
                    self._idle[key] = self._now()
                    self._sweep_later()
                else:  # nobody waits for it any more
                    self._drop(key)

    async def aclose(self) -> None:
        """Close all connections."""
        if self._sweep is not None:
            self._sweep.cancel()
        for key in list(self._places):
            self._drop(key)
        if self._holding:
            await asyncio.wait(self._holding.values())

    def _check_refused(self, key: bytes) -> None:
        refusal = self._refused.get(key)
        if refusal is not None:
            if self._now() - refusal.since < self._refused_s:
                raise refusal.error()
            del self._refused[key]

    def _open(self, key: bytes, token: str, room: str, address: str) -> _Place:
        if self.busy >= self._max_members:
            raise PoolFull
        client = RoomClient(
            self._url,
            room=room,
            token=token,
            instance=f"gateway-{secrets.token_hex(8)}",
            locked=False,
            headers={"X-Forwarded-For": address} if address else None,
        )
        place = _Place(asyncio.get_running_loop().create_future())
        place.member.add_done_callback(retrieve_error)
        self._places[key] = place
        holding = asyncio.create_task(self._hold(key, place, client), name="toolbus-gateway-member")
        self._holding[place] = holding
        holding.add_done_callback(lambda _: self._released(place))
        return place

    async def _hold(self, key: bytes, place: _Place, client: RoomClient) -> None:
        """Open a connection, and close it once it has ended or this task is cancelled."""
        member: Member | None = None
        try:
            await _connect(client)
            self._is_unreachable = False
            with suppress(RoomException):  # for people to see; nothing depends on it
                await client.set_attributes(via="gateway")
            member = Member(client, self._definitions)
            place.member.set_result(member)
            # Only now, so that tokens which are refused cost nobody a connection.
            while len(self._places) > self._max_members and self._idle:
                self._drop(next(iter(self._idle)))
            with suppress(RoomException):
                await client.closed()
        except RoomException as error:
            if isinstance(error, PermissionDenied):
                self._refuse(key, error)
            if shown_error(error) is not error and not self._is_unreachable:
                self._is_unreachable = True  # logged once, not for each request
                _logger.warning("%s", error)
            place.member.set_exception(error)
        finally:
            if self._places.get(key) is place:
                self._forget(key)
            await (client if member is None else member).aclose()

    def _released(self, place: _Place) -> None:
        del self._holding[place]
        if not place.member.done():
            gone = Unavailable("the gateway has closed the connection", executed="no")
            place.member.set_exception(gone)

    def _refuse(self, key: bytes, error: PermissionDenied) -> None:
        self._refused[key] = _Refusal(self._now(), error.message, error.details)
        self._refused.move_to_end(key)
        if len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)

    def _forget(self, key: bytes) -> _Place:
        self._idle.pop(key, None)
        return self._places.pop(key)

    def _drop(self, key: bytes) -> None:
        self._holding[self._forget(key)].cancel()

    def _sweep_later(self) -> None:
        if self._sweep is None and self._idle:
            since = next(iter(self._idle.values()))
            loop = asyncio.get_running_loop()
            self._sweep = loop.call_at(since + self._idle_s, self._close_idle)

    def _close_idle(self) -> None:
        self._sweep = None
        now = self._now()
        for key, since in list(self._idle.items()):
            if now - since < self._idle_s:
                break
            self._drop(key)
        self._sweep_later()


async def _connect(client: RoomClient) -> None:
    """Open a connection. Raises `RoomException`."""
    try:
        await client.connect()
    except ValueError as error:  # such as a context of this user that there is no more
        _logger.error("no room can be joined with the settings here: %s", error)
        raise Unavailable("the gateway has wrong settings: see its log", executed="no") from error
