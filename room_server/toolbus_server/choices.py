"""What an operator chose for `toolbus serve`, and what a server is told of it.

Keys and certificates are read here, and what cannot be meant is refused with the words of a command
that fails. Where the choices come from is `commands`' work.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import R_OK, access
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import urlsplit

import typer

from toolbus.exit_codes import UsageMistake, printable
from toolbus.keys import KeyRing
from toolbus.settings import DEV_KEYS_FILE, home_of
from toolbus_server.forwarding import network_of
from toolbus_server.key_files import dev_keys, private_to_owner

if TYPE_CHECKING:
    from toolbus_server.settings import ServerSettings

__all__ = ["Choices", "Switch", "load_keys"]

_LOOPBACK = {"127.0.0.1": "127.0.0.1", "localhost": "127.0.0.1", "::1": "::1"}
_NO_KEYS = (
    "there are no keys, so nobody's token could be checked: make one with `toolbus key create` "
    "and start with --keys keys.toml, or try things out on this machine with `toolbus serve --dev`"
)


Switch: TypeAlias = Literal["on", "off"]
"""What a flag with these two values says."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What the flags of `toolbus serve` said."""

    dev: bool
    host: str
    port: int
    keys: Path | None
    allow_query_token: bool
    drain_s: float
    tls_cert: Path | None
    tls_key: Path | None
    trusted_origins: list[str]
    max_per_address: int
    max_per_identity: int
    max_per_room: int
    trusted_proxies: list[str]
    redis: str | None
    node: str
    workers: int
    metrics: Switch

    def settle(self, variables: Mapping[str, str]) -> ServerSettings:
        """Read the keys and settle what the server is told. Raises UsageMistake."""
        from toolbus_server.settings import ServerSettings  # needs the extra `server`

        host = self.host
        trusted = [] if self.keys is None else list(load_keys(self.keys))
        if self.dev:
            host = _loopback(host)
            trusted = [*_dev_keys(_dev_keys_file(variables)), *trusted]
        if not trusted:
            raise UsageMistake(_NO_KEYS)
        _check_workers(self.workers, self.redis)
        _check_redis(self.redis, self._node_names())
        try:
            keys = KeyRing(trusted)
        except ValueError as error:
            raise UsageMistake(str(error)) from error
        return ServerSettings(
            keys=keys,
            host=host,
            port=self.port,
            allow_query_token=self.allow_query_token,
            drain_s=self.drain_s,
            tls=_tls(self.tls_cert, self.tls_key),
            trusted_origins=tuple(map(_origin, self.trusted_origins)),
            max_per_address=self.max_per_address,
            max_per_identity=self.max_per_identity,
            max_per_room=self.max_per_room,
            trusted_proxies=tuple(_networks(self.trusted_proxies)),
            redis=self.redis,
            node=self.node,
            metrics=self.metrics == "on",
        )

    def _node_names(self) -> tuple[str, ...]:
        """Give what it is called, and the longest name of a worker of that name."""
        is_one = self.workers == 1 or not self.node
        return (self.node,) if is_one else (self.node, f"{self.node}-{self.workers}")

    def key_files(self, variables: Mapping[str, str]) -> list[Path]:
        """Name the files that the trusted keys lie in."""
        development = [_dev_keys_file(variables)] if self.dev else []
        return development if self.keys is None else [*development, self.keys]


def _dev_keys_file(variables: Mapping[str, str]) -> Path:
    return home_of(variables) / DEV_KEYS_FILE


def _loopback(host: str) -> str:
    if host not in _LOOPBACK:
        raise UsageMistake(
            f"--dev listens on loopback only, not on {host!r}: leave --host out, or make keys "
            "with `toolbus key create` and start without --dev"
        )
    return _LOOPBACK[host]


def _dev_keys(path: Path) -> KeyRing:
    try:
        keys = dev_keys(path)
        if not private_to_owner(path):
            path.chmod(0o600)
            typer.echo(f"{path} could be read by others; it is yours alone again", err=True)
    except (OSError, ValueError) as error:
        raise UsageMistake(f"no development key: {error}") from error
    typer.echo(
        f"DEVELOPMENT SERVER - loopback only, never for production: whoever can read {path} "
        "may do everything in every room",
        err=True,
    )
    return keys


def load_keys(path: Path) -> KeyRing:
    """Read a file of keys. Raises UsageMistake, with what would make one."""
    try:
        return KeyRing.load(path)
    except OSError as error:
        raise UsageMistake(
            f"cannot read {path}: {error.strerror}; `toolbus key create --out {path}` makes it"
        ) from error
    except ValueError as error:
        raise UsageMistake(str(error)) from error


def _check_redis(url: str | None, nodes: Sequence[str]) -> None:
    if url is not None:
        from toolbus_server.nodes.node_name import check_node_name  # needs the extra `server`
        from toolbus_server.nodes.redis_check import look_before_start
        from toolbus_server.nodes.redis_url import pool_of

        try:
            pool_of(url)
        except ValueError as error:
            raise UsageMistake(f"--redis: {error}") from error
        try:
            for node in nodes:
                check_node_name(node)
        except ValueError as error:
            raise UsageMistake(f"--node: {error}") from error
        for words in asyncio.run(look_before_start(url)):
            typer.echo(printable(words), err=True)


def _check_workers(count: int, redis: str | None) -> None:
    if count > 1 and redis is None:
        raise UsageMistake(
            f"--workers {count} needs --redis: each worker is a server with memory of its own, and "
            "only a Redis makes them one bus; without one leave --workers out"
        )
    if count > 1 and not hasattr(os, "fork"):
        raise UsageMistake("--workers needs a system that can fork; here leave it out")


def _tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise UsageMistake("TLS needs both: --tls-cert and --tls-key")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # A password that nobody can type here: an encrypted key is refused, not waited for.
        context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        why = (
            "they do not belong together"
            if "MISMATCH" in str(error)
            else "PEM files, and the key not encrypted, are needed"
        )
        raise UsageMistake(f"no TLS with {cert} and {key}: {why}") from error
    except OSError as error:
        missing = next((each for each in (cert, key) if not _is_readable(each)), cert)
        raise UsageMistake(f"cannot read {missing}: {error.strerror}") from error
    return context


def _is_readable(path: Path) -> bool:
    return path.is_file() and access(path, R_OK)


def _networks(texts: Sequence[str]) -> Iterator[str]:
    """Go through networks, of which one text may hold several with commas between them."""
    for part in filter(None, map(str.strip, ",".join(texts).split(","))):
        try:
            yield str(network_of(part))
        except ValueError as error:
            raise UsageMistake(
                f"{part!r} is no network of proxies: it is like 10.0.0.0/8 ({error})"
            ) from error


def _origin(text: str) -> str:
    origin = text.lower()
    try:
        parts = urlsplit(origin)
        is_one = (
            bool(parts.scheme and parts.hostname) and origin == f"{parts.scheme}://{parts.netloc}"
        )
    except ValueError:
        is_one = False
    if not is_one and origin not in ("*", "null"):
        raise UsageMistake(
            f"{text!r} is no origin: it is like https://app.example.org, with no path"
        )
    return origin
