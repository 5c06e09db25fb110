"""`toolbus gateway`: it reads flags and variables, and runs the gateway until a signal ends it."""

from __future__ import annotations

import errno
import json as json_codec
from collections.abc import Callable
from typing import Annotated

import typer

from toolbus.cli.error_report import reporting
from toolbus.cli.options import check_drain, check_listen_host
from toolbus.cli.signals import stop_on_signals
from toolbus.concurrency import event_loop
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.settings import DEFAULT_URL, check_url
from toolbus.telemetry.tracing import recorded
from toolbus_gateway.service import GatewayService, GatewaySettings

__all__ = ["gateway"]


def gateway(
    url: Annotated[
        str, typer.Option(help="The room server.", envvar="TOOLBUS_URL", metavar="URL")
    ] = DEFAULT_URL,
    host: Annotated[
        str, typer.Option(help="Address to listen on.", callback=check_listen_host)
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)
    ] = 7718,
    drain_s: Annotated[
        float,
        typer.Option(
            "--drain",
            help="Seconds that running requests may take to finish at shutdown.",
            envvar="TOOLBUS_DRAIN",
            callback=check_drain,
        ),
    ] = 10.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Let clients of MCP use rooms, over HTTP.

    A client names a room by its address, `http://HOST:7718/rooms/ROOM/mcp`, and sends a token of
    that room as its bearer token. It sees the tools that the token may call.
    """
    with reporting(as_json=json, local=True):
        try:
            check_url(url)
        except ValueError as error:
            raise UsageError(str(error)) from error
        settings = GatewaySettings(url=url, host=host, port=port, drain_s=drain_s)

        def announce(address: str) -> None:
            typer.echo(json_codec.dumps({"url": address}) if json else f"listening on {address}")

        with recorded("toolbus-gateway"):
            event_loop.run(_serve(settings, announce))


async def _serve(settings: GatewaySettings, announce: Callable[[str], None]) -> None:
    stop = stop_on_signals()
    service = GatewayService(settings)
    try:
        await service.start()
    except OSError as error:
        raise _listen_error(error, settings) from error
    announce(service.url)
    await stop.wait()
    await service.stop()


def _listen_error(error: OSError, settings: GatewaySettings) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"port {settings.port} is in use: stop what listens there, or choose another "
            "with --port"
        )
    reason = error.strerror or error
    return UsageError(f"cannot listen on {settings.host}, port {settings.port}: {reason}")
