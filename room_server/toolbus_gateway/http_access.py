"""Which requests over HTTP are answered: Host, Origin, the bearer token, and how many at a time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from http import HTTPStatus
from time import monotonic
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from toolbus.bounded_logging import bounded_logger
from toolbus.settings import is_loopback_host
from toolbus.transport.client_addresses import TrustedProxies, address_of
from toolbus_gateway.limits import MAX_PER_ADDRESS, MAX_PER_TOKEN, MAX_REFUSAL_LINES
from toolbus_gateway.listing import Target

__all__ = [
    "METADATA_PATH",
    "NO_TOKEN",
    "OPEN_PATHS",
    "AccessSettings",
    "Guard",
    "RefusalLog",
    "RequestQuotas",
    "ResourceMetadata",
    "TooManyRequests",
    "bearer_of",
    "read_host",
]

METADATA_PATH = "/.well-known/oauth-protected-resource"
NO_TOKEN = "the request has no bearer token: send one as Authorization: Bearer TOKEN"
OPEN_PATHS = ("/healthz", "/metrics")
"""Probes and scrapes reach them by the address of a machine, and some by HTTP/1.0."""
_read_host = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::(\d{1,5}))?").fullmatch
_LOOPBACK_ORIGIN = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?"
_MAX_HOST = 300
"""Characters of a Host, of which some are remembered: a name has at most 253."""
_REMEMBERED = 256
_EXPOSED = ("Mcp-Session-Id", "Retry-After", "WWW-Authenticate")
_logger = bounded_logger(__name__)


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """What an operator decides about requests."""

    trusted_hosts: tuple[str, ...] = ()
    """Names in `Host` beside those of loopback, as `read_host` returns them."""
    trusted_origins: tuple[str, ...] = ()
    """Origins of web pages beside those of loopback, in lower case; `*` is any."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are used."""
    authorization_servers: tuple[str, ...] = ()
    """Their issuers; without one there is no metadata, and no word about it."""
    max_per_address: int = MAX_PER_ADDRESS
    """Requests of one address at a time; 0 for any number."""
    max_per_token: int = MAX_PER_TOKEN
    """Requests with one token at a time; 0 for any number."""


def read_host(text: str) -> str:
    """Read a name for `Host`, with a port or for any port; `*` is any name.

    Raises ValueError.
    """
    name = text.lower()
    if name != "*" and _read_host(name) is None:
        raise ValueError(f"{text!r} is not a host: write it like tools.example.org, or with a port")
    return name


