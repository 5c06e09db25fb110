"""Connections from a URL: to one Redis, with TLS and a user, or to the primary named by Sentinels.

`redis://[user:password@]host[:6379][/db]`, `rediss://` with TLS, and
`redis+sentinel://[user:password@]host[:26379][,host...]/name[/db]`, where user and password are
those of Redis; `rediss+sentinel://` uses TLS with both. Options of redis-py may follow after `?`,
such as `ssl_ca_certs`, and `sentinel_username` and `sentinel_password`. In each of them, characters
other than letters, digits and `-._~` are quoted: `%40` for `@`.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from redis.asyncio.connection import Connection, ConnectionPool, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool, SentinelManagedConnection
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from toolbus.transport.addresses import connect_to_host
from toolbus.transport.name_lookup import HostResolver

__all__ = ["ResolvingConnection", "pool_of"]

LOOKUP_S = 1.0
"""Seconds that a connection waits for the lookup of its host."""
_CONNECT_S = 5.0
_SENTINELS = {"redis+sentinel": False, "rediss+sentinel": True}
_SENTINEL_PORT = 26379
_ASK_S = 1.0
"""Seconds in which one Sentinel has to answer before the next one is asked."""
# `RedisClient` repeats attempts and notices missing answers itself.
_OPTIONS: dict[str, Any] = {
    "socket_connect_timeout": _CONNECT_S,
    "socket_timeout": None,
    "socket_keepalive": True,
    "retry_on_timeout": False,
    "driver_info": None,  # else each connection needs the right to CLIENT SETINFO
}
_ALWAYS: dict[str, Any] = {"protocol": 2, "decode_responses": False, "encoding": "utf-8"}
"""Options that `RedisClient` relies on; the URL cannot change them."""
_NOT_TEXT = frozenset(
    {
        "credential_provider",
        "event_dispatcher",
        "redis_connect_func",
        "resolver",
        "retry",
        "retry_on_error",
    }
)
"""Options of redis-py whose values cannot be written as text."""
_PATH = re.compile(r"/?|/\d+/?")
# Taken out before `urlsplit`, which since the fix of CVE-2025-0938 refuses `[::1]:2,[::2]`.
_ADDRESSES = re.compile(r"(?<=://)[^/?#]*")
_SENTINEL_OPTIONS: dict[str, Any] = {
    "protocol": 2,
    "driver_info": None,
    "socket_connect_timeout": _ASK_S,
    "socket_timeout": _ASK_S,
    "retry": Retry(NoBackoff(), 0),
}
# Messages repeat nothing of the URL: any part of it may be a part of a password.
_QUOTED = "and special characters in a password are quoted, as %2F for /"
_BAD_URL = f"this is not the URL of a Redis: write redis://user:password@host:6379/0, {_QUOTED}"
_BAD_SENTINELS = f"write the URL of Sentinels as redis+sentinel://host:26379,host/name/0, {_QUOTED}"


class ResolvingConnection(Connection):
    """A connection to Redis whose host is looked up by a `HostResolver`."""

    def __init__(self, *, resolver: HostResolver, **options: Any) -> None:
        self._resolver = resolver
        self._connected: socket.socket | None = None
        self._address = ""
        super().__init__(**options)

    def avoid_address(self) -> None:
        """Let later connections try the address of this one last: what it accepts, it ignores."""
        if self._address:
            self._resolver.put_last(self.host, self._address)

    def _connection_arguments(self) -> Mapping[str, Any]:
        arguments = dict(super()._connection_arguments())
        for name in ("host", "port"):
            del arguments[name]
        arguments["sock"] = self._connected
        if "ssl" in arguments:  # the certificate is that of the name
            arguments["server_hostname"] = self.host
        return arguments

    async def _connect(self) -> None:
        """Connect to the first address that accepts."""
        connect = super()._connect
        # Raises now if a TLS file is missing: later there is a socket, which would stay open.
        self._connection_arguments()

        async def use(sock: socket.socket) -> None:
            self._connected = sock
            self._address = sock.getpeername()[0]
            await connect()  # type: ignore[no-untyped-call]

        await connect_to_host(
            self.host,
            self.port,
            use,
            timeout_s=self.socket_connect_timeout or _CONNECT_S,
            resolver=self._resolver,
        )


class ResolvingSSLConnection(ResolvingConnection, SSLConnection):
    """A `ResolvingConnection` with TLS."""


class ResolvingSentinelConnection(ResolvingConnection, SentinelManagedConnection):
    """A `ResolvingConnection` to the primary that Sentinels name."""


class ResolvingSentinelSSLConnection(ResolvingSSLConnection, SentinelManagedConnection):
    """A `ResolvingSentinelConnection` with TLS."""


def pool_of(url: str) -> ConnectionPool:
    """Create the pool that makes connections for a URL.

    Raises:
        ValueError: The URL has another form, or an unknown option; the message repeats no part of
            it, as that may be a password.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in (*_SENTINELS, "redis", "rediss"):
        kinds = "redis://, rediss://, redis+sentinel:// or rediss+sentinel://"
        raise ValueError(f"the URL of a Redis begins with {kinds}")
    try:
        pool = _sentinel_pool(url) if scheme in _SENTINELS else _plain_pool(url)
    except (ValueError, TypeError):
        raise ValueError(_BAD_SENTINELS if scheme in _SENTINELS else _BAD_URL) from None
    try:
        query = urlsplit(_ADDRESSES.sub("", url, count=1)).query
        if not _NOT_TEXT.isdisjoint(parse_qs(query)):
            raise ValueError("an option that cannot be text")
        pool.make_connection()  # type: ignore[no-untyped-call]
    except (ValueError, TypeError, RedisError):
        raise ValueError("the URL has an option after the ? that redis-py does not know") from None
    return pool


