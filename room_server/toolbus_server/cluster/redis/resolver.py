"""Connections to Redis and to Sentinels whose host names are looked up in bounded time.

The system's resolver may hang for many seconds, and a thread that waits in it cannot be stopped. So
each lookup has a daemon thread of its own, at most one for each name, and takes no thread from
other work. After `LOOKUP_S` a connection uses the addresses of the last answer. The answer that
arrives later is used by the next connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, TypeAlias

from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.sentinel import SentinelManagedConnection

from toolbus.bounded_logging import bounded_logger

__all__ = [
    "LOOKUP_S",
    "HostResolver",
    "ResolvingConnection",
    "ResolvingSSLConnection",
    "ResolvingSentinelConnection",
    "ResolvingSentinelSSLConnection",
]

LOOKUP_S = 1.0
"""Seconds that a connection waits for the lookup of its host."""
_CONNECT_S = 5.0
_logger = bounded_logger(__name__)
_Addresses: TypeAlias = tuple[str, ...]


@dataclass(slots=True, eq=False)
class _Lookup:
    """A lookup that has not ended, or its outcome."""

    ended: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: _Addresses | OSError | None = None
    is_late: bool = False
    """Whether it has taken longer than `LOOKUP_S`: nothing waits for it any more."""


class HostResolver:
    """Looks up names, and keeps the last addresses of each."""

    def __init__(self) -> None:
        self._known: dict[str, _Addresses] = {}
        self._running: dict[str, _Lookup] = {}
        self._reported: set[str] = set()
        """Names whose last addresses are in use, which was logged."""

    async def addresses(self, host: str) -> _Addresses:
        """Return the IP addresses of a host, the preferred one first.

        Raises:
            socket.gaierror: The name has no address, or none is known and the lookup fails or
                takes longer than `LOOKUP_S`.
        """
        if _is_address(host):
            return (host,)
        outcome = await self._outcome(host)
        if isinstance(outcome, tuple):
            self._reported.discard(host)
            return outcome
        known = self._known.get(host)
        if known is None or getattr(outcome, "errno", None) == socket.EAI_NONAME:
            raise outcome
        if host not in self._reported:
            self._reported.add(host)
            _logger.warning("%s: its last address %s is used", outcome.strerror, known[0])
        return known

    async def _outcome(self, host: str) -> _Addresses | OSError:
        lookup = self._running.get(host) or self._start(host)
        if not lookup.is_late:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOKUP_S):
                    await lookup.ended.wait()
        if lookup.outcome is None:
            lookup.is_late = True
            text = f"the lookup of {host} takes longer than {LOOKUP_S:g} s"
            return socket.gaierror(socket.EAI_AGAIN, text)
        return lookup.outcome

    def _start(self, host: str) -> _Lookup:
        lookup = self._running[host] = _Lookup()
        loop = asyncio.get_running_loop()

        def look_up() -> None:
            outcome = _look_up(host)
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._end, host, lookup, outcome)

        try:
            Thread(target=look_up, name=f"lookup of {host}", daemon=True).start()
        except RuntimeError as error:  # the system allows no further thread
            failure = socket.gaierror(socket.EAI_AGAIN, f"cannot look up {host}: {error}")
            self._end(host, lookup, failure)
        return lookup

    def _end(self, host: str, lookup: _Lookup, outcome: _Addresses | OSError) -> None:
        del self._running[host]
        if isinstance(outcome, tuple):
            self._known[host] = outcome
        lookup.outcome = outcome
        lookup.ended.set()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _look_up(host: str) -> _Addresses | OSError:
    """Ask the system's resolver; this may take any time."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        return socket.gaierror(socket.EAI_NONAME, f"{host} is not a host name: {error}")
    except OSError as error:
        return error
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


class ResolvingConnection(Connection):
    """A connection to Redis whose host is looked up by a `HostResolver`.

    Args:
        resolver: Looks up the host.
        options: Those of redis-py.
    """

    def __init__(self, *, resolver: HostResolver, **options: Any) -> None:
        self._resolver = resolver
        self._address = ""
        super().__init__(**options)

    def _connection_arguments(self) -> Mapping[str, Any]:
        arguments = dict(super()._connection_arguments())
        arguments["host"] = self._address
        if "ssl" in arguments:  # the certificate is that of the name
            arguments["server_hostname"] = self.host
        return arguments

    async def _connect(self) -> None:
        """Connect to the first address that accepts; each has an equal part of the time."""
        addresses = await self._resolver.addresses(self.host)
        part_s = (self.socket_connect_timeout or _CONNECT_S) / len(addresses)
        for address in addresses:
            self._address = address
            try:
                async with asyncio.timeout(part_s):
                    await super()._connect()  # type: ignore[no-untyped-call]
            except OSError:
                if address == addresses[-1]:
                    raise
            else:
                return


class ResolvingSSLConnection(ResolvingConnection, SSLConnection):
    """A `ResolvingConnection` with TLS."""


class ResolvingSentinelConnection(ResolvingConnection, SentinelManagedConnection):
    """A `ResolvingConnection` to the primary that Sentinels name."""


class ResolvingSentinelSSLConnection(ResolvingSSLConnection, SentinelManagedConnection):
    """A `ResolvingSentinelConnection` with TLS."""
