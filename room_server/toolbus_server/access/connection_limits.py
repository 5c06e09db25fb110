"""How many connections there may be: by address, identity and room, at a time, and by descriptors.

Also for which address a connection counts that a trusted proxy forwards. `admission` and the server
decide what happens to a connection beyond a limit.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, TypeAlias

from toolbus.bounded_logging import bounded_logger

__all__ = [
    "RESERVED_DESCRIPTORS",
    "ConnectionQuotas",
    "DescriptorReserve",
    "JoinRateLimiter",
    "TrustedProxies",
    "address_of",
    "network_of",
    "raise_descriptor_limit",
]

# Connections of one address beyond its quota that get a response; further ones are dropped.
_MAX_REFUSED = 256
_IPV6_PREFIX = 64
_Network: TypeAlias = IPv4Network | IPv6Network
# Chained proxies: a longer chain is a mistake, or a forgery.
_MAX_ADDRESSES = 32
_MAX_PORT = 65_535
PER_INTERVAL = 8
INTERVAL_S = 0.01
"""Seconds of an interval, with at most `PER_INTERVAL` joins: 800 within a second."""
MAX_WAITING = 4_000
"""Limit of waiting joins; a further one is refused. The last one waits 5 s; a client waits 10 s."""
RESERVED_DESCRIPTORS = 32
"""Descriptors that no connection gets; half of all if the process may have fewer than 64."""
_LOG_INTERVAL_S = 60.0
"""The shortest time between two warnings."""
_logger = bounded_logger(__name__)


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
        self.slow_consumers = 0
        """Connections closed with 4430, because they did not read."""

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


def network_of(text: str) -> _Network:
    """Read a network as `10.0.0.0/8`, or one address. Raises ValueError."""
    return ip_network(text.strip())


class TrustedProxies:
    """The networks of proxies whose `X-Forwarded-For` is trusted.

    Nothing that a client wrote is trusted: only the entries that these proxies appended are read,
    and a malformed header is ignored.

    Args:
        networks: In CIDR notation, such as `10.0.0.0/8`; empty to trust none.

    Raises:
        ValueError: One of them is not a network.
    """

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks = [network_of(network) for network in networks]

    def include(self, address: str) -> bool:
        """Whether an IP address, without a port, is that of a trusted proxy."""
        if not self._networks:
            return False
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in network for network in self._networks)

    def client_of(self, proxy: str, headers: Sequence[str]) -> str:
        """Return the client address behind a trusted proxy, as `address_of` does.

        Args:
            proxy: The proxy's own address, which is used if the headers name no client.
            headers: The values of all `X-Forwarded-For`, in their order.

        Returns:
            The rightmost address that is not a trusted proxy's.
        """
        for entry in reversed(",".join(headers).rsplit(",", _MAX_ADDRESSES)[-_MAX_ADDRESSES:]):
            address = _without_port(entry.strip())
            client = address_of((address,))
            if not client or "%" in address:
                break
            if not self.include(address):
                return client
        return address_of((proxy,))


def _without_port(entry: str) -> str:
    """Remove the port that some load balancers write; a malformed entry is returned as it is."""
    if entry.startswith("["):
        address, closed, port = entry[1:].partition("]")
        is_whole = bool(closed) and ":" in address
        return address if is_whole and (not port or _is_port(port[1:], port[0])) else entry
    address, colon, port = entry.partition(":")
    return address if _is_port(port, colon) else entry


def _is_port(text: str, colon: str) -> bool:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(_MAX_PORT))
    return colon == ":" and is_number and int(text) <= _MAX_PORT


class JoinRateLimiter:
    """Admits joins at a limited rate, in the order of their requests.

    One join costs the server a millisecond or so. A thousand participants that lost their
    connections reconnect within a moment, and calls would wait that long: so a few join, then other
    work runs, then the next few join. Joins are not distinguished by participant.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._free = PER_INTERVAL
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_full(self) -> bool:
        """Whether so many joins wait that a further one has to be refused."""
        return len(self._waiting) >= MAX_WAITING

    def acquire(self) -> asyncio.Future[None] | None:
        """Request a join: None if it may happen now, else a future to wait for.

        A future that is cancelled does not delay the others.
        """
        if self._timer is None:
            self._timer = self._loop.call_later(INTERVAL_S, self._next_interval)
        if self._free:
            self._free -= 1
            return None
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        return waiter

    def _next_interval(self) -> None:
        self._free = PER_INTERVAL
        self._timer = None
        while self._waiting and self._free:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._free -= 1
        if self._free < PER_INTERVAL:
            self._timer = self._loop.call_later(INTERVAL_S, self._next_interval)


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard limit, if the system lets it; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # such as an unlimited hard limit on macOS
        _logger.info("the limit of open files stays %d: %s", soft, error)
        return soft
    return hard


class DescriptorReserve:
    """Decides which connections are dropped because descriptors are about to run out.

    Key files, logs, name lookups and connections to Redis need descriptors too. It reads the limits
    of the process; it opens and closes nothing.

    Args:
        refused: Counts dropped connections as `no_descriptors`.
        now: Returns the time in seconds, from any start.
    """

    def __init__(self, refused: Counter[str], now: Callable[[], float]) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = limit
        self._first_reserved = max(limit - RESERVED_DESCRIPTORS, limit // 2)
        self._refused = refused
        self._now = now
        self._next_warning_at = float("-inf")

    def is_reserved(self, descriptor: int) -> bool:
        """Whether a connection got a descriptor that it must give back at once.

        The system hands out the lowest free number, so a high one means that few are left.
        """
        if descriptor < self._first_reserved or self._limit == resource.RLIM_INFINITY:
            return False
        self._refused["no_descriptors"] += 1
        if self._now() >= self._next_warning_at:
            self._next_warning_at = self._now() + _LOG_INTERVAL_S
            _logger.warning(
                "new connections are dropped: nearly all of the %d file descriptors are in use; "
                "raise the limit of open files (ulimit -n, LimitNOFILE of systemd), or add servers",
                self._limit,
            )
        return True
