"""`toolbus gateway`: it reads flags and variables, and runs the gateway until a signal ends it.

`toolbus serve --gateway` runs one by the same variables.
"""

from __future__ import annotations

import json as json_codec
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

import typer
from mcp.server.request_state import AESGCMRequestStateCodec
from typer.main import get_command

from toolbus.bounded_logging import bounded_logger
from toolbus.cli.arguments import read_file
from toolbus.cli.error_report import reporting
from toolbus.cli.listening import (
    listen_error,
    no_tls_warning,
    no_trusted_hosts_warning,
    raise_descriptor_limit,
    read_origin,
    read_proxies,
    tls_context,
)
from toolbus.cli.options import (
    ListenHost,
    ListenPort,
    ServerDrain,
    TlsCert,
    TlsKey,
    TrustedProxies,
    read_mib,
    takes,
)
from toolbus.cli.signals import stop_on_signals
from toolbus.concurrency import event_loop
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.log_output import LogOutput, chosen_output
from toolbus.settings import DEFAULT_URL, check_url, is_loopback_host
from toolbus.telemetry.tracing import recorded
from toolbus_gateway.http_access import AccessSettings, read_host
from toolbus_gateway.limits import (
    CALL_TIMEOUT_S,
    MAX_PER_ADDRESS,
    MAX_PER_TOKEN,
    MAX_RESULT_BYTES,
)
from toolbus_gateway.service import GatewayService, GatewaySettings
from toolbus_gateway.tool_calls import CallSettings

__all__ = ["gateway", "running_beside"]

_MIB = 1024 * 1024
_Switch: TypeAlias = Literal["on", "off"]
_logger = bounded_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Choices:
    """The flags about requests and calls; `toolbus serve --gateway` has only their variables."""

    trusted_hosts: Annotated[
        list[str],
        typer.Option(
            help="Name by which clients reach this gateway, with a port or for any; * is any "
            "name. Repeat it for several. Without it only those of loopback, such as localhost.",
            envvar="TOOLBUS_TRUSTED_HOSTS",
            metavar="NAME",
        ),
    ] = ()  # type: ignore[assignment]  # typer makes a list
    trusted_origins: Annotated[
        list[str],
        typer.Option(
            help="Origin of web pages that may connect; * is any. Repeat it for several. Pages of "
            "loopback always may.",
            envvar="TOOLBUS_TRUSTED_ORIGINS",
            metavar="ORIGIN",
        ),
    ] = ()  # type: ignore[assignment]
    trusted_proxies: TrustedProxies = ()  # type: ignore[assignment]
    authorization_servers: Annotated[
        list[str],
        typer.Option(
            "--authorization-server",
            help="Server where clients get tokens, as its issuer's URL; the room server must trust "
            "its keys. Repeat it for several.",
            envvar="TOOLBUS_AUTHORIZATION_SERVERS",
            metavar="URL",
        ),
    ] = ()  # type: ignore[assignment]
    max_per_address: Annotated[
        int,
        typer.Option(
            help="Limit of requests of one IP address at a time; 0 for no limit.",
            envvar="TOOLBUS_MAX_PER_ADDRESS",
            min=0,
        ),
    ] = MAX_PER_ADDRESS
    max_per_token: Annotated[
        int,
        typer.Option(
            help="Limit of requests with one token at a time; 0 for no limit.",
            envvar="TOOLBUS_MAX_PER_TOKEN",
            min=0,
        ),
    ] = MAX_PER_TOKEN
    call_timeout_s: Annotated[
        float,
        typer.Option(
            "--call-timeout",
            help="Seconds that a call may take; a tool may have a shorter time of its own.",
            envvar="TOOLBUS_CALL_TIMEOUT",
            min=0.001,
            max=86_400,
        ),
    ] = CALL_TIMEOUT_S
    max_result_mib: Annotated[
        int,
        typer.Option(
            "--max-result",
            help="Limit in MiB of the content of one result.",
            envvar="TOOLBUS_MAX_RESULT",
            metavar="MIB",
            parser=read_mib,
        ),
    ] = MAX_RESULT_BYTES // _MIB
    state_keys: Annotated[
        list[str],
        typer.Option(
            "--state-key",
            help="Secret of 32 characters or more, or @FILE with it, the same at all replicas: it "
            "seals what a client brings back with the answer of its user. To change it, repeat it: "
            "the first one seals, all are accepted.",
            envvar="TOOLBUS_STATE_KEY",
            metavar="SECRET|@FILE",
        ),
    ] = ()  # type: ignore[assignment]

    def settings(self, **more: Any) -> GatewaySettings:
        """Return what they mean, with the other settings. Raises UsageError."""
        try:
            hosts = tuple(map(read_host, self.trusted_hosts))
        except ValueError as error:
            raise UsageError(f"--trusted-hosts: {error}") from error
        max_result_bytes = self.max_result_mib * _MIB
        access = AccessSettings(
            trusted_hosts=hosts,
            trusted_origins=tuple(map(read_origin, self.trusted_origins)),
            trusted_proxies=read_proxies(self.trusted_proxies),
            authorization_servers=tuple(map(_read_issuer, self.authorization_servers)),
            max_per_address=self.max_per_address,
            max_per_token=self.max_per_token,
        )
        calls = CallSettings(timeout_s=self.call_timeout_s, max_result_bytes=max_result_bytes)
        keys = tuple(map(_read_state_key, self.state_keys))
        try:
            if keys:
                AESGCMRequestStateCodec(keys)
        except ValueError as error:
            raise UsageError(f"--state-key: {error}") from error
        return GatewaySettings(calls=calls, access=access, state_keys=keys, **more)


