"""The options of `toolbus serve`, and one room server that runs by them until a signal ends it.

Keys and certificates are read here, and options that are not valid are refused. Flags, variables
and files are read in `commands`; several servers behind one port are `workers`' task.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from toolbus.auth.keys import Key, KeyRing
from toolbus.bounded_logging import bounded_logger
from toolbus.cli.listening import (
    listen_error,
    no_tls_warning,
    no_trusted_hosts_warning,
    raise_descriptor_limit,
    read_origin,
    read_proxies,
    tls_context,
)
from toolbus.cli.signals import stop_on_signals
from toolbus.concurrency import event_loop
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.log_output import LogOutput
from toolbus.settings import DEV_KEYS_FILE, home_of, is_loopback_host
from toolbus.telemetry.tracing import recorded
from toolbus.untrusted_text import one_line
from toolbus_server.process.key_files import (
    KeyReloader,
    check_writers,
    dev_keys,
    joined,
    private_to_owner,
    set_files,
)
from toolbus_server.settings import ServerSettings
from toolbus_server.websocket.server import RoomServer

__all__ = [
    "NO_STATE",
    "ServeOptions",
    "Switch",
    "load_keys",
    "log_to_stderr",
    "run",
    "run_until_stopped",
]

_NO_KEYS = (
    "there are no keys to check tokens with: make one with `toolbus key create` "
    "and start with --keys keys.toml, or try things out on this machine with `toolbus serve --dev`"
)

NO_STATE = (
    "revocations are lost when this server ends, and tokens with `until` have one life: --state "
    "FOLDER stores both"
)
_HOSTS_RETURN_S = 6.0
"""Longer than the longest pause before a client reconnects, which is 5 s."""

Switch: TypeAlias = Literal["on", "off"]
"""The values of a flag that turns something on or off."""
_logger = bounded_logger(__name__)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of `toolbus serve`."""

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
    max_waiting_mib: int
    trusted_proxies: list[str]
    redis: str | None
    node: str
    workers: int
    metrics: Switch
    state: Path | None = None
    gateway: bool = False
    gateway_port: int = 7718
    trusted_hosts: list[str] = field(default_factory=list)

    def to_settings(
        self, variables: Mapping[str, str], warn: Callable[[str], None]
    ) -> ServerSettings:
        """Read keys and certificates, and return the server's settings. Raises UsageError."""
        host = self.host
        tls = tls_context(self.tls_cert, self.tls_key)
        rings = [] if self.keys is None else [_trusted_keys(self.keys, warn)]
        development: list[Key] = []
        if self.dev:
            host = _loopback(host)
            rings.insert(0, _dev_keys(_dev_keys_file(variables), warn))
            development = list(rings[0])
        if not rings:
            raise UsageError(_NO_KEYS)
        _check_workers(self.workers, self.redis)
        if self.state is not None and self.redis is not None:
            raise UsageError("--state is for one server: with --redis the state is in Redis")
        if self.state is not None:
            _check_state(self.state)
        if self.gateway:
            _check_gateway(self.workers, variables, has_tls=tls is not None)
        try:
            keys = joined(rings)
        except ValueError as error:
            raise UsageError(str(error)) from error
        if tls is None and not is_loopback_host(host):
            warn(no_tls_warning(host))
        if self.gateway and not self.trusted_hosts and not is_loopback_host(host):
            warn(no_trusted_hosts_warning(host))
        return ServerSettings(
            keys=keys,
            development_keys=frozenset(key.kid for key in development),
            host=host,
            port=self.port,
            allow_query_token=self.allow_query_token,
            drain_s=self.drain_s,
            hosts_return_s=_HOSTS_RETURN_S,
            tls=tls,
            trusted_origins=tuple(map(read_origin, self.trusted_origins)),
            max_per_address=self.max_per_address,
            max_per_identity=self.max_per_identity,
            max_per_room=self.max_per_room,
            max_waiting_bytes=self.max_waiting_mib * 1024 * 1024,
            trusted_proxies=read_proxies(self.trusted_proxies),
            redis=self.redis,
            node=self.node,
            state=self.state,
            asks_for_error_text=self.dev,
            metrics=self.metrics == "on",
        )

    def check_redis(self, warn: Callable[[str], None]) -> None:
        """Check the node's name and its Redis, if there is one; warn of what it cannot do yet.

        A Redis that cannot be reached is not an error: the node joins when it can.

        Raises:
            UsageError: The name or the URL is not valid, or nodes cannot use this Redis.
        """
        if self.redis is None:
            return
        # A server without Redis imports no client of Redis.
        from toolbus_server.cluster.lease import check_node_name
        from toolbus_server.cluster.redis.health_check import check_before_start
        from toolbus_server.cluster.redis.url import pool_of

        try:
            pool_of(self.redis)
        except ValueError as error:
            raise UsageError(f"--redis: {error}") from error
        try:
            check_node_name(self.node)
            if self.node and self.workers > 1:  # the longest name of a worker
                check_node_name(f"{self.node}-{self.workers}")
        except ValueError as error:
            raise UsageError(f"--node: {error}") from error
        for warning in asyncio.run(check_before_start(self.redis)):
            warn(one_line(warning))

    def key_files(self, variables: Mapping[str, str]) -> list[Path]:
        """Return the paths of the files with the trusted keys."""
        development = [_dev_keys_file(variables)] if self.dev else []
        return development if self.keys is None else [*development, self.keys]


