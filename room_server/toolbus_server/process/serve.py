"""Runs one room server with the settings of `toolbus serve`, until a signal ends it.

The options are read in `serve_options`; several servers behind one port are `workers`' task.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from toolbus.bounded_logging import bounded_logger
from toolbus.concurrency import event_loop
from toolbus.concurrency.thread_signals import STOP_SIGNALS
from toolbus.diagnostics.exit_codes import UsageError
from toolbus.forked_children import keep_handler_from_children
from toolbus.log_output import LogOutput
from toolbus.telemetry.tracing import recorded
from toolbus_server.access.connection_limits import raise_descriptor_limit
from toolbus_server.process.key_files import KeyReloader
from toolbus_server.process.serve_options import ServeOptions
from toolbus_server.settings import ServerSettings
from toolbus_server.websocket.server import RoomServer

__all__ = [
    "listen_error",
    "log_to_stderr",
    "run",
    "run_until_stopped",
]

_logger = bounded_logger(__name__)


def run(
    options: ServeOptions,
    settings: ServerSettings,
    variables: Mapping[str, str],
    announce: Callable[[str], object],
    *,
    supervisor: int | None = None,
) -> None:
    """Run a server until SIGTERM or SIGINT, then drain it; a second signal ends the process.

    Args:
        options: The options of `toolbus serve`.
        settings: The settings that follow from the options.
        variables: The environment.
        announce: Called with the server's URL once it listens.
        supervisor: For a worker: the descriptor of a pipe whose end means stop. A worker shares
            its port with the other workers.

    Raises:
        UsageError: The address is not available.
        NameTaken: Another living node has the name in the settings.
        KeyboardInterrupt: A second Ctrl-C came.
    """
    _logger.info("file descriptors: at most %d", raise_descriptor_limit())
    with recorded("toolbus-server"):
        event_loop.run(_serve(options, settings, variables, announce, supervisor))


async def _serve(
    options: ServeOptions,
    settings: ServerSettings,
    variables: Mapping[str, str],
    announce: Callable[[str], object],
    supervisor: int | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, _on_stop_signal, stop)
        keep_handler_from_children(number)
    server = RoomServer(settings)
    reloader = KeyReloader(options.key_files(variables), settings.keys, server.trust)
    if options.keys is not None:  # otherwise SIGHUP means that the terminal is closed
        loop.add_signal_handler(signal.SIGHUP, reloader.request)
    if supervisor is not None:
        loop.add_reader(supervisor, _stop_at_end, supervisor, stop)
    try:
        if not await run_until_stopped(server.start(share_port=supervisor is not None), stop):
            return
    except OSError as error:
        raise listen_error(error, settings) from error
    announce(server.url)
    following = asyncio.create_task(reloader.follow())
    try:
        await stop.wait()
    finally:
        following.cancel()
        await asyncio.wait([following])
    if supervisor is not None:
        server.stop_listening()  # so that new connections go to the other workers
    await server.stop()


def log_to_stderr(node: str = "", output: LogOutput | None = None) -> None:
    """Write log records to stderr, each with the node's name if one is given.

    Args:
        node: The node's name.
        output: What is logged, and how; by default warnings as text, unless the options of this
            command have chosen.
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


def listen_error(error: OSError, settings: ServerSettings) -> UsageError:
    """Return the error of a command whose server cannot listen on its address."""
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"port {settings.port} is in use: stop what listens there, or choose another "
            "with --port"
        )
    reason = error.strerror or error
    return UsageError(f"cannot listen on {settings.host}, port {settings.port}: {reason}")


def _on_stop_signal(stop: asyncio.Event) -> None:
    for number in STOP_SIGNALS:  # the next signal ends the process at once
        asyncio.get_running_loop().remove_signal_handler(number)
    stop.set()


def _stop_at_end(descriptor: int, stop: asyncio.Event) -> None:
    asyncio.get_running_loop().remove_reader(descriptor)
    stop.set()
