"""The gateway as an HTTP server: uvicorn, from its start to the end of its last request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from toolbus_gateway.definitions import Definitions
from toolbus_gateway.http_app import make_app
from toolbus_gateway.mcp_server import ASKER_KEY, Asker, GatewayServer
from toolbus_gateway.member_pool import MemberPool
from toolbus_gateway.tool_calls import CallSettings

__all__ = ["GatewayService", "GatewaySettings"]

_BACKLOG = 2_048


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


class GatewayService:
    """A gateway that listens from `start` to `stop`."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._gateway: GatewayServer | None = None
        self._port = settings.port

    @property
    def url(self) -> str:
        """Its address; the port is known once it has started."""
        host = self._settings.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}"

    async def start(self) -> None:
        """Listen. Raises `OSError` if the address is not available."""
        settings = self._settings
        listener = _listener(settings.host, settings.port)
        self._port = listener.getsockname()[1]
        pool = MemberPool(settings.url, Definitions())
        gateway = self._gateway = GatewayServer(_asker_of, settings.calls)
        manager = StreamableHTTPSessionManager(gateway.mcp, stateless=True)
        config = uvicorn.Config(
            make_app(pool, gateway, manager),
            http="httptools",
            ws="none",
            lifespan="on",
            interface="asgi3",
            log_config=None,
            log_level=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=round(settings.drain_s),
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve([listener]))
        await self._server.has_started.wait()

    async def stop(self) -> None:
        """End: no new connections, running requests get the time to drain."""
        if self._server is None or self._serving is None:
            return
        if self._gateway is not None:
            self._gateway.end_listening()
        self._server.should_exit = True
        await self._serving


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
