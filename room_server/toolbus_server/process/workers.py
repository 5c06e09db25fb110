"""Several servers behind one port: `toolbus serve --workers N`.

Each worker is a process with an ordinary server, a node with a name of its own. All bind one port
with `SO_REUSEPORT`, so the kernel spreads the connections over them. A worker reads its options
from stdin and drains when stdin ends; so it also stops when its supervisor is killed. It writes to
stdout: that it listens, or why its node name is refused, then heartbeats; one that stays silent is
killed and replaced. All log to the same stderr.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import secrets
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from toolbus.bounded_logging import bounded_logger
from toolbus.cli.listening import listen_error
from toolbus.concurrency.thread_signals import STOP_SIGNALS
from toolbus.diagnostics.exit_codes import exit_code
from toolbus.errors import RoomException, Unavailable
from toolbus.log_output import chosen_output
from toolbus_server.cluster.lease import NameTaken
from toolbus_server.process.serve import ServeOptions, log_to_stderr, run
from toolbus_server.settings import ServerSettings

__all__ = ["NoWorkers", "Supervisor", "reserve_port", "run_workers"]

HEARTBEAT = b"\n"
"""An empty line; a worker writes other lines too."""
HEARTBEAT_S = 1.0
"""Seconds between two heartbeats."""
SILENCE_S = 15.0
"""Seconds without a heartbeat after which a worker hangs; its lease has expired by then."""
_CHECKS = 5
_COMMAND = (sys.executable, "-m", __name__)
_LISTENING = b"listening\n"
_LONG_LIFE_S, _PAUSE_S, _LONGEST_PAUSE_S = 10.0, 0.25, 15.0
"""A worker that ran for `_LONG_LIFE_S` is restarted at once, after a shorter life with a pause."""
_MAX_FAILURES = 3
"""The supervisor gives up after this number of failed starts in a row while no worker listens."""
_STOP_MARGIN_S = 15.0
"""How long a worker may take to stop, beyond the time that calls have to finish."""
_logger = bounded_logger("toolbus_server.process.workers")


def send_heartbeats(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    """Write heartbeats to a pipe until its reader closes it; from the loop alone."""
    os.set_blocking(descriptor, False)  # a supervisor that does not read must not stop the worker

    def beat() -> None:
        with suppress(BlockingIOError):
            try:
                os.write(descriptor, HEARTBEAT)
            except BrokenPipeError:
                return
        loop.call_later(HEARTBEAT_S, beat)

    beat()


async def is_silent(lines: asyncio.StreamReader) -> bool:
    """Wait for the end of a worker's output, or for its silence; return whether it is silent.

    Checks are counted, not time: a machine that was suspended has not waited.
    """
    has_beaten, checks = False, 0
    while checks < _CHECKS:
        try:
            async with asyncio.timeout(SILENCE_S / _CHECKS):
                if not await lines.readline():
                    return False
        except TimeoutError:
            checks += has_beaten
        else:
            has_beaten, checks = True, 0
    return True


class NoWorkers(Unavailable):
    """No worker can be started."""

    next_step = "the log above shows why the workers ended"


def run_workers(
    options: ServeOptions, settings: ServerSettings, announce: Callable[[str], None]
) -> None:
    """Run several servers on one port until SIGTERM or SIGINT, then drain them.

    Raises:
        UsageError: The address is not available.
        NameTaken: At the start another living node has the name of a worker.
        NoWorkers: No worker can be started.
        KeyboardInterrupt: A second Ctrl-C came.
    """
    try:
        reserved = reserve_port(settings.host, settings.port)
    except OSError as error:
        raise listen_error(error, settings.host, settings.port) from error
    with reserved:
        port: int = reserved.getsockname()[1]
        machine = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname()).strip("-")[:64]
        generated = f"{machine or 'server'}-{secrets.token_hex(3)}"
        shared = replace(options, port=port, node=options.node or generated)
        asyncio.run(Supervisor(shared, partial(announce, settings.url(port))).run())


def reserve_port(host: str, port: int) -> socket.socket:
    """Reserve a port, 0 for any, with a socket that does not listen. OSError if it is in use."""
    kinds = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = kinds[0]
    reserved = socket.socket(family, socket.SOCK_STREAM)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        reserved.bind(address)
        # Only once it is bound, so that a port of another server is refused.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except BaseException:
        reserved.close()
        raise
    return reserved


class Supervisor:
    """Starts workers, restarts those that end, and stops them all.

    Args:
        options: Of all workers. `node` is the common part of their names, `port` their port.
        on_ready: Called once, when all workers listen.
        command: Starts a worker.
    """

    def __init__(
        self, options: ServeOptions, on_ready: Callable[[], None], command: Sequence[str] = _COMMAND
    ) -> None:
        self._options, self._on_ready, self._command = options, on_ready, command
        # By it the next worker of a name ends the lease that a killed one left.
        self._family = secrets.token_hex(8)
        self._running: dict[int, Process] = {}
        self._listening: set[int] = set()
        self._is_ready, self._failures = False, 0
        self._stopping = asyncio.Event()
        self._killed_by: signal.Signals | None = None
        self._error: RoomException | None = None

    async def run(self) -> None:
        """Run the workers until SIGTERM or SIGINT; a second signal kills them."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._on_stop_signal, number)
        if self._options.keys is not None:
            loop.add_signal_handler(signal.SIGHUP, self._reload_keys)
        try:
            await asyncio.gather(*map(self._keep_running, range(1, self._options.workers + 1)))
        finally:
            self._kill_all()
        if self._killed_by is not None:
            loop.remove_signal_handler(self._killed_by)
            signal.raise_signal(self._killed_by)
        if self._error is not None:
            raise self._error

    async def _keep_running(self, number: int) -> None:
        """Run one worker after the other under one name, with a pause after a short life."""
        now, name, pause_s = asyncio.get_running_loop().time, f"{self._options.node}-{number}", 0.0
        while not self._stopping.is_set():
            began_s = now()
            how = await self._run_worker(number, name)
            if self._stopping.is_set():
                if how and self._error is None:
                    _logger.warning("worker %s%s", name, how)
                return
            pause_s = min(max(_PAUSE_S, 2 * pause_s), _LONGEST_PAUSE_S)
            if now() - began_s >= _LONG_LIFE_S:
                pause_s = 0.0
            _logger.warning("worker %s%s: restart in %.1f s", name, how or ", ended", pause_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)

    async def _run_worker(self, number: int, name: str) -> str:
        """Run one worker to its end, and return how it ended; "" if all is well."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, process_group=0
            )
        except OSError as error:
            self._on_line(number, name, b"")
            return f" cannot be started, {error}"
        assert process.stdin is not None
        assert process.stdout is not None
        self._running[number] = process
        try:
            own = replace(self._options, node=name, workers=1)
            process.stdin.write(pickle.dumps((own, self._family, chosen_output())))
            if self._killed_by:  # since before it was started
                self._kill_all()
            elif self._stopping.is_set():
                self._drain_all()
            self._on_line(number, name, await process.stdout.readline())
            if is_hanging := await is_silent(process.stdout):
                with suppress(ProcessLookupError):
                    process.kill()
            code = await process.wait()
        finally:
            del self._running[number]
            self._listening.discard(number)
        if not code:
            return ""
        how = f"with exit code {code}"
        if code < 0:
            how = f"by {signal.Signals(-code).name}"
        if is_hanging:
            how += ", as it did not respond"
        return f", pid {process.pid}, ended {how}"

    def _on_line(self, number: int, name: str, line: bytes) -> None:
        """Process what a worker wrote: that it listens, or why not; "" if it ended before."""
        if line == _LISTENING:
            self._failures = 0
            self._listening.add(number)
            if not self._is_ready and len(self._listening) == self._options.workers:
                self._is_ready = True
                self._on_ready()
            return
        self._failures += 1
        if line and self._is_ready:
            _logger.error("worker %s cannot be started: %s", name, line.decode())
        elif line:
            self._stop(NameTaken(line.decode()))
        if self._failures >= _MAX_FAILURES and not self._listening:
            reason = f"none of {self._options.workers} workers can be started"
            self._stop(NoWorkers(reason, executed="no"))

    def _on_stop_signal(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            self._killed_by = number
            self._kill_all()
        self._stop(None)

    def _stop(self, error: RoomException | None) -> None:
        """Drain all workers, because of an error or a signal; kill those that take too long."""
        if self._stopping.is_set():
            return
        self._error = error
        self._stopping.set()
        self._drain_all()
        limit_s = self._options.drain_s + _STOP_MARGIN_S
        asyncio.get_running_loop().call_later(limit_s, self._kill_all)

    def _drain_all(self) -> None:
        for process in self._running.values():
            process.stdin.close()  # type: ignore[union-attr]  # a pipe, as `_run_worker` asks for

    def _kill_all(self) -> None:
        for process in self._running.values():
            with suppress(ProcessLookupError):
                process.kill()

    def _reload_keys(self) -> None:
        for number in self._listening:  # the others are about to read the keys
            with suppress(ProcessLookupError):
                self._running[number].send_signal(signal.SIGHUP)


def _announce(_url: str) -> None:
    os.write(1, _LISTENING)
    send_heartbeats(asyncio.get_running_loop(), 1)


def _main() -> int:
    """Be a worker, in a process of its own; return the exit code."""
    options, family, output = pickle.load(sys.stdin.buffer)
    log_to_stderr(options.node, output)
    try:
        settings = replace(options.to_settings(os.environ, lambda _: None), node_family=family)
        run(options, settings, os.environ, _announce, supervisor=0)
    except RoomException as error:
        if isinstance(error, NameTaken):
            os.write(1, error.message.encode())
        else:
            _logger.error("%s", error.message)
        return exit_code(error)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
