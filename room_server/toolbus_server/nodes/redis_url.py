"""From a URL to connections: one Redis, with TLS and a user, or what Sentinels say is the primary.

`redis://[user:password@]host[:6379][/db]`, `rediss://` with TLS, and
`redis+sentinel://[user:password@]host[:26379][,host...]/name[/db]`; `rediss+sentinel://` speaks TLS
with both. Options of redis-py may follow behind `?`, such as `ssl_ca_certs`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.asyncio.connection import ConnectionPool, parse_url
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool

__all__ = ["pool_of"]

_SENTINELS = {"redis+sentinel": False, "rediss+sentinel": True}
_SENTINEL_PORT = 26379
_CONNECT_S = 5.0
# Each attempt is the line's to repeat; an answer that does not come is told by the line too.
_OPTIONS: dict[str, Any] = {
    "protocol": 2,
    "socket_connect_timeout": _CONNECT_S,
    "socket_timeout": None,
    "socket_keepalive": True,
    "retry_on_timeout": False,
    "driver_info": None,  # else each connection asks for a right that no node needs
}


def pool_of(url: str) -> ConnectionPool:
    """Make what makes connections.

    Raises:
        ValueError: It is no URL of these kinds; the words do not repeat a password.
    """
    scheme = urlsplit(url).scheme
    if scheme in _SENTINELS:
        return _sentinel_pool(url, has_tls=_SENTINELS[scheme])
    if scheme not in ("redis", "rediss"):
        kinds = "redis://, rediss://, redis+sentinel:// or rediss+sentinel://"
        raise ValueError(f"a Redis is named by {kinds}, not by {scheme or 'this'}")
    try:
        parse_url(url)
    except (ValueError, TypeError) as error:
        raise ValueError(f"this is no URL of a Redis: {error}") from None
    return ConnectionPool.from_url(url, **_OPTIONS)


def _sentinel_pool(url: str, *, has_tls: bool) -> SentinelConnectionPool:
    parts = urlsplit(url)
    credentials, _, places = parts.netloc.rpartition("@")
    name, _, database = parts.path.strip("/").partition("/")
    sentinels = [_place_of(place) for place in places.split(",") if place]
    if not sentinels or not name or (database and not database.isdecimal()):
        raise ValueError("Sentinels are named like redis+sentinel://host:26379,host:26379/name/0")
    user, _, password = credentials.partition(":")
    options = _OPTIONS | dict(parse_qsl(parts.query)) | {"db": int(database or 0)}
    if has_tls:
        options["ssl"] = True
    if user:
        options["username"] = unquote(user)
    if password:
        options["password"] = unquote(password)
    asked = {key: value for key, value in options.items() if key.startswith(("socket", "ssl"))}
    sentinel = Sentinel(sentinels, sentinel_kwargs=asked)  # type: ignore[no-untyped-call]
    return SentinelConnectionPool(unquote(name), sentinel, **options)  # type: ignore[no-untyped-call]


def _place_of(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host:
        return text, _SENTINEL_PORT
    if not port.isdecimal():
        raise ValueError(f"{text!r} is no host and port")
    return host.strip("[]"), int(port)
