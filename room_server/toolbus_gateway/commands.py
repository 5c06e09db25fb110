"""`toolbus gateway`: it reads flags and variables, and runs the gateway until a signal ends it."""

from __future__ import annotations

import asyncio
import json as json_codec
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

import typer

from toolbus.bounded_logging import bounded_logger
from toolbus.cli.error_report import reporting
from toolbus.cli.listening import (
    listen_error,
    no_tls_warning,
    raise_descriptor_limit,
    read_origin,
    read_proxies,
    tls_context,
)
from toolbus.cli.options import check_drain, check_listen_host, read_mib, takes
from toolbus.concurrency import event_loop
from toolbus.concurrency.thread_signals import STOP_SIGNALS
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.forked_children import keep_handler_from_children
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

__all__ = ["gateway"]

_MIB = 1024 * 1024
_Switch: TypeAlias = Literal["on", "off"]
_logger = bounded_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class _AccessChoices:
    """The flags about who may send requests."""

    trusted_hosts: Annotated[
        list[str],
        typer.Option(
            "--trusted-host",
            help="Name by which clients reach this gateway, with a port or for any; * is any "
            "name. Repeat it for several. Names of this machine are always trusted.",
            envvar="TOOLBUS_TRUSTED_HOSTS",
            metavar="NAME",
        ),
    ] = ()  # type: ignore[assignment]  # typer makes a list
    trusted_origins: Annotated[
        list[str],
        typer.Option(
            "--trusted-origin",
            help="Origin of web pages that may connect; * is any. Repeat it for several. Pages of "
            "this machine always may.",
            envvar="TOOLBUS_TRUSTED_ORIGINS",
            metavar="ORIGIN",
        ),
    ] = ()  # type: ignore[assignment]
    trusted_proxies: Annotated[
        list[str],
        typer.Option(
            help="Networks of proxies whose X-Forwarded-For names the client, such as 10.0.0.0/8.",
            envvar="TOOLBUS_TRUSTED_PROXIES",
            metavar="CIDR[,CIDR]",
        ),
    ] = ()  # type: ignore[assignment]
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

    def to_settings(self) -> AccessSettings:
        """Return what they mean. Raises UsageError."""
        try:
            hosts = tuple(map(read_host, self.trusted_hosts))
        except ValueError as error:
            raise UsageError(f"--trusted-host: {error}") from error
        return AccessSettings(
            trusted_hosts=hosts,
            trusted_origins=tuple(map(read_origin, self.trusted_origins)),
            trusted_proxies=read_proxies(self.trusted_proxies),
            authorization_servers=tuple(map(_read_issuer, self.authorization_servers)),
            max_per_address=self.max_per_address,
            max_per_token=self.max_per_token,
        )


@takes(_AccessChoices)
def gateway(  # noqa: PLR0913 - a parameter for each flag
    access: _AccessChoices,
    url: Annotated[
        str, typer.Option(help="The room server.", envvar="TOOLBUS_URL", metavar="URL")
    ] = DEFAULT_URL,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on.", envvar="TOOLBUS_LISTEN_HOST", callback=check_listen_host
        ),
    ] = "127.0.0.1",
    # Not TOOLBUS_GATEWAY_PORT: Kubernetes sets it for a service named toolbus-gateway.
    port: Annotated[
        int,
        typer.Option(
            help="Port to listen on; 0 takes a free one.",
            envvar="TOOLBUS_LISTEN_PORT",
            min=0,
            max=65535,
        ),
    ] = 7718,
    tls_cert: Annotated[
        Path | None,
        typer.Option(help="Certificate for TLS, a PEM file.", envvar="TOOLBUS_TLS_CERT"),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(help="The certificate's private key, a PEM file.", envvar="TOOLBUS_TLS_KEY"),
    ] = None,
    call_timeout_s: Annotated[
        float,
        typer.Option(
            "--call-timeout",
            help="Seconds that a call may take; a tool may have a shorter time of its own.",
            envvar="TOOLBUS_CALL_TIMEOUT",
            min=0.001,
            max=86_400,
        ),
    ] = CALL_TIMEOUT_S,
    max_result_mib: Annotated[
        int,
        typer.Option(
            "--max-result",
            help="Limit in MiB of the content of one result.",
            envvar="TOOLBUS_MAX_RESULT",
            metavar="MIB",
            parser=read_mib,
        ),
    ] = MAX_RESULT_BYTES // _MIB,
    drain_s: Annotated[
        float,
        typer.Option(
            "--drain",
            help="Seconds that running calls may take to finish at shutdown.",
            envvar="TOOLBUS_DRAIN",
            callback=check_drain,
        ),
    ] = 10.0,
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
        settings = GatewaySettings(
            url=url,
            host=host,
            port=port,
            drain_s=drain_s,
            calls=CallSettings(timeout_s=call_timeout_s, max_result_bytes=max_result_mib * _MIB),
            access=access.to_settings(),
            tls=tls_context(tls_cert, tls_key),
            has_metrics=metrics == "on",
        )
        output = chosen_output()
        warn = _logger.warning if output and output.as_json else partial(typer.echo, err=True)
        if not logging.root.handlers:
            LogOutput().start()
        if settings.tls is None and not is_loopback_host(host):
            warn(no_tls_warning(host))

        def announce(address: str) -> None:
            typer.echo(json_codec.dumps({"url": address}) if json else f"listening on {address}")

        # A request has one for its client, and one for the room: 1,024 is a common limit.
        raise_descriptor_limit()
        with recorded("toolbus-gateway"):
            event_loop.run(_serve(settings, announce))


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
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        for number in STOP_SIGNALS:  # the next signal ends the process at once
            loop.remove_signal_handler(number)
            # Python's own for Ctrl-C raises in any task, also in uvicorn's, which log and go on.
            signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal)
        keep_handler_from_children(number)
    service = GatewayService(settings)
    try:
        await service.start()
    except OSError as error:
        raise listen_error(error, settings.host, settings.port) from error
    announce(service.url)
    await stop.wait()
    await service.stop()