def _plain_pool(url: str) -> ConnectionPool:
    if not _PATH.fullmatch(urlsplit(url).path):
        raise ValueError("the database is not a number")  # redis-py would ignore it
    options = {**_OPTIONS, **parse_url(url)}
    is_tls = options.pop("connection_class", None) is SSLConnection
    kind = ResolvingSSLConnection if is_tls else ResolvingConnection
    return ConnectionPool(kind, **options | _ALWAYS | {"resolver": HostResolver(LOOKUP_S)})


def _sentinel_pool(url: str) -> SentinelConnectionPool:
    parts = urlsplit(_ADDRESSES.sub("", url, count=1))
    credentials, _, addresses = _ADDRESSES.findall(url)[0].rpartition("@")
    name, _, database = parts.path.strip("/").partition("/")
    sentinels = [_address_of(address) for address in addresses.split(",") if address]
    if not sentinels or not name:
        raise ValueError("no Sentinel, or no name")
    # redis-py knows which of its options are numbers.
    options = _OPTIONS | parse_url(f"redis://?{parts.query}") | _ALWAYS
    if database:
        options["db"] = int(database)
    # Those for Sentinels only, with those that apply to both.
    names = [name for name in options if name.startswith("sentinel_")]
    own = {name.removeprefix("sentinel_"): options.pop(name) for name in names}
    if not own.keys() <= {"username", "password"}:
        raise ValueError("an unknown option of Sentinels")
    own |= _SENTINEL_OPTIONS
    own |= {name: options[name] for name in options if name.startswith("ssl")}
    if _SENTINELS[parts.scheme]:
        own["ssl"] = options["ssl"] = True
    user, _, password = credentials.partition(":")
    if user:
        options["username"] = unquote(user)
    if password:
        options["password"] = unquote(password)
    options["resolver"] = resolver = HostResolver(LOOKUP_S)
    is_tls = options.pop("ssl", False)
    kind = ResolvingSentinelSSLConnection if is_tls else ResolvingSentinelConnection
    options["connection_class"] = kind
    manager = _Sentinels(sentinels, resolver, own)
    return SentinelConnectionPool(unquote(name), manager, **options)  # type: ignore[no-untyped-call]


class _Sentinels(Sentinel):
    """Sentinels that are asked one after the other, each once, and disconnected afterwards."""

    def __init__(
        self, sentinels: list[tuple[str, int]], resolver: HostResolver, options: dict[str, Any]
    ) -> None:
        super().__init__(sentinels, sentinel_kwargs=options)  # type: ignore[no-untyped-call]
        kind = ResolvingSSLConnection if options.get("ssl") else ResolvingConnection
        for client in self.sentinels:
            client.connection_pool.connection_class = kind
            client.connection_pool.connection_kwargs["resolver"] = resolver

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Find the primary. Raises `MasterNotFoundError` if no Sentinel names one."""
        try:
            address: tuple[str, int] = await super().discover_master(service_name)
            return address
        finally:
            await self.aclose()


def _address_of(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or text.endswith("]"):
        return text.strip("[]"), _SENTINEL_PORT
    if not host or not port.isdecimal():
        raise ValueError("no host and port")
    return host.strip("[]"), int(port)