@takes(_Choices)
def gateway(  # noqa: PLR0913 - a parameter for each flag
    choices: _Choices,
    url: Annotated[
        str, typer.Option(help="The room server.", envvar="TOOLBUS_URL", metavar="URL")
    ] = DEFAULT_URL,
    host: ListenHost = "127.0.0.1",
    port: ListenPort = 7718,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    drain_s: ServerDrain = 10.0,
    metrics: Annotated[
        _Switch,
        typer.Option(help="Whether /metrics is answered.", envvar="TOOLBUS_METRICS"),
    ] = "on",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Let clients of MCP use rooms, over HTTP.

    A client names a room by its address, `http://HOST:7718/rooms/ROOM/mcp`, and sends a token of
    that room as its bearer token. It sees the tools that the token may call. SIGTERM and Ctrl-C end
    it; calls in flight may finish, and a second signal ends it at once.
    """
    with reporting(as_json=json, local=True):
        try:
            check_url(url)
        except ValueError as error:
            raise UsageError(str(error)) from error
        settings = choices.settings(
            url=url,
            host=host,
            port=port,
            drain_s=drain_s,
            tls=tls_context(tls_cert, tls_key),
            has_metrics=metrics == "on",
        )
        output = chosen_output()
        warn = _logger.warning if output and output.as_json else partial(typer.echo, err=True)
        if not logging.root.handlers:
            LogOutput().start()
        if settings.tls is None and not is_loopback_host(host):
            warn(no_tls_warning(host))
        if not choices.trusted_hosts and not is_loopback_host(host):
            warn(no_trusted_hosts_warning(host))

        def announce(address: str) -> None:
            typer.echo(json_codec.dumps({"url": address}) if json else f"listening on {address}")

        # A request has one for its client, and one for the room: 1,024 is a common limit.
        raise_descriptor_limit()
        with recorded("toolbus-gateway"):
            event_loop.run(_serve(settings, announce))


@takes(_Choices)
def _without_flags(choices: _Choices) -> None: ...


def _chosen_by_variables() -> _Choices:
    declared = typer.Typer(add_completion=False)
    declared.command()(_without_flags)
    try:
        return _Choices(**get_command(declared).make_context("gateway", []).params)
    except typer.BadParameter as error:
        raise UsageError(error.format_message()) from error


@asynccontextmanager
async def running_beside(  # noqa: PLR0913 - what `toolbus_server.process.gateways` asks for
    url: str,
    *,
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    drain_s: float,
    trusted_hosts: tuple[str, ...],
    trusted_origins: tuple[str, ...],
    trusted_proxies: tuple[str, ...],
    has_metrics: bool,
) -> AsyncIterator[str]:
    """Run a gateway in the process of a room server, for the block; its address is what that gets.

    Its limits are those of the variables that `toolbus gateway` reads.

    Raises:
        OSError: The address is not available.
        UsageError: A trusted host or a variable is not valid.
    """
    choices = replace(
        _chosen_by_variables(),
        trusted_hosts=list(trusted_hosts),
        trusted_origins=list(trusted_origins),
        trusted_proxies=list(trusted_proxies),
    )
    service = GatewayService(
        choices.settings(
            url=url, host=host, port=port, drain_s=drain_s, tls=tls, has_metrics=has_metrics
        )
    )
    await service.start()
    try:
        yield service.url
    finally:
        await service.stop()


def _read_state_key(text: str) -> str:
    return read_file("--state-key", text[1:]).strip() if text.startswith("@") else text


def _read_issuer(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_one = False
    if not is_one or parts.query or parts.fragment:
        raise UsageError(f"{text!r} is not an issuer: write it like https://login.example.org")
    return text


async def _serve(settings: GatewaySettings, announce: Callable[[str], None]) -> None:
    stop = stop_on_signals(once=True)
    service = GatewayService(settings)
    try:
        await service.start()
    except OSError as error:
        raise listen_error(error, settings.host, settings.port) from error
    announce(service.url)
    await stop.wait()
    await service.stop()
