"""The settings of one server.

Values only: `process.commands` reads flags, variables and the TOML file.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from toolbus.auth.tokens import KeyRing
from toolbus.transport.websocket import PING_INTERVAL_S, PING_TIMEOUT_S
from toolbus_server.limits import Limits

__all__ = ["ServerSettings"]


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where a server listens, which keys it trusts, and its limits."""

    keys: KeyRing
    """The keys whose tokens are accepted, at least one; `RoomServer.trust` replaces them."""
    development_keys: frozenset[str] = frozenset()
    """The ids of those of the keys with which one person tries all of it on this machine.

    A token of such a key may approve calls of tools that its own participant hosts.
    """
    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = 7717
    """The port to listen on; 0 lets the system choose."""
    limits: Limits = field(default_factory=Limits)
    """The limits of one connection."""
    allow_query_token: bool = False
    """Whether `?token=` is accepted. Off, since proxies write query strings to their logs."""
    handshake_timeout_s: float = 10.0
    """How long a client may take for the handshake."""
    ping_interval_s: float | None = PING_INTERVAL_S
    """How often each participant is sent a ping; None for never."""
    ping_timeout_s: float = PING_TIMEOUT_S
    """How long the pong may take: then the connection is closed, and its toolkits end."""
    drain_s: float = 10.0
    """How long calls in flight may take to finish at shutdown."""
    hosts_return_s: float = 0.0
    """How long after its start the hosts of a former server may take to connect to this one.

    Until then a call to an unknown toolkit may be repeated. It counts for a single node: nodes keep
    the names of their toolkits in Redis.
    """
    tls: ssl.SSLContext | None = None
    """The certificate for TLS, `wss://`; without one it is plain `ws://`."""
    trusted_origins: tuple[str, ...] = ()
    """Origins of browser pages that may connect, such as `https://app.example.org`; `*` for any.

    A page from the server's own host always may, and so may a program, which sends no origin.
    """
    max_per_address: int = 10_000
    """Connections that one IP address, for IPv6 one /64 network, may have; 0 for any number.

    All connections through a proxy that is not in `trusted_proxies` count for its address.
    """
    trusted_proxies: tuple[str, ...] = ()
    """Networks of proxies, such as `10.0.0.0/8`, whose `X-Forwarded-For` is trusted.

    From other addresses that header is ignored.
    """
    max_per_identity: int = 4_096
    """Participants that one identity may have at a time; 0 for any number."""
    max_per_room: int = 10_000
    """Participants that one room may have at a time; 0 for any number."""
    max_waiting_bytes: int = 1024 * 1024 * 1024
    """Bytes that may wait until participants read them, in all; 0 for any number.

    Beyond it the connections for which most waits are closed with 4430.
    """
    redis: str | None = None
    """The URL of the Redis that connects nodes to one bus; None for a single node."""
    node: str = ""
    """The name of this node among others; generated if empty."""
    node_family: str = ""
    """The prefix of nodes that run one after the other under one name; empty for none.

    The lease that an ended predecessor left ends at once.
    """
    state: Path | None = None
    """The folder with the state of tokens of a single server: revocations, and tokens with `until`.

    Nodes keep it in Redis. Without either, no token lives beyond its `exp`.
    """
    asks_for_error_text: bool = False
    """Whether hosts send their callers the texts of exceptions, unless a toolkit says otherwise.

    For development: only hosts on this machine follow it.
    """
    metrics: bool = True
    """Whether `/metrics` is served."""

    def url(self, port: int) -> str:
        """Return the URL to connect to, if the server listens on this port."""
        scheme = "ws" if self.tls is None else "wss"
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{port}"
