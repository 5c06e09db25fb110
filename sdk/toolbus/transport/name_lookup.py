"""Looking up host names in bounded time, without the program's default thread pool.

The system's resolver may hang for many seconds, and a thread that waits in it cannot be stopped. So
each lookup has a daemon thread of its own, at most one for each name, and takes no thread from
other work. A connection that has waited for long enough uses the addresses of the last answer. The
answer that arrives later is used by the next connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import inf
from threading import Thread
from typing import Any, TypeAlias

from toolbus.bounded_logging import bounded_logger
from toolbus.forked_children import call_in_children

__all__ = ["AddressInfo", "HostResolver", "is_address"]

AddressInfo: TypeAlias = tuple[int, int, int, str, Any]
"""Family, type, protocol, canonical name and address, as `socket.getaddrinfo` returns them."""

_Addresses: TypeAlias = tuple[AddressInfo, ...]
_Name: TypeAlias = tuple[str, int]
# Each may hold a thread. A program has few names, so that only names that come from outside reach
# this, and a program with many threads in the resolver is in trouble already.
_MAX_NAMES = 256
_logger = bounded_logger(__name__)


@dataclass(slots=True, eq=False)
class _Lookup:
    """A lookup that has not ended, or its outcome."""

    future: Future[_Addresses | OSError] = field(default_factory=Future)
    is_late: bool = False
    """Whether a connection has waited for it in vain: nothing waits for it any more."""


class HostResolver:
    """Looks up names, and keeps the last addresses of each; for all loops and threads.

    Args:
        lookup_s: Seconds that a connection waits for a lookup at most.
    """

    def __init__(self, lookup_s: float = inf) -> None:
        self._lookup_s = lookup_s
        self._known: dict[_Name, _Addresses] = {}
        self._running: dict[_Name, _Lookup] = {}
        self._reported: set[_Name] = set()
        """Names whose last addresses are in use, which was logged."""
        self._last: dict[tuple[str, str], int] = {}
        """The addresses of each name that are tried last, in this order."""
        call_in_children(self._forget_running)  # a child has no thread that would end them

    async def addresses(self, host: str, port: int, within_s: float = inf) -> _Addresses:
        """Return the addresses of a host, in the order in which to try them.

        Args:
            host: A name, or an IP address, which is not looked up.
            port: The port that the addresses shall have.
            within_s: Seconds that the lookup may take, where that is less than `lookup_s`.

        Raises:
            socket.gaierror: The name has no address, or none is known and the lookup fails or
                takes too long.
        """
        if is_address(host):
            numeric = socket.AI_NUMERICHOST
            return tuple(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=numeric))
        name = host, port
        outcome = await self._outcome(name, min(self._lookup_s, within_s))
        if isinstance(outcome, tuple):
            self._reported.discard(name)
            return self._ordered(host, outcome)
        known = self._known.get(name)
        if known is None or getattr(outcome, "errno", None) == socket.EAI_NONAME:
            raise outcome
        if name not in self._reported:
            self._reported.add(name)
            _logger.warning("%s: its last address %s is used", outcome.strerror, known[0][4][0])
        return self._ordered(host, known)

    def put_last(self, host: str, address: str) -> None:
        """Try an address of a name after all others from now on: it accepts, and does not serve.

        Connecting side by side finds an address that accepts; where what follows fails, the next
        attempt would otherwise choose the same one again.
        """
        if len(self._last) >= _MAX_NAMES:
            self._last.clear()
        self._last[host, address] = 1 + max(self._last.values(), default=0)

    def _ordered(self, host: str, addresses: _Addresses) -> _Addresses:
        return tuple(sorted(addresses, key=lambda info: self._last.get((host, info[4][0]), 0)))

    async def _outcome(self, name: _Name, limit_s: float) -> _Addresses | OSError:
        lookup = self._running.get(name) or self._start(name)
        if not lookup.is_late:
            waiting = asyncio.wrap_future(lookup.future)
            try:
                await asyncio.wait([waiting], timeout=None if limit_s == inf else limit_s)
            finally:
                waiting.cancel()  # the lookup goes on
        if not lookup.future.done():
            lookup.is_late = True
            text = f"the lookup of {name[0]} takes longer than {limit_s:g} s"
            return socket.gaierror(socket.EAI_AGAIN, text)
        return lookup.future.result()

    def _start(self, name: _Name) -> _Lookup:
        lookup = _Lookup()
        lookup.future.set_running_or_notify_cancel()  # from now on a waiter cannot cancel it
        self._running[name] = lookup

        def look_up() -> None:
            self._end(name, lookup, _look_up(name))

        try:
            if len(self._running) > _MAX_NAMES:
                raise RuntimeError(f"{_MAX_NAMES} other lookups have not ended")
            Thread(target=look_up, name=f"lookup of {name[0]}", daemon=True).start()
        except RuntimeError as error:  # also where the system allows no further thread
            text = f"cannot look up {name[0]}: {error}"
            self._end(name, lookup, socket.gaierror(socket.EAI_AGAIN, text))
        return lookup

    def _end(self, name: _Name, lookup: _Lookup, outcome: _Addresses | OSError) -> None:
        if isinstance(outcome, tuple):
            self._known.pop(name, None)
            names = list(self._known)  # in one step: other threads change it
            if len(names) >= _MAX_NAMES:
                self._known.pop(names[0], None)
            self._known[name] = outcome
        self._running.pop(name, None)
        lookup.future.set_result(outcome)

    def _forget_running(self) -> None:
        self._running.clear()


def is_address(host: str) -> bool:
    """Whether a host is an IP address, and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _look_up(name: _Name) -> _Addresses | OSError:
    """Ask the system's resolver; this may take any time."""
    try:
        found = socket.getaddrinfo(*name, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        return socket.gaierror(socket.EAI_NONAME, f"{name[0]} is not a host name: {error}")
    except OSError as error:
        return error
    return tuple(dict.fromkeys(found))
