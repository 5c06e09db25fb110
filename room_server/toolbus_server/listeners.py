"""The sockets from which several processes accept the connections of one address.

On Linux each process has a socket of its own with `SO_REUSEPORT`, and the kernel deals connections
out by a hash of both addresses: connections stay for long, so an even share at the door is all the
balance there will be, and of processes that wait at one socket whoever wakes first takes most.
Their parent opens them all and keeps them open, so that what waits at the socket of a process that
died is accepted by the next one there. Elsewhere `SO_REUSEPORT` deals nothing out: there all wait
at one socket. Knows nothing of processes.
"""

from __future__ import annotations

import errno
import socket
import sys

__all__ = ["Listeners"]

_BACKLOG = 100
"""Connections that may wait at each socket; as many as a server that is alone has."""


class Listeners:
    """One address for several processes.

    Args:
        host: The address to listen on, or a name that stands for one.
        port: The port; 0 takes a free one.
        spread: Whether each process gets a socket of its own.

    Raises:
        OSError: The address cannot be had, or the name stands for several.
    """

    def __init__(self, host: str, port: int, *, spread: bool = sys.platform == "linux") -> None:
        self._spread = spread
        self._family, self._address = _resolve(host, port)
        self._open: dict[int, socket.socket] = {}
        # Bound for as long as this lives, so that nobody else listens on the port while no process
        # does. Bound without SO_REUSEPORT, so that it fails where somebody listens there.
        self._claim = _socket(self._family)
        try:
            self._claim.bind(self._address)
            self._address = self._claim.getsockname()
            if spread:
                self._claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                self._claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            else:
                self._claim.listen(_BACKLOG)
        except BaseException:
            self._claim.close()
            raise

    @property
    def port(self) -> int:
        """The port."""
        port: int = self._address[1]
        return port

    def open(self, number: int) -> socket.socket:
        """Return the socket of one process, which listens. Raises OSError if it cannot be had."""
        if not self._spread:
            return self._claim
        if number not in self._open:
            own = _socket(self._family)
            try:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                own.bind(self._address)
                own.listen(_BACKLOG)
            except BaseException:
                own.close()
                raise
            self._open[number] = own
        return self._open[number]

    def close(self, number: int) -> None:
        """Have no more connections dealt out to one process; those that wait are broken off."""
        own = self._open.pop(number, None)
        if own is not None:
            own.close()

    def close_all_but(self, number: int | None) -> None:
        """Close what this process holds, but for one; the sockets of other processes stay open."""
        kept = None if number is None else self._open.pop(number, self._claim)
        for each in (*self._open.values(), self._claim):
            if each is not kept:
                each.close()
        self._open.clear()


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    each_kind = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found = dict.fromkeys((each[0], each[4]) for each in each_kind)
    if len(found) > 1:
        names = ", ".join(str(address[0]) for _, address in found)
        raise OSError(
            errno.EINVAL,
            f"it stands for several addresses ({names}), and workers share one: name that one",
        )
    ((family, address),) = found
    return family, address  # type: ignore[return-value]  # of IPv6 it has four parts


def _socket(family: socket.AddressFamily) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return made
