"""From a URL to connections: one Redis, with TLS and a user, or what Sentinels say is the primary.

`redis://[user:password@]host[:6379][/db]`, `rediss://` with TLS, and
`redis+sentinel://[user:password@]host[:26379][,host...]/name[/db]`, where user and password are
those of Redis; `rediss+sentinel://` speaks TLS with both. Behind `?` may follow options of
redis-py, such as `ssl_ca_certs`, and `sentinel_username` and `sentinel_password`. What is no
letter, digit or one of `-._~` is quoted in each of them: `%40` for `@`.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from redis.asyncio.connection import ConnectionPool, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

__all__ = ["pool_of"]

_SENTINELS = {"redis+sentinel": False, "rediss+sentinel": True}
_SENTINEL_PORT = 26379
_CONNECT_S = 5.0
_ASK_S = 1.0
"""How long one Sentinel has to answer before the next one is asked."""
# Each attempt is the line's to repeat; an answer that does not come is told by the line too.
_OPTIONS: dict[str, Any] = {
    "socket_connect_timeout": _CONNECT_S,
    "socket_timeout": None,
    "socket_keepalive": True,
    "retry_on_timeout": False,
    "driver_info": None,  # else each connection asks for a right that no node needs
}
_ALWAYS: dict[str, Any] = {"protocol": 2, "decode_responses": False, "encoding": "utf-8"}
"""What the line relies on, whatever the URL says."""
_NO_TEXT = frozenset(
    {"credential_provider", "event_dispatcher", "redis_connect_func", "retry", "retry_on_error"}
)
"""Options of redis-py that no text can be."""
_PATH = re.compile(r"/?|/\d+/?")
_ASKED: dict[str, Any] = {
    "protocol": 2,
    "socket_connect_timeout": _ASK_S,
    "socket_timeout": _ASK_S,
    "retry": Retry(NoBackoff(), 0),
}
# What is said repeats nothing of the URL: any part of it may be a part of a password.
_QUOTED = "and what is special in a password is quoted, as %2F for /"
_NO_URL = f"this is no URL of a Redis: it is like redis://user:password@host:6379/0, {_QUOTED}"
_NO_SENTINELS = f"Sentinels are named like redis+sentinel://host:26379,host/name/0, {_QUOTED}"


def pool_of(url: str) -> ConnectionPool:
    """Make what makes connections.

    Raises:
        ValueError: It is no URL of these kinds, or has an option that is not known; the words do
            not repeat a password.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in (*_SENTINELS, "redis", "rediss"):
        kinds = "redis://, rediss://, redis+sentinel:// or rediss+sentinel://"
        raise ValueError(f"a Redis is named by {kinds}")
    try:
        pool = _sentinel_pool(url) if scheme in _SENTINELS else _plain_pool(url)
    except (ValueError, TypeError):
        raise ValueError(_NO_SENTINELS if scheme in _SENTINELS else _NO_URL) from None
    try:
        if not _NO_TEXT.isdisjoint(parse_qs(urlsplit(url).query)):
            raise ValueError("an option that no text can be")
        pool.make_connection()  # type: ignore[no-untyped-call]
    except (ValueError, TypeError, RedisError):
        raise ValueError("behind the ? of the URL is no option of redis-py's") from None
    return pool


def _plain_pool(url: str) -> ConnectionPool:
    if not _PATH.fullmatch(urlsplit(url).path):
        raise ValueError("behind the place is no number")  # which redis-py would not say
    pool: ConnectionPool = ConnectionPool.from_url(url, **_OPTIONS)
    pool.connection_kwargs.update(_ALWAYS)
    return pool


def _sentinel_pool(url: str) -> SentinelConnectionPool:
    parts = urlsplit(url)
    credentials, _, places = parts.netloc.rpartition("@")
    name, _, database = parts.path.strip("/").partition("/")
    sentinels = [_place_of(place) for place in places.split(",") if place]
    if not sentinels or not name:
        raise ValueError("no Sentinel, or no name")
    # redis-py knows which of its options are numbers.
    options = _OPTIONS | parse_url(f"redis://?{parts.query}") | _ALWAYS
    if database:
        options["db"] = int(database)
    asked = _sentinels_own(options)
    if _SENTINELS[parts.scheme]:
        asked["ssl"] = options["ssl"] = True
    user, _, password = credentials.partition(":")
    options |= {"username": unquote(user)} if user else {}
    options |= {"password": unquote(password)} if password else {}
    manager = _Sentinels(sentinels, sentinel_kwargs=asked)  # type: ignore[no-untyped-call]
    return SentinelConnectionPool(unquote(name), manager, **options)  # type: ignore[no-untyped-call]


def _sentinels_own(options: dict[str, Any]) -> dict[str, Any]:
    """Take out what is for Sentinels alone, and add what holds for them too."""
    own = [each for each in options if each.startswith("sentinel_")]
    asked = {each.removeprefix("sentinel_"): options.pop(each) for each in own}
    if not asked.keys() <= {"username", "password"}:
        raise ValueError("an option of Sentinels that is not known")
    return asked | _ASKED | {each: options[each] for each in options if each.startswith("ssl")}


class _Sentinels(Sentinel):
    """Sentinels that are asked one after the other, each once, and left again."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Find the primary. Raises `MasterNotFoundError` where none of them names one."""
        try:
            place: tuple[str, int] = await super().discover_master(service_name)
            return place
        finally:
            await self.aclose()


def _place_of(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or text.endswith("]"):
        return text.strip("[]"), _SENTINEL_PORT
    if not host or not port.isdecimal():
        raise ValueError("no host and port")
    return host.strip("[]"), int(port)
