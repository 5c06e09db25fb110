"""How many connections one address, one identity and one room has, and how many each may have.

It counts and compares. What becomes of one too many is decided in `admission` and `server`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any

__all__ = ["Crowd", "LineCounts", "address_of"]

# Of one address beyond its cap: as many may wait to be told so, the rest is dropped unheard.
_MAX_WAITING = 256
_IPV6_PREFIX = 64


@dataclass(slots=True)
class LineCounts:
    """What connections count of their own ends."""

    slow_consumers: int = 0
    """Closed with 4430, because they did not read."""


class Crowd:
    """Counts the connections to one server.

    Args:
        max_per_address: How many one address may have; 0 for any number.
        max_per_identity: How many participants one identity may have; 0 for any number.
        max_per_room: How many participants one room may have; 0 for any number.
    """

    def __init__(self, max_per_address: int, max_per_identity: int, max_per_room: int) -> None:
        self._max_per_address = max_per_address
        self._max_per_identity = max_per_identity
        self._max_per_room = max_per_room
        # Addresses and rooms lie side by side: the one has a dot or a colon in it, the other none.
        self._counts: dict[Hashable, int] = {}
        self.dropped = 0
        """Connections of an overfull address that were dropped unheard."""

    def enter(self, key: Hashable) -> None:
        """Count a connection of an address, or a participant of an identity or a room."""
        self._counts[key] = self._counts.get(key, 0) + 1

    def leave(self, key: Hashable) -> None:
        """Take back what `enter` counted."""
        left = self._counts[key] - 1
        if left:
            self._counts[key] = left
        else:
            del self._counts[key]

    def is_overfull(self, address: str) -> bool:
        """Whether an address has more connections than it may, all of them counted already."""
        return self._exceeds(address, self._max_per_address)

    def is_flooded(self, address: str) -> bool:
        """Whether it has so many more that no further one is worth an answer."""
        return self._exceeds(address, self._max_per_address, _MAX_WAITING)

    def is_full(self, identity: Hashable) -> bool:
        """Whether an identity has all the participants it may have."""
        return self._exceeds(identity, self._max_per_identity, -1)

    def is_room_full(self, room: str, elsewhere: int = 0) -> bool:
        """Whether a room has all the participants it may have, with so many at other nodes."""
        return self._exceeds(room, self._max_per_room, -1 - elsewhere)

    def _exceeds(self, key: Hashable, most: int, spare: int = 0) -> bool:
        return most > 0 and self._counts.get(key, 0) > most + spare


def address_of(peer: Any) -> str:
    """Name the address of a socket's other end for counting.

    Of IPv6 that is the network of 64 bits, which is what one customer has; an address that is none
    of IP, such as that of a Unix socket, is the empty text.
    """
    try:
        address = ip_address(str(peer[0]).partition("%")[0])
    except (TypeError, IndexError, ValueError):
        return ""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(IPv6Network((int(address), _IPV6_PREFIX), strict=False))
    return str(address)
