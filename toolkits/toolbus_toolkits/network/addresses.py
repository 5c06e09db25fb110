"""Which addresses a toolkit may reach, by URL and by resolved IP address.

Pure: nothing is resolved here. `transport` asks with each URL before a request, and with the
addresses of its host before a connection is made.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from toolbus import ToolFailed

__all__ = ["AddressPolicy", "AddressRefused", "host_and_port", "host_text"]

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_SPECIAL = (ipaddress.ip_network("192.0.0.0/24"), ipaddress.ip_network("3fff::/20"))
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_PORTS = {"http": 80, "https": 443}


class AddressRefused(ToolFailed):
    """An address that the policy does not allow; no request was sent to it.

    Args:
        message: What is refused, and what allows it.
        executed: "yes" for the address of a redirect: another server has answered a request.
    """

    def __init__(self, message: str, *, executed: Literal["no", "yes"] = "no") -> None:
        super().__init__(message, executed=executed, retryable=False)


@dataclass(frozen=True)
class AddressPolicy:
    """The hosts that may be reached.

    Args:
        allow_hosts: Names (`api.example.org`), names with all subdomains of a domain
            (`*.example.org`), IP addresses, each with or without a port (`localhost:8080`,
            `[::1]:80`). An empty list allows every host. `ValueError` for any other text.
        allow_private: Whether private and loopback addresses may be reached. Link-local addresses,
            which include the metadata services of clouds, must be in `allow_hosts` as well.
    """

    allow_hosts: tuple[str, ...] = ()
    allow_private: bool = False

    def __post_init__(self) -> None:
        hosts = tuple(self.allow_hosts)
        for pattern in hosts:
            _read_pattern(pattern)
        object.__setattr__(self, "allow_hosts", hosts)

    def check_url(self, url: str) -> None:
        """Check the scheme, host and port of a URL.

        Raises `AddressRefused` for a scheme other than http and https, for credentials in the URL,
        and for a host that is not allowed. The message contains the host and nothing else of it.
        """
        host, port = _read_url(url)
        patterns = [_read_pattern(pattern) for pattern in self.allow_hosts]
        if patterns and not any(_matches(pattern, host, port) for pattern in patterns):
            raise AddressRefused(
                f"the host {host_text(host)} is not allowed: add it to allow_hosts (--allow-hosts)"
            )
        address = _ip_address(host)
        if address is not None:
            self.check_address(host, str(address))

    def check_address(self, host: str, address: str) -> None:
        """Check an IP address to which the name of a host resolves. Raises `AddressRefused`."""
        found = _embedded(ipaddress.ip_address(address.partition("%")[0]))
        if _is_public(found):
            return
        name = host_text(host)
        where = f"{name} is" if name == str(found) else f"{name} has the address {found}, which is"
        if found.is_link_local or found.is_multicast or found.is_unspecified:
            hosts = (_read_pattern(pattern)[0] for pattern in self.allow_hosts)
            if not (self.allow_private and any(_ip_address(host) == found for host in hosts)):
                raise AddressRefused(f"{where} never a public host")
        elif not self.allow_private:
            raise AddressRefused(
                f"{where} private: its operator can allow it with allow_private (--allow-private)"
            )


def host_text(host: str) -> str:
    """Return the name of a host for a message: one line of at most 100 characters."""
    return ascii(host[:100])[1:-1]


def host_and_port(url: str) -> str:
    """Return the host of a URL as an entry of `allow_hosts`, always with its port.

    Raises `AddressRefused` for a URL that no policy allows.
    """
    host, port = _read_url(url)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _read_url(url: str) -> tuple[str, int]:
    """Return the normal form of the host, and the port of a URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
        host = _normal(parts.hostname or "")
    except ValueError as error:
        raise AddressRefused("the URL is not valid") from error
    if parts.scheme not in _PORTS:
        raise AddressRefused(
            f"the URL must begin with http:// or https://, not with {host_text(parts.scheme)!r}"
        )
    if not host:
        raise AddressRefused("the URL has no host")
    if parts.username is not None or parts.password is not None:
        raise AddressRefused(
            f"the URL of {host_text(host)} contains a user or a password: store a credential"
        )
    return host, port or _PORTS[parts.scheme]


def _normal(host: str) -> str:
    """Return a host in lower case, as ASCII, without the final dot. Raises `ValueError`."""
    text = host.rstrip(".").lower()
    return text if text.isascii() else text.encode("idna").decode()


def _ip_address(host: str) -> IpAddress | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _is_public(address: IpAddress) -> bool:
    """Whether an address is one of a host on the Internet.

    Of IPv6 only 2000::/3 is: Python takes further addresses for global, some of which stand for
    private ones of IPv4, or are of one site.
    """
    if address in _GLOBAL_UNICAST or isinstance(address, ipaddress.IPv4Address):
        special = any(address in network for network in _SPECIAL)
        return address.is_global and not address.is_multicast and not special
    return False


def _embedded(address: IpAddress) -> IpAddress:
    """Return the IPv4 address that an IPv6 address stands for, else the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _read_pattern(text: str) -> tuple[str, int | None]:
    """Return the host and the port of an entry of `allow_hosts`. Raises `ValueError`."""
    if _ip_address(text) is not None:
        return text.lower(), None
    try:
        parts = urlsplit(f"//{text}")
        host, port = _normal(parts.hostname or ""), parts.port
    except ValueError:
        host, port = "", None
    name = host.removeprefix("*.")
    if not name or "*" in name or parts.path or parts.query or parts.username is not None:
        raise ValueError(
            f"allow_hosts has {text!r}: write a host such as 'api.example.org', '*.example.org' or "
            "'localhost:8080'"
        )
    return host, port


def _matches(pattern: tuple[str, int | None], host: str, port: int) -> bool:
    allowed, allowed_port = pattern
    if allowed_port is not None and allowed_port != port:
        return False
    if allowed.startswith("*."):
        return host.endswith(allowed[1:])
    address = _ip_address(allowed)
    return host == allowed if address is None else _ip_address(host) == address
