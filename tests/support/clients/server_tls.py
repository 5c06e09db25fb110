"""The settings of a server with TLS, for a certificate that a test made."""

from __future__ import annotations

import ssl

from support.clients.certificates import Pki
from toolbus import KeyRing
from toolbus_server import ServerSettings

__all__ = ["tls_settings"]


def tls_settings(pki: Pki, *, handshake_timeout_s: float = 10.0) -> ServerSettings:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pki.cert, pki.key)
    return ServerSettings(
        keys=KeyRing([]),
        port=0,
        drain_s=1.0,
        tls=context,
        handshake_timeout_s=handshake_timeout_s,
    )
