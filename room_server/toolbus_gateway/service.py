"""The gateway as an HTTP server: uvicorn, from its start to the end of its last request."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import uvicorn
from mcp.server.context import ServerRequestContext

from toolbus.bounded_logging import bounded_logger
from toolbus.forked_children import keep_from_children
from toolbus_gateway.definitions import Definitions
from toolbus_gateway.http_access import AccessSettings
from toolbus_gateway.http_app import GatewayApp
from toolbus_gateway.http_protocol import BoundedHttpProtocol, Connections
from toolbus_gateway.mcp_server import ASKER_KEY, Asker, GatewayServer
from toolbus_gateway.member_pool import MemberPool
from toolbus_gateway.tool_calls import CallSettings

__all__ = ["GatewayService", "GatewaySettings"]

_BACKLOG = 2_048
_CLOSE_S = 1
"""In which the last bytes of responses leave; who does not read them then loses them."""
_logger = bounded_logger(__name__)


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What an operator decides."""

    url: str
    """The room server, as `ws://HOST:PORT`."""
    host: str = "127.0.0.1"
    port: int = 7718
    drain_s: float = 10.0
    """Seconds that running requests may take once it stops."""
    calls: CallSettings = field(default_factory=CallSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    tls: ssl.SSLContext | None = None
    """None where a proxy speaks TLS, or on loopback."""
    has_metrics: bool = True
    """Whether `/metrics` is answered."""
    state_keys: tuple[str, ...] = field(default=(), repr=False)
    """Secrets of all replicas, which seal what clients bring back to any of them."""


@dataclass(frozen=True, slots=True)
class _Running:
    """What a service consists of from its start to its end."""

    pool: MemberPool
    gateway: GatewayServer
    app: GatewayApp
    connections: Connections
    server: _Server
    serving: asyncio.Task[None]

    async def is_idle_within(self, seconds: float) -> bool:
        """Wait until no request runs, or the time is over; return whether none runs."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.app.requests.wait_idle()
        return not self.app.requests.running


class GatewayService:
    """A gateway that listens from `start` to `stop`."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._running: _Running | None = None
        self._port = settings.port

    @property
    def url(self) -> str:
        """Its address; the port is known once it has started."""
        host = self._settings.host
        scheme = "http" if self._settings.tls is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._port}"

    async def start(self) -> None:
        """Listen. Raises `OSError` if the address is not available."""
        settings = self._settings
        listener = _listener(settings.host, settings.port)
        self._port = listener.getsockname()[1]
        pool = MemberPool(settings.url, Definitions())
        gateway = GatewayServer(_asker_of, settings.calls, state_keys=settings.state_keys)
        access = settings.access
        app = GatewayApp(pool, gateway, access, has_metrics=settings.has_metrics)
        connections = Connections(access.max_per_address, access.trusted_proxies, settings.tls)
        # uvicorn warns of each request that is not HTTP: anybody could fill the log.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # noqa: TID251 - not ours
        # The same of each state of a client that does not verify.
        logging.getLogger("mcp.server.request_state").setLevel(logging.ERROR)  # noqa: TID251
        config = uvicorn.Config(
            app.asgi,
            # It only calls the class: what else it takes from one, a `partial` has not.
            http=cast("type[asyncio.Protocol]", partial(BoundedHttpProtocol, connections)),
            ws="none",
            lifespan="on",
            interface="asgi3",
            log_config=None,
            log_level=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_CLOSE_S,
        )
        server = _Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        self._running = _Running(pool, gateway, app, connections, server, serving)
        await server.has_started.wait()

    async def stop(self) -> None:
        """Drain, then end.

        Streams about changed lists end with their last message, new requests are refused, and
        those that run may take `drain_s` to end. Only then the connections to rooms close, so that
        those that still run end with an error.
        """
        running = self._running
        if running is None:
            return
        running.app.is_draining = True
        running.gateway.end_listening()
        if not await running.is_idle_within(self._settings.drain_s):
            count = len(running.app.requests.running)
            _logger.warning("requests that have not ended in time are cancelled: %d", count)
            running.gateway.running.end_all()
            await running.pool.aclose()
            if not await running.is_idle_within(_CLOSE_S):
                # uvicorn would cancel their tasks, with a traceback for each.
                for connection in list(running.server.server_state.connections):
                    connection.transport.abort()
        running.server.should_exit = True
        await running.serving
        await running.connections.abort_handshakes()


def _asker_of(ctx: ServerRequestContext[Any, Any]) -> Asker:
    request: Any = ctx.request
    asker: Asker = request.scope[ASKER_KEY]
    return asker


def _listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens, so that an address in use is an error of the caller."""
    address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    family, kind, protocol, _, place = address
    # With its protocol, which connections inherit: asyncio sets TCP_NODELAY only where it is TCP.
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(_BACKLOG)
        keep_from_children(listener)
    except OSError:
        listener.close()
        raise
    return listener


class _Server(uvicorn.Server):
    """Does not handle signals, which belong to the program."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_started: asyncio.Event = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.has_started.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
