"""What the commands that listen have in common: TLS, origins, proxies, addresses, descriptors."""

from __future__ import annotations

import errno
import resource
import ssl
from collections.abc import Sequence
from os import R_OK, access
from pathlib import Path
from urllib.parse import urlsplit

from toolbus.bounded_logging import bounded_logger
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.transport.client_addresses import read_networks

__all__ = [
    "listen_error",
    "no_tls_warning",
    "no_trusted_hosts_warning",
    "raise_descriptor_limit",
    "read_origin",
    "read_proxies",
    "tls_context",
]

_logger = bounded_logger(__name__)


def tls_context(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the TLS of a server by its two files; None without them. Raises UsageError."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise UsageError("TLS needs both: --tls-cert and --tls-key")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # An empty password: an encrypted key is refused, instead of a prompt for its password.
        context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        reason = "both must be PEM files, and the key not encrypted"
        if "MISMATCH" in str(error):
            reason = "the key is not the certificate's"
        raise UsageError(f"no TLS with {cert} and {key}: {reason}") from error
    except OSError as error:
        missing = next(
            (path for path in (cert, key) if not (path.is_file() and access(path, R_OK))), cert
        )
        raise UsageError(f"cannot read {missing}: {error.strerror}") from error
    return context


def no_tls_warning(host: str) -> str:
    """Return what a server says that listens beyond loopback without TLS."""
    return (
        f"NO TLS on {host}: who can read this network can read tokens and calls; give a "
        "certificate with --tls-cert and --tls-key, or let only a proxy with TLS reach it"
    )


def no_trusted_hosts_warning(host: str) -> str:
    """Return what a gateway says that listens beyond loopback and knows no name of its own."""
    return (
        f"no --trusted-hosts for {host}: clients from elsewhere get 421; give the names by which "
        "they reach this gateway"
    )


def read_proxies(texts: Sequence[str]) -> tuple[str, ...]:
    """Read networks of proxies; a text may have several with commas. Raises UsageError."""
    try:
        return read_networks(texts)
    except ValueError as error:
        raise UsageError(str(error)) from error


def read_origin(text: str) -> str:
    """Read the origin of a web page, or `*`, in lower case. Raises UsageError."""
    origin = text.lower()
    try:
        parts = urlsplit(origin)
        is_one = (
            bool(parts.scheme and parts.hostname) and origin == f"{parts.scheme}://{parts.netloc}"
        )
    except ValueError:
        is_one = False
    if not is_one and origin not in ("*", "null"):
        raise UsageError(
            f"{text!r} is not an origin: write it like https://app.example.org, without a path"
        )
    return origin


def listen_error(error: OSError, host: str, port: int, option: str = "--port") -> UsageError:
    """Return the error of a command whose server cannot listen on its address."""
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"port {port} is in use: stop what listens there, or choose another with {option}"
        )
    reason = error.strerror or error
    return UsageError(f"cannot listen on {host}, port {port}: {reason}")


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard limit, if the system lets it; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # such as an unlimited hard limit on macOS
        _logger.info("the limit of open files stays %d: %s", soft, error)
        return soft
    return hard