def bearer_of(headers: Headers) -> str | None:
    """Return the bearer token of a request, if it has one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and token else None


class Guard:
    """Refuses requests for other hosts and of pages from other origins, before an application.

    A web page of another origin, or one that reaches this address by DNS rebinding, could use a
    gateway on its user's machine. For trusted origins it adds the headers of CORS.

    It puts the address of the client, and its scheme, in the place of those of a trusted proxy.
    """

    def __init__(self, app: ASGIApp, settings: AccessSettings) -> None:
        self._app = app
        self._hosts = frozenset(settings.trusted_hosts)
        self._origins = frozenset(settings.trusted_origins)
        self._proxies = TrustedProxies(settings.trusted_proxies)
        self._cors = CORSMiddleware(
            app,
            allow_origins=settings.trusted_origins,
            allow_origin_regex=_LOOPBACK_ORIGIN,
            allow_methods=("DELETE", "GET", "POST"),
            allow_headers=("*",),  # the names of `Mcp-Param-*` are those of arguments
            allow_private_network=True,
            expose_headers=_EXPOSED,
        )
        self._is_loopback_origin = re.compile(_LOOPBACK_ORIGIN).fullmatch
        # Reading one takes 20 us, and clients send the same one again.
        self._is_trusted_host = lru_cache(_REMEMBERED)(self._judge_host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let the application do so."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if scope["path"] not in OPEN_PATHS:
            refusal = self._refusal(scope, headers)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        self._name_client(scope, headers)
        app = self._cors if "origin" in headers else self._app
        await app(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        if scope["http_version"] != "1.1":  # whose client cannot read a stream in chunks
            text = "Only HTTP/1.1.\n"
            return PlainTextResponse(text, HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        hosts = headers.getlist("host")
        if len(hosts) != 1:  # a proxy before this server may have read another one of them
            return PlainTextResponse("A request has one Host.\n", HTTPStatus.BAD_REQUEST)
        if len(hosts[0]) > _MAX_HOST or not self._is_trusted_host(hosts[0]):
            text = (
                "This gateway does not answer for this Host: "
                "its operator names it with --trusted-hosts.\n"
            )
            return PlainTextResponse(text, HTTPStatus.MISDIRECTED_REQUEST)
        if not all(map(self._is_trusted_origin, headers.getlist("origin"))):
            text = "Pages from this origin may not use this gateway.\n"
            return PlainTextResponse(text, HTTPStatus.FORBIDDEN)
        return None

    def _judge_host(self, host: str) -> bool:
        found = _read_host(host.lower())
        if found is None:
            return False
        name = found[1]
        return bool({"*", name, found[0]} & self._hosts) or is_loopback_host(name.strip("[]"))

    def _is_trusted_origin(self, origin: str) -> bool:
        origin = origin.lower()
        is_named = bool({"*", origin} & self._origins)
        return is_named or self._is_loopback_origin(origin) is not None

    def _name_client(self, scope: Scope, headers: Headers) -> None:
        client = scope.get("client")
        if client is None or not self._proxies.include(client[0]):
            return
        address = self._proxies.forwarded_by(client[0], headers.getlist("x-forwarded-for"))
        scope["client"] = address, 0
        scheme = headers.get("x-forwarded-proto", "").lower()
        if scheme in ("http", "https"):
            scope["scheme"] = scheme


class TooManyRequests(Exception):
    """An address or a token has as many requests as it may have at a time."""


class RequestQuotas:
    """Counts the requests that are being answered, by address and by token."""

    def __init__(self, settings: AccessSettings) -> None:
        self._max_per_address = settings.max_per_address
        self._max_per_token = settings.max_per_token
        self._counts: Counter[Hashable] = Counter()
        self._address_of = lru_cache(_REMEMBERED)(lambda address: address_of((address,)))

    @contextmanager
    def counted(self, address: str, token: str) -> Iterator[None]:
        """Count a request during the block. Raises `TooManyRequests`."""
        keys = (self._address_of(address), sha256(token.encode()).digest())
        limits = (self._max_per_address, self._max_per_token)
        for key, limit, name in zip(keys, limits, ("address", "token"), strict=True):
            if 0 < limit <= self._counts[key]:
                raise TooManyRequests(
                    f"this {name} has {limit} requests that have not ended: wait for one of them"
                )
        self._counts.update(keys)
        try:
            yield
        finally:
            for key in keys:
                self._counts[key] -= 1
                if not self._counts[key]:
                    del self._counts[key]


class RefusalLog:
    """Logs why requests are refused, a limited number a minute, and the number of the others."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._minute_ends = now()
        self._lines = 0
        self._omitted = 0

    def add(self, reason: str, room: str, address: str) -> None:
        """Log a refusal, unless there were too many."""
        if self._now() >= self._minute_ends:
            if self._omitted:
                _logger.info("further requests were refused: %d", self._omitted)
            self._minute_ends = self._now() + 60
            self._lines = 0
            self._omitted = 0
        if self._lines == MAX_REFUSAL_LINES:
            self._omitted += 1
            return
        self._lines += 1
        _logger.info("request refused: %s (room %s, from %s)", reason, room, address)


class ResourceMetadata:
    """Says which authorization servers have tokens for a room (RFC 9728).

    Without one it says nothing: clients with a token in their settings take any word about
    authorization as an invitation to register themselves.
    """

    def __init__(self, authorization_servers: Sequence[str]) -> None:
        self._servers = list(authorization_servers)

    def document(self, scope: Scope, room: str | None, target: Target) -> Response:
        """Return the metadata of a room, or of the gateway as a whole."""
        if not self._servers:
            return Response(status_code=HTTPStatus.NOT_FOUND)
        names = ["toolbus"]
        if room is not None:
            names.append(f"room {room}")
        if target.toolkit is not None:
            names.append(f"toolkit {target.toolkit}")
        return JSONResponse(
            {
                "resource": _base(scope) + quote(scope["path"].removeprefix(METADATA_PATH)),
                "authorization_servers": self._servers,
                "bearer_methods_supported": ["header"],
                "resource_name": ", ".join(names),
            }
        )

    def challenge(self, scope: Scope, refusal: str | None) -> Response:
        """Return the response to a request without a token, or whose token was refused.

        Why stands in the body alone: clients act on what the header has.
        """
        facts = []
        if self._servers:
            facts.append(f'resource_metadata="{_base(scope)}{METADATA_PATH}{quote(scope["path"])}"')
            if refusal is not None:
                facts.insert(0, 'error="invalid_token"')
        headers = {"WWW-Authenticate": f"Bearer {', '.join(facts)}".strip()}
        text = f"{refusal or NO_TOKEN}\n"
        return PlainTextResponse(text, HTTPStatus.UNAUTHORIZED, headers)


def _base(scope: Scope) -> str:
    return f"{scope['scheme']}://{Headers(scope=scope)['host']}"