def _dev_keys_file(variables: Mapping[str, str]) -> Path:
    return home_of(variables) / DEV_KEYS_FILE


def _loopback(host: str) -> str:
    if not is_loopback_host(host):
        raise UsageError(
            f"--dev listens on loopback only, not on {host!r}: leave --host out, or make keys "
            "with `toolbus key create` and start without --dev"
        )
    return "127.0.0.1" if host.lower() == "localhost" else host


def _dev_keys(path: Path, warn: Callable[[str], None]) -> KeyRing:
    try:
        keys = dev_keys(path)
        if not private_to_owner(path):
            path.chmod(0o600)
            warn(f"{path} was readable by other users; only you can read it now")
        check_writers(path)
    except OSError as error:
        text = "TOOLBUS_HOME must name a folder in which this process can write"
        raise UsageError(f"no development key: {error}; {text}") from error
    except ValueError as error:
        raise UsageError(f"no development key: {error}") from error
    return keys


def development_warning(variables: Mapping[str, str]) -> str:
    """Return what `toolbus serve --dev` says once it listens."""
    return (
        "DEVELOPMENT SERVER - loopback only, never for production: everyone who can read "
        f"{_dev_keys_file(variables)} has all rights in every room"
    )


def _trusted_keys(path: Path, warn: Callable[[str], None]) -> KeyRing:
    keys = load_keys(path)
    try:
        for file in (path, *set_files(keys)):
            check_writers(file)
        is_private = private_to_owner(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"the keys cannot be trusted: {error}") from error
    # Not refused: a secret that Kubernetes mounts can often be read by the group of the pod.
    if not is_private and any(key.secret or key.private for key in keys):
        repair = f"chmod 600 {shlex.quote(str(path))}"
        warn(f"other users can read {path}, which has private keys: {repair}")
    return keys


