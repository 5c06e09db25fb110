"""Whose a request is: the address that a connection counts for, also behind trusted proxies."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, TypeAlias

__all__ = ["TrustedProxies", "address_of", "network_of", "read_networks"]

_IPV6_PREFIX = 64
_Network: TypeAlias = IPv4Network | IPv6Network
# Chained proxies: a longer chain is a mistake, or a forgery.
_MAX_ADDRESSES = 32
_MAX_PORT = 65_535


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


def read_networks(texts: Sequence[str]) -> tuple[str, ...]:
    """Read the networks of an option, whose texts may have several each, separated by commas.

    Raises ValueError, with words for whoever has written them.
    """
    networks = []
    for part in filter(None, map(str.strip, ",".join(texts).split(","))):
        try:
            networks.append(str(network_of(part)))
        except ValueError as error:
            raise ValueError(
                f"{part!r} is not a network of proxies: write it like 10.0.0.0/8 ({error})"
            ) from error
    return tuple(networks)


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

        The arguments are those of `forwarded_by`.
        """
        return address_of((self.forwarded_by(proxy, headers),))

    def forwarded_by(self, proxy: str, headers: Sequence[str]) -> str:
        """Return the IP address of the client behind a trusted proxy.

        Args:
            proxy: The proxy's own address, which is used if the headers name no client.
            headers: The values of all `X-Forwarded-For`, in their order.

        Returns:
            The rightmost address that is not a trusted proxy's.
        """
        for entry in reversed(",".join(headers).rsplit(",", _MAX_ADDRESSES)[-_MAX_ADDRESSES:]):
            address = _without_port(entry.strip())
            if not address_of((address,)) or "%" in address:
                break
            if not self.include(address):
                return address
        return proxy


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
