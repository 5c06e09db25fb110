"""One connection of each token in each room, for as long as requests come.

Tokens are kept by their connections alone; here are hashes of token and room.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256

from toolbus.bounded_logging import bounded_logger
from toolbus.errors import PermissionDenied, RoomException
from toolbus.room.room_client import RoomClient
from toolbus.settings import is_token
from toolbus_gateway.definitions import Definitions
from toolbus_gateway.limits import MAX_MEMBERS, MAX_REFUSED, MEMBER_IDLE_S, REFUSED_S
from toolbus_gateway.member import Member

__all__ = ["MemberPool", "PoolFull"]

_logger = bounded_logger(__name__)


class PoolFull(Exception):
    """There are as many connections as there may be, and each has a request."""


@dataclass(slots=True)
class _Place:
    opening: asyncio.Task[Member]
    leases: int = 0


class MemberPool:
    """The connections to the room server.

    Args:
        url: The room server.
        definitions: Those of all members.
        max_members: Connections at a time: a further one takes the place of the longest idle.
        idle_s: Seconds without a request after which a connection is closed.
    """

    def __init__(
        self,
        url: str,
        definitions: Definitions,
        *,
        max_members: int = MAX_MEMBERS,
        idle_s: float = MEMBER_IDLE_S,
    ) -> None:
        self._url = url
        self._definitions = definitions
        self._max_members = max_members
        self._idle_s = idle_s
        self._now = asyncio.get_running_loop().time
        self._places: dict[bytes, _Place] = {}
        self._idle: OrderedDict[bytes, float] = OrderedDict()
        """Since when each place without a request has none, the longest first."""
        self._refused: OrderedDict[bytes, tuple[float, PermissionDenied]] = OrderedDict()
        """When and why tokens were refused, the oldest first."""
        self._closing: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None

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
        if place is None or _has_ended(place):
            self._check_refused(key)
            if not is_token(token):  # the text of another one might be taken for a file's name
                raise PermissionDenied("the token is malformed", details={"status": 401})
            place = self._open(key, token, room, address)
        place.leases += 1
        self._idle.pop(key, None)
        try:
            yield await asyncio.shield(place.opening)
        finally:
            place.leases -= 1
            if place.leases == 0 and self._places.get(key) is place:
                self._idle[key] = self._now()
                self._sweep_later()

    async def aclose(self) -> None:
        """Close all connections."""
        if self._sweep is not None:
            self._sweep.cancel()
        for key in list(self._places):
            self._drop(key)
        if self._closing:
            await asyncio.wait(self._closing)

    def _check_refused(self, key: bytes) -> None:
        refused = self._refused.get(key)
        if refused is not None:
            since, error = refused
            if self._now() - since < REFUSED_S:
                raise error
            del self._refused[key]

    def _open(self, key: bytes, token: str, room: str, address: str) -> _Place:
        if key in self._places:
            self._drop(key)
        if len(self._places) >= self._max_members:
            if not self._idle:
                raise PoolFull
            self._drop(next(iter(self._idle)))
        opening = asyncio.create_task(self._join(token, room, address), name="toolbus-gateway-join")
        place = self._places[key] = _Place(opening)
        opening.add_done_callback(lambda task: self._opened(key, place, task))
        return place

    async def _join(self, token: str, room: str, address: str) -> Member:
        client = RoomClient(
            self._url,
            room=room,
            token=token,
            instance=f"gateway-{secrets.token_hex(8)}",
            locked=False,
            headers={"X-Forwarded-For": address} if address else None,
        )
        await client.connect()
        with suppress(RoomException):  # for people to see; nothing depends on it
            await client.set_attributes(via="gateway")
        return Member(client, self._definitions)

    def _opened(self, key: bytes, place: _Place, task: asyncio.Task[Member]) -> None:
        """Forget a connection that could not be opened, and remember why if it was refused."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        if self._places.get(key) is place:
            del self._places[key]
            self._idle.pop(key, None)
        if isinstance(error, PermissionDenied):
            self._refused[key] = self._now(), error
            self._refused.move_to_end(key)
            if len(self._refused) > MAX_REFUSED:
                self._refused.popitem(last=False)

    def _drop(self, key: bytes) -> None:
        place = self._places.pop(key)
        self._idle.pop(key, None)
        closing = asyncio.create_task(_close(place), name="toolbus-gateway-close")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

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


def _has_ended(place: _Place) -> bool:
    """Whether a connection has ended for good, as that of a token that is revoked."""
    opening = place.opening
    is_open = opening.done() and not opening.cancelled() and opening.exception() is None
    return is_open and opening.result().has_ended


async def _close(place: _Place) -> None:
    if not place.opening.done():
        place.opening.cancel()
    await asyncio.wait([place.opening])
    if not place.opening.cancelled() and place.opening.exception() is None:
        await place.opening.result().aclose()
