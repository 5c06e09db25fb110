"""What an operator decides about one server.

Values only: reading flags and variables is `commands`' work.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from toolbus.tokens import KeyRing
from toolbus.transport import PING_INTERVAL_S, PING_TIMEOUT_S
from toolbus_server.limits import Limits

__all__ = ["ServerSettings"]


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where a server listens, whom it trusts and what it grants."""

    keys: KeyRing
    """The keys whose tokens are accepted, at least one; `RoomServer.trust` replaces them."""
    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = 7717
    """The port to listen on; 0 lets the system choose."""
    limits: Limits = field(default_factory=Limits)
    """What one connection may cost."""
    allow_query_token: bool = False
    """Whether `?token=` is read. Query strings end up in the logs of proxies, so it is off."""
    handshake_timeout_s: float = 10.0
    """How long a client may take to say who it is."""
    ping_interval_s: float | None = PING_INTERVAL_S
    """How often each participant is asked whether it is there; None for never."""
    ping_timeout_s: float = PING_TIMEOUT_S
    """How long one that was asked may stay silent: then it is gone, with what it hosts."""
    drain_s: float = 10.0
    """How long calls in flight may take to end after the server was told to stop."""
    tls: ssl.SSLContext | None = None
    """The certificate to speak TLS with, `wss://`; without one it is plain `ws://`."""
    trusted_origins: tuple[str, ...] = ()
    """From where browsers' pages may connect, such as `https://app.example.org`; `*` is anywhere.

    A page from the server's own host always may, and so may a program, which names no origin.
    """
    max_per_address: int = 10_000
    """Connections that one IP address, of IPv6 a network of 64 bits, may have; 0 for any number.

    Behind a proxy that is not in `trusted_proxies` all come from its address.
    """
    trusted_proxies: tuple[str, ...] = ()
    """Networks of proxies, such as `10.0.0.0/8`, whose `X-Forwarded-For` says who connects.

    From anybody else that header is ignored.
    """
    max_per_identity: int = 4_096
    """Participants that one identity may have at a time; 0 for any number."""
    max_per_room: int = 10_000
    """Participants that one room may have at a time; 0 for any number."""
    redis: str | None = None
    """Where the Redis is that makes nodes one bus; None where this node is all there is."""
    node: str = ""
    """What this node is called among others; made up where empty."""
    node_family: str = ""
    """What nodes have in common that follow each other under one name, each when the one before it
    is known to have ended: a lease that such a one left ends at once. None where empty."""
    metrics: bool = True
    """Whether `/metrics` is answered."""

    def url(self, port: int) -> str:
        """Tell where participants connect to, if it listens on this port."""
        scheme = "ws" if self.tls is None else "wss"
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{port}"