def _check_state(folder: Path) -> None:
    """Make the folder of the state, and check who can delete revocations. Raises UsageError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_writers(folder)
    except OSError as error:
        text = "name a folder in which this user can write"
        raise UsageError(f"--state {folder}: {error.strerror}: {text}") from error
    except ValueError as error:
        raise UsageError(f"--state: {error}") from error


def load_keys(path: Path) -> KeyRing:
    """Read a key file. Raises UsageError, which says what to do if there is none."""
    try:
        return KeyRing.load(path)
    except OSError as error:
        if error.filename not in (None, str(path)):
            raise UsageError(_set_fault(path, error)) from error
        raise UsageError(
            f"cannot read {path}: {error.strerror};"
            f" `toolbus key create --out {path}` makes a file of keys"
        ) from error
    except ValueError as error:
        raise UsageError(str(error)) from error


def _set_fault(path: Path, error: OSError) -> str:
    """Name the table of a key file whose key set cannot be read."""
    issuers = KeyRing.from_toml(path.read_text(encoding="utf-8")).issuers.values()
    files = [issuer.in_folder(path.parent).jwks for issuer in issuers]
    number = files.index(error.filename)
    table = f"issuer {number + 1} ({list(issuers)[number].iss!r})"
    return f"{path}: {table}: jwks: {error.filename}: {error.strerror}"


def _check_gateway(workers: int, variables: Mapping[str, str], *, has_tls: bool) -> None:
    if workers > 1:
        raise UsageError(
            "--gateway is for one process: leave --workers out, or start `toolbus gateway` beside "
            "the server"
        )
    # The gateway is a client like any other, which checks the name in the certificate.
    if has_tls and not variables.get("TOOLBUS_URL", "").startswith("wss://"):
        raise UsageError(
            "--gateway with --tls-cert needs TOOLBUS_URL: this server by a name that its "
            "certificate has, as wss://NAME:PORT"
        )


def _check_workers(count: int, redis: str | None) -> None:
    if count > 1 and redis is None:
        raise UsageError(
            f"--workers {count} needs --redis: the workers share their rooms through Redis; "
            "without a Redis omit --workers"
        )
    if count > 1 and not hasattr(socket, "SO_REUSEPORT"):
        raise UsageError("--workers needs SO_REUSEPORT, which this system lacks: leave it out")


def run(
    options: ServeOptions,
    settings: ServerSettings,
    variables: Mapping[str, str],
    announce: Callable[..., object],
    *,
    supervisor: int | None = None,
) -> None:
    """Run a server until SIGTERM or SIGINT, then drain it; a second signal ends the process.

    `announce` is called with the server's URL, and that of a gateway, once it listens. A worker
    shares its port with the other workers; `supervisor` is the descriptor of a pipe whose end means
    that it stops.

    Raises:
        UsageError: The address is not available.
        NameTaken: Another living node has the name in the settings.
    """
    _logger.info("file descriptors: at most %d", raise_descriptor_limit())
    with recorded("toolbus-server"):
        event_loop.run(_serve(options, settings, variables, announce, supervisor))


async def _serve(
    options: ServeOptions,
    settings: ServerSettings,
    variables: Mapping[str, str],
    announce: Callable[..., object],
    supervisor: int | None,
) -> None:
    loop, stop = asyncio.get_running_loop(), stop_on_signals(once=True)
    server = RoomServer(settings)
    reloader = KeyReloader(options.key_files(variables), settings.keys, server.trust)
    if options.keys is not None:  # otherwise SIGHUP means that the terminal is closed
        loop.add_signal_handler(signal.SIGHUP, reloader.request)
    if supervisor is not None:
        loop.add_reader(supervisor, _stop_at_end, supervisor, stop)
    try:
        starting = _start(server, reloader, share_port=supervisor is not None)
        if not await run_until_stopped(starting, stop):
            return
    except OSError as error:
        raise listen_error(error, settings.host, settings.port) from error
    try:
        async with AsyncExitStack() as stack:
            addresses = await _enter_gateway(stack, options, settings, variables, server.url)
            announce(server.url, *addresses)
            await run_until_stopped(reloader.follow(), stop)
    except BaseException:
        await server.stop()
        raise
    if supervisor is not None:
        server.stop_listening()  # so that new connections go to the other workers
    await server.stop()


async def _start(server: RoomServer, reloader: KeyReloader, *, share_port: bool) -> None:
    await reloader.fetch_sets()  # until then, tokens of these issuers are answered with 503
    await server.start(share_port=share_port)


async def _enter_gateway(
    stack: AsyncExitStack,
    options: ServeOptions,
    settings: ServerSettings,
    variables: Mapping[str, str],
    url: str,
) -> list[str]:
    """Start the gateway, if one is wanted, and return its address. Raises UsageError."""
    if not options.gateway:
        return []
    from toolbus_server.process.gateways import load_gateway  # few servers have one

    if settings.tls is not None:
        url = variables["TOOLBUS_URL"]
    # By loopback where it listens everywhere: a packet to 0.0.0.0 goes there on Linux alone.
    elif (place := {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host)) is not None:
        url = f"ws://{place}:{urlsplit(url).port}"
    try:
        gateway = load_gateway()(
            url,
            host=settings.host,
            port=options.gateway_port,
            tls=settings.tls,
            drain_s=options.drain_s,
            trusted_hosts=tuple(options.trusted_hosts),
            trusted_origins=settings.trusted_origins,
            trusted_proxies=settings.trusted_proxies,
            has_metrics=settings.metrics,
        )
        return [await stack.enter_async_context(gateway)]
    except OSError as error:
        raise listen_error(error, settings.host, options.gateway_port, "--gateway-port") from error


def log_to_stderr(node: str = "", output: LogOutput | None = None) -> None:
    """Write log records to stderr, each with the node's name if one is given.

    By default these are warnings as text, unless the options of this command have chosen.
    """
    if not logging.root.handlers:
        (output or LogOutput()).start(node)
    # An untrusted client that breaks off a handshake must not fill the log.
    logging.getLogger("websockets").setLevel(logging.CRITICAL)  # noqa: TID251 - not ours


async def run_until_stopped(work: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """Run a coroutine until `stop` is set, then cancel it; return whether it finished.

    Its exceptions are raised here.
    """
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    is_done = working.done()
    for task in (working, stopping):
        task.cancel()
        await asyncio.wait([task])
    if is_done:
        working.result()
    return is_done


def _stop_at_end(descriptor: int, stop: asyncio.Event) -> None:
    asyncio.get_running_loop().remove_reader(descriptor)
    stop.set()
