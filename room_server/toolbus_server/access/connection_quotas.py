"""Counts the connections of each address, identity and room against their quotas.

`admission` and the server decide what happens to a connection beyond a quota.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Any

__all__ = ["ConnectionCounts", "ConnectionQuotas", "address_of"]

# Connections of one address beyond its quota that get a response; further ones are dropped.
_MAX_REFUSED = 256
_IPV6_PREFIX = 64


@dataclass(slots=True)
class ConnectionCounts:
    """Counts of closed connections."""

    slow_consumers: int = 0
    """Connections closed with 4430, because they did not read."""


class ConnectionQuotas:
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
        # Addresses and rooms share one dict: only an address has a dot or a colon in it.
        self._counts: dict[Hashable, int] = {}
        self.dropped = 0
        """Connections beyond an address quota that were dropped without a response."""

    def add(self, key: Hashable) -> None:
        """Count a connection of an address, or a participant of an identity or a room."""
        self._counts[key] = self._counts.get(key, 0) + 1

    def remove(self, key: Hashable) -> None:
        """Uncount what `add` counted."""
        left = self._counts[key] - 1
        if left:
            self._counts[key] = left
        else:
            del self._counts[key]

    def count_of(self, key: Hashable) -> int:
        """Return how many `add` counted."""
        return self._counts.get(key, 0)

    def is_over_limit(self, address: str) -> bool:
        """Whether an address has more connections than its quota, all of them counted already."""
        return self._exceeds(address, self._max_per_address)

    def is_flooded(self, address: str) -> bool:
        """Whether it has so many more that further ones get no response."""
        return self._exceeds(address, self._max_per_address, _MAX_REFUSED)

    def is_full(self, identity: Hashable) -> bool:
        """Whether an identity has reached its quota of participants."""
        return self._exceeds(identity, self._max_per_identity, -1)

    def is_room_full(self, room: str, remote: int = 0) -> bool:
        """Whether a room has reached its quota of participants, with `remote` at other nodes."""
        return self._exceeds(room, self._max_per_room, -1 - remote)

    def _exceeds(self, key: Hashable, quota: int, margin: int = 0) -> bool:
        return quota > 0 and self._counts.get(key, 0) > quota + margin


def address_of(peer: Any) -> str:
    """Return the address of a socket's peer as it is counted.

    For IPv6 that is the /64 network, which is what one customer has; for a peer without an IP
    address, such as that of a Unix socket, it is the empty string.
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
