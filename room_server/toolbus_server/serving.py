"""Runs what `toolbus serve` has settled, one server or several, until a signal ends it.

It says where to connect, and follows the keys. What flags mean is `commands`' and `choices`' work.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import re
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

import typer

from toolbus import event_loop
from toolbus.exit_codes import UsageMistake
from toolbus.recorded import recorded
from toolbus_server.choices import Choices
from toolbus_server.key_watch import KeyFiles, KeyWatch
from toolbus_server.listeners import Listeners
from toolbus_server.told_to_stop import unless_told

if TYPE_CHECKING:
    from toolbus_server.settings import ServerSettings

__all__ = ["run"]


def run(choices: Choices, variables: Mapping[str, str], *, as_json: bool) -> None:
    """Serve until a signal says to end, and until what is under way has ended.

    Raises:
        UsageMistake: It cannot be meant, or the address cannot be had.
        NoWorkers: There were to be several processes, and none of them stays.
        KeyboardInterrupt: A second Ctrl-C came.
    """
    settings = choices.settle(variables)
    key_files = KeyFiles(choices.key_files(variables), settings.keys)
    _log_to_stderr()
    if choices.workers > 1:
        _serve_together(settings, choices, key_files, as_json=as_json)
        return
    with recorded("toolbus-server"):
        event_loop.run(_serve(settings, choices, key_files, as_json=as_json))


def _log_to_stderr() -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # A stranger who breaks off a handshake is no event of ours, and must not fill the log.
    logging.getLogger("websockets").setLevel(logging.CRITICAL)


async def _serve(
    settings: ServerSettings, choices: Choices, key_files: KeyFiles, *, as_json: bool
) -> None:
    from toolbus_server.server import RoomServer  # needs the extra `server`

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = RoomServer(settings)
    watch = KeyWatch(key_files, server.trust)
    if choices.keys is not None:  # else it means, as ever, that the terminal is gone
        loop.add_signal_handler(signal.SIGHUP, watch.ask)
    try:
        if not await unless_told(stop, server.start()):
            return
    except OSError as error:
        raise UsageMistake(_why_not(error, settings)) from error
    _say_ready(server.url, as_json=as_json)
    async with _followed(watch):
        await stop.wait()
    # Who asks twice does not want to wait: the second signal ends the process at once.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    await server.stop()


def _say_ready(url: str, *, as_json: bool) -> None:
    typer.echo(json.dumps({"url": url}) if as_json else f"listening on {url}")


def _serve_together(
    settings: ServerSettings, choices: Choices, key_files: KeyFiles, *, as_json: bool
) -> None:
    """Be the parent of several servers of one address."""
    from toolbus_server.workforce import Workforce  # needs the extra `server`

    import_module("toolbus_server.nodes.node")  # once here, and no worker has to
    try:
        listeners = Listeners(settings.host, settings.port)
    except OSError as error:
        raise UsageMistake(_why_not(error, settings)) from error
    name = settings.node or _made_up_name()
    workforce = Workforce(
        settings=replace(settings, node=name, node_family=secrets.token_hex(8)),
        listeners=listeners,
        count=choices.workers,
        key_files=key_files,
        on_ready=partial(_say_ready, settings.url(listeners.port), as_json=as_json),
        asks_for_keys=choices.keys is not None,
    )
    workforce.run()


def _made_up_name() -> str:
    machine = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname()).strip("-")[:64]
    return f"{machine or 'server'}-{secrets.token_hex(3)}"


@asynccontextmanager
async def _followed(watch: KeyWatch) -> AsyncIterator[None]:
    """Take up changed keys for as long as the block runs."""
    following = asyncio.create_task(watch.follow())
    try:
        yield
    finally:
        following.cancel()
        await asyncio.wait([following])


def _why_not(error: OSError, settings: ServerSettings) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {settings.port} is in use: stop what listens there, or choose another "
            "with --port"
        )
    return f"cannot listen on {settings.host}, port {settings.port}: {error.strerror or error}"
