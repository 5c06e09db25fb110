"""Connecting to a host whose name has several addresses, as RFC 8305 (happy eyeballs) says.

The addresses are tried side by side, each a little later than the one before, and the first that
accepts is used: one that drops packets costs a quarter of a second. An address that accepts and
then says nothing, as a proxy before a dead server does, gets its share of the time limit; after
that the others are tried.

The sockets are connected here and not by `loop.create_connection`, because uvloop refuses its
option `happy_eyeballs_delay`, and because both loops look names up in threads of others.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from aiohappyeyeballs import start_connection

from toolbus.forked_children import keep_from_children
from toolbus.transport.name_lookup import AddressInfo, HostResolver, is_address

__all__ = ["UnreachableHost", "connect_to_host", "open_streams"]

T = TypeVar("T")

# RFC 8305 recommends it as "Connection Attempt Delay".
_DELAY_S = 0.25
# With many addresses the delay is shorter: all are tried within this part of the limit.
_STARTED_WITHIN = 0.5
# The rest of the limit is for connecting.
_LOOKUP_SHARE = 0.75
# A handshake over a slow line takes a second or two; with 20 addresses an equal share is less.
_LEAST_SHARE_S = 2.5
_MAX_TRIED = 64
"""Each is an open socket: a name server may answer with thousands of addresses."""
_MAX_NAMED = 8
"""The text becomes one line of a log or a terminal."""
_REFUSED = frozenset({errno.ECONNREFUSED, errno.EADDRNOTAVAIL})
_RESOLVER = HostResolver()


class UnreachableHost(OSError):
    """No address of a name could be connected to; the text has each address with its reason.

    Args:
        reasons: Why, by address, in the order in which they were tried.
        is_refused: Whether nothing listens at any of them.
    """

    def __init__(self, reasons: dict[str, str], *, is_refused: bool) -> None:
        named = [f"{address}: {why}" for address, why in list(reasons.items())[:_MAX_NAMED]]
        rest = len(reasons) - len(named)
        if rest:
            named.append(f"and {rest} more")
        super().__init__(", ".join(named))
        self.reasons: dict[str, str] = reasons
        """Why, by address."""
        self.is_refused: bool = is_refused
        """Whether nothing listens at any of them."""


class _Attempts:
    """Makes and connects sockets for `start_connection`, and notes what becomes of each address.

    Takes the place of the event loop there: only `sock_connect` of it is used.
    """

    def __init__(self) -> None:
        self.failures: dict[str, BaseException | None] = {}
        """The error of each address; None for one that has not answered."""
        self.info_of: dict[socket.socket, AddressInfo] = {}

    def create_socket(self, info: AddressInfo) -> socket.socket:
        address = info[4][0]
        self.failures[address] = None
        try:
            sock = socket.socket(*info[:3])
        except OSError as error:  # such as one of IPv6, where this machine has none
            self.failures[address] = error
            raise
        keep_from_children(sock)
        self.info_of[sock] = info
        return sock

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        try:
            await asyncio.get_running_loop().sock_connect(sock, address)
        except (OSError, RuntimeError) as error:
            self.failures[address[0]] = error
            raise


async def connect_to_host(
    host: str,
    port: int,
    use: Callable[[socket.socket], Awaitable[T]],
    *,
    timeout_s: float,
    resolver: HostResolver = _RESOLVER,
    next_after: tuple[type[Exception], ...] = (OSError,),
) -> T:
    """Connect to the first address of a host that accepts, and of which `use` succeeds.

    Args:
        host: A name or an IP address.
        port: The port.
        use: Makes what is wanted from a connected socket, which is its own from then on: it closes
            it if it fails.
        timeout_s: Seconds for all of it.
        resolver: Looks the name up.
        next_after: Errors of `use` after which the next address is tried.

    Raises:
        socket.gaierror: The name has no address, or none is known yet.
        UnreachableHost: No address of the name could be connected to.
        OSError: The same for a host that is an IP address; `TimeoutError` if it did not answer.
        Exception: What `use` raised.
    """
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + timeout_s
    left = list(await resolver.addresses(host, port, timeout_s * _LOOKUP_SHARE))[:_MAX_TRIED]
    attempts = _Attempts()
    failed_use: BaseException | None = None
    while left:
        try:
            left_s = max(ends_at - loop.time(), 0.001)
            async with asyncio.timeout_at(ends_at):
                sock = await start_connection(
                    left,
                    happy_eyeballs_delay=min(_DELAY_S, left_s * _STARTED_WITHIN / len(left)),
                    loop=cast(asyncio.AbstractEventLoop, attempts),
                    socket_factory=attempts.create_socket,
                )
        except (OSError, RuntimeError):  # uvloop may raise a RuntimeError
            break
        info = attempts.info_of[sock]
        left.remove(info)
        # A name may have several addresses and only one that a server listens at, `localhost` on
        # most machines: the share is large enough for a server that is slow.
        left_s = ends_at - loop.time()
        share_s = min(left_s, max(left_s / (len(left) + 1), _LEAST_SHARE_S))
        try:
            async with asyncio.timeout(share_s):
                return await use(sock)
        except TimeoutError:
            text = f"it accepts, but does not answer within {round(share_s, 1):g} s"
            attempts.failures[info[4][0]] = TimeoutError(text)
            resolver.put_last(host, info[4][0])  # many of these must not hide a good one for ever
        except next_after as error:
            attempts.failures[info[4][0]] = error
            failed_use = failed_use or error
    # What a server did is more than that others are silent: it may be the wrong scheme.
    raise failed_use or _failure(host, attempts.failures, timeout_s)


def _failure(
    host: str, failures: dict[str, BaseException | None], timeout_s: float
) -> BaseException:
    silent = TimeoutError(f"no answer within {round(timeout_s, 1):g} s")
    if is_address(host):
        return next(iter(failures.values()), None) or silent
    reasons = {address: _reason(error or silent) for address, error in failures.items()}
    numbers = {getattr(error, "errno", None) for error in failures.values()}
    return UnreachableHost(reasons, is_refused=bool(numbers) and numbers <= _REFUSED)


def _reason(error: BaseException) -> str:
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(number).lower()
    return str(error) or "no answer"


async def open_streams(
    host: str, port: int, *, timeout_s: float, tls: ssl.SSLContext | bool | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection as `asyncio.open_connection` does, to any address of the host.

    Args:
        host: A name or an IP address; with TLS it is the name in the certificate.
        port: The port.
        timeout_s: Seconds for all of it.
        tls: The settings of TLS, True for the default ones; plain TCP unless given.

    Raises:
        OSError: As `connect_to_host`; `ssl.SSLError` from the TLS handshake.
    """
    name = host if tls else None

    async def use(sock: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(sock=sock, ssl=tls or None, server_hostname=name)

    return await connect_to_host(host, port, use, timeout_s=timeout_s)
